"""For a one-dimensional distribution ``standardize`` is the monotone map F^-1(Phi(xi)), everywhere."""

from dataclasses import dataclass
from functools import cache, cached_property

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


def unit_tangents(theta, xi):
    """All directions that change one argument only, stacked along a leading axis: each parameter, then xi."""
    leaves, tree = jax.tree.flatten((theta, xi))
    basis = jnp.eye(len(leaves), dtype=xi.dtype)
    return jax.tree.unflatten(tree, [jnp.tile(column[:, None], xi.size) for column in basis.T])


def both_modes(function, *primals):
    """The value, and the derivatives in forward and reverse mode, with a single copy of the value to compile."""
    value, push = jax.linearize(function, *primals)
    return value, push, jax.linear_transpose(push, *primals)


def evaluate_traced(family, cases, precision):
    """All cases by one compiled function, whose parameters are traced, one per case and latent value."""

    def transform(theta, xi):
        return standardize(family.make(**theta), xi)

    @quick_jit
    def evaluate(theta, xi):
        value, push, pull = both_modes(transform, theta, xi)
        theta_bar, xi_bar = pull(jnp.ones_like(value))
        *slopes, slope = jax.vmap(lambda tangents: push(*tangents))(unit_tangents(theta, xi))
        return value, slope, xi_bar, dict(zip(sorted(theta), slopes, strict=True)), theta_bar

    parameters = {name: [case.parameters[name] for case in cases] for name in cases[0].parameters}
    theta = {name: jnp.asarray(np.repeat(values, LATENT.size), precision) for name, values in parameters.items()}
    result = evaluate(theta, jnp.asarray(np.tile(LATENT, len(cases)), precision))
    return jax.tree.map(lambda array: np.asarray(array).reshape(len(cases), LATENT.size), result)


def evaluate_concrete(cases, precision):
    """All cases by one compiled function, in which their parameters are constants."""

    def evaluate_one(case, xi):
        def transform(xi):
            return standardize(case.distribution().expand(xi.shape), xi)

        value, push, pull = both_modes(transform, xi)
        return value, push(jnp.ones_like(xi)), *pull(jnp.ones_like(value))

    results = quick_jit(lambda xi: [evaluate_one(case, xi) for case in cases])(jnp.asarray(LATENT, precision))
    return [np.stack(arrays) for arrays in zip(*results, strict=True)]


@dataclass
class Evaluation:
    """What is checked about a family at the latent values ``LATENT``: arrays with an axis of rows and one of latents.

    The slopes in the parameters have those rows only whose parameters are traced, which come first.
    """

    value: np.ndarray
    slope: np.ndarray
    slope_in_reverse: np.ndarray
    parameter_slopes: dict
    parameter_slopes_in_reverse: dict

    def derivatives(self):
        yield "xi", self.slope, self.slope_in_reverse
        for name, slope in self.parameter_slopes.items():
            yield name, slope, self.parameter_slopes_in_reverse[name]


@dataclass
class Quantiles:
    """The reference at the latent values ``ACCURATE``, with its distances to both bounds (NaN where infinite)."""

    value: np.ndarray
    bounds: np.ndarray
    distances: np.ndarray
    floor: np.ndarray

    def representable(self, precision):
        limits = np.finfo(precision)
        size = np.abs(self.value)
        return (size < limits.max) & ((size > limits.tiny) | (self.value == 0))

    def relative_error(self, x):
        """The error relative to the value or to its distance to a bound, whichever is smaller."""
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = [np.abs(x - self.value) / np.maximum(np.abs(self.value), self.floor)]
            for bound, distance in zip(self.bounds, self.distances, strict=True):
                errors.append(np.abs((x - bound) - distance) / np.abs(distance))
        return np.where(x == self.value, 0.0, np.fmin.reduce(errors))


def floor_of(support, value):
    """The size below which errors count as absolute, where values cross zero."""
    if not support[0] < 0 < support[1]:
        return 0.0
    below, median, above = np.interp([-1, 0, 1], ACCURATE, value)
    return max(abs(median), 0.01 * (above - below) / 2)


def at(latent):
    return np.searchsorted(LATENT, latent)


class Table:
    """A family at all settings of its parameters: one row for each, traced, then one for some, as constants."""

    def __init__(self, family):
        self.family = family
        self.traced = [case for case in CASES if case.family is family]
        self.concrete = self.traced if family.tabulated else self.traced[:1]
        self.cases = [*self.traced, *self.concrete]
        self.rows = [f"{case.id} traced" for case in self.traced] + [f"{case.id} concrete" for case in self.concrete]
        # Not decorators, which would keep every table until the end of the process.
        self.evaluation = cache(self._evaluation)
        self.values_at, self.slopes_at = cache(self._values_at), cache(self._slopes_at)

    def by_case(self, function):
        """An array with one row for each row of the table, from a function of its case."""
        rows = [function(case) for case in self.traced]
        return np.array(rows + rows[: len(self.concrete)])

    def _evaluation(self, precision):
        *traced, slopes, slopes_in_reverse = evaluate_traced(self.family, self.traced, precision)
        concrete = evaluate_concrete(self.concrete, precision)
        both = [np.concatenate(pair) for pair in zip(traced, concrete, strict=True)]
        return Evaluation(*both, slopes, slopes_in_reverse)

    @cached_property
    def quantiles(self):
        exact = [reference.quantiles(self.family.quantile, ACCURATE, case.parameters) for case in self.traced]

        def distances(case, side):
            bound = case.support[side]
            with mpmath.workdps(reference.DIGITS):
                far = [float(x - bound) for x in exact[self.traced.index(case)]]
            return far if np.isfinite(bound) else np.full(ACCURATE.size, np.nan)

        value = self.by_case(lambda case: [float(x) for x in exact[self.traced.index(case)]])
        return Quantiles(
            value,
            np.array([self.by_case(lambda case, side=side: [case.support[side]]) for side in (0, 1)]),
            np.array([self.by_case(lambda case, side=side: distances(case, side)) for side in (0, 1)]),
            np.array([[floor_of(case.support, row)] for case, row in zip(self.cases, value, strict=True)]),
        )

    def _values_at(self, latent):
        quantile = self.family.quantile
        return self.by_case(lambda case: [float(x) for x in reference.quantiles(quantile, latent, case.parameters)])

    def _slopes_at(self, latent, name=None):
        quantile = self.family.quantile
        return self.by_case(lambda case: reference.derivatives(quantile, latent, case.parameters, name))

    def assert_none(self, bad, latent, **arrays):
        """Fail if any entry is bad, and name all that are: the row, the latent value, and what the arrays say there."""
        lines = [
            f"{self.rows[i]} at xi={latent[j]}: " + ", ".join(f"{name} {array[i, j]}" for name, array in arrays.items())
            for i, j in np.argwhere(bad)
        ]
        assert not lines, "\n".join(lines)

    def assert_derivatives_close(self, actual, exact, latent, precision):
        """Compare where values and derivatives fit into the precision."""
        value = self.values_at(tuple(latent))[: len(actual)]
        exact, floor = exact[: len(actual)], self.quantiles.floor[: len(actual)]
        limits = np.finfo(precision)
        size = np.maximum(np.abs(value), np.abs(exact))
        fits = (size < limits.max) & (np.minimum(np.abs(value), np.abs(exact)) > 1e3 * limits.tiny)
        fits |= (value == 0) | (exact == 0)
        relative, of_value = DERIVATIVE[precision]
        tolerance = relative * np.abs(exact) + of_value * np.abs(value) + relative * floor + limits.tiny
        bad = fits & ~(np.abs(actual - exact) <= tolerance)
        self.assert_none(bad, latent, found=actual, expected=exact)


# The scope lets all tests of one family follow each other, so that only its table is kept.
@pytest.fixture(scope="module", params=[family for family, _ in FAMILIES], ids=lambda family: family.name)
def table(request):
    return Table(request.param)


def test_reference_agrees_with_scipy(table):
    xi = (-3, -1.5, -0.25, 0, 0.5, 1, 1.75)
    for case, x, slope in zip(table.traced, table.values_at(xi), table.slopes_at(xi), strict=False):
        np.testing.assert_allclose(case.scipy.cdf(x), special.ndtr(np.float64(xi)), rtol=1e-9, err_msg=case.id)
        density = stats.norm.pdf(np.float64(xi))
        np.testing.assert_allclose(slope, density / case.scipy.pdf(x), rtol=1e-8, err_msg=case.id)


def test_latent_shape_is_that_of_the_distribution(table):
    for case in table.traced:
        assert latent_shape(case.distribution()) == (), case.id
        assert latent_shape(case.distribution().expand([3, 2])) == (3, 2), case.id


def test_value_is_the_quantile_of_the_normal_probability(table, precision):
    x = table.evaluation(precision).value
    assert x.dtype == precision
    x, quantiles = np.float64(x[:, at(ACCURATE)]), table.quantiles
    error = quantiles.relative_error(x)
    bad = quantiles.representable(precision) & ~(error <= ACCURACY[precision])
    table.assert_none(bad, ACCURATE, found=x, expected=quantiles.value, error=error)


def test_slope_is_the_ratio_of_the_densities(table, precision):
    slope = np.float64(table.evaluation(precision).slope[:, at(SLOPE_AT)])
    table.assert_derivatives_close(slope, table.slopes_at(tuple(SLOPE_AT)), SLOPE_AT, precision)


def test_slope_has_no_kink_at_the_median(table, precision):
    ratio = np.float64(table.evaluation(precision).slope[:, at(KINK)]) / table.slopes_at(tuple(KINK))
    bad = ~(np.abs(ratio - ratio[:, 1:2]) <= {"float32": 1e-4, "float64": 1e-8}[precision] * np.abs(ratio[:, 1:2]))
    table.assert_none(bad, KINK, ratio=ratio)


def test_map_is_monotone_and_stays_in_the_support(table, precision):
    latent = np.union1d(ACCURATE, EXTREME)
    x = table.evaluation(precision).value[:, at(latent)]
    low, high = table.quantiles.bounds
    table.assert_none(~((low <= x) & (x <= high)), latent, found=x)
    with np.errstate(invalid="ignore"):
        falls = np.diff(x) < -4 * np.finfo(precision).eps * np.abs(x[:, 1:])
    table.assert_none(falls, latent[1:], before=x[:, :-1], after=x[:, 1:])


def test_extreme_latent_values_give_no_nan(table, precision):
    result = table.evaluation(precision)
    table.assert_none(np.isnan(result.value), LATENT, value=result.value)
    for name, forward, reverse in result.derivatives():
        bad = np.isnan(forward) | np.isnan(reverse)
        table.assert_none(bad, LATENT, **{f"derivative in {name}": forward, "in reverse": reverse})


def test_forward_and_reverse_derivatives_agree(table, precision):
    quantiles = table.quantiles
    rounding = 16 * np.finfo(precision).eps * np.maximum(np.abs(quantiles.value), quantiles.floor)
    for name, *both in table.evaluation(precision).derivatives():
        forward, reverse = (np.float64(slope[:, at(ACCURATE)]) for slope in both)
        fits = quantiles.representable(precision)[: len(forward)]
        tolerance = ACCURACY[precision] * np.abs(forward) + rounding[: len(forward)]
        with np.errstate(invalid="ignore"):
            bad = fits & (forward != reverse) & ~(np.abs(forward - reverse) <= tolerance)
        table.assert_none(bad, ACCURATE, **{f"derivative in {name}": forward, "in reverse": reverse})


def test_parameter_derivatives_match_the_reference(table, precision):
    for name, slope in table.evaluation(precision).parameter_slopes.items():
        exact = table.slopes_at(tuple(PARAMETERS_AT), name)
        table.assert_derivatives_close(np.float64(slope[:, at(PARAMETERS_AT)]), exact, PARAMETERS_AT, precision)


def test_prior_draws_mapped_over_parameters_pass_a_kolmogorov_smirnov_test(table, x64):
    mapped = quick_jit(jax.vmap(lambda theta, xi: standardize(table.family.make(**theta), xi)))
    xi = np.random.default_rng(1).standard_normal(5000)
    for case in table.traced:
        draws = np.asarray(mapped({name: np.full(xi.shape, value) for name, value in case.theta}, xi))
        assert stats.kstest(draws, case.scipy.cdf).pvalue > 1e-3, case.id


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.id)
def test_eager_and_compiled_scalars_agree(case, precision):
    xi = jnp.asarray(0.75, precision)
    eager = standardize(case.distribution(), xi)
    traced = quick_jit(lambda theta, xi: standardize(case.family.make(**theta), xi))(case.parameters, xi)
    assert eager.shape == traced.shape == ()
    np.testing.assert_allclose(eager, traced, rtol=2 * ACCURACY[precision])
