"""The sampled Kullback-Leibler divergence as a function of the mean.

A problem, deviations and the weight of the likelihood come in; the objective that a minimizer needs goes out.
It must not know how deviations are drawn or how the mean is moved.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi.linalg import solve
from mgvi.problem import Problem, neg_log_likelihood_terms, tempered_metric, terms_and_information


class Known(NamedTuple):
    """What is known at a mean."""

    value: Any  # the KL, up to a constant
    gradients: Any  # of each deviation, averaged over it and its partner
    terms: Any  # of each sample
    information: Any  # of each datum, averaged over the samples


@dataclass(frozen=True)
class SampledKL:
    """KL of the samples mean + deviations, up to a constant, with the likelihood raised to the power `beta`.

    Deviations beyond the first `count` are ignored, so that their number may change without recompilation; they are
    taken `batch` at a time, which bounds the memory. `count` is a multiple of `batch`. The mean of a small problem is a
    vector, its deviations are the rows of a matrix: that makes for a smaller program.
    """

    problem: Problem
    deviations: Any  # stacked
    beta: Any
    free: Any  # 1 for each site whose mean moves, 0 for each that is held
    inverse: Any = None  # of the metric, as a matrix, for small problems
    preconditioner: Any = None
    antithetic: bool = False  # whether each deviation counts with its negative
    count: Any = None  # None: all
    batch: int | None = None  # None: all at once

    @property
    def _all(self) -> int:
        return jax.tree.leaves(self.deviations)[0].shape[0]

    @property
    def _number(self):
        return (2 if self.antithetic else 1) * (self._all if self.count is None else self.count)

    def _fold(self, add, total):
        """total = add(total, i, deviations of batch i), batch after batch."""
        if self.batch is None or self.batch == self._all:
            return add(total, 0, self.deviations)
        count = self._all if self.count is None else self.count
        some = lambda i: taken(self.deviations, i, self.batch)
        return lax.fori_loop(0, count // self.batch, lambda i, total: add(total, i, some(i)), total)

    def _samples(self, mean, deviations):
        samples = jax.tree.map(lambda m, d: m + d, mean, deviations)
        if not self.antithetic:
            return samples
        return jax.tree.map(lambda s, m, d: jnp.concatenate([s, m - d]), samples, mean, deviations)

    def _one(self, x):
        if self.inverse is None:
            terms, told = terms_and_information(self.problem, x, self.beta)
        else:
            terms, told = self._terms(x), {}
        return 0.5 * _tree.dot(x, x) + _total(terms), (terms, told)

    def _terms(self, x):
        x = x if self.inverse is None else _tree.from_row(x, self.problem.latent)
        return neg_log_likelihood_terms(self.problem, x, self.beta)

    def gradient(self, mean):
        """Gradient with respect to the mean, and what is known of the samples there."""

        def add(sums, i, deviations):
            gradient, total = sums
            samples = self._samples(mean, deviations)
            (values, (terms, told)), gradients = jax.vmap(jax.value_and_grad(self._one, has_aux=True))(samples)
            count = jax.tree.leaves(deviations)[0].shape[0]
            pairs = jax.tree.map(lambda g: 0.5 * (g[:count] + g[count:]), gradients) if self.antithetic else gradients
            pairs = _tree.multiply(self.free, pairs)
            # Dozens of entries at once for a small problem, a few for a large one: then adding them up one by one is
            # ten times faster than a sum over an axis.
            plus = lambda a, b: a + (jnp.sum(b, axis=0) if b.shape[0] > 8 else sum(b[1:], start=b[0]))
            return jax.tree.map(plus, gradient, pairs), Known(
                total.value + jnp.sum(values),
                _placed(total.gradients, pairs, i),
                _placed(total.terms, terms, i),
                jax.tree.map(plus, total.information, told),
            )

        ways = 2 if self.antithetic else 1
        terms, told = jax.eval_shape(lambda x: self._one(x)[1], mean)
        terms = jax.tree.map(lambda leaf: jnp.zeros((ways * self._all, *leaf.shape), leaf.dtype), terms)
        none = Known(*self.nothing(), terms, _tree.zeros(told))
        gradient, known = self._fold(add, (_tree.zeros(mean), none))
        share = 1 / self._number
        known = known._replace(value=known.value * share, information=_tree.scale(share, known.information))
        return _tree.scale(ways * share, gradient), known

    def nothing(self):
        """What `kept` returns, in zeros."""
        return jnp.zeros(()), _tree.zeros(self.deviations)

    def kept(self, known):
        """The KL, up to a constant, and the gradients of each deviation."""
        return known.value, known.gradients

    def solve(self, mean, known, b, stop):
        """M^-1 b with the Fisher metric at the mean, or with the inverse that was given.

        The information of data is averaged over the samples. To average their Jacobians too saves steps and costs more
        than it saves.
        """
        if self.inverse is not None:
            return jnp.matmul(b, self.inverse, precision=lax.Precision.HIGHEST), jnp.ones((), int)
        one = jax.tree.map(lambda leaf: leaf[None], b)
        metric = tempered_metric(self.problem, mean, known.information, self.beta, self.free)
        step, report = solve(metric.mv_stack, one, stop=stop, preconditioner=self.preconditioner, check=False)
        return jax.tree.map(lambda leaf: leaf[0], step), report.iterations[0]

    def change(self, mean, known, step):
        """From a length to the KL at mean + length * step minus the KL at mean, formed datum by datum."""
        centre = mean
        if not self.antithetic:  # deviations that do not count are zero
            centre = jax.tree.map(lambda m, d: m + jnp.sum(d, axis=0) / self._number, mean, self.deviations)

        def at(length):
            there = jax.tree.map(lambda m, s: m + length * s, mean, step)

            def add(total, i, deviations):
                samples = self._samples(there, deviations)
                terms = jax.vmap(self._terms)(samples)
                here = taken(known.terms, i, jax.tree.leaves(samples)[0].shape[0])
                return total + _total(_tree.subtract(terms, here))

            prior = length * _tree.dot(step, centre) + 0.5 * length**2 * _tree.dot(step, step)
            return prior + self._fold(add, jnp.zeros(())) / self._number

        return at


def taken(stacked, i, size):
    """The i-th batch of a size."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, i * size, size), stacked)


def _placed(stacked, batch, i):
    """A stack with its i-th batch replaced."""
    put = lambda a, b: lax.dynamic_update_slice_in_dim(a, b.astype(a.dtype), i * b.shape[0], 0)
    return jax.tree.map(put, stacked, batch)


def _total(terms):
    return sum((jnp.sum(t) for t in jax.tree.leaves(terms)), start=jnp.zeros(()))
