"""Compiled draws for a problem: any number of deviations at a mean.

A problem, a mean, keys and the points to average the metric over come in; deviations and reports go out.
It must not know what the deviations are for.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi.linalg import DenseMetric, Preconditioner, Report, Stop, global_sites, with_coarse_space
from mgvi.problem import Problem, averaged_metric, information_matrix

_FILL = 2**31 - 1  # tells keys that only fill a batch from all others
_PROBES = 32  # for the diagonal of the metric
_DENSE_LATENTS = 1000  # up to so many latents, and
_DENSE_JACOBIAN = 10_000_000  # so many entries of R, a matrix is cheaper than iterations
_DENSE_WORK = 5e8  # multiplications of an average over points


def is_small(problem: Problem) -> bool:
    """Whether the metric of a problem is best kept as a matrix."""
    size = _tree.size(problem.latent)
    return size <= _DENSE_LATENTS and size * _tree.size(problem.data) <= _DENSE_JACOBIAN


def keys_at_once(problem: Problem) -> int:
    """How many deviations one call of the compiled programs draws; rounds and final draws share them."""
    size = _tree.size(problem.latent) + _tree.size(problem.data)
    return 32 if is_small(problem) else 8 if size < 300_000 else 4


def affordable_pairs(problem: Problem) -> int:
    """Over how many antithetic pairs the metric of a small problem may be averaged."""
    work = 2 * _tree.size(problem.latent) ** 2 * max(_tree.size(problem.data), 1)
    return max(8, int(_DENSE_WORK // work))


_information = jax.jit(information_matrix)


@partial(jax.jit, static_argnames="count")
def _make_keys(seed, stream, *, count):
    # Not split: the first of many keys are the same as those of few, so a fit goes on smoothly when pairs are added.
    return jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(seed), stream)))(jnp.arange(count))


@partial(jax.jit, static_argnames="sampler")
def _excite(problem, mean, keys, beta, free, spread, *, sampler):
    return sampler.excite(averaged_metric(problem, mean, spread, beta, free), keys)


@jax.jit
def _preconditioner(problem, mean, seed, beta, free, spread):
    metric = averaged_metric(problem, mean, spread, beta, free)
    diagonal = metric.diagonal(jax.random.key(seed), _PROBES)
    return with_coarse_space(metric.matvec, metric.rmatvec, diagonal, global_sites(problem.static.latent))


@jax.jit
def _refreshed(problem, mean, preconditioner, beta, free, deviations):
    return preconditioner.refreshed(averaged_metric(problem, mean, deviations, beta, free).matvec)


@partial(jax.jit, static_argnames="sampler")
def _solve(problem, mean, b, start, residual, stop, beta, free, spread, preconditioner, *, sampler):
    metric = averaged_metric(problem, mean, spread, beta, free)
    solution, report = sampler.solve(metric, b, start, residual, stop, preconditioner)
    return _tree.multiply(free, solution), report


class Draws:
    """Draws deviations for one problem.

    Parameters
    ----------
    problem : Problem
        The problem whose metric is used; the metric of a small one is made a matrix, others are only multiplied with.
    sampler : MGVI or Point
        How a deviation is made from a metric and a key.
    batch : int
        Keys to a call of the compiled programs; fewer are filled up. A small problem takes all keys at once.
    free : dict, optional
        1 for each latent site that varies, 0 for each that has no deviation.
    dense : bool, optional
        Whether the metric is made a matrix; by default, if the problem is small.
    """

    def __init__(
        self, problem: Problem, sampler, batch: int, free: dict[str, Any] | None = None, dense: bool | None = None
    ):
        self._problem = problem
        self._sampler = sampler
        self._batch = batch
        self._noise: dict[Any, np.ndarray] = {}
        self.dense = is_small(problem) if dense is None else dense
        self.free = free or {name: number(1.0) for name in problem.latent}

    def keys(self, seed: int, stream: int, count: int) -> Any:
        """One key for each deviation; the same numbers give the same keys."""
        if self.dense:
            return [(seed, stream, i) for i in range(count)]
        return self._problem.static.compiled.call(_make_keys, number(seed), number(stream), count=count)

    def white(self, keys) -> np.ndarray:
        """A row of standard normals for each key of a small problem, zeros if the sampler draws nothing."""
        size = _tree.size(self._problem.latent)
        if not self._sampler.draws:
            return np.zeros((len(keys), size))
        name = (keys[0], len(keys))
        if name not in self._noise:  # rounds that share their keys ask again and again
            self._noise = {name: np.stack([np.random.default_rng(key).standard_normal(size) for key in keys])}
        return self._noise[name]

    def information(self, mean, spread=None) -> np.ndarray:
        """R^T R averaged over mean + spread, of a small problem."""
        found = self._problem.static.compiled.call(_information, self._problem, mean, self._points(spread))
        return np.asarray(found)

    def metric(self, information: np.ndarray, beta: float = 1.0, free: dict[str, Any] | None = None) -> DenseMetric:
        """The metric of a small problem, for directions that are free."""
        latent, free = self._problem.latent, free or self.free
        mask = np.concatenate([np.full(math.prod(leaf.shape), free[name]) for name, leaf in sorted(latent.items())])
        return DenseMetric(np.eye(len(mask)) + beta * np.outer(mask, mask) * information, latent)

    def preconditioner(self, mean, beta=1.0, spread=None, seed=0) -> Preconditioner:
        """An approximate inverse of the metric, for the solves at a mean."""
        arguments = (mean, number(seed), number(beta), self.free, self._points(spread))
        return self._problem.static.compiled.call(_preconditioner, self._problem, *arguments)

    def refreshed(self, preconditioner: Preconditioner, mean, deviations, beta=1.0) -> Preconditioner:
        """The same for the metric averaged over mean + deviations."""
        arguments = (mean, preconditioner, number(beta), self.free, deviations)
        return self._problem.static.compiled.call(_refreshed, self._problem, *arguments)

    def draw(self, mean, keys, stop: Stop, beta=1.0, spread=None, preconditioner=None) -> tuple[Any, Report]:
        """One deviation for each key, from the metric averaged over mean + spread (by default: at the mean)."""
        if self.dense:
            deviations = self.metric(self.information(mean, spread), beta).colour(self.white(keys))
            none = np.zeros(len(keys), int)
            return self.only_free(deviations), Report(none, none.astype(float), none)
        spread, beta = self._points(spread), number(beta)
        parts = []
        for some in self._batches(_filled(keys, self._batch)):
            excited = self._call(_excite, mean, some, beta, self.free, spread)
            parts.append(self._call(_solve, mean, *excited, numbers(stop), beta, self.free, spread, preconditioner))
        return _join(parts, keys.shape[0])

    def only_free(self, deviations):
        """Deviations without those of sites that have none."""
        return jax.tree.map(lambda f, d: d * f.astype(d.dtype), self.free, deviations)

    def _points(self, spread):
        if spread is not None:
            return spread
        return {name: np.zeros((1, *leaf.shape), leaf.dtype) for name, leaf in self._problem.latent.items()}

    def _batches(self, keys):
        size = min(self._batch, len(keys))
        return [keys[first : first + size] for first in range(0, len(keys), size)]

    def _call(self, function, *arguments):
        return self._problem.static.compiled.call(function, self._problem, *arguments, sampler=self._sampler)


def _filled(keys, batch):
    """Keys in whole batches; those added are new ones: two equal right-hand sides would make a block singular."""
    missing = -len(keys) % batch if len(keys) > batch else 0
    if not missing:
        return keys
    return jnp.concatenate([keys, jax.vmap(lambda key: jax.random.fold_in(key, _FILL))(keys[:missing])])


def _join(parts, count):
    if len(parts) == 1 and jax.tree.leaves(parts[0])[0].shape[0] == count:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:count], *parts)


def number(x):
    """A Python number as an array of a fixed type, so that one compiled program takes every value."""
    return np.asarray(x, jnp.result_type(int) if isinstance(x, int) else jnp.result_type(float))


def numbers(tree):
    """A tree of Python numbers as arrays of fixed types."""
    return jax.tree.map(number, tree)
