"""Compiled draws for a problem: any number of deviations at a mean, in batches of one size.

A problem, a mean and keys come in; deviations and reports go out.
It must not know what the deviations are for.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi.linalg import Report, Stop
from mgvi.problem import FisherMetric, Problem


def tempered_metric(problem: Problem, mean: Any, beta: Any, free: Any) -> FisherMetric:
    """The metric with the likelihood raised to the power `beta`, for directions that are free (1) and not fixed (0)."""
    metric = problem.metric(mean)

    def matvec(v):
        return _tree.scale(jnp.sqrt(beta), metric.matvec(_tree.multiply(free, v)))

    return FisherMetric(matvec, metric.latent)


@partial(jax.jit, static_argnames="sampler")
def _excite(problem, mean, keys, beta, free, *, sampler):
    return sampler.excite(tempered_metric(problem, mean, beta, free), keys)


@partial(jax.jit, static_argnames="sampler")
def _solve(problem, mean, b, start, residual, stop, beta, free, *, sampler):
    solution, report = sampler.solve(tempered_metric(problem, mean, beta, free), b, start, residual, stop)
    return _tree.multiply(free, solution), report


class Draws:
    """Draws deviations for one problem.

    Parameters
    ----------
    problem : Problem
        The problem whose metric is used.
    sampler : MGVI or Point
        How a deviation is made from a metric and a key.
    batch : int
        Keys to a call of the compiled programs; fewer are filled up.
    free : dict, optional
        1 for each latent site that varies, 0 for each that has no deviation.
    """

    def __init__(self, problem: Problem, sampler, batch: int, free: dict[str, Any] | None = None):
        self._problem = problem
        self._sampler = sampler
        self._batch = batch
        self.free = free or {name: jnp.ones(()) for name in problem.latent}

    def draw(self, mean, keys, stop: Stop, beta=1.0) -> tuple[Any, Report]:
        """One deviation for each key."""
        beta = number(beta)
        parts = []
        for some in self._batches(keys):
            excited = self._call(_excite, mean, some, beta, self.free)
            parts.append(self._call(_solve, mean, *excited, numbers(stop), beta, self.free))
        return _join(parts, keys.shape[0])

    def solve(self, mean, b, stop: Stop, beta=1.0) -> tuple[Any, Report]:
        """M^-1 b for a stack of right-hand sides."""
        count = jax.tree.leaves(b)[0].shape[0]
        parts = []
        for index in self._batches(np.arange(count)):
            some = jax.tree.map(lambda leaf, index=index: leaf[index], b)
            zero = jax.tree.map(jnp.zeros_like, some)
            parts.append(self._call(_solve, mean, some, zero, some, numbers(stop), number(beta), self.free))
        return _join(parts, count)

    def _batches(self, items):
        count = items.shape[0]
        fill = -count % self._batch
        index = np.concatenate([np.arange(count), np.arange(fill) % count])
        return [items[part] for part in index.reshape(-1, self._batch)]

    def _call(self, function, *arguments):
        return self._problem.static.compiled.call(function, self._problem, *arguments, sampler=self._sampler)


def _join(parts, count):
    if len(parts) == 1 and jax.tree.leaves(parts[0])[0].shape[0] == count:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:count], *parts)


def number(x):
    """A Python number as an array of a fixed type, so that one compiled program takes every value."""
    return jnp.asarray(x, jnp.result_type(int) if isinstance(x, int) else jnp.result_type(float))


def numbers(tree):
    """A tree of Python numbers as arrays of fixed types."""
    return jax.tree.map(number, tree)
