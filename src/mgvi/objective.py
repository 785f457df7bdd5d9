"""The sampled Kullback-Leibler divergence as a function of the mean.

A problem, deviations and the weight of the likelihood come in; the objective that a minimizer needs goes out.
It must not know how deviations are drawn or how the mean is moved.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi.linalg import global_sites, solve
from mgvi.problem import Problem, neg_log_likelihood_terms, tempered_metric, terms_and_information

_REACH = 2.0  # sds of the prior that a step may take a global latent of a large problem


class Known(NamedTuple):
    """What is known at a mean."""

    value: Any  # the KL, up to a constant
    # Of a small problem the gradient of each deviation, averaged over it and its partner; of a large one mean squares,
    # by site, of how far from the step of all deviations their own steps would end.
    scatter: Any
    terms: Any  # of each datum, summed over the samples
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
        """total = add(total, deviations of a batch, where that begins), batch after batch."""
        batch = self.batch
        if batch is None:
            return add(total, self.deviations, 0)
        count = self._all if self.count is None else self.count
        one = lambda i, total: add(total, taken(self.deviations, i, batch), i * batch)
        return lax.fori_loop(0, count // batch, one, total)

    def _samples(self, mean, deviations):
        samples = jax.tree.map(lambda m, d: m + d, mean, deviations)
        if not self.antithetic:
            return samples
        return jax.tree.map(lambda s, m, d: jnp.concatenate([s, m - d]), samples, mean, deviations)

    def _one(self, x):
        if self._is_small:
            terms, told = self._terms(x), {}
        else:
            terms, told = terms_and_information(self.problem, x, self.beta)
        return 0.5 * _tree.dot(x, x) + _total(terms), (terms, told)

    @property
    def _is_small(self) -> bool:
        return self.inverse is not None

    def _terms(self, x):
        x = _tree.from_row(x, self.problem.latent) if self._is_small else x
        return neg_log_likelihood_terms(self.problem, x, self.beta)

    def gradient(self, mean):
        """Gradient with respect to the mean, and what is known of the samples there."""

        def add(state, deviations, first):
            sums, scatter = state
            samples = self._samples(mean, deviations)
            (values, (terms, told)), gradients = jax.vmap(jax.value_and_grad(self._one, has_aux=True))(samples)
            count = jax.tree.leaves(deviations)[0].shape[0]
            pairs = jax.tree.map(lambda g: 0.5 * (g[:count] + g[count:]), gradients) if self.antithetic else gradients
            pairs = _tree.multiply(self.free, pairs)
            return sums.plus((jnp.sum(values), *_summed((pairs, terms, told)))), self._scatter(scatter, pairs, first)

        ways = 2 if self.antithetic else 1
        none = self.nothing()
        start = _tree.RunningSum.of((none.value, mean, none.terms, none.information))
        sums, scatter = self._fold(add, (start, none.scatter))
        share = 1 / self._number
        value, gradient, terms, told = sums.value
        known = Known(share * value, scatter, terms, _tree.scale(share, told))
        gradient = _tree.scale(ways * share, gradient)
        if not self._is_small:
            average = self._squares(jax.tree.map(lambda g: g[None], gradient))
            apart = lambda squares, of_all: jnp.maximum(ways * share * squares - of_all, 0.0)
            known = known._replace(scatter=jax.tree.map(apart, known.scatter, average))
        return gradient, known

    def _scatter(self, total, pairs, first):
        if self._is_small:
            return lax.dynamic_update_slice_in_dim(total, pairs, first, 0)
        return _tree.add(total, self._squares(pairs))

    def _squares(self, gradients):
        """Sums over a stack of gradients, by site, of the mean squares of the steps that they ask for."""
        steps = gradients if self.preconditioner is None else self.preconditioner.apply(gradients)  # near enough
        return {name: jnp.sum(step * step) / step[0].size for name, step in steps.items()}

    @cached_property
    def _shapes(self):
        """Of the terms of a sample, and of the information of its data."""
        one = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape[1:], d.dtype), self.deviations)
        return jax.eval_shape(lambda x: self._one(x)[1], one)

    def nothing(self):
        """What is known of a mean, in zeros."""
        scatter = self.deviations if self._is_small else {n: jnp.zeros((), d.dtype) for n, d in self.deviations.items()}
        return Known(jnp.zeros(()), *_tree.zeros((scatter, *self._shapes)))

    def solve(self, mean, known, b, stop, damping):
        """(M + damping)^-1 b with the Fisher metric at the mean, or M^-1 b with the inverse that was given.

        The information of data is averaged over the samples. To average their Jacobians too saves steps and costs more
        than it saves.
        """
        if self.inverse is not None:
            return jnp.matmul(b, self.inverse, precision=lax.Precision.HIGHEST), jnp.ones((), int)
        one = jax.tree.map(lambda leaf: leaf[None], b)
        metric = tempered_metric(self.problem, mean, known.information, self.beta, self.free)
        mv = lambda stack: jax.tree.map(lambda a, v: a + damping * v, metric.mv_stack(stack), stack)
        inverse = None if self.preconditioner is None else self.preconditioner.damped(damping)
        step, report = solve(mv, one, stop=stop, preconditioner=inverse, check=False)
        return jax.tree.map(lambda leaf: leaf[0], step), report.iterations[0]

    def longest(self, step):
        """Not farther than a few sds of the prior for the few latents of a large problem that all others depend on.

        Where samples are few, or the mean is far from where they come from, the metric may promise more than there is.
        """
        few = global_sites(self.problem.latent) if not self._is_small else ()
        farthest = [jnp.max(jnp.abs(step[name])) for name in few if name not in self.problem.coordinates]
        return 1 / jnp.maximum(1.0, jnp.max(jnp.stack(farthest)) / _REACH) if farthest else 1.0

    def change(self, mean, known, step, there):
        """KL at mean + step minus KL at mean, formed datum by datum from what is known at both."""
        centre = mean
        if not self.antithetic:  # deviations that do not count are zero
            centre = jax.tree.map(lambda m, d: m + jnp.sum(d, axis=0) / self._number, mean, self.deviations)
        prior = _tree.dot(step, centre) + 0.5 * _tree.dot(step, step)
        return prior + _total(_tree.subtract(there.terms, known.terms)) / self._number


def taken(stacked, i, size):
    """The i-th batch of a size."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, i * size, size), stacked)


def _summed(stack):
    """The sum of the entries of a stack.

    They are dozens for a small problem, a few for a large one: then to add them up one by one is ten times faster than
    a sum over an axis.
    """
    return jax.tree.map(lambda b: jnp.sum(b, axis=0) if b.shape[0] > 8 else sum(b[1:], start=b[0]), stack)


def _total(terms):
    return sum((jnp.sum(t) for t in jax.tree.leaves(terms)), start=jnp.zeros(()))
