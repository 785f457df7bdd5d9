"""Fisher information of multivariate families.

One rule a family; covariances enter through their Cholesky factor, whichever way they were given.
It must not know wrappers such as Expanded or Masked.
"""

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular

from mgvi.distributions._fisher_special import inverse_trigamma_rest, trigamma
from mgvi.distributions.fisher import Component, FisherSqrt, register_fisher


def _solve(tril, right):
    """tril^-1 right for matrices, broadcasting batch axes."""
    batch = jnp.broadcast_shapes(tril.shape[:-2], right.shape[:-2])
    tril = jnp.broadcast_to(tril, batch + tril.shape[-2:])
    return solve_triangular(tril, jnp.broadcast_to(right, batch + right.shape[-2:]), lower=True)


def _t(matrix):
    return jnp.swapaxes(matrix, -1, -2)


@register_fisher(dist.MultivariateNormal)
def _multivariate_normal(d):
    tril = d.scale_tril

    def loc(tangents):
        t = tangents["loc"]
        t = jnp.broadcast_to(t, t.shape[:-1] + tril.shape[-1:])  # NumPyro keeps a loc of one number for all axes
        return _solve(tril, t[..., None])[..., 0]

    def covariance(tangents):
        half = _solve(tril, tangents["scale_tril"])
        return (half + _t(half)) * 0.5**0.5

    return FisherSqrt(
        {"loc": d.loc, "scale_tril": tril},
        (Component(("loc",), loc, event_dim=1), Component(("scale_tril",), covariance, event_dim=2)),
    )


@register_fisher(dist.LowRankMultivariateNormal)
def _low_rank_multivariate_normal(d):
    factor, diag = d.cov_factor, d.cov_diag
    white = factor / jnp.sqrt(diag)[..., None]
    eigenvalues, basis = jnp.linalg.eigh(_t(white) @ white)
    directions = white @ basis
    # (1 + V V^T)^(-1/2) = 1 - V Q diag(shrink) Q^T V^T
    root = jnp.sqrt(1 + jnp.maximum(eigenvalues, 0.0))
    shrink = 1 / (root * (1 + root))

    def loc(tangents):
        t = tangents["loc"] / jnp.sqrt(diag)
        inner = shrink * jnp.einsum("...ir,...i->...r", directions, t)
        return t - jnp.einsum("...ir,...r->...i", directions, inner)

    tril = jnp.linalg.cholesky(factor @ _t(factor) + diag[..., None] * jnp.eye(diag.shape[-1], dtype=diag.dtype))

    def covariance(tangents):
        change = jnp.zeros_like(tril)
        if "cov_factor" in tangents:
            outer = tangents["cov_factor"] @ _t(factor)
            change = change + outer + _t(outer)
        if "cov_diag" in tangents:
            change = change + tangents["cov_diag"][..., None] * jnp.eye(diag.shape[-1], dtype=diag.dtype)
        return _solve(tril, _t(_solve(tril, change))) * 0.5**0.5

    return FisherSqrt(
        {"loc": d.loc, "cov_factor": factor, "cov_diag": diag},
        (Component(("loc",), loc, event_dim=1), Component(("cov_factor", "cov_diag"), covariance, event_dim=2)),
    )


@register_fisher(dist.Dirichlet)
def _dirichlet(d):
    root = _dirichlet_root(d.concentration)
    component = Component(("concentration",), lambda t: root(t["concentration"]), event_dim=1)
    return FisherSqrt({"concentration": d.concentration}, (component,))


@register_fisher(dist.Beta)
def _beta(d):
    """A Beta is a Dirichlet with two entries."""
    parameters = {"concentration1": d.concentration1, "concentration0": d.concentration0}
    root = _dirichlet_root(jnp.stack(jnp.broadcast_arrays(*parameters.values()), axis=-1))

    def apply(tangents):
        entries = [tangents.get(name, jnp.zeros_like(value)) for name, value in parameters.items()]
        return root(jnp.stack(jnp.broadcast_arrays(*entries), axis=-1))

    return FisherSqrt(parameters, (Component(tuple(parameters), apply, event_dim=1),))


def _dirichlet_root(a):
    """diag(trigamma(a)) minus a rank-one term: its root is diagonal plus rank one."""
    total = jnp.sum(a, axis=-1, keepdims=True)
    own = trigamma(a)
    v = 1 / jnp.sqrt(own)
    square = jnp.sum(v * v, axis=-1, keepdims=True)
    # 1 - trigamma(total) * square, from 1/trigamma(x) = x - 1/2 + rest(x) so that nothing cancels
    rests = inverse_trigamma_rest(total) - jnp.sum(inverse_trigamma_rest(a), axis=-1, keepdims=True)
    left = jnp.maximum(trigamma(total) * (0.5 * (a.shape[-1] - 1) + rests), 0.0)
    remove = (1 - jnp.sqrt(left)) / square

    def apply(tangent):
        t = tangent * jnp.sqrt(own)
        return t - remove * v * jnp.sum(v * t, axis=-1, keepdims=True)

    return apply
