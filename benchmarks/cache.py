"""Cold starts with JAX's persistent cache of compiled programs, against a tuned NIFTy without one.

Names of problems come in; a row for each start goes out.

A first posterior is the first round for NIFTy, and for us the first that has the whole likelihood; what follows for us
is the result. Seconds count from the start of the process; the cache is empty before our first run, and what that left
there is found by the second.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import peers

PROBLEMS = ("poisson", "128", "logistic")


def run(problems: Sequence[str] = PROBLEMS) -> Iterator[dict]:
    for problem in problems:
        with tempfile.TemporaryDirectory() as folder:
            peer = measure(problem, "NIFTy, tuned", None)
            empty, filled = (measure(problem, "mgvi", folder) for _ in range(2))
        starts = (("NIFTy, tuned", peer), ("mgvi, empty cache", empty), ("mgvi, filled cache", filled))
        for label, found in starts:
            yield {
                "problem": found["title"],
                "start": label,
                "first posterior (s)": found["first posterior"],
                "over NIFTy's": found["first posterior"] / peer["first posterior"],
                "cold start (s)": found["cold"],
                "over NIFTy's first": found["cold"] / peer["first posterior"],
                "compilations": found["compilations"],
            }


def measure(problem: str, name: str, cache: str | None) -> dict:
    """One cold run in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64")}
    if cache is not None:
        options = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, **options}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cache", problem, name, str(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], env=environment)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    problem, name, began = sys.argv[1:]
    print(json.dumps(peers.begin(problem, name, float(began))[2]))
