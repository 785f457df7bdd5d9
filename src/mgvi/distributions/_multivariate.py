"""Standardisation of the multivariate families.

One rule a family: affine and Cholesky maps, normalised gammas, vines of partial correlations.
It must not know wrappers such as Expanded or Independent.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer

from mgvi.distributions import _tables
from mgvi.distributions.standardization import register_standardization


def _matvec(matrix, vector):
    return jnp.einsum("...ij,...j->...i", matrix, vector)


@register_standardization(dist.MultivariateNormal)
def _multivariate_normal(d, xi):
    return d.loc + _matvec(d.scale_tril, xi)


@register_standardization(dist.LowRankMultivariateNormal, lambda d: (d.event_shape[0] + d.cov_factor.shape[-1],))
def _low_rank_multivariate_normal(d, xi):
    size = d.event_shape[0]
    return d.loc + jnp.sqrt(d.cov_diag) * xi[..., :size] + _matvec(d.cov_factor, xi[..., size:])


@register_standardization(dist.MultivariateStudentT, lambda d: (d.event_shape[0] + 1,))
def _multivariate_student_t(d, xi):
    log_chi2 = _tables.gamma_log_quantile(0.5 * d.df, xi[..., -1]) + np.log(2.0)
    stretch = jnp.exp(jnp.minimum(0.5 * (jnp.log(d.df) - log_chi2), 80.0))
    return d.loc + _matvec(d.scale_tril, xi[..., :-1]) * stretch[..., None]


@register_standardization(dist.MatrixNormal)
def _matrix_normal(d, xi):
    return d.loc + jnp.einsum("...ij,...jk,...lk->...il", d.scale_tril_row, xi, d.scale_tril_column)


@register_standardization(dist.GaussianRandomWalk)
def _gaussian_random_walk(d, xi):
    return jnp.asarray(d.scale)[..., None] * jnp.cumsum(xi, axis=-1)


@register_standardization(dist.Dirichlet)
def _dirichlet(d, xi):
    return jax.nn.softmax(_tables.gamma_log_quantile(d.concentration, xi), axis=-1)


@register_standardization(dist.LKJCholesky, lambda d: (d.dimension * (d.dimension - 1) // 2,))
def _lkj_cholesky(d, xi):
    size = d.dimension
    row, column = np.tril_indices(size, -1)
    known = not isinstance(d.concentration, Tracer)  # keep constants constant: they use a table
    concentration = (np if known else jnp).asarray(d.concentration)[..., None]
    # In a C-vine the partial correlation of a row with column j, given the columns before j, is symmetric Beta.
    logit = _tables.symmetric_beta_logit_quantile(concentration + 0.5 * (size - 2 - column), xi)
    # tanh is the partial correlation, 1/cosh the norm that it leaves to the columns after it.
    entries = jnp.zeros((*logit.shape[:-1], size, size), logit.dtype).at[..., row, column].set(0.5 * logit)
    entries = jnp.clip(entries, -80.0, 80.0)  # 1 to rounding, and no overflow
    left = jnp.cumprod(1 / jnp.cosh(entries), axis=-1)
    before = jnp.concatenate([jnp.ones_like(left[..., :1]), left[..., :-1]], axis=-1)
    return jnp.tril((jnp.tanh(entries) + jnp.eye(size, dtype=logit.dtype)) * before)
