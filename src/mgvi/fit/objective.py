"""The sampled Kullback-Leibler divergence as a function of the mean.

A problem, deviations and the weight of the likelihood come in; the objective that a minimizer needs goes out.
It must not know how deviations are drawn or how the mean is moved.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi.problem import FisherMetric, Problem, neg_log_likelihood_terms, whitened


@dataclass(frozen=True)
class SampledKL:
    """KL of the samples mean + deviations, up to a constant, with the likelihood raised to the power `beta`."""

    problem: Problem
    deviations: Any  # stacked, partners included
    beta: Any
    free: Any  # 1 for each site whose mean moves, 0 for each that is held

    @property
    def _count(self):
        return jax.tree.leaves(self.deviations)[0].shape[0]

    def _samples(self, mean):
        return jax.tree.map(lambda m, d: m + d, mean, self.deviations)

    def _terms(self, mean):
        """Log-likelihood terms of each datum, averaged over the samples only after a difference is taken."""
        return jax.vmap(partial(neg_log_likelihood_terms, self.problem))(self._samples(mean))

    def gradient(self, mean):
        """Gradient with respect to the mean; beside it the KL, up to a constant, and each sample's own gradient."""

        def one(x):
            return 0.5 * _tree.dot(x, x) + self.beta * _total(neg_log_likelihood_terms(self.problem, x))

        values, gradients = jax.vmap(jax.value_and_grad(one))(self._samples(mean))
        gradients = _tree.multiply(self.free, gradients)
        return jax.tree.map(lambda g: jnp.mean(g, axis=0), gradients), (jnp.mean(values), gradients)

    def metric(self, mean):
        """Fisher metric averaged over the samples."""
        root = jnp.sqrt(self.beta / self._count)

        def stacked(mean):
            return _tree.scale(root, jax.vmap(partial(whitened, self.problem))(self._samples(mean)))

        push = jax.linearize(stacked, mean)[1]
        return FisherMetric(lambda v: push(_tree.multiply(self.free, v)), self.problem.latent)

    def change(self, mean, step):
        """From a length to the KL at mean + length * step minus the KL at mean, formed datum by datum."""
        here = self._terms(mean)
        centre = jax.tree.map(lambda m, d: m + jnp.mean(d, axis=0), mean, self.deviations)

        def at(length):
            prior = length * _tree.dot(step, centre) + 0.5 * length**2 * _tree.dot(step, step)
            there = self._terms(jax.tree.map(lambda m, s: m + length * s, mean, step))
            return prior + self.beta * _total(_tree.subtract(there, here)) / self._count

        return at


def _total(terms):
    return sum((jnp.sum(t) for t in jax.tree.leaves(terms)), start=jnp.zeros(()))
