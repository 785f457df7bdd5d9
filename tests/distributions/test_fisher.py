"""The square root of the Fisher information is judged by E[score score^T], pulled back to the arguments."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints, transforms

from mgvi.distributions import FisherSqrt, fisher_rows, fisher_sqrt, register_fisher

from ..compiling import quick_jit
from .fisher_cases import BY_NAME, CASES, EXTREMES, SWEEPS

MASK = np.array([True, False, True, True, False])


def over(cases):
    # The scope lets all tests of one case follow each other, which share the compiled score.
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name, scope="module")


def named(*names):
    return over([BY_NAME[name] for name in names])


def gram(whiten, inputs):
    """The matrix <whiten(e_i), whiten(e_j)> over the unit vectors of a pytree of inputs."""
    flat, unravel = ravel_pytree(inputs)
    rows = jax.vmap(lambda v: ravel_pytree(whiten(unravel(v)))[0])(jnp.eye(flat.size, dtype=flat.dtype))
    return jnp.matmul(rows, rows.T, precision="highest")


def information(make, theta, weight=None):
    """The information about the arguments of the constructor."""
    root = fisher_sqrt(make(theta), weight)
    parameters = lambda theta: fisher_sqrt(make(theta), weight).parameters
    return gram(lambda v: root.apply(jax.jvp(parameters, (theta,), (v,))[1]), theta)


def compiled_information(make, theta, weight=None):
    return quick_jit(lambda theta: information(make, theta, weight))(theta)


def assert_information(actual, expected, tolerance):
    """Compare in units of the expected standard deviations of the score."""
    deviation = np.sqrt(np.diagonal(expected, axis1=-2, axis2=-1))
    unit = np.where(deviation > 0, deviation, 1.0)
    difference = (np.asarray(actual, float) - expected) / (unit[..., None] * unit[..., None, :])
    np.testing.assert_allclose(difference, 0.0, atol=tolerance)


def information_of_data(case, theta, batch_shape):
    """The sum over data of the exact information, where arguments broadcast against each other."""
    flat, unravel = ravel_pytree(theta)
    places = unravel(np.arange(flat.size))

    def pick(tree, datum):
        full = {n: np.broadcast_to(x, batch_shape + np.shape(case.theta[n])) for n, x in tree.items()}
        return {n: x[datum] for n, x in full.items()}

    total = np.zeros((flat.size, flat.size))
    for datum in np.ndindex(batch_shape):
        place = np.concatenate([np.ravel(x) for _, x in sorted(pick(places, datum).items())]).astype(int)
        total[np.ix_(place, place)] += case.moments(pick(theta, datum))[2]
    return total


# --- the truth itself ---


@over(CASES)
def test_reference_has_total_probability_one_and_score_of_mean_zero(case):
    total, score, squared = case.moments(case.at(0))
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
    if case.regular:
        deviation = np.sqrt(np.diag(squared))
        np.testing.assert_allclose(score / np.where(deviation > 0, deviation, 1.0), 0.0, atol=1e-10)


@over([case for case in CASES if case.log_prob])
def test_reference_log_prob_is_that_of_numpyro_up_to_the_error_of_betaln(case, x64):
    theta, y = case.at(0), jnp.arange(13)
    log_prob = jax.vmap(lambda y: case.log_prob(theta, y))(y)
    np.testing.assert_allclose(log_prob, case.make(theta).log_prob(y), atol=2e-6)


@over(SWEEPS)
def test_reference_formulas_agree_with_reference_sums(case):
    theta = case.case.at(0)
    assert_information(case.truth(**theta), case.case.moments(theta)[2], 1e-8)


def test_reference_of_normal_is_the_textbook_formula():
    scale = BY_NAME["normal"].theta["scale"]
    np.testing.assert_allclose(BY_NAME["normal"].information(), np.diag([1, 2]) / scale**2, atol=1e-14)


# --- the information ---


@over(CASES)
def test_information_is_expected_squared_score(case, x64):
    result = compiled_information(case.make, case.at(0))
    assert_information(result, case.information(), case.tolerance("float64"))


@over(CASES)
def test_information_survives_float32_jit_and_vmap(case):
    with jax.enable_x64(False):
        thetas = jax.tree.map(lambda *x: jnp.stack(x), case.at(0), case.at(1))
        results = quick_jit(jax.vmap(lambda theta: information(case.make, theta)))(thetas)
    for step, result in enumerate(results):
        assert_information(result, case.information(step), case.tolerance("float32"))


@named("normal", "negative_binomial2", "located_student_t")
def test_information_is_the_same_without_compilation(case, x64):
    theta = jax.tree.map(jnp.asarray, case.at(0))
    expected = compiled_information(case.make, theta)
    assert_information(information(case.make, theta), np.asarray(expected), 1e-10)


@over(SWEEPS)
def test_no_order_of_magnitude_of_a_parameter_suffers_from_cancellation(case, precision):
    thetas = case.thetas()
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *thetas)
    results = quick_jit(jax.vmap(lambda theta: information(case.case.make, theta)))(stacked)
    expected = np.array([case.truth(**theta) for theta in thetas])
    assert_information(results, expected, {"float32": 0.01, "float64": 1e-4}[precision])


@over(EXTREMES)
def test_extreme_parameters_leave_the_information_finite(case):
    with jax.enable_x64(False):
        theta = {name: jnp.asarray(value) for name, value in case.theta.items()}
        result = compiled_information(case.make, theta)
    assert np.all(np.isfinite(result)) and np.all(np.diag(result) >= 0)
    if case.information is not None:
        np.testing.assert_allclose(result, [[case.information]], rtol=1e-4)


# --- many data ---


@over(CASES)
def test_batch_sums_over_data_with_shared_last_argument(case, x64):
    *varied, shared = sorted(case.theta)
    theta = jax.tree.map(lambda *x: np.stack(x), *[case.at(step) for step in range(3)])
    if varied:
        theta[shared] = case.at(0)[shared]
    expected = information_of_data(case, theta, (3,))
    assert_information(compiled_information(case.make, theta), expected, case.tolerance("float64"))


@named("normal", "student_t", "gamma", "negative_binomial2", "beta_binomial", "truncated_normal_left")
def test_outer_product_of_batches_sums_over_data(case, x64):
    column, *_, row = sorted(case.theta)
    theta = case.at(0)
    theta[column] = theta[column] * np.linspace(1.0, 1.5, 4)[:, None]
    theta[row] = theta[row] * np.linspace(0.8, 1.2, 5)
    expected = information_of_data(case, theta, (4, 5))
    assert_information(compiled_information(case.make, theta), expected, case.tolerance("float64"))


def test_scalar_scale_of_five_data_is_informed_by_all_of_them(x64):
    result = information(lambda t: dist.Normal(t["loc"], t["scale"]), {"loc": np.zeros(5), "scale": 0.5})
    np.testing.assert_allclose(result, np.diag([4.0] * 5 + [40.0]), atol=1e-12)


def test_number_of_trials_may_differ_between_data(x64):
    trials = np.array([1, 4, 9])
    result = information(lambda t: dist.BinomialProbs(t["probs"], trials), {"probs": 0.3})
    np.testing.assert_allclose(result, [[trials.sum() / 0.21]], rtol=1e-6)


WRAPPERS = {  # wrap, weight, how many times the information of a single datum
    "expand": (lambda d: d.expand([7]), None, 7),
    "to_event": (lambda d: d.expand([7]).to_event(1), None, 7),
    "two_to_events": (lambda d: d.expand([2, 3]).to_event(1).to_event(1), None, 6),
    "mask": (lambda d: d.expand([5]).mask(MASK), None, 3),
    "mask_that_enlarges": (lambda d: d.mask(MASK), None, 3),
    "mask_none": (lambda d: d.expand([5]).mask(True), None, 5),
    "mask_all": (lambda d: d.expand([5]).mask(False), None, 0),
    "mask_in_event": (lambda d: d.expand([5]).mask(MASK).to_event(1), None, 3),
    "mask_of_event": (lambda d: d.expand([2, 5]).to_event(1).mask(MASK[:2]), None, 5),
    "mask_of_mask": (lambda d: d.expand([5]).mask(MASK).mask(MASK[::-1]), None, 1),
    "expand_of_mask": (lambda d: d.expand([5]).mask(MASK).expand([2, 5]), None, 6),
    "scalar_weight": (lambda d: d.expand([4]), 0.5, 2),
    "weights": (lambda d: d.expand([3]), np.array([0.5, 0.0, 2.0]), 2.5),
    "boolean_weights": (lambda d: d.expand([5]), MASK, 3),
    "broadcast_weights": (lambda d: d.expand([2, 3]), np.array([[1.0], [3.0]]), 12),
    "weights_of_events": (lambda d: d.expand([2, 3]).to_event(1), np.array([1.0, 2.0]), 9),
    "weights_of_masked": (lambda d: d.expand([5]).mask(MASK), np.arange(5.0), 5),
}


# All of them for one rule of rows and one of vectors, the most entangled ones also for the other kinds of rules.
ENTANGLED = ["mask_that_enlarges", "mask_of_event", "expand_of_mask", "weights_of_events", "weights_of_masked"]
WRAPPED = [
    *product(["normal", "multivariate_normal_covariance"], WRAPPERS),
    *product(["log_normal", "mixture_of_normals", "users_nakagami"], ENTANGLED),
]


@cache
def information_of_one_datum(name):
    """As the package says, so that only what wrappers do to it is tested."""
    return np.asarray(compiled_information(BY_NAME[name].make, BY_NAME[name].at(0)))


@pytest.mark.parametrize("name, wrapper", WRAPPED)
def test_wrappers_and_weights_multiply_the_information(name, wrapper, x64):
    case, (wrap, weight, times) = BY_NAME[name], WRAPPERS[wrapper]
    result = compiled_information(lambda theta: wrap(case.make(theta)), case.at(0), weight)
    assert_information(result, times * information_of_one_datum(name), case.tolerance("float64"))


def test_wrappers_keep_data_apart(x64):
    make = lambda t: dist.Normal(t["loc"], t["scale"]).expand([2, 5]).mask(MASK).to_event(1)
    result = information(make, {"loc": np.arange(5.0), "scale": 0.5}, np.array([1.0, 3.0]))
    np.testing.assert_allclose(result, np.diag([*16.0 * MASK, 96.0]), atol=1e-12)


def test_batch_of_a_transform_counts_as_data(x64):
    case, factors = BY_NAME["normal"], np.arange(1.0, 6.0)
    make = lambda t: dist.TransformedDistribution(case.make(t), transforms.AffineTransform(0.0, factors))
    assert_information(information(make, case.at(0)), 5 * case.information(), 1e-6)


def test_weight_may_be_traced(x64):
    make = lambda theta: dist.Poisson(theta["rate"]).expand([3])
    weighted = quick_jit(lambda weight: information(make, {"rate": 2.0}, weight))
    np.testing.assert_allclose(weighted(jnp.array([1.0, 0.0, 3.0])), [[2.0]])


# --- a linear map ---


def random_like(tree, seed):
    flat, unravel = ravel_pytree(tree)
    return unravel(jnp.asarray(np.random.default_rng(seed).normal(size=flat.shape), flat.dtype))


def inner(left, right):
    return np.vdot(*[np.asarray(ravel_pytree(tree)[0], float) for tree in (left, right)])


def norm(tree):
    return np.sqrt(inner(tree, tree))


@named(
    "normal",
    "student_t",
    "negative_binomial2",
    "beta_binomial",
    "zero_inflated_poisson",
    "categorical_probs",
    "categorical_logits",
    "multinomial_logits",
    "ordered_logistic",
    "gamma",
    "beta",
    "von_mises_concentration_5.0",
    "dirichlet",
    "multivariate_normal_covariance",
    "affine_transform_of_normal",
    "mixture_of_normals",
    "users_nakagami",
)
def test_apply_is_linear_and_has_an_adjoint(case, precision):
    @quick_jit
    def maps(theta):
        root = fisher_sqrt(case.make(theta))
        v, w = (random_like(root.parameters, seed) for seed in (1, 2))
        combined = jax.tree.map(lambda x, y: 2 * x - 3 * y, v, w)
        u = random_like(root.apply(v), 3)
        (back,) = jax.linear_transpose(root.apply, root.parameters)(u)
        return v, u, back, [ravel_pytree(root.apply(tangents))[0] for tangents in (v, w, combined)]

    v, u, back, (whitened, other, combined) = maps(case.at(0))
    tolerance = {"float32": 1e-5, "float64": 1e-13}[precision]
    bound = tolerance * (norm(u) * norm(whitened) + norm(back) * norm(v))
    np.testing.assert_allclose(inner(u, whitened), inner(back, v), rtol=0, atol=bound)
    bound = 10 * tolerance * (norm(whitened) + norm(other))
    np.testing.assert_allclose(combined, 2 * whitened - 3 * other, rtol=0, atol=bound)


@named("normal", "student_t", "gamma", "multivariate_normal_covariance", "mixture_of_normals")
def test_missing_tangents_count_as_zero(case, x64):
    root = fisher_sqrt(case.make(case.at(0)))
    for name, tangent in random_like(root.parameters, 1).items():
        given = root.apply({name: tangent})
        full = root.apply(jax.tree.map(jnp.zeros_like, root.parameters) | {name: tangent})
        assert jax.tree.structure(given) == jax.tree.structure(full)
        for one, other in zip(given, full, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_apply_of_nothing_is_zero(x64):
    root = fisher_sqrt(dist.Normal(0.0, 1.0))
    assert isinstance(root, FisherSqrt)
    assert norm(root.apply({})) == 0


@named(
    "student_t",
    "gamma",
    "negative_binomial2",
    "ordered_logistic",
    "beta",
    "multivariate_normal_covariance",
    "low_rank_multivariate_normal",
    "mixture_of_normals",
)
def test_restriction_has_the_information_of_its_parameters_only(case, x64):
    @quick_jit
    def grams(theta):
        root = fisher_sqrt(case.make(theta))
        restricted = {name: root.restrict({name}) for name in root.parameters}
        assert all(set(part.parameters) == {name} for name, part in restricted.items())
        return [
            [gram(linear, {name: value}) for linear in (restricted[name].apply, root.apply)]
            for name, value in root.parameters.items()
        ]

    for part, full in grams(case.at(0)):
        np.testing.assert_allclose(part, full, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name, expected", [("loc", 4.0), ("scale", 8.0)])
def test_restriction_drops_components_that_vanish(name, expected, x64):
    root = fisher_sqrt(dist.Normal(0.3, 0.5)).restrict({name})
    (component,) = root.apply({name: jnp.ones(())})
    np.testing.assert_allclose(jnp.sum(component**2), expected)


# --- a user's rule ---


class PhotonCounts(dist.Distribution):
    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative_integer

    def __init__(self, rate, *, validate_args=None):
        self.rate = jnp.asarray(rate)
        super().__init__(jnp.shape(rate), validate_args=validate_args)

    def log_prob(self, value):
        raise AssertionError("a registered rule needs no density")

    def sample(self, key, sample_shape=()):
        raise AssertionError("a registered rule needs no data")


@register_fisher(PhotonCounts)
def photon_counts(distribution):
    return fisher_rows({"rate": distribution.rate}, [{"rate": 1 / jnp.sqrt(distribution.rate)}])


def test_registered_rule_is_used_also_inside_wrappers_and_with_weights(x64):
    rate, weight = np.array([1.0, 2.0, 4.0, 5.0, 8.0]), np.arange(5.0)
    make = lambda theta: PhotonCounts(theta["rate"]).expand([2, 5]).mask(MASK).to_event(1)
    np.testing.assert_allclose(information(make, {"rate": rate}), np.diag(2 * MASK / rate), atol=1e-14)
    result = information(lambda theta: PhotonCounts(theta["rate"]), {"rate": rate}, weight)
    np.testing.assert_allclose(result, np.diag(weight / rate), atol=1e-14)


def test_registered_rule_takes_precedence_over_the_one_of_a_base_class(x64):
    class DimmedPoisson(dist.Poisson):
        """Poisson counts of which a quarter is seen."""

    @register_fisher(DimmedPoisson)
    def dimmed(distribution):
        return fisher_rows({"rate": distribution.rate}, [{"rate": 0.5 / jnp.sqrt(distribution.rate)}])

    np.testing.assert_allclose(information(lambda t: DimmedPoisson(t["rate"]), {"rate": 2.0}), [[0.125]])
    np.testing.assert_allclose(information(lambda t: dist.Poisson(t["rate"]), {"rate": 2.0}), [[0.5]])
