"""Features of NumPyro's language: density and metric are judged by NumPyro's traces and by dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import mgvi

from ..compiling import quick_jit
from . import oracle
from .feature_models import CASES, COUNTS, KEPT, X, Y

# The scope lets all tests of one case follow each other, which share what is compiled for it.
each = pytest.mark.parametrize("name", list(CASES), scope="module")
# Single precision is checked where models differ in kind: each costs a compilation.
SINGLE = ["hierarchy", "subsampled_data", "several_observed_sites", "scan_with_latents_and_data", "missing_reals"]
SINGLE += ["missing_counts", "truncated_normal_likelihood", "event_of_independent_data"]
RESOLUTION = {"float32": 2e-5, "float64": 1e-12}


def precisions(name):
    return ["float64", "float32"] if name in SINGLE else ["float64"]


def evaluations(name):
    """What the oracle evaluates of a case, in each precision that is checked, with the resolution of that."""
    return [(oracle.evaluated(name, precision), RESOLUTION[precision], precision) for precision in precisions(name)]


def problem_of(name, precision="float64"):
    """A case, its Problem, and a random latent."""
    problem = oracle.build(name, precision)
    return CASES[name], problem, oracle.random_latent(problem, seed=len(name))


def assert_same_matrix(actual, expected, tolerance):
    """Compare in units of the square roots of the expected diagonal."""
    unit = np.sqrt(np.diag(expected))
    np.testing.assert_allclose((actual - expected) / np.outer(unit, unit), 0.0, atol=tolerance)


# --- density ---


@each
def test_density_is_that_of_numpyro_up_to_a_constant(name):
    for at, resolution, precision in evaluations(name):
        assert np.ptp(at["theirs"]) > 0.1
        size = abs(at["theirs"]).max()
        np.testing.assert_allclose(
            np.diff(at["ours"]), np.diff(at["theirs"]), atol=resolution * size, err_msg=precision
        )


@each
def test_density_is_minus_the_log_prior_and_the_weighted_log_likelihood(name):
    for at, resolution, precision in evaluations(name):
        np.testing.assert_allclose(at["ours"][0], at["parts"], rtol=resolution, err_msg=precision)


# --- metric ---


@each
def test_metric_is_one_plus_the_integrated_outer_product_of_the_score(name, x64):
    case, problem = CASES[name], oracle.build(name)
    expected = oracle.dense_metric(case, problem, oracle.random_latent(problem, 0))
    assert np.trace(expected) > len(expected) + 0.1
    assert_same_matrix(oracle.evaluated(name)["matrix"], expected, tolerance=case.tolerance)


@each
def test_metric_is_symmetric_and_at_least_one(name):
    for at, resolution, precision in evaluations(name):
        matrix = at["matrix"]
        rounding = resolution * abs(matrix).max()
        np.testing.assert_allclose(matrix, matrix.T, atol=rounding, err_msg=precision)
        assert np.linalg.eigvalsh(matrix).min() > 1 - rounding, precision


@each
def test_root_of_the_metric_and_its_transpose_are_adjoint(name):
    for at, resolution, precision in evaluations(name):
        np.testing.assert_allclose(at["left"], at["right"], atol=resolution * at["size"], err_msg=precision)


@each
def test_draws_have_the_metric_as_covariance(name):
    for at, _, precision in evaluations(name):
        matrix, variance = at["matrix"], np.diag(at["matrix"])
        deviation = np.sqrt((np.outer(variance, variance) + matrix**2) / oracle.DRAWS)
        assert np.max(abs(at["covariance"] - matrix) / deviation) < 5, precision
        assert np.max(abs(at["mean"]) / np.sqrt(variance / oracle.DRAWS)) < 5, precision


# --- metrics written by hand ---


def lognormal_scale_metric(data, sd, width):
    """Normal(loc + width * a, exp(0.5 b)) seen `data` times: each sd counts 2/sd^2, and d sd/db is sd/2."""
    return np.diag([1 + data * width**2 / sd**2, 1 + data * 2 * 0.25])


@pytest.mark.parametrize(
    ("name", "data", "width"),
    [
        ("shared_scalars_without_a_plate", 12, 2.0),
        ("scale_handler", 2.5 * 12, 2.0),
        ("subsampled_data", 5 * 20 / 5, 3.0),
        ("factor", 12, 2.0),
    ],
)
def test_metric_counts_each_datum_by_its_weight(name, data, width, precision):
    _, problem, xi = problem_of(name, precision)
    sd = float(problem.constrain(xi)["sd"])
    expected = lognormal_scale_metric(data, sd, width)
    assert_same_matrix(oracle.metric_matrix(problem, xi), expected, tolerance=10 * RESOLUTION[precision])


def test_metric_of_masked_data_counts_only_what_was_seen(x64):
    problem = oracle.build("missing_reals")
    xi = oracle.random_latent(problem, 0)
    full = oracle.metric_matrix(problem, xi)
    missing = {name: jnp.full(leaf.shape, name == "y_unobserved") for name, leaf in xi.items()}
    places = np.asarray(ravel_pytree(missing)[0], bool)
    sd = float(problem.constrain(xi)["sd"])
    expected = lognormal_scale_metric(KEPT.sum(), sd, 2.0)
    np.testing.assert_allclose(full[np.ix_(~places, ~places)], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(full[places], np.eye(len(full))[places], atol=1e-12)


def test_metric_of_poisson_counts_is_the_squared_slope_over_the_rate(x64):
    problem = oracle.build("missing_counts")
    xi = 0.8
    rate = stats.gamma.ppf(stats.norm.cdf(xi), 4.0)
    slope = stats.norm.pdf(xi) / stats.gamma.pdf(rate, 4.0)
    matrix = oracle.metric_matrix(problem, {"rate": jnp.array(xi)})
    np.testing.assert_allclose(matrix, [[1 + 6 * slope**2 / rate]], rtol=1e-9)


def test_metric_of_an_own_distribution_is_its_textbook_information(x64):
    problem = oracle.build("own_distribution")
    xi = -0.4
    width = 1.3 * np.sqrt(-2 * stats.norm.logsf(xi))
    slope = stats.norm.pdf(xi) / stats.rayleigh.pdf(width, scale=1.3)
    matrix = oracle.metric_matrix(problem, {"width": jnp.array(xi)})
    np.testing.assert_allclose(matrix, [[1 + len(Y) * 4 * slope**2 / width**2]], rtol=1e-8)


# --- values and predictions ---


@each
def test_constrain_returns_every_latent_and_deterministic_site(name):
    for precision in precisions(name):
        with jax.enable_x64(precision == "float64"):
            case, problem, xi = problem_of(name, precision)
            values = problem.constrain(xi)
        assert set(values) == case.sites, precision
        assert all(np.all(np.isfinite(value)) for value in values.values()), precision


@each
def test_simulated_data_have_the_shape_and_the_mean_of_the_data(name, x64):
    case, problem, xi = problem_of(name)
    n = 4000
    keys = jax.random.split(jax.random.key(5), n)
    simulated = quick_jit(jax.vmap(lambda key: problem.simulate(key, xi)))(keys)
    sites = oracle.observed_sites(case, problem, xi)
    assert set(simulated) == {site for site, s in sites.items() if not isinstance(s["fn"], dist.Unit)}
    for site, draws in simulated.items():
        draws = np.asarray(draws, float)
        assert draws.shape[1:] == problem.data[site].shape == np.shape(sites[site]["value"])
        error = draws.std(axis=0) / np.sqrt(n)
        assert np.max(abs(draws.mean(axis=0) - oracle.data_mean(case, site, sites[site])) / error) < 5


@each
def test_prior_draws_have_the_distribution_that_numpyro_draws_from(name, x64):
    case, problem, _ = problem_of(name)
    n = 2000
    ours = problem.sample_prior(jax.random.key(7), n)
    theirs = mgvi.sample_prior(jax.random.key(8), n, case.model, *case.args)
    assert set(ours) == case.sites
    for site in case.sites - {"index"}:
        a, b = (np.asarray(draws[site]).reshape(n, -1) for draws in (ours, theirs))
        assert a.shape == b.shape
        # A structural zero or one of a Cholesky factor carries rounding only.
        a, b = np.round(a, 12), np.round(b, 12)
        assert min(stats.ks_2samp(a[:, i], b[:, i]).pvalue for i in range(a.shape[1])) > 1e-5, site


# --- what single features mean ---


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.warns])
def test_what_is_not_exact_is_announced(name):
    case = CASES[name]
    with pytest.warns(mgvi.MgviWarning, match=case.warns):
        mgvi.from_numpyro(case.model, *case.args)


def test_subsample_is_chosen_once(x64):
    problem = oracle.build("subsampled_data")
    index = np.asarray(problem.constrain(oracle.random_latent(problem, 0))["index"])
    assert len(set(index.tolist())) == 5 and set(index.tolist()) <= set(range(20))
    np.testing.assert_array_equal(problem.constrain(oracle.random_latent(problem, 1))["index"], index)
    np.testing.assert_array_equal(problem.data["y"], CASES["subsampled_data"].args[0][index])


def test_data_under_a_mask_do_not_matter(x64):
    problem = oracle.build("missing_reals")
    other = mgvi.from_numpyro(missing_reals_with(np.where(KEPT, Y, 1e3)), Y)
    xi = oracle.random_latent(problem, 0)
    np.testing.assert_array_equal(problem.neg_log_density(xi), other.neg_log_density(xi))
    gradient = jax.grad(problem.neg_log_density)(xi)
    assert all(np.all(np.isfinite(leaf)) for leaf in gradient.values())


def missing_reals_with(y):
    """The same model, with other numbers in place of the missing data."""

    def model(_):
        mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
        sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.5))
        numpyro.sample("y", dist.Normal(mu + X, sd), obs=y, obs_mask=KEPT)

    return model


def test_missing_data_are_imputed_and_seen_data_returned(x64):
    problem = oracle.build("missing_reals")
    xi = oracle.random_latent(problem, 0)
    values = problem.constrain(xi)
    expected = values["mu"] + X + values["sd"] * xi["y_unobserved"]
    np.testing.assert_allclose(values["y"], np.where(KEPT, Y, expected), rtol=1e-12)


def test_a_delta_has_no_latent(x64):
    problem = oracle.build("delta_latent")
    assert set(problem.latent) == {"mu"}
    assert problem.constrain({"mu": jnp.array(0.0)})["fixed"] == 1.5


def test_a_substituted_site_has_no_latent(x64):
    problem = oracle.build("substitute_handler")
    assert set(problem.latent) == {"mu"}
    assert problem.constrain({"mu": jnp.array(0.0)})["sd"] == 0.7


def test_data_after_an_intervention_do_not_inform_the_site(x64):
    problem = oracle.build("do_handler")
    xi = {"mu": jnp.array(1.0), "sd": jnp.array(0.3)}
    moved = {**xi, "mu": jnp.array(0.0)}
    np.testing.assert_allclose(problem.neg_log_density(xi) - problem.neg_log_density(moved), 0.5, rtol=1e-12)
    np.testing.assert_allclose(problem.constrain(xi)["mu"], 0.5 + 2.0, rtol=1e-12)


def test_a_factor_changes_the_density_but_not_the_metric(x64):
    plain, problem = oracle.build("shared_scalars_without_a_plate"), oracle.build("factor")
    xi = oracle.random_latent(problem, 0)
    values = problem.constrain(xi)
    added = problem.neg_log_density(xi) - plain.neg_log_density(xi)
    np.testing.assert_allclose(added, 3 * (values["mu"] - values["sd"]) ** 2, rtol=1e-10)
    np.testing.assert_array_equal(oracle.metric_matrix(problem, xi), oracle.metric_matrix(plain, xi))


@pytest.mark.parametrize("name", ["hierarchy", "lkj_latent", "dirichlet_latent", "sample_shape"])
def test_latent_has_one_entry_for_each_free_number(name, x64):
    shapes = {
        "hierarchy": {"level": (), "spread": (), "group": (3,)},
        "lkj_latent": {"corr": (3,), "scales": (3,), "loc": ()},
        "dirichlet_latent": {"probs": (3,)},
        "sample_shape": {"x": (3, 2), "sd": ()},
    }
    assert {site: leaf.shape for site, leaf in oracle.build(name).latent.items()} == shapes[name]


def test_reparametrised_model_has_the_original_density_at_the_same_values(x64):
    problem = oracle.build("loc_scale_reparam")

    def joint(xi):
        """Minus the log-density of the original model in its own coordinates, from the latent's."""
        values = problem.constrain(xi)
        logs = stats.norm(1.0, 1.0).logpdf(values["level"]) + stats.halfnorm(0, 0.5).logpdf(values["spread"])
        logs += stats.norm(values["level"], values["spread"]).logpdf(values["group"]).sum()
        logs += stats.poisson(np.exp(values["group"])[np.repeat([0, 1, 2], [2, 3, 3])]).logpmf(COUNTS).sum()
        flat, unravel = ravel_pytree(xi)
        names = ("level", "spread", "group")
        at = lambda x: ravel_pytree({name: problem.constrain(unravel(x))[name] for name in names})[0]
        return -logs - np.linalg.slogdet(jax.jacfwd(at)(flat))[1]

    latents = [oracle.random_latent(problem, seed) for seed in range(3)]
    ours = [float(problem.neg_log_density(xi)) for xi in latents]
    np.testing.assert_allclose(np.diff(ours), np.diff([joint(xi) for xi in latents]), rtol=1e-8)


def unrolled_scan(y):
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    x = 0.5
    for i, datum in enumerate(y):
        x = numpyro.sample(f"x{i}", dist.Normal(phi * x, noise))
        numpyro.sample(f"y{i}", dist.Normal(x, 0.2 + noise), obs=datum)


def test_scan_is_the_unrolled_loop(precision):
    case, problem, _ = problem_of("scan_with_latents_and_data", precision)
    loop = mgvi.from_numpyro(unrolled_scan, *case.args)
    length = len(case.args[0])

    def unroll(xi):
        steps = {f"x{i}": xi["x"][i] for i in range(length)}
        return {"phi": xi["phi"], "noise": xi["noise"], **steps}

    latents = [oracle.random_latent(problem, seed) for seed in range(3)]
    ours = np.array([problem.neg_log_density(xi) for xi in latents])
    theirs = np.array([loop.neg_log_density(unroll(xi)) for xi in latents])
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), atol=RESOLUTION[precision] * abs(theirs).max())
    metric, loop_metric = problem.metric(latents[0]), loop.metric(unroll(latents[0]))
    for seed in range(3):
        v = oracle.random_latent(problem, 10 + seed)
        actual, expected = unroll(metric.mv(v)), loop_metric.mv(unroll(v))
        size = max(float(abs(leaf)) for leaf in expected.values())
        for site, leaf in expected.items():
            np.testing.assert_allclose(actual[site], leaf, atol=RESOLUTION[precision] * size, err_msg=site)
    np.testing.assert_allclose(
        problem.constrain(latents[0])["x"],
        jnp.stack([loop.constrain(unroll(latents[0]))[f"x{i}"] for i in range(length)]),
        rtol=RESOLUTION[precision],
    )


def test_condition_is_the_same_as_passing_data(x64):
    def passed(y):
        mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
        sd = numpyro.sample("sd", dist.Exponential(1.0))
        with numpyro.plate("data", len(Y)):
            numpyro.sample("y", dist.Normal(mu, sd), obs=y)

    problem, other = oracle.build("condition_handler"), mgvi.from_numpyro(passed, Y.astype(np.float32))
    xi = oracle.random_latent(problem, 0)
    np.testing.assert_array_equal(problem.neg_log_density(xi), other.neg_log_density(xi))
