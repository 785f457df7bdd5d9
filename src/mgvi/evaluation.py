"""Compiled programs that evaluate a problem at many latents.

A problem, a latent mean and stacked deviations from it come in; stacks of values go out.
It must not know where the deviations come from.
"""

from functools import partial

import jax
import jax.numpy as jnp

from mgvi._compile import program


def _at(mean, deviations):
    return jax.tree.map(lambda m, d: m + d, mean, deviations)


@program("samples")
def constrain_many(problem, mean, deviations):
    """Values of all sites."""
    return jax.vmap(problem.constrain)(_at(mean, deviations))


@program("samples")
def log_likelihood_many(problem, mean, deviations):
    """Log-likelihood of each datum."""
    return jax.vmap(problem.log_likelihood)(_at(mean, deviations))


@program("samples")
def neg_log_density_many(problem, mean, deviations):
    """Negative log-density."""
    return jax.vmap(problem.neg_log_density)(_at(mean, deviations))


@program("samples")
def simulate_many(problem, mean, deviations, keys):
    """Data drawn from the model."""
    return jax.vmap(problem.simulate)(keys, _at(mean, deviations))


@program("samples")
def squared_residuals(problem, mean, deviations):
    """Mean squared residuals of the data, by observed site."""
    return jax.vmap(partial(_squared_residual, problem))(_at(mean, deviations))


def _squared_residual(problem, xi):
    out = {}
    for name, (centre, variance, counts) in problem.predicted_moments(xi).items():
        # A certain prediction (a probability that rounds to 0 or 1) has no variance to measure in.
        counts = jnp.broadcast_to(counts & (variance > 0), jnp.shape(variance))
        residual = jnp.square(problem.data[name] - centre) / jnp.where(variance > 0, variance, 1.0)
        out[name] = jnp.sum(jnp.where(counts, residual, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
    return out
