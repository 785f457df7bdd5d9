"""Metrics against NumPy, on posteriors with known answers."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi import baselines, diagnostics
from tests.fit import models


@pytest.fixture(scope="module")
def problem():
    return models.regression_problem()


@pytest.fixture(scope="module")
def laplace(problem):
    return baselines.laplace(problem, seed=1, samples=300, progress=False)


def held_out(rows):
    design, y = models.regression_data()
    return mgvi.from_numpyro(models.regression, jnp.asarray(design[rows] + 0.1), jnp.asarray(y[rows]))


def test_rms_and_average_significance_are_the_formulas():
    rng = np.random.default_rng(1)
    truth, mean, sd = rng.normal(size=50), rng.normal(size=50), rng.random(50) + 0.1
    assert diagnostics.rms(truth, mean) == pytest.approx(np.sqrt(np.sum((truth - mean) ** 2) / 50))
    expected = np.sum(np.abs(truth - mean) / sd) / 50
    assert diagnostics.average_significance(truth, mean, sd) == pytest.approx(expected)


def test_a_calibrated_gaussian_has_the_significance_of_the_half_normal():
    rng = np.random.default_rng(1)
    found = diagnostics.average_significance(rng.normal(size=100_000), np.zeros(100_000), np.ones(100_000))
    assert found == pytest.approx(np.sqrt(2 / np.pi), rel=0.01)


def test_predictive_log_likelihood_is_that_of_numpy(laplace):
    rows = slice(0, 7)
    found = diagnostics.predictive_log_likelihood(laplace, held_out(rows))
    design, y = models.regression_data()
    w = np.concatenate([laplace.samples["w"], laplace.at_mean["w"][None]]).astype(np.float64)
    z = (y[rows] - w @ (design[rows] + 0.1).T) / 0.5
    log_likelihood = -0.5 * z**2 - np.log(0.5 * np.sqrt(2 * np.pi))
    samples, mean = log_likelihood[:-1], log_likelihood[-1]
    assert found.samples == pytest.approx(np.log(np.exp(samples).mean(axis=0)).mean(), rel=1e-4)
    assert found.joint == pytest.approx(np.log(np.exp(samples.sum(axis=1)).mean()) / 7, rel=1e-4)
    assert found.mean == pytest.approx(mean.mean(), rel=1e-4)


def test_masked_data_are_not_held_out_data():
    def model(y, seen):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Normal(mu, 1.0).expand([3]), obs=y)

    y, seen = jnp.array([1.0, 3.0, 2.0]), jnp.array([True, True, False])
    posterior = baselines.laplace(mgvi.from_numpyro(model, y, seen), seed=1, progress=False)
    found = diagnostics.predictive_log_likelihood(posterior, mgvi.from_numpyro(model, y, ~seen))
    assert found.mean == pytest.approx(-0.5 * np.log(2 * np.pi) - 0.5 * (2 - 16 / 9) ** 2, rel=1e-4)


def test_held_out_data_of_another_model_are_refused(laplace):
    with pytest.raises(ValueError, match="the held-out problem must have the same latent"):
        diagnostics.predictive_log_likelihood(laplace, models.logistic_problem())


def test_compare_is_the_rms_of_moments(problem, laplace):
    other = laplace.sample(100, seed=4)
    table = diagnostics.compare({"other": other}, laplace)
    assert table["other"]["sd"] == pytest.approx(diagnostics.rms(other.sd["w"], laplace.sd["w"]))
    assert table["other"]["mean"] == pytest.approx(diagnostics.rms(other.mean["w"], laplace.mean["w"]))
    with pytest.raises(ValueError, match="no site"):
        diagnostics.compare({"other": other}, laplace, sites=["v"])


@pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")
def test_traces_are_on_a_logarithmic_grid_and_do_not_count_their_own_time(problem):
    import time

    def slow(posterior):
        time.sleep(0.02)
        return len(posterior)

    trace = diagnostics.Trace({"count": slow}, ratio=1.5, samples=10)
    posterior = baselines.advi_meanfield(problem, seed=1, max_steps=500, callbacks=[trace], progress=False)
    trace.add(posterior)
    seconds = trace["seconds"]
    assert np.all(seconds[1:-1] >= 1.5 * seconds[:-2])
    assert seconds[-1] == pytest.approx(sum(r["seconds"] for r in posterior.history))
    assert set(trace["count"][:-1]) == {10}
    quick = baselines.advi_meanfield(problem, seed=1, max_steps=500, progress=False)
    np.testing.assert_array_equal(quick.samples["w"], posterior.samples["w"])


def test_fit_can_be_traced_too(problem):
    error = lambda p: -np.abs(p.at_mean["w"] - models.exact_regression()[0]).max()
    trace = diagnostics.Trace({"error": error}, ratio=1.0)
    trace.add(mgvi.fit(problem, seed=1, callbacks=[trace], progress=False))
    assert len(trace.rows) > 2 and trace["error"][-1] > -0.02
    assert trace.time_to("error", -0.02) <= trace["seconds"][-1]
    assert trace.time_to("error", 1.0) == np.inf


def test_predictive_likelihood_of_a_hierarchy_is_that_of_its_samples_in_the_models_own_coordinates():
    """A fit adapts coordinates between effects and their scale; held-out data must not be judged in these."""
    rng = np.random.default_rng(2)
    effects = rng.normal(size=6)
    train, test = (effects[:, None] + 0.1 * rng.normal(size=(6, 100)) for _ in range(2))

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        effect = numpyro.sample("effect", dist.Normal(0.0, scale).expand([6]))
        numpyro.sample("y", dist.Normal(effect[:, None], 0.1), obs=y)

    posterior = mgvi.fit(mgvi.from_numpyro(model, jnp.asarray(train)), seed=1, progress=False)
    found = diagnostics.predictive_log_likelihood(posterior, mgvi.from_numpyro(model, jnp.asarray(test)))
    apart = (test[None] - posterior.samples["effect"][:, :, None]) / 0.1
    density = np.exp(-0.5 * apart**2) / (0.1 * np.sqrt(2 * np.pi))
    assert found.samples == pytest.approx(float(np.mean(np.log(density.mean(axis=0)))), abs=1e-4)
    assert found.mean > 0.85  # near the entropy of the noise, 0.88
