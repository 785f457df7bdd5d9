"""Truncated distributions as functions of a standard-normal latent.

Bounds in units of the base distribution and a latent come in; the distance to the near bound goes out, so that a draw
close to a bound keeps its relative accuracy. Nothing here knows a model.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from mgvi.distributions._normal_tails import normal_log_cdf, normal_log_pdf, normal_log_sf, normal_quantile_of_log_cdf

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = 0.5 * (1 + _NODES), 0.5 * _WEIGHTS


def _log_mass_near(alpha, d):
    """log of the integral of exp(-alpha t - t^2/2) over (0, d), for short d."""
    nodes = jnp.asarray(_NODES, d.dtype).reshape((-1,) + (1,) * d.ndim)
    weights = jnp.asarray(_WEIGHTS, d.dtype).reshape(nodes.shape)
    t = d * nodes
    return jnp.log(d) + jnp.log(jnp.sum(weights * jnp.exp(-t * (alpha + 0.5 * t)), axis=0))


def _log_mass(alpha, beta):
    """log of (Phi(beta) - Phi(alpha)) / phi(alpha)."""
    narrow = beta - alpha < 2.0
    near = _log_mass_near(alpha, jnp.where(narrow, beta - alpha, 1.0))
    # Subtract in the tail that holds both bounds; across zero no subtraction cancels.
    in_right, in_left = alpha > 0, beta < 0
    big = jnp.where(in_left, normal_log_cdf(beta), normal_log_sf(alpha))
    small = jnp.where(in_left, normal_log_cdf(alpha), normal_log_sf(beta))
    gap = jnp.where(narrow, -1.0, small - big)
    one_tail = big + jnp.log1p(-jnp.exp(gap))
    across = jnp.log1p(-jnp.where(in_right | in_left, 0.0, ndtr(alpha) + ndtr(-beta)))
    far = jnp.where(in_right | in_left, one_tail, across) - normal_log_pdf(alpha)
    return jnp.where(narrow, near, far)


@jax.custom_jvp
def normal_above(alpha, beta, xi):
    """z - alpha for a standard normal z truncated to (alpha, beta), at the latent xi <= 0 or any xi if beta = inf."""
    log_u = normal_log_cdf(xi)
    log_mass = _log_mass(alpha, beta)
    target = log_u + log_mass
    share = jnp.exp(target + normal_log_pdf(alpha))  # Phi(z) - Phi(alpha)
    from_left = normal_quantile_of_log_cdf(jnp.logaddexp(normal_log_cdf(alpha), jnp.log(share)))
    log_sf = normal_log_sf(alpha)
    rest = jnp.where(jnp.isinf(beta), normal_log_sf(xi), jnp.log1p(-jnp.minimum(share * jnp.exp(-log_sf), 0.999)))
    from_right = -normal_quantile_of_log_cdf(log_sf + rest)
    far = jnp.where((alpha < 0) & (xi < 0), from_left, from_right) - alpha

    # Close to the bound z - alpha cancels: solve for the distance itself, in its logarithm.
    safe_alpha = jnp.where(jnp.abs(alpha) > 1e-4, alpha, 1e-4)
    growth = jnp.minimum(safe_alpha * jnp.exp(jnp.minimum(target, 30.0)), 0.999)
    start = jnp.clip(-jnp.log1p(-growth) / safe_alpha, jnp.finfo(target.dtype).tiny, 1.0)
    start = jnp.where(far > 0.1, jnp.minimum(far, 1.0), start)

    def newton(_, log_d):
        d = jnp.exp(log_d)
        log_near = _log_mass_near(alpha, d)
        step = (target - log_near) * jnp.exp(log_near + d * (alpha + 0.5 * d) - log_d)
        return jnp.minimum(log_d + jnp.clip(step, -2.0, 2.0), 0.7)

    near = jnp.exp(jax.lax.fori_loop(0, 8, newton, jnp.log(start)))
    # Each where it is well conditioned: further out the mass below d hardly grows with d.
    return jnp.where(far * (1 + jnp.abs(alpha)) > 1.5, far, near)


@normal_above.defjvp
def _normal_above_jvp(primals, tangents):
    alpha, beta, xi = primals
    alpha_dot, beta_dot, xi_dot = tangents
    d = normal_above(alpha, beta, xi)
    fall = d * (alpha + 0.5 * d)  # log phi(alpha) - log phi(alpha + d)
    by_alpha = jnp.expm1(fall + normal_log_sf(xi))
    finite = jnp.isfinite(beta)
    safe_beta = jnp.where(finite, beta, 0.0)
    by_beta = jnp.exp(normal_log_cdf(xi) + normal_log_pdf(safe_beta) - normal_log_pdf(alpha + d))
    by_xi = jnp.exp(_log_mass(alpha, beta) + normal_log_pdf(xi) + fall)
    return d, by_alpha * alpha_dot + jnp.where(finite, by_beta, 0.0) * beta_dot + by_xi * xi_dot


def _floats(*arrays):
    dtype = jnp.result_type(*arrays, float)
    return jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in arrays))


def left_truncated_normal(low, loc, scale, xi):
    """Normal(loc, scale) above `low`."""
    low, loc, scale, xi = _floats(low, loc, scale, xi)
    alpha = (low - loc) / scale
    return low + scale * normal_above(alpha, jnp.full_like(alpha, jnp.inf), xi)


def two_sided_truncated_normal(low, high, loc, scale, xi):
    """Normal(loc, scale) between `low` and `high`, either of which may be infinite."""
    low, high, loc, scale, xi = _floats(low, high, loc, scale, xi)
    alpha, beta = _standard(low, loc, scale), _standard(high, loc, scale)
    below = xi < 0  # or else in the mirror image
    step = normal_above(*(jnp.where(below, *pair) for pair in ((alpha, -beta), (beta, -alpha), (xi, -xi))))
    rising = jnp.where(jnp.isfinite(low), low + scale * step, loc + scale * (alpha + step))
    falling = jnp.where(jnp.isfinite(high), high - scale * step, loc + scale * (beta - step))
    return jnp.where(below, rising, falling)


def _standard(bound, loc, scale):
    """A bound in units of the scale; an infinite one as a number beyond all probability."""
    finite = jnp.isfinite(bound)
    inside = (jnp.where(finite, bound, loc) - loc) / scale
    far = 13.0 if inside.dtype == jnp.float32 else 38.0
    return jnp.where(finite, inside, jnp.sign(bound) * far)


def two_sided_truncated_cauchy(low, high, loc, scale, xi):
    """Cauchy(loc, scale) between `low` and `high`, either of which may be infinite."""
    low, high, loc, scale, xi = _floats(low, high, loc, scale, xi)
    has_low, has_high = jnp.isfinite(low), jnp.isfinite(high)
    alpha = (jnp.where(has_low, low, loc - scale) - loc) / scale
    beta = (jnp.where(has_high, high, loc + scale) - loc) / scale
    arc = _arc(alpha, beta, has_low, has_high)
    below = xi < 0  # or else in the mirror image
    near, bounded = jnp.where(below, alpha, -beta), jnp.where(below, has_low, has_high)
    step = scale * _cauchy_step(near, bounded, jnp.log(arc) + normal_log_cdf(jnp.where(below, xi, -xi)))
    return jnp.where(below, jnp.where(has_low, low, loc) + step, jnp.where(has_high, high, loc) - step)


def cotangent_of_log(log_angle):
    """1 / tan(exp(log_angle)), whose slopes do not overflow where the angle is tiny."""
    angle = jnp.exp(log_angle)
    small = angle < 3e-3
    square = jnp.where(small, angle, 0.0) ** 2
    near = jnp.exp(-log_angle) * (1 - square / 3 - square**2 / 45)
    return jnp.where(small, near, 1 / jnp.tan(jnp.where(small, 1.0, angle)))


def _arc(alpha, beta, has_low, has_high):
    """atan(beta) - atan(alpha) without cancellation."""
    both = jnp.arctan2(beta - alpha, 1 + alpha * beta)
    low_angle = jnp.where(has_low, jnp.arctan2(1.0, alpha), jnp.pi)
    high_angle = jnp.where(has_high, jnp.arctan2(1.0, beta), 0.0)
    return jnp.where(has_low & has_high, both, low_angle - high_angle)


def _cauchy_step(alpha, bounded, log_turn):
    """tan(atan(alpha) + turn) - alpha, or -1/tan(turn) where there is no bound."""
    turn = jnp.where(bounded, jnp.exp(log_turn), 0.5)
    step = jnp.sin(turn) * (1 + alpha * alpha) / (jnp.cos(turn) - alpha * jnp.sin(turn))
    return jnp.where(bounded, step, -cotangent_of_log(jnp.where(bounded, -1.0, log_turn)))
