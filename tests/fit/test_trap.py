"""A field whose spectrum and whose noise are unknown: the plain loop is trapped, the automatic schedule is not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi.fields import Grid, Matern, StationaryField, select, smooth_spectrum

NOISE = 0.3
SHAPE = (32, 36)


@pytest.fixture(scope="module")
def gaps():
    """Noisy pixels of a smooth field with a hole, the field, and the pixels that are not seen."""
    large = Grid(tuple(3 * n for n in SHAPE))
    draw = StationaryField(large, Matern(1.5, length=8.0, amplitude=2.0)).sample(jax.random.key(5))
    field = np.asarray(draw)[: SHAPE[0], : SHAPE[1]]
    rng = np.random.default_rng(3)
    seen = rng.random(SHAPE) < 0.9
    seen[10:18, 12:24] = False
    data = (field + NOISE * rng.standard_normal(SHAPE))[seen]
    grid = Grid(SHAPE, periodic=False, padding=0.25)

    def model(data):
        level = numpyro.sample("level", dist.Normal(0.0, 10.0))
        spectrum = smooth_spectrum("p", grid, sd=(3.0, 3.0), slope=(-3.0, 1.0))
        s = numpyro.sample("s", StationaryField(grid, spectrum))
        signal = numpyro.deterministic("signal", level + grid.crop(s))
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
        numpyro.sample("data", dist.Normal(select(Grid(SHAPE), seen)(signal), noise), obs=data)

    return mgvi.from_numpyro(model, jnp.asarray(data, jnp.float32)), field, ~seen


def noise_of(problem, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mgvi.MgviWarning)
        posterior = mgvi.fit(problem, seed=1, progress=False, samples=16, **options)
    return posterior, float(posterior.at_mean["noise"])


@pytest.mark.slow
def test_plain_loop_takes_its_unconverged_deviations_for_noise(gaps):
    _, noise = noise_of(gaps[0], schedule=[mgvi.Stage(pairs=1, cg=5, newton=1, rounds=12)])
    assert noise > 2 * NOISE


def test_automatic_schedule_finds_noise_and_field(gaps):
    problem, field, hidden = gaps
    posterior, noise = noise_of(problem, max_rounds=30)
    np.testing.assert_allclose(noise, NOISE, rtol=0.15)
    # The hole is filled to a third of the field's sd.
    error = posterior.mean["signal"] - field
    assert np.sqrt(np.mean(error[hidden] ** 2)) < 0.33 * field.std()
