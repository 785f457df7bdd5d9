"""Probabilities of a standard normal, accurate in both tails.

A latent `xi` comes in; its log-cdf, log-sf and the quantile of a log-probability go out.
This file must not know any other distribution.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtr, ndtri

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def saturated(xi):
    """The latent, held where the probability of its tail would underflow."""
    limit = 12.5 if xi.dtype == jnp.float32 else 37.0
    return jnp.clip(xi, -limit, limit)


def exp_limit(dtype) -> float:
    """The largest argument whose exponential, and its slope, stay clear of overflow."""
    return 0.97 * math.log(float(jnp.finfo(dtype).max))


def normal_log_pdf(xi):
    """Log-density of a standard normal."""
    return -0.5 * xi * xi - HALF_LOG_2PI


def normal_log_cdf(xi):
    """log Phi(xi), with full relative accuracy also where it is close to zero."""
    below = xi < 0  # not minimum and maximum: they halve the slope at 0
    lower = log_ndtr(jnp.where(below, xi, 0.0))
    upper = jnp.log1p(-ndtr(jnp.where(below, 0.0, -xi)))
    return jnp.where(below, lower, upper)


def normal_log_sf(xi):
    """log(1 - Phi(xi))."""
    return normal_log_cdf(-xi)


def smaller_tail(xi):
    """The probability of the tail that `xi` lies in: Phi(-|xi|)."""
    return ndtr(-jnp.where(xi < 0, -xi, xi))


def central_probability(xi):
    """Phi(xi) - 1/2, with full relative accuracy around zero."""
    return 0.5 * jax.lax.erf(xi * math.sqrt(0.5))


@jax.custom_jvp
def normal_quantile_of_log_cdf(log_p):
    """The z with log Phi(z) = log_p, for any log_p < 0."""
    log_p = jnp.asarray(log_p)
    smallest = math.log(float(jnp.finfo(log_p.dtype).tiny)) + 2.0
    lower = ndtri(jnp.exp(jnp.maximum(log_p, smallest)))
    upper = -ndtri(-jnp.expm1(log_p))
    loss = -jnp.minimum(log_p, smallest)  # where the probability itself underflows: the asymptotic tail
    far = -jnp.sqrt(2 * loss - 2 * HALF_LOG_2PI - jnp.log(2 * loss))
    for _ in range(2):
        log_cdf = log_ndtr(far)
        far = far - (log_cdf + loss) * jnp.exp(log_cdf - normal_log_pdf(far))
    return jnp.where(log_p < smallest, far, jnp.where(log_p < math.log(0.5), lower, upper))


@normal_quantile_of_log_cdf.defjvp
def _normal_quantile_of_log_cdf_jvp(primals, tangents):
    (log_p,), (dot,) = primals, tangents
    z = normal_quantile_of_log_cdf(log_p)
    return z, dot * jnp.exp(log_p - normal_log_pdf(z))
