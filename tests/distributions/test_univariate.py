"""For a one-dimensional distribution ``standardize`` is the monotone map F^-1(Phi(xi)), everywhere."""

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special, stats

from mgvi.distributions import latent_shape, standardize

from ..compiling import quick_jit
from . import quantile_reference as reference
from .quantile_cases import CASES, FAMILIES

OFF_GRID = np.array([1e-3, 0.37, 2.71, 6.13])
ACCURATE = np.unique(np.float32(np.concatenate([np.linspace(-8, 8, 33), OFF_GRID, -OFF_GRID])))
KINK = np.float32([-1e-4, 0, 1e-4])
EXTREME = np.float32([-30, -12, 12, 30])
LATENT = np.unique(np.concatenate([ACCURATE, KINK, EXTREME]))
SLOPE_AT = np.float32([-8, -5, -2, -0.5, 0, 0.37, 1.5, 5, 8])
PARAMETERS_AT = np.float32([-5, -2, -0.5, 0, 1.5, 5])

ACCURACY = {"float32": 1e-5, "float64": 1e-10}
DERIVATIVE = {"float32": (1e-3, 1e-5), "float64": (1e-6, 1e-12)}  # of the derivative, of the value

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
first_cases = [next(case for case in CASES if case.family is family) for family, _ in FAMILIES]
every_case_and_mode = pytest.mark.parametrize(
    "case, mode",
    [(case, "traced") for case in CASES]
    + [(case, "concrete") for case in CASES if case.family.tabulated or case in first_cases],
    ids=lambda value: getattr(value, "id", value),
)


@dataclass
class Evaluation:
    """Everything that is checked about a case, at the latent values ``LATENT``."""

    value: np.ndarray
    slope: np.ndarray
    slope_in_reverse: np.ndarray
    parameter_slopes: dict
    parameter_slopes_in_reverse: dict

    def derivatives(self):
        yield "xi", self.slope, self.slope_in_reverse
        for name, slope in self.parameter_slopes.items():
            yield name, slope, self.parameter_slopes_in_reverse[name]


def unit_tangents(theta, xi):
    """All directions that change one argument only, stacked along a leading axis: each parameter, then xi."""
    leaves, tree = jax.tree.flatten((theta, xi))
    basis = jnp.eye(len(leaves), dtype=xi.dtype)
    return jax.tree.unflatten(tree, [jnp.tile(column[:, None], xi.size) for column in basis.T])


@cache
def traced_evaluation(family, precision):
    """One compiled function for all settings of a family; its parameters are traced, one per latent value."""

    def transform(theta, xi):
        return standardize(family.make(**theta), xi)

    @quick_jit
    def evaluate(theta, xi):
        value, pull = jax.vjp(transform, theta, xi)
        theta_bar, xi_bar = pull(jnp.ones_like(value))
        push = jax.vmap(lambda tangents: jax.jvp(transform, (theta, xi), tangents)[1])
        *slopes, slope = push(unit_tangents(theta, xi))
        return value, slope, xi_bar, dict(zip(sorted(theta), slopes, strict=True)), theta_bar

    return evaluate


def concrete_evaluation(case):
    @quick_jit
    def evaluate(xi):
        def transform(xi):
            return standardize(case.distribution().expand(xi.shape), xi)

        value, slope = jax.jvp(transform, (xi,), (jnp.ones_like(xi),))
        (xi_bar,) = jax.vjp(transform, xi)[1](jnp.ones_like(value))
        return value, slope, xi_bar, {}, {}

    return evaluate


@cache
def evaluate(case, precision, mode):
    xi = jnp.asarray(LATENT, precision)
    if mode == "concrete":
        result = concrete_evaluation(case)(xi)
    else:
        theta = {name: jnp.full(xi.shape, value, precision) for name, value in case.theta}
        result = traced_evaluation(case.family, precision)(theta, xi)
    return Evaluation(*jax.tree.map(np.asarray, result))


@dataclass
class Quantiles:
    """The reference at the latent values ``ACCURATE``, with its distance to each finite bound."""

    value: np.ndarray
    distances: dict
    floor: float

    def representable(self, precision):
        limits = np.finfo(precision)
        size = np.abs(self.value)
        return (size < limits.max) & ((size > limits.tiny) | (self.value == 0))


@cache
def expected(case):
    exact = reference.quantiles(case.family.quantile, ACCURATE, case.parameters)
    value = np.array([float(x) for x in exact])
    with mpmath.workdps(reference.DIGITS):
        distances = {bound: np.array([float(x - bound) for x in exact]) for bound in case.support if np.isfinite(bound)}
    low, high = case.support
    if low < 0 < high:  # values cross zero, where only an absolute error makes sense
        below, median, above = np.interp([-1, 0, 1], ACCURATE, value)
        return Quantiles(value, distances, max(abs(median), 0.01 * (above - below) / 2))
    return Quantiles(value, distances, 0.0)


def at(latent):
    return np.searchsorted(LATENT, latent)


def relative_error(x, case):
    """The error relative to the value or to its distance to a bound, whichever is smaller."""
    quantiles = expected(case)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = [np.abs(x - quantiles.value) / np.maximum(np.abs(quantiles.value), quantiles.floor)]
        for bound, distance in quantiles.distances.items():
            errors.append(np.abs((x - bound) - distance) / np.abs(distance))
    return np.where(x == quantiles.value, 0.0, np.fmin.reduce(errors))


def assert_derivatives_close(actual, exact, case, latent, precision):
    """Compare where values and derivatives fit into the precision."""
    value = np.array([float(x) for x in reference.quantiles(case.family.quantile, latent, case.parameters)])
    limits = np.finfo(precision)
    size = np.maximum(np.abs(value), np.abs(exact))
    fits = (size < limits.max) & (np.minimum(np.abs(value), np.abs(exact)) > 1e3 * limits.tiny)
    fits |= (value == 0) | (exact == 0)
    relative, of_value = DERIVATIVE[precision]
    near_zero = relative * expected(case).floor
    tolerance = relative * np.abs(exact) + of_value * np.abs(value) + near_zero + limits.tiny
    bad = fits & ~(np.abs(actual - exact) <= tolerance)
    assert not bad.any(), f"{actual[bad]} instead of {exact[bad]} at xi={latent[bad]}"


@every_case
def test_reference_agrees_with_scipy(case):
    xi = np.float32([-3, -1.5, -0.25, 0, 0.5, 1, 1.75])
    x = np.array([float(value) for value in reference.quantiles(case.family.quantile, xi, case.parameters)])
    slope = reference.derivatives(case.family.quantile, xi, case.parameters)
    np.testing.assert_allclose(case.scipy.cdf(x), special.ndtr(np.float64(xi)), rtol=1e-9)
    np.testing.assert_allclose(slope, stats.norm.pdf(np.float64(xi)) / case.scipy.pdf(x), rtol=1e-8)


@every_case
def test_latent_shape_is_that_of_the_distribution(case):
    assert latent_shape(case.distribution()) == ()
    assert latent_shape(case.distribution().expand([3, 2])) == (3, 2)


@every_case_and_mode
def test_value_is_the_quantile_of_the_normal_probability(case, mode, precision):
    x = evaluate(case, precision, mode).value
    assert x.dtype == precision
    error = relative_error(np.float64(x[at(ACCURATE)]), case)
    bad = expected(case).representable(precision) & ~(error <= ACCURACY[precision])
    assert not bad.any(), f"relative errors {error[bad]} at xi={ACCURATE[bad]}"


@every_case_and_mode
def test_slope_is_the_ratio_of_the_densities(case, mode, precision):
    exact = reference.derivatives(case.family.quantile, SLOPE_AT, case.parameters)
    slope = np.float64(evaluate(case, precision, mode).slope[at(SLOPE_AT)])
    assert_derivatives_close(slope, exact, case, SLOPE_AT, precision)


@every_case_and_mode
def test_slope_has_no_kink_at_the_median(case, mode, precision):
    exact = reference.derivatives(case.family.quantile, KINK, case.parameters)
    ratio = np.float64(evaluate(case, precision, mode).slope[at(KINK)]) / exact
    np.testing.assert_allclose(ratio, ratio[1], rtol={"float32": 1e-4, "float64": 1e-8}[precision])


@every_case_and_mode
def test_map_is_monotone_and_stays_in_the_support(case, mode, precision):
    x = evaluate(case, precision, mode).value[at(np.union1d(ACCURATE, EXTREME))]
    low, high = case.support
    assert np.all((low <= x) & (x <= high))
    with np.errstate(invalid="ignore"):
        falls = np.diff(x) < -4 * np.finfo(precision).eps * np.abs(x[1:])
    assert not falls.any()


@every_case_and_mode
def test_extreme_latent_values_give_no_nan(case, mode, precision):
    result = evaluate(case, precision, mode)
    assert not np.isnan(result.value).any()
    for name, forward, reverse in result.derivatives():
        bad = np.isnan(forward) | np.isnan(reverse)
        assert not bad.any(), f"derivative in {name} is NaN at xi={LATENT[bad]}"


@every_case_and_mode
def test_forward_and_reverse_derivatives_agree(case, mode, precision):
    result = evaluate(case, precision, mode)
    quantiles = expected(case)
    fits = quantiles.representable(precision)
    rounding = 16 * np.finfo(precision).eps * np.maximum(np.abs(quantiles.value), quantiles.floor)
    for name, forward, reverse in result.derivatives():
        forward, reverse = (np.float64(slope[at(ACCURATE)]) for slope in (forward, reverse))
        tolerance = ACCURACY[precision] * np.abs(forward) + rounding
        with np.errstate(invalid="ignore"):
            bad = fits & (forward != reverse) & ~(np.abs(forward - reverse) <= tolerance)
        assert not bad.any(), f"in {name}: {forward[bad]} and {reverse[bad]} at xi={ACCURATE[bad]}"


@every_case
def test_parameter_derivatives_match_the_reference(case, precision):
    result = evaluate(case, precision, "traced")
    for name, slope in result.parameter_slopes.items():
        exact = reference.derivatives(case.family.quantile, PARAMETERS_AT, case.parameters, name)
        assert_derivatives_close(np.float64(slope[at(PARAMETERS_AT)]), exact, case, PARAMETERS_AT, precision)


@cache
def mapped(family):
    return quick_jit(jax.vmap(lambda theta, xi: standardize(family.make(**theta), xi)))


@every_case
def test_prior_draws_mapped_over_parameters_pass_a_kolmogorov_smirnov_test(case, x64):
    xi = np.random.default_rng(1).standard_normal(5000)
    theta = {name: np.full(xi.shape, value) for name, value in case.theta}
    draws = np.asarray(mapped(case.family)(theta, xi))
    assert stats.kstest(draws, case.scipy.cdf).pvalue > 1e-3


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.id)
def test_eager_and_compiled_scalars_agree(case, precision):
    xi = jnp.asarray(0.75, precision)
    eager = standardize(case.distribution(), xi)
    traced = quick_jit(lambda theta, xi: standardize(case.family.make(**theta), xi))(case.parameters, xi)
    assert eager.shape == traced.shape == ()
    np.testing.assert_allclose(eager, traced, rtol=2 * ACCURACY[precision])
