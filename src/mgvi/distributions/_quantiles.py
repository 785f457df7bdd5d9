"""Quantiles of the Gamma and the Beta family, solved numerically in logarithmic coordinates.

Shape parameters and a standard-normal latent come in; log x (Gamma) or logit x (Beta) at the same probability goes out,
with derivatives of every order in all arguments. Nothing here knows a NumPyro distribution.

In these coordinates both densities are log-concave with their mode at a known place. With `d` the
distance from the mode, the log-density is `-drop(d)`; a tail is then `exp(-drop(d))` times the integral of
`exp(-(drop(d + t) - drop(d)))` over t > 0, which a Gauss-Legendre rule takes over the finite interval
in which the integrand matters. Newton's method on the log-tail starts outside the root, where it
converges monotonically because the log-tail of a log-concave density is concave.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import gammaln

from mgvi.distributions._normal_tails import central_probability, normal_log_cdf, normal_log_pdf, normal_log_sf

MAX_LATENT = 12.0  # beyond it the maps go on linearly in log or logit coordinates
_NODE_COUNT = 40  # of the Gauss-Legendre rule
_NEGLIGIBLE_DROP = 42.0  # of the log-density, in nats: exp(-42) = 6e-19
_END_STEPS = 12  # Newton steps to the end of a tail
_MAX_STEPS = 40  # Newton steps to a quantile


class _Gamma(NamedTuple):
    """Log-coordinate of a Gamma(a, 1) variable, relative to its mode log(a)."""

    a: jax.Array

    def drop(self, side, d, t):
        """Fall of the log-density from d to d + t, outwards on `side` of the mode."""
        return self.a * (jnp.exp(side * d) * jnp.expm1(side * t) - side * t)

    def drop_slope(self, side, d, t):
        return side * self.a * jnp.expm1(side * (d + t))

    def end_bound(self, side):
        """A t at which the drop from the mode is certainly not negligible any more."""
        z = _NEGLIGIBLE_DROP / self.a
        upper = jnp.minimum(jnp.sqrt(2 * z), jnp.maximum(jnp.log1p(2 * z), 1.6))
        return jnp.where(side > 0, upper, 1 + z)

    def log_norm(self):
        return _stirling_rest(self.a)

    def outer_bound(self, side, log_tail):
        """A distance from the mode that is certainly beyond the quantile."""
        loss = -log_tail
        upper = jnp.log1p(jnp.sqrt(2 * loss / self.a) + loss / self.a)
        lower = jnp.log(self.a) + (loss - gammaln(self.a + 1)) / self.a
        return jnp.where(side > 0, upper, lower)

    def width(self):
        return lax.rsqrt(self.a)


class _Beta(NamedTuple):
    """Logit of a Beta(a, b) variable, relative to its mode log(a / b)."""

    a: jax.Array
    b: jax.Array

    def _oriented(self, side):
        """(a, b) as seen when walking outwards: b is the rate of decay ahead."""
        up = side > 0
        return jnp.where(up, self.a, self.b), jnp.where(up, self.b, self.a)

    def drop(self, side, d, t):
        a, b = self._oriented(side)
        n = a + b
        z = jnp.log(a) - jnp.log(b) + d
        w, v = jax.nn.sigmoid(z), jax.nn.sigmoid(-z)  # v = 1 - w without cancellation
        near = jnp.minimum(t, 20.0)
        behind = jnp.where(
            t < 20.0,
            jnp.log1p(w * jnp.expm1(near)) * n - a * t,
            n * jnp.log1p(v * jnp.expm1(-t)) + b * t,
        )
        ahead = n * jnp.log1p(v * jnp.expm1(-t)) + b * t
        return jnp.where(w < 0.5, behind, ahead)

    def drop_slope(self, side, d, t):
        a, b = self._oriented(side)
        z = jnp.log(a) - jnp.log(b)
        # n (sigmoid(z + d + t) - sigmoid(z)), each difference without cancellation
        return (a + b) * jax.nn.sigmoid(z + d + t) * jax.nn.sigmoid(-z) * -jnp.expm1(-(d + t))

    def end_bound(self, side):
        a, b = self._oriented(side)
        return (_NEGLIGIBLE_DROP + (a + b) * jnp.log1p(b / a)) / b

    def log_norm(self):
        return _stirling_rest(self.a) + _stirling_rest(self.b) - _stirling_rest(self.a + self.b)

    def outer_bound(self, side, log_tail):
        a, b = self._oriented(side)
        log_beta = gammaln(a) + gammaln(b) - gammaln(a + b)
        return jnp.log(b) - jnp.log(a) - (log_tail + jnp.log(b) + log_beta) / b

    def width(self):
        return jnp.sqrt((self.a + self.b) / self.a / self.b)


def _stirling_rest(a):
    """lgamma(a) - a log(a) + a, without cancellation at large a."""
    large = jnp.maximum(a, 16.0)
    r = 1 / (large * large)
    series = (1 / 12 + r * (-1 / 360 + r * (1 / 1260 - r / 1680))) / large
    small = jnp.minimum(a, 16.0)
    return jnp.where(
        a < 16.0,
        gammaln(small) - small * jnp.log(small) + small,
        0.5 * jnp.log(2 * np.pi / large) + series,
    )


def _end_of_tail(family, side, d):
    """The t after which the rest of the tail beyond d is negligible."""

    def newton(_, t):
        gap = family.drop(side, d, t) - _NEGLIGIBLE_DROP
        return jnp.maximum(t - gap / family.drop_slope(side, d, t), 1e-3 * t)

    start = family.end_bound(side) + jnp.zeros_like(d)
    return lax.fori_loop(0, _END_STEPS, newton, start)


def _unit_rule(dtype):
    """Gauss-Legendre on (0, 1) after t = u^3, which resolves features near 0 much shorter than the interval."""
    x, w = np.polynomial.legendre.leggauss(_NODE_COUNT)
    u, w = 0.5 * (1 + x), 0.5 * w
    return jnp.asarray(u**3, dtype), jnp.asarray(3 * u**2 * w, dtype)


def _integrate(f, end):
    """Integral of f over (0, end), elementwise in `end`."""
    nodes, weights = _unit_rule(end.dtype)
    add = lambda total, node: (total + node[1] * f(end * node[0]), None)
    return end * lax.scan(add, jnp.zeros_like(end), (nodes, weights))[0]


def _tail(family, side, d):
    """Integral of exp(-drop) outwards from d, in units of the density at d."""
    end = lax.stop_gradient(_end_of_tail(*lax.stop_gradient((family, side, d))))
    return _integrate(lambda t: jnp.exp(-family.drop(side, d, t)), end)


def _log_density(family, side, d):
    return -family.drop(side, jnp.zeros_like(d), d) - family.log_norm()


def _log_tail(family, side, d):
    return _log_density(family, side, d) + jnp.log(_tail(family, side, d))


def _side(family, xi):
    """+1 where the quantile lies above the mode, else -1."""
    zero = jnp.zeros_like(xi)
    log_below_mode = _log_tail(family, zero - 1.0, zero)
    return jnp.where(normal_log_cdf(xi) < log_below_mode, -1.0, 1.0).astype(xi.dtype)


def _target(side, xi):
    return jnp.where(side > 0, normal_log_sf(xi), normal_log_cdf(xi))


def _distance(family, side, xi):
    """Distance of the quantile from the mode, by Newton's method on the log-tail."""
    target = _target(side, xi)
    outer = jnp.maximum(family.outer_bound(side, target), 0.0)
    start = jnp.minimum(outer, jnp.sqrt(-2 * target) * family.width())
    tolerance = float(jnp.finfo(xi.dtype).eps) ** 0.6  # the last quadratic step goes far below

    def proceed(state):
        i, d, step = state
        return (i < _MAX_STEPS) & jnp.any(jnp.abs(step) > tolerance * (family.width() + d))

    def newton(state):
        i, d, _ = state
        tail = _tail(family, side, d)
        step = (_log_density(family, side, d) + jnp.log(tail) - target) * tail
        new = jnp.clip(d + step, 0.0, jnp.maximum(outer, d))
        return i + 1, new, new - d

    return lax.while_loop(proceed, newton, (0, start, jnp.full_like(start, jnp.inf)))[1]


def _relative_to_mode(kind, symmetric, xi, *shapes):
    family = kind(*shapes)
    side = jnp.where(xi < 0, -1.0, 1.0).astype(xi.dtype) if symmetric else _side(family, xi)
    d = _distance(family, side, xi)
    if symmetric:  # the value passes through zero: keep its relative accuracy there
        near = jnp.abs(xi) < 1.0
        d = jnp.where(near, _central_distance(family, jnp.where(near, jnp.abs(xi), 0.5)), d)
    return side * d


def _central_distance(family, xi):
    """Distance from the mode of a symmetric density, by Newton's method on the probability between them."""
    up = jnp.ones_like(xi)
    target = central_probability(xi)

    def newton(_, d):
        density = jnp.exp(_log_density(family, up, d))
        return d - (_from_mode(family, up, d) - target) / density

    start = target / jnp.exp(_log_density(family, up, jnp.zeros_like(xi)))
    return lax.fori_loop(0, 5, newton, start)


def _from_mode(family, side, d):
    """Probability between the mode and d."""
    return _integrate(lambda t: jnp.exp(_log_density(family, side, t)), d)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _quantile(kind, symmetric, xi, *shapes):
    """Signed distance of the quantile from the mode."""
    return _relative_to_mode(kind, symmetric, xi, *shapes)


@_quantile.defjvp
def _quantile_jvp(kind, symmetric, primals, tangents):
    xi, *shapes = primals
    xi_dot, *shape_dots = tangents
    value = _quantile(kind, symmetric, xi, *shapes)
    side = lax.stop_gradient(jnp.where(value < 0, -1.0, 1.0).astype(value.dtype))
    distance = side * value
    family = kind(*shapes)
    density = jnp.exp(_log_density(family, side, distance))
    out = jnp.exp(normal_log_pdf(xi)) / density * xi_dot
    log_tail = _log_tail(family, side, distance)
    tail = jnp.exp(log_tail)
    for k, dot in enumerate(shape_dots):

        def of_shape(probability, k=k):
            changed = lambda s: probability(kind(*shapes[:k], s, *shapes[k + 1 :]), side, distance)
            return jax.jvp(changed, (shapes[k],), (jnp.ones_like(shapes[k]),))[1]

        slope = of_shape(_log_tail) * tail
        if symmetric:
            slope = jnp.where(jnp.abs(xi) < 1.0, -of_shape(_from_mode), slope)
        out = out + side * slope / density * dot
    return value, out


def _extended(kind, symmetric, xi, *shapes):
    """The quantile, continued linearly beyond +-MAX_LATENT."""
    xi, *shapes = jnp.broadcast_arrays(xi, *shapes)
    inside = jnp.clip(xi, -MAX_LATENT, MAX_LATENT)
    value = _quantile(kind, symmetric, inside, *shapes)
    side = jnp.where(value < 0, -1.0, 1.0).astype(value.dtype)
    slope = jnp.exp(normal_log_pdf(inside) - _log_density(kind(*shapes), side, side * value))
    return value + slope * (xi - inside)


def _as_floats(*arrays):
    dtype = jnp.result_type(*arrays, jnp.result_type(float))
    return tuple(jnp.asarray(x, dtype) for x in arrays)


def gamma_log_quantile(shape, xi):
    """log x with P(Gamma(shape, 1) < x) = Phi(xi)."""
    shape, xi = _as_floats(shape, xi)
    return jnp.log(shape) + _extended(_Gamma, False, xi, shape)


def beta_logit_quantile(a, b, xi):
    """logit x with P(Beta(a, b) < x) = Phi(xi)."""
    a, b, xi = _as_floats(a, b, xi)
    return jnp.log(a) - jnp.log(b) + _extended(_Beta, False, xi, a, b)


def symmetric_beta_logit_quantile(a, xi):
    """logit x with P(Beta(a, a) < x) = Phi(xi): an odd function of xi."""
    a, xi = _as_floats(a, xi)
    return _extended(_Beta, True, xi, a, a)


def symmetric_beta_log_tail(a, logit):
    """log P(logit of a Beta(a, a) variable > |logit|)."""
    a, logit = jnp.broadcast_arrays(*_as_floats(a, logit))
    return _log_tail(_Beta(a, a), jnp.ones_like(logit), jnp.abs(logit))
