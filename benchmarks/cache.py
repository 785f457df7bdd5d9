"""Cold starts with JAX's persistent cache of compiled programs, against a tuned NIFTy without one.

Names of problems come in; a row for each start goes out: medians of three.

A first posterior is the first round for NIFTy, and for us the first that has the whole likelihood; what follows for us
is the result. Seconds count from the start of the process, and once more from where all libraries are imported; the
cache is empty before our first run, and what that left there is found by the second.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import peers

PROBLEMS = ("poisson", "128", "logistic")
PEER = "NIFTy, tuned"
REPETITIONS = 3


def run(problems: Sequence[str] = PROBLEMS) -> Iterator[dict]:
    for problem in problems:
        runs = [attempt(problem) for _ in range(REPETITIONS)]
        middle = {start: _medians([found[start] for found in runs]) for start in runs[0]}
        peer = middle[PEER]
        for start, found in middle.items():
            yield {
                "problem": runs[0][start]["title"],
                "start": start,
                "first posterior (s)": found["first posterior"],
                "over NIFTy's": found["first posterior"] / peer["first posterior"],
                "of that imports (s)": found["imports"],
                "over NIFTy's, without imports": _without_imports(found) / _without_imports(peer),
                "cold start (s)": found["cold"],
                "over NIFTy's first": found["cold"] / peer["first posterior"],
                "compilations": runs[0][start]["compilations"],
            }


def _medians(runs: list[dict]) -> dict[str, float]:
    return {name: statistics.median(found[name] for found in runs) for name in ("first posterior", "imports", "cold")}


def _without_imports(found: dict) -> float:
    return found["first posterior"] - found["imports"]


def attempt(problem: str) -> dict[str, dict]:
    """What each start found."""
    with tempfile.TemporaryDirectory() as folder:
        peer = measure(problem, PEER, None)
        empty, filled = (measure(problem, "mgvi", folder) for _ in range(2))
    return {PEER: peer, "mgvi, empty cache": empty, "mgvi, filled cache": filled}


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
