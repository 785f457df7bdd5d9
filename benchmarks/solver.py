"""What coordinates, preconditioner and coupling bring to the draws: a field with gaps, spectrum and noise unknown.

Eight deviations are drawn at the mean of a fit, in each way of solving. Errors are those of the worst global parameter
(spectrum, noise, level) and of the field's latent, in posterior sds, against a solve to the accuracy of the arithmetic.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from mgvi.fields import Grid, Matern, StationaryField, select, smooth_spectrum
from mgvi.gaussian import Keys, KrylovCurvature
from mgvi.gaussian.krylov import estimated_diagonal, preconditioned
from mgvi.linalg import Preconditioner, Stop, global_sites

SHAPE = (128, 160)
KEYS = 8


def gaps():
    """Noisy pixels of a smooth field with a hole."""
    large = Grid(tuple(3 * n for n in SHAPE))
    draw = StationaryField(large, Matern(1.5, length=8.0, amplitude=2.0)).sample(jax.random.key(5))
    rng = np.random.default_rng(3)
    seen = rng.random(SHAPE) < 0.9
    seen[10:20, 15:30] = False
    data = (np.asarray(draw)[: SHAPE[0], : SHAPE[1]] + 0.3 * rng.standard_normal(SHAPE))[seen]
    grid = Grid(SHAPE, periodic=False, padding=0.25)

    def model(data):
        level = numpyro.sample("level", dist.Normal(0.0, 10.0))
        spectrum = smooth_spectrum("p", grid, sd=(3.0, 3.0), slope=(-3.0, 1.0))
        s = numpyro.sample("s", StationaryField(grid, spectrum))
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
        numpyro.sample("data", dist.Normal(level + select(grid, seen)(s), noise), obs=data)

    return mgvi.from_numpyro(model, jnp.asarray(data))


def run() -> Iterator[dict]:
    jax.config.update("jax_enable_x64", True)
    standard = gaps()
    posterior = mgvi.fit(standard, seed=1, progress=False, samples=16)
    gaussian: Any = posterior.approximation
    here = jax.tree.map(jnp.asarray, (posterior.latent_mean, gaussian.mean))
    free = {name: jnp.ones(()) for name in standard.latent}
    cases = {"standard": (standard, here[0]), "adapted": (standard.in_chart(gaussian.chart), here[1])}
    for coordinates, (problem, mean) in cases.items():
        problem = problem.with_budget(replace(problem.budget, drawn=KEYS))
        plain, keys = KrylovCurvature(problem, mean, free), Keys(1, 5, KEYS)
        diagonal = estimated_diagonal(plain)
        block, _ = preconditioned(plain, diagonal, thorough=True)
        exact, _ = block.draw(keys, Stop(1e-12, 0.0, 10_000))
        names = global_sites(problem.latent)
        sd = {name: np.sqrt(np.mean(np.square(exact[name]), axis=0)) for name in names}
        small, _ = preconditioned(plain, diagonal)
        only = replace(plain, preconditioner=Preconditioner(diagonal))
        ways = {"none": plain, "diagonal": only, "block of global sites": small, "and more": block}
        for way, curvature in ways.items():
            for coupled in (False, True):
                for iterations in (40, 160):
                    stop = Stop(0.0, 0.0, iterations)
                    jax.block_until_ready(curvature.draw(keys, stop, coupled))
                    start = time.perf_counter()
                    found, _ = jax.block_until_ready(curvature.draw(keys, stop, coupled))
                    seconds = time.perf_counter() - start
                    error = max(float(np.max(np.abs(found[name] - exact[name]) / sd[name])) for name in names)
                    field = float(np.sqrt(np.mean((found["s"] - exact["s"]) ** 2) / np.mean(exact["s"] ** 2)))
                    yield {
                        "coordinates": coordinates,
                        "preconditioner": way,
                        "coupled": coupled,
                        "iterations": iterations,
                        "seconds": seconds,
                        "worst global error (sd)": error,
                        "rms error of the field's latent (sd)": field,
                    }
