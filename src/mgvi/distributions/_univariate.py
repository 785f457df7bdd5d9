"""Standardisation of the univariate families.

One rule a family, written for any broadcastable batch, accurate in both tails.
It must not know wrappers such as Expanded or Independent.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer

from mgvi.distributions import _quantiles, _tables, _truncated
from mgvi.distributions._normal_tails import (
    central_probability,
    exp_limit,
    normal_log_cdf,
    normal_log_sf,
    normal_quantile_of_log_cdf,
    saturated,
    smaller_tail,
)
from mgvi.distributions.standardization import _apply, register_standardization
from mgvi.errors import ModelError


def _by_probability(cls):
    """Register a rule that goes through probabilities, with latents held where those would underflow."""

    def decorator(rule):
        register_standardization(cls)(lambda d, xi: rule(d, saturated(xi)))
        return rule

    return decorator


def _exp(x):
    """exp, held below overflow so that its slope stays finite."""
    return jnp.exp(jnp.minimum(x, exp_limit(x.dtype)))


_SYMMETRIC = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic)


@register_standardization(dist.Normal)
def _normal(d, xi):
    return d.loc + d.scale * xi


@register_standardization(dist.LogNormal)
def _log_normal(d, xi):
    return jnp.exp(d.loc + d.scale * xi)


@_by_probability(dist.Uniform)
def _uniform(d, xi):
    return _between(d.low, d.high, xi)


@_by_probability(dist.LogUniform)
def _log_uniform(d, xi):
    return jnp.clip(jnp.exp(_between(jnp.log(d.low), jnp.log(d.high), xi)), d.low, d.high)


def _between(low, high, xi):
    step = (high - low) * smaller_tail(xi)
    return jnp.where(xi < 0, low + step, high - step)


@_by_probability(dist.Exponential)
def _exponential(d, xi):
    return -normal_log_sf(xi) / d.rate


@_by_probability(dist.Pareto)
def _pareto(d, xi):
    return d.scale * _exp(-normal_log_sf(xi) / d.alpha)


@_by_probability(dist.Weibull)
def _weibull(d, xi):
    return d.scale * _exp(jnp.log(-normal_log_sf(xi)) / d.concentration)


@_by_probability(dist.Gumbel)
def _gumbel(d, xi):
    return d.loc - d.scale * jnp.log(-normal_log_cdf(xi))


@_by_probability(dist.Logistic)
def _logistic(d, xi):
    return d.loc + d.scale * _central(
        xi, lambda p: 2 * jnp.arctanh(2 * p), lambda log_q: log_q - jnp.log1p(-jnp.exp(log_q))
    )


@_by_probability(dist.Laplace)
def _laplace(d, xi):
    return d.loc + d.scale * _central(
        xi,
        lambda p: jnp.where(p < 0, 1.0, -1.0) * jnp.log1p(-2 * jnp.abs(p)),
        lambda log_q: log_q + math.log(2.0),
    )


@_by_probability(dist.Cauchy)
def _cauchy(d, xi):
    return d.loc + d.scale * _central(
        xi, lambda p: jnp.tan(jnp.pi * p), lambda log_q: -_truncated.cotangent_of_log(log_q + math.log(math.pi))
    )


def _central(xi, near, tail):
    """An odd quantile: `near` of Phi - 1/2 around zero, `tail` of the log of the smaller tail elsewhere."""
    is_near = jnp.abs(xi) < 1
    centre = near(central_probability(jnp.where(is_near, xi, 0.5)))
    sign = jnp.where(xi < 0, 1.0, -1.0)
    outside = jnp.where(is_near, -1.0, jnp.where(xi < 0, xi, -xi))
    return jnp.where(is_near, centre, sign * tail(normal_log_cdf(outside)))


@_by_probability(dist.HalfCauchy)
def _half_cauchy(d, xi):
    return d.scale * _exp(0.5 * _tables.symmetric_beta_logit_quantile(0.5, xi))  # x^2 / (1 + x^2) is Beta(1/2, 1/2)


def half_normal(xi):
    """|z| of a standard normal z at the probability of xi."""
    return _exp(0.5 * (_tables.gamma_log_quantile(0.5, xi) + math.log(2.0)))  # z^2 / 2 is Gamma(1/2)


@_by_probability(dist.HalfNormal)
def _half_normal(d, xi):
    return d.scale * half_normal(xi)


@_by_probability(dist.Gamma)
def _gamma(d, xi):
    return _exp(_tables.gamma_log_quantile(d.concentration, xi)) / d.rate


@_by_probability(dist.InverseGamma)
def _inverse_gamma(d, xi):
    return d.rate * _exp(-_tables.gamma_log_quantile(d.concentration, -xi))


@_by_probability(dist.Beta)
def _beta(d, xi):
    return jax.nn.sigmoid(_tables.beta_logit_quantile(d.concentration1, d.concentration0, xi))


@_by_probability(dist.StudentT)
def _student_t(d, xi):
    return d.loc + d.scale * student_t(d.df, xi)


def student_t(df, xi):
    """Standard t quantile: with y the logit of a Beta(df/2, df/2) variable it is sqrt(df) sinh(y/2)."""
    half = 0.5 * _tables.symmetric_beta_logit_quantile(0.5 * df, xi)
    limit = exp_limit(half.dtype)
    return jnp.sqrt(df) * jnp.sinh(jnp.clip(half, -limit, limit))


@_by_probability(dist.Kumaraswamy)
def _kumaraswamy(d, xi):
    log_tail = normal_log_sf(xi) / d.concentration0  # log(1 - x^a)
    return jnp.exp(jnp.log(-jnp.expm1(log_tail)) / d.concentration1)


@_by_probability(dist.FoldedDistribution)
def _folded(d, xi):
    if not _symmetric_about(d.base_dist, 0.0):
        raise ModelError(
            f"FoldedDistribution over {type(d.base_dist).__name__} cannot be standardised: only a base that is "
            "symmetric about 0 can. Use a Half... or a TruncatedDistribution instead."
        )
    return _apply(d.base_dist, half_normal(xi))


def _symmetric_about(base, point) -> bool:
    while isinstance(base, dist.ExpandedDistribution | dist.Independent):
        base = base.base_dist
    loc = getattr(base, "loc", None)
    if not isinstance(base, _SYMMETRIC) or isinstance(loc, Tracer) or isinstance(point, Tracer):
        return False
    return bool(np.all(np.asarray(loc) == np.asarray(point)))


@_by_probability(dist.LeftTruncatedDistribution)
def _left_truncated(d, xi):
    has_own_map = isinstance(d.base_dist, dist.Normal | dist.Cauchy)
    if not has_own_map and _symmetric_about(d.base_dist, d.low):
        return _apply(d.base_dist, half_normal(xi))
    return _between_bounds(d.base_dist, d.low, None, xi)


@_by_probability(dist.RightTruncatedDistribution)
def _right_truncated(d, xi):
    return _between_bounds(d.base_dist, None, d.high, xi)


@_by_probability(dist.TwoSidedTruncatedDistribution)
def _two_sided_truncated(d, xi):
    return _between_bounds(d.base_dist, d.low, d.high, xi)


def _between_bounds(base: Any, low, high, xi):
    """A truncated draw of `base`; a bound that is None does not exist."""
    if isinstance(base, dist.Normal):
        return _truncated_normal(low, high, base.loc, base.scale, xi)
    if isinstance(base, dist.Cauchy):
        low, high = -jnp.inf if low is None else low, jnp.inf if high is None else high
        return _truncated.two_sided_truncated_cauchy(low, high, base.loc, base.scale, xi)
    return _truncated_in_latent(base, low, high, xi)


def _truncated_normal(low, high, loc, scale, xi):
    if high is None:
        return _truncated.left_truncated_normal(low, loc, scale, xi)
    if low is None:
        return -_truncated.left_truncated_normal(-jnp.asarray(high), -jnp.asarray(loc), scale, -xi)
    return _truncated.two_sided_truncated_normal(low, high, loc, scale, xi)


def _truncated_in_latent(base: Any, low, high, xi):
    """Truncating a draw is truncating its latent, at the latents of the bounds."""
    df = getattr(base, "df", None)

    def latent_of(bound):
        # In the right half go by the mirror image: the bases are symmetric about their loc.
        mirrored = bound > base.loc
        if df is not None:  # a Student t, whose cdf NumPyro cannot differentiate
            logit = 2 * jnp.arcsinh((bound - base.loc) / (base.scale * jnp.sqrt(df)))
            log_p = _quantiles.symmetric_beta_log_tail(0.5 * df, logit)
        else:
            log_p = jnp.log(jnp.asarray(base.cdf(jnp.where(mirrored, 2 * base.loc - bound, bound)), xi.dtype))
        z = normal_quantile_of_log_cdf(log_p)
        return jnp.where(mirrored, -z, z)

    if low is None or high is None:
        bounds = [None if bound is None else latent_of(bound) for bound in (low, high)]
    else:
        shape = jnp.broadcast_shapes(jnp.shape(low), jnp.shape(high), base.batch_shape)
        bounds = latent_of(jnp.stack([jnp.broadcast_to(bound, shape) for bound in (low, high)]))
    latent = _truncated_normal(bounds[0], bounds[1], 0.0, 1.0, xi)
    return jnp.clip(_apply(base, latent), low, high)
