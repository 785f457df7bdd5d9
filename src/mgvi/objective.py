"""The sampled Kullback-Leibler divergence as a function of the mean.

A problem, deviations and the weight of the likelihood come in; the objective that a minimizer needs goes out.
It must not know how deviations are drawn or how the mean is moved.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi.problem import Problem, information, neg_log_likelihood_terms, tempered_metric


class Known(NamedTuple):
    """What is known at a mean."""

    value: Any  # the KL, up to a constant
    gradients: Any  # of each sample
    terms: Any  # of each sample
    information: Any  # of each datum, averaged over the samples


@dataclass(frozen=True)
class SampledKL:
    """KL of the samples mean + deviations, up to a constant, with the likelihood raised to the power `beta`."""

    problem: Problem
    deviations: Any  # stacked, partners included
    beta: Any
    free: Any  # 1 for each site whose mean moves, 0 for each that is held
    inverse: Any = None  # of the metric, as a matrix, for small problems
    preconditioner: Any = None

    @property
    def _count(self):
        return jax.tree.leaves(self.deviations)[0].shape[0]

    def _samples(self, mean):
        return jax.tree.map(lambda m, d: m + d, mean, self.deviations)

    def _terms(self, mean):
        """Log-likelihood terms of each datum, averaged over the samples only after a difference is taken."""
        return jax.vmap(lambda x: neg_log_likelihood_terms(self.problem, x, self.beta))(self._samples(mean))

    def gradient(self, mean):
        """Gradient with respect to the mean, and what is known of the samples there."""

        def one(x):
            terms = neg_log_likelihood_terms(self.problem, x, self.beta)
            told = information(self.problem, x) if self.inverse is None else {}
            return 0.5 * _tree.dot(x, x) + _total(terms), (terms, told)

        (values, (terms, told)), gradients = jax.vmap(jax.value_and_grad(one, has_aux=True))(self._samples(mean))
        gradients = _tree.multiply(self.free, gradients)
        return _average(gradients), Known(jnp.mean(values), gradients, terms, _average(told))

    def solve(self, mean, known, b, stop):
        """M^-1 b with the Fisher metric at the mean, or with the inverse that was given.

        The information of data is averaged over the samples. To average their Jacobians too saves steps and costs more
        than it saves.
        """
        if self.inverse is not None:
            row = _tree.to_rows(jax.tree.map(lambda leaf: leaf[None], b))
            product = jnp.matmul(row, self.inverse, precision=jax.lax.Precision.HIGHEST)
            return jax.tree.map(lambda leaf: leaf[0], _tree.from_rows(product, b)), jnp.ones((), int)
        metric = tempered_metric(self.problem, mean, known.information, self.beta, self.free)
        step, report = metric.solve(b, stop, self.preconditioner)
        return step, report.iterations

    def change(self, mean, known, step):
        """From a length to the KL at mean + length * step minus the KL at mean, formed datum by datum."""
        centre = jax.tree.map(lambda m, d: m + jnp.mean(d, axis=0), mean, self.deviations)

        def at(length):
            prior = length * _tree.dot(step, centre) + 0.5 * length**2 * _tree.dot(step, step)
            there = self._terms(jax.tree.map(lambda m, s: m + length * s, mean, step))
            return prior + _total(_tree.subtract(there, known.terms)) / self._count

        return at


def _average(stacked):
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), stacked)


def _total(terms):
    return sum((jnp.sum(t) for t in jax.tree.leaves(terms)), start=jnp.zeros(()))
