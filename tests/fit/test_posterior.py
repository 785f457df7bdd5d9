"""What a Posterior gives back."""

import jax.numpy as jnp
import numpy as np
import pytest

import mgvi
from tests.fit import models


@pytest.fixture(scope="module")
def posterior():
    return mgvi.fit(models.logistic_problem(), seed=3, progress=False, samples=100)


def test_moments_and_quantiles_are_those_of_the_samples(posterior):
    samples = posterior.samples
    assert {name: x.shape for name, x in samples.items()} == {"a": (100,), "b": (100,), "s": (100,), "u": (100, 5)}
    np.testing.assert_allclose(posterior.mean["u"], samples["u"].mean(0), rtol=1e-4)
    np.testing.assert_allclose(posterior.sd["u"], samples["u"].std(0), rtol=1e-4)
    np.testing.assert_allclose(posterior.quantile([0.1, 0.9])["a"], np.quantile(samples["a"], [0.1, 0.9]))


def test_samples_are_standard_latents_in_pairs_that_are_mirrored_in_the_chart_only(posterior):
    problem, a, u = posterior.problem, posterior.deviations["a"], posterior.deviations["u"]
    assert problem.chart == {} and set(posterior.latent_samples) == set(problem.latent)
    np.testing.assert_allclose(a[:50], -a[50:], atol=1e-6)
    assert np.max(np.abs(u[:50] + u[50:])) > 0.05  # its scale is a latent


def test_at_mean_is_the_model_at_the_latent_mean(posterior):
    np.testing.assert_array_equal(posterior.at_mean["s"], posterior.problem.constrain(posterior.latent_mean)["s"])


def test_map_propagates_any_function(posterior):
    result = posterior.map(lambda p: jnp.exp(p["a"]) + p["u"])
    expected = np.exp(posterior.samples["a"])[:, None] + posterior.samples["u"]
    np.testing.assert_allclose(result.mean, expected.mean(0), rtol=1e-5)
    np.testing.assert_allclose(result.sd, expected.std(0), rtol=1e-4)


def test_predictions_and_log_likelihood_have_one_row_a_sample(posterior):
    assert posterior.predictive(seed=1)["y"].shape == (100, 200)
    assert set(np.unique(posterior.predictive(seed=1)["y"])) <= {0, 1}
    log_likelihood = posterior.log_likelihood()["y"]
    first = {name: posterior.latent_mean[name] + d[0] for name, d in posterior.deviations.items()}
    np.testing.assert_allclose(log_likelihood[0], posterior.problem.log_likelihood(first)["y"], rtol=1e-5)


def test_summary_has_a_row_a_number_and_one_for_a_field(posterior):
    table = posterior.summary()
    assert len(table) == 8
    np.testing.assert_allclose(table["u[2]"]["sd"], posterior.sd["u"][2], rtol=1e-5)
    assert len(posterior.summary(max_rows=3)) == 4
    assert "u[5], average" in str(posterior.summary(max_rows=3))


def test_report_gives_chi_squares_near_one(posterior):
    assert 0.8 < posterior.data_chi2()["y"] < 1.2
    assert 0.1 < posterior.latent_chi2()["u"] < 2.0
    assert "converged" in posterior.report()


def test_further_samples_can_be_drawn_and_odd_numbers_too(posterior):
    more = posterior.sample(7, seed=9)
    assert len(more) == 7
    np.testing.assert_array_equal(more.samples["u"], posterior.sample(7, seed=9).samples["u"])


def test_saved_posterior_comes_back_equal_and_only_for_its_problem(posterior, tmp_path):
    posterior.save(tmp_path / "p")
    again = mgvi.load(tmp_path / "p", posterior.problem)
    np.testing.assert_array_equal(again.samples["u"], posterior.samples["u"])
    assert again.history == posterior.history
    with pytest.raises(mgvi.FileError, match="another problem"):
        mgvi.load(tmp_path / "p", models.regression_problem())
    with pytest.raises(mgvi.FileError, match="is missing"):
        mgvi.load(tmp_path / "nowhere", posterior.problem)


def test_arviz_container_has_all_groups(posterior):
    data = posterior.to_arviz()
    groups = {"posterior", "posterior_predictive", "log_likelihood", "sample_stats", "observed_data"}
    assert all(hasattr(data, group) or group in data for group in groups)
    assert data.posterior["u"].shape == (1, 100, 5)
