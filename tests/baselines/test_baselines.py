"""One contract for every baseline, on a regression whose posterior is Gaussian with known mean and covariance."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi import baselines
from tests.fit import models

QUICK = {"progress": False}
METHODS = {
    "map": lambda p, **k: baselines.map_estimate(p, **k),
    "laplace": lambda p, **k: baselines.laplace(p, **k),
    "fisher_laplace": lambda p, **k: baselines.laplace(p, fisher=True, **k),
    "advi_meanfield": lambda p, **k: baselines.advi_meanfield(p, max_steps=20_000, **k),
    "advi_fullrank": lambda p, **k: baselines.advi_fullrank(p, max_steps=20_000, **k),
    "linear_response": lambda p, **k: baselines.linear_response(p, max_steps=20_000, **k),
    "nuts": lambda p, **k: baselines.nuts(p, warmup=300, draws=700, **k),
}
WITH_COVARIANCE = [name for name in METHODS if name not in ("map", "advi_meanfield")]


@pytest.fixture(scope="module")
def problem():
    return models.regression_problem()


@pytest.fixture(scope="module")
def seen():
    return {name: [] for name in METHODS}


@pytest.fixture(scope="module")
def results(problem, seen):
    """The result of every method, and what its callbacks saw."""
    return {
        name: method(problem, seed=1, callbacks=[lambda r, p, name=name: seen[name].append((r, len(p), p))], **QUICK)
        for name, method in METHODS.items()
    }


@pytest.mark.parametrize("name", METHODS)
def test_mean_of_a_gaussian_posterior_is_exact(results, name):
    mean, covariance = models.exact_regression()
    posterior = results[name]
    assert posterior.status is mgvi.Status.CONVERGED
    off = (posterior.at_mean["w"] - mean) / np.sqrt(np.diag(covariance))
    assert np.abs(off).max() < (0.1 if name == "nuts" else 0.01)


@pytest.mark.parametrize("name", WITH_COVARIANCE)
def test_covariance_of_a_gaussian_posterior_is_exact(results, name):
    _, covariance = models.exact_regression()
    sd = np.sqrt(np.diag(covariance))
    many = results[name] if name == "nuts" else results[name].sample(40_000, seed=5)
    np.testing.assert_allclose(np.cov(many.samples["w"].T) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.08)


def test_mean_field_has_the_conditional_sds(results):
    _, covariance = models.exact_regression()
    sd = results["advi_meanfield"].sample(40_000, seed=5).samples["w"].std(axis=0)
    np.testing.assert_allclose(sd, 1 / np.sqrt(np.diag(np.linalg.inv(covariance))), rtol=0.03)


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_gives_the_same_bits(problem, results, name):
    again = METHODS[name](problem, seed=1, **QUICK)
    np.testing.assert_array_equal(again.samples["w"], results[name].samples["w"])


@pytest.mark.parametrize("name", METHODS)
def test_history_has_seconds_and_steps_that_grow(results, name):
    history = results[name].history
    assert all(r["seconds"] >= 0 and r["compile_seconds"] >= 0 for r in history)
    steps = [r["step"] for r in history]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("name", METHODS)
def test_callbacks_see_records_and_posteriors_up_to_the_last(results, seen, name):
    record, count, posterior = seen[name][-1]
    assert record["step"] == results[name].history[-1]["step"]
    assert count >= 1 and np.all(np.isfinite(posterior.samples["w"]))
    assert len(seen[name]) < 100


@pytest.mark.parametrize("name", METHODS)
def test_samples_are_redrawn_and_saved_from_the_approximation_itself(problem, results, tmp_path, name):
    results[name].save(tmp_path / name)
    again = mgvi.load(tmp_path / name, problem)
    np.testing.assert_array_equal(again.samples["w"], results[name].samples["w"])
    np.testing.assert_array_equal(again.sample(7, seed=9).samples["w"], results[name].sample(7, seed=9).samples["w"])
    assert again.history == results[name].history


@pytest.mark.parametrize("name", METHODS)
def test_weights_find_nothing_to_correct_or_are_refused(results, name):
    check = results[name].check
    if name in ("map", "nuts"):
        assert check is None
        with pytest.raises(ValueError, match="point estimate" if name == "map" else "draws of the posterior itself"):
            results[name].corrected(seed=1)
    elif name in WITH_COVARIANCE:
        assert check.ok
    assert results[name].summary()["w[0]"]["mean"] == pytest.approx(results[name].mean["w"][0], rel=1e-4)


def test_importance_weights_mend_a_mean_field(results):
    _, covariance = models.exact_regression()
    mended = results["advi_meanfield"].corrected(seed=2, n=4000)
    np.testing.assert_allclose(mended.samples["w"].std(axis=0), np.sqrt(np.diag(covariance)), rtol=0.1)


def test_nuts_tells_how_well_its_chains_agree(results):
    last = results["nuts"].history[-1]
    assert last["r_hat"] < 1.01 and last["ess"] > 400 and last["divergences"] == 0
    assert len(results["nuts"]) == 2800


def test_chains_that_do_not_agree_as_asked_are_not_called_converged(problem):
    with pytest.warns(mgvi.MgviWarning, match="nuts ended as ITERATION_LIMIT"):
        posterior = baselines.nuts(problem, seed=1, warmup=300, draws=700, good=(1.01, 1e6), **QUICK)
    assert posterior.status is mgvi.Status.ITERATION_LIMIT


SHORT = {
    "map": lambda p, **k: baselines.map_estimate(p, **k),
    "laplace": lambda p, **k: baselines.laplace(p, **k),
    "advi_meanfield": lambda p, **k: baselines.advi_meanfield(p, max_steps=500, **k),
    "advi_fullrank": lambda p, **k: baselines.advi_fullrank(p, max_steps=500, **k),
    "linear_response": lambda p, **k: baselines.linear_response(p, max_steps=500, **k),
    "nuts": lambda p, **k: baselines.nuts(p, warmup=50, draws=50, **k),
}


@pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")
@pytest.mark.parametrize("name", SHORT)
def test_double_precision_works_too(x64, name):
    posterior = SHORT[name](models.regression_problem(), seed=1, **QUICK)
    assert posterior.deviations["w"].dtype == np.float64
    mean, covariance = models.exact_regression()
    assert np.abs((posterior.mean["w"] - mean) / np.sqrt(np.diag(covariance))).max() < 1.0


def test_limits_end_with_what_there_is_and_a_warning(problem):
    with pytest.warns(mgvi.MgviWarning, match="advi_meanfield ended as ITERATION_LIMIT"):
        few = baselines.advi_meanfield(problem, seed=1, max_steps=30, **QUICK)
    assert few.status is mgvi.Status.ITERATION_LIMIT and few.history[-1]["step"] == 30
    with pytest.warns(mgvi.MgviWarning, match="TIME_LIMIT"):
        assert baselines.nuts(problem, seed=1, time_limit=0.0, **QUICK).status is mgvi.Status.TIME_LIMIT


@pytest.mark.parametrize("name", METHODS)
def test_interrupt_returns_what_there_is(problem, name):
    def interrupt(record, posterior):
        raise KeyboardInterrupt

    with pytest.warns(mgvi.MgviWarning, match="INTERRUPTED"):
        posterior = METHODS[name](problem, seed=1, callbacks=[interrupt], **QUICK)
    assert posterior.status is mgvi.Status.INTERRUPTED
    assert np.all(np.isfinite(posterior.samples["w"]))


def no_gradient(y):
    """The gradient is not finite at the mean of the prior, where a search for the mode begins."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(jnp.sqrt(a**2), 0.1), obs=y)


def no_prediction(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(jnp.where(a > 0.5, jnp.nan, a), 0.1), obs=y)


@pytest.mark.parametrize("name", METHODS)
def test_nan_is_an_error_that_carries_the_last_good_state(name):
    model = no_gradient if name in ("map", "laplace", "fisher_laplace") else no_prediction
    problem = mgvi.from_numpyro(model, jnp.array([3.0]))
    with pytest.raises(mgvi.FitError, match="not finite") as caught:
        METHODS[name](problem, seed=1, **QUICK)
    assert np.all(np.isfinite(caught.value.posterior.latent_mean["a"]))


def test_matrices_are_refused_for_large_problems():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([5000]).to_event(1))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    problem = mgvi.from_numpyro(model, jnp.zeros(5000))
    for method in (baselines.laplace, baselines.advi_fullrank, baselines.linear_response):
        with pytest.raises(ValueError, match="this problem has 5000 latents, expected at most"):
            method(problem, seed=1, **QUICK)


def test_a_hessian_that_is_not_positive_definite_is_told(x64):
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x**2, 0.5), obs=y)

    # At the symmetric point x = 0 the gradient vanishes, and the density has a minimum there.
    problem = mgvi.from_numpyro(model, jnp.array([4.0]))
    with pytest.raises(mgvi.FitError, match="not positive definite"):
        baselines.laplace(problem, seed=1, **QUICK)


def test_a_million_latents_need_no_matrix():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([y.size]).to_event(1))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)

    y = 0.5 + jax.random.normal(jax.random.key(1), (1_000_000,))
    problem = mgvi.from_numpyro(model, y)
    for posterior in (
        baselines.map_estimate(problem, seed=1, **QUICK),
        baselines.laplace(problem, seed=1, fisher=True, samples=4, **QUICK),
    ):
        np.testing.assert_allclose(posterior.latent_mean["x"], 0.8 * y, atol=1e-3)
    with pytest.warns(mgvi.MgviWarning, match="ITERATION_LIMIT"):
        field = baselines.advi_meanfield(problem, seed=1, max_steps=20, samples=2, **QUICK)
    assert field.samples["x"].shape == (2, 1_000_000)
