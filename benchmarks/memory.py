"""Peak memory of a 1024^2 classification with eight pairs on a GPU, in arrays of the latent's size.

By the books of two allocators: one that gives what is asked for, and JAX's own, which may give blocks of up to twice
that. Each is chosen when a process begins.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

ALLOCATORS = {"exact (cuda_async)": "cuda_async", "JAX's default": "default"}
SIZE = 1024


def run() -> Iterator[dict]:
    for label, allocator in ALLOCATORS.items():
        environment = {**os.environ, "XLA_PYTHON_CLIENT_ALLOCATOR": allocator}
        command = [sys.executable, "-m", "benchmarks.memory"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip().splitlines()[-1])
        yield {"allocator": label, **json.loads(done.stdout.splitlines()[-1])}


def measure() -> dict:
    """In a fresh process: one fit, cold."""
    import jax
    import numpy as np

    import mgvi
    from benchmarks.scaling import classification

    device = jax.devices()[0]
    if device.memory_stats() is None:
        raise SystemExit(f"peak memory of a device is not known for {device.device_kind}: run this on a GPU.")
    problem = classification(SIZE)[0]
    array = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in problem.latent.values())
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=1, progress=False)
    peak = device.memory_stats()["peak_bytes_in_use"]
    return {
        "device": device.device_kind,
        "grid": f"{SIZE}^2",
        "pairs": max(record["pairs"] for record in posterior.history),
        "peak (GB)": peak / 1e9,
        "arrays": float(peak / array),
        "cold (s)": time.perf_counter() - start,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
