"""Seconds from nothing to a summary, in fresh processes with default settings: ours against NUTS on the same model."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MODELS = {"eight_schools": "eight schools", "random_walk": "random walk, 200 latents"}
REPETITIONS = 3


def run() -> Iterator[dict]:
    seconds = {(model, method): [] for model in MODELS for method in METHODS}
    for _ in range(REPETITIONS):
        for model, method in seconds:
            seconds[model, method].append(process(model, method))
    for model, title in MODELS.items():
        ours, nuts = (statistics.median(seconds[model, method]) for method in METHODS)
        row = {"model": title, "mgvi (s)": ours, "NUTS 1000 + 1000 (s)": nuts, "ratio": ours / nuts}
        yield row | {
            f"{method}, all": ", ".join(f"{s:.2f}" for s in sorted(seconds[model, method])) for method in METHODS
        }


def process(model: str, method: str) -> float:
    """Wall-clock seconds of a process that infers, its start included, without a cache of compiled programs."""
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64")}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cold", model, method]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[1], env=environment)
    return time.perf_counter() - start


def mgvi(case) -> None:
    import mgvi

    posterior = mgvi.fit(mgvi.from_numpyro(case.model, *case.arguments), seed=1, progress=False)
    print(posterior.summary())


def nuts(case) -> None:
    import jax
    from numpyro.infer import MCMC, NUTS

    chain = MCMC(NUTS(case.model), num_warmup=1000, num_samples=1000, progress_bar=False)
    chain.run(jax.random.key(1), *case.arguments)
    jax.block_until_ready(chain.get_samples())


METHODS = {"mgvi": mgvi, "NUTS": nuts}

if __name__ == "__main__":
    from benchmarks import cases

    METHODS[sys.argv[2]](getattr(cases, sys.argv[1])())
