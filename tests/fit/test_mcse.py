"""The Monte Carlo error of a mean is what seeds scatter by, and few fits of fields warn."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from experiments import datasets
from mgvi.fields import Grid, StationaryField, smooth_spectrum

SEEDS = range(1, 9)


def field_model(grid, data):
    spectrum = smooth_spectrum("power", grid, sd=(1.0, 0.5), slope=(-3.0, 0.5))
    field = numpyro.sample("field", StationaryField(grid, spectrum))
    numpyro.sample("data", dist.Bernoulli(logits=2 * field), obs=data)


def fits(problem, **options):
    """Fits with several seeds, and how many of them warn of their noise."""
    found, warned = [], 0
    for seed in SEEDS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", mgvi.MgviWarning)
            found.append(mgvi.fit(problem, seed=seed, progress=False, **options))
        warned += any("NOISY" in str(w.message) for w in caught)
    return found, warned


def scatter_and_error(found, sites):
    """By site, in posterior sds: the scatter of the means between seeds, and the rms of the errors that were told."""
    for site in sites:
        means = np.stack([posterior.latent_mean[site] for posterior in found])
        sd = np.sqrt(np.mean([np.var(posterior.latent_samples[site], axis=0) for posterior in found], axis=0))
        scatter = np.sqrt(np.mean(np.var(means, axis=0, ddof=1) / sd**2))
        yield site, float(scatter), float(np.sqrt(np.mean([p.history[-1]["mcse"][site] ** 2 for p in found])))


def field_problem(size):
    grid = Grid((size, size))
    truth = mgvi.sample_prior(jax.random.key(3), 1, field_model, grid, None)
    return mgvi.from_numpyro(field_model, grid, jnp.asarray(truth["data"][0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["field", "modis"])
def test_error_of_every_global_site_is_what_seeds_scatter_by_and_few_fits_warn(name):
    if name == "field":
        problem, sites = field_problem(256), ("power_sd", "power_slope", "power_curve")
    else:
        from examples import modis

        try:
            data = datasets.modis()
        except mgvi.FileError as error:
            pytest.skip(str(error))
        with jax.enable_x64(True):
            check(name, modis.problem_of(data)[0], ("trend", "noise", "power_sd", "power_slope", "power_curve"))
        return
    check(name, problem, sites)


def check(name, problem, sites):
    found, warned = fits(problem)
    assert warned <= 1
    for site, scatter, error in scatter_and_error(found, sites):
        print(f"{name} {site}: means scatter by {scatter:.3f} sd, errors of {error:.3f} sd were told")
        assert 1 / 1.5 < scatter / error < 1.5


def test_error_of_a_small_problem_is_what_seeds_scatter_by():
    rng = np.random.default_rng(0)
    y = rng.poisson(np.exp(0.5 + rng.normal(size=30)))

    def model(y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.5))
        effect = numpyro.sample("effect", dist.Normal(level, scale).expand([30]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(effect)), obs=y)

    found, warned = fits(mgvi.from_numpyro(model, jnp.asarray(y)), tolerance=0.2)
    assert warned == 0
    for site, scatter, error in scatter_and_error(found, ("level", "scale", "effect")):
        print(f"{site}: means scatter by {scatter:.4f} sd, errors of {error:.4f} sd were told")
        assert scatter < 1.5 * error  # noise that is spread evenly may scatter less than independent noise would
    assert np.all(found[0].mcse["scale"] < 0.3) and "mcse" in str(found[0].summary())
