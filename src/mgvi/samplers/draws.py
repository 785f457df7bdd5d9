"""Compiled draws for a problem: any number of deviations at a mean.

A problem, a mean, keys and the points to average a curvature over come in; deviations and reports go out.
It must not know what the deviations are for.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi.linalg import DenseMetric, Preconditioner, Report, Stop, block_preconditioner, global_sites
from mgvi.problem import Problem, averaged_information, expected_hessian, information_matrix, tempered_metric

_FILL = 2**31 - 1  # tells keys that only fill a batch from all others
_PROBES = 32  # for the diagonal of the metric
_DENSE_LATENTS = 1000  # up to so many latents, and
_DENSE_JACOBIAN = 10_000_000  # so many entries of R, a matrix is cheaper than iterations
_DENSE_WORK = 5e7  # numbers that an average over 32 pairs may take
_WIDEST = 10.0  # times the prior's variance: the most along any direction


def is_small(problem: Problem) -> bool:
    """Whether the metric of a problem is best kept as a matrix."""
    size = _tree.size(problem.latent)
    return size <= _DENSE_LATENTS and size * _tree.size(problem.data) <= _DENSE_JACOBIAN


def keys_at_once(problem: Problem) -> int:
    """How many deviations one call of the compiled programs draws; rounds and final draws share them."""
    size = _tree.size(problem.latent) + _tree.size(problem.data)
    return 32 if is_small(problem) else 8 if size < 300_000 else 4


def affordable_pairs(problem: Problem) -> int:
    """Over how many antithetic pairs the curvature of a small problem may be averaged."""
    size = _tree.size(problem.latent)
    work = size * (size + _tree.size(problem.data))
    return max(8, min(32, int(_DENSE_WORK // work)), int(0.05 * _DENSE_WORK // work))


_matrix = jax.jit(information_matrix)
_averaged = jax.jit(averaged_information)
_hessian = jax.jit(expected_hessian)


@partial(jax.jit, static_argnames="count")
def _make_keys(seed, stream, *, count):
    # Not split: the first of many keys are the same as those of few, so a fit goes on smoothly when pairs are added.
    return jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(seed), stream)))(jnp.arange(count))


@partial(jax.jit, static_argnames="sampler")
def _excite(problem, mean, keys, known, beta, free, *, sampler):
    return sampler.excite(tempered_metric(problem, mean, known, beta, free), keys)


@jax.jit
def _diagonal(problem, mean, seed, known, beta, free):
    return tempered_metric(problem, mean, known, beta, free).diagonal(jax.random.key(seed), _PROBES)


@jax.jit
def _preconditioner(problem, mean, diagonal, known, beta, free):
    metric = tempered_metric(problem, mean, known, beta, free)
    return block_preconditioner(metric.mv, diagonal, global_sites(problem.static.latent))


@partial(jax.jit, static_argnames="sampler")
def _solve(problem, mean, b, start, stop, preconditioner, known, beta, free, *, sampler):
    metric = tempered_metric(problem, mean, known, beta, free)
    solution, report = sampler.solve(metric, b, start, stop, preconditioner)
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
        self.problem = problem
        self._sampler = sampler
        self._batch = batch
        self._noise: dict[Any, np.ndarray] = {}
        self.dense = is_small(problem) if dense is None else dense
        self.free = free or {name: number(1.0) for name in problem.latent}

    def keys(self, seed: int, stream: int, count: int) -> Any:
        """One key for each deviation; the same numbers give the same keys."""
        if self.dense:
            return [(seed, stream, i) for i in range(count)]
        return self.problem.static.compiled.call(_make_keys, number(seed), number(stream), count=count)

    def white(self, keys) -> np.ndarray:
        """A row of standard normals for each key of a small problem, zeros if the sampler draws nothing."""
        size = _tree.size(self.problem.latent)
        if not self._sampler.draws:
            return np.zeros((len(keys), size))
        name = (keys[0], len(keys))
        if name not in self._noise:  # rounds that share their keys ask again and again
            self._noise = {name: np.stack([np.random.default_rng(key).standard_normal(size) for key in keys])}
        return self._noise[name]

    def curvature(self, mean, beta=1.0, spread=None, most=None) -> np.ndarray:
        """The curvature of a small problem: the Fisher metric at the mean, or the Hessian averaged over mean + spread.

        The average is kept positive, and no wider than the prior: a variance of more than the prior's is granted to
        sums of latents that a scale ties together, not to single ones. It takes at most so many points, if told.
        """
        call = self.problem.static.compiled.call
        one = np.eye(_tree.size(self.problem.latent))
        if spread is not None:
            count = jax.tree.leaves(spread)[0].shape[0]
            count = number(count if most is None else min(count, most))
            found = np.asarray(call(_hessian, self.problem, mean, spread, number(beta), count), np.float64)
            if np.all(np.isfinite(found)):
                return self._restrained(0.5 * (found + found.T), 1.0 if beta < 1 else 1 / _WIDEST)
        return one + beta * np.asarray(call(_matrix, self.problem, mean), np.float64)

    def metric(self, curvature: np.ndarray, free: dict[str, Any] | None = None) -> DenseMetric:
        """The metric of a small problem, for directions that are free."""
        latent, free = self.problem.latent, free or self.free
        mask, one = _entries(latent, free), np.eye(len(curvature))
        return DenseMetric(one + np.outer(mask, mask) * (curvature - one), latent)

    def _restrained(self, matrix, least) -> np.ndarray:
        values, vectors = np.linalg.eigh(matrix)
        if values[0] < least:
            matrix = (vectors * np.maximum(values, least)) @ vectors.T
        tied = {name: float(name in self.problem.coordinates) for name in self.problem.latent}
        single = np.flatnonzero(_entries(self.problem.latent, tied) == 0)
        covariance = np.linalg.inv(matrix)
        while (worst := single[np.argmax(np.diag(covariance)[single])] if len(single) else None) is not None:
            variance = covariance[worst, worst]
            if variance < 1 + 1e-9:
                break
            matrix[worst, worst] += 1 - 1 / variance
            column = covariance[:, worst]
            covariance = covariance - np.outer(column, column) * (1 - 1 / variance) / variance
        return matrix

    def colour(self, curvature: np.ndarray, keys) -> dict[str, np.ndarray]:
        """A deviation for each key of a small problem with that curvature."""
        return self.only_free(self.metric(curvature).colour(self.white(keys)))

    def information(self, mean, spread) -> dict[str, Any]:
        """The information of a large problem's data averaged over mean + spread, for `known` below."""
        return self.problem.static.compiled.call(_averaged, self.problem, mean, spread)

    def diagonal(self, mean, beta=1.0, known=None, seed=0) -> Any:
        """An estimate of the diagonal of the metric at a mean."""
        arguments = (mean, number(seed), known or {}, number(beta), self.free)
        return self.problem.static.compiled.call(_diagonal, self.problem, *arguments)

    def preconditioner(self, mean, beta=1.0, known=None, diagonal=None) -> tuple[Preconditioner, Any]:
        """An approximate inverse of the metric, for the solves at a mean, and the metric's block of global sites.

        `diagonal` is the metric's, if it is known.
        """
        diagonal = self.diagonal(mean, beta, known) if diagonal is None else diagonal
        arguments = (mean, diagonal, known or {}, number(beta), self.free)
        return self.problem.static.compiled.call(_preconditioner, self.problem, *arguments)

    def draw(self, mean, keys, stop: Stop, beta=1.0, known=None, preconditioner=None, start=None) -> tuple[Any, Report]:
        """One deviation for each key of a large problem, from the metric at a mean.

        `known` is information of data that takes the place of that at the mean. Deviations of the first of the keys
        that a similar metric gave may be a `start`.
        """
        common = (known or {}, number(beta), self.free)
        parts, first = [], 0
        for some in self._batches(_filled(keys, self._batch)):
            b, begin = self._call(_excite, mean, some, *common)
            begin = begin if start is None else _overlaid(begin, start, first)
            parts.append(self._call(_solve, mean, b, begin, numbers(stop), preconditioner, *common))
            first += len(some)
        return _join(parts, keys.shape[0])

    def only_free(self, deviations):
        """Deviations without those of sites that have none."""
        return jax.tree.map(lambda f, d: d * f.astype(d.dtype), self.free, deviations)

    def _batches(self, keys):
        size = min(self._batch, len(keys))
        return [keys[first : first + size] for first in range(0, len(keys), size)]

    def _call(self, function, *arguments):
        return self.problem.static.compiled.call(function, self.problem, *arguments, sampler=self._sampler)


def _entries(latent, by_site) -> np.ndarray:
    """A number for each site as a vector with an entry for each latent."""
    return np.concatenate([np.full(math.prod(leaf.shape), by_site[name]) for name, leaf in sorted(latent.items())])


def _filled(keys, batch):
    """Keys in whole batches; those added are new ones: two equal right-hand sides would make a block singular."""
    missing = -len(keys) % batch if len(keys) > batch else 0
    if not missing:
        return keys
    return jnp.concatenate([keys, jax.vmap(lambda key: jax.random.fold_in(key, _FILL))(keys[:missing])])


def _overlaid(begin, start, first):
    """The entries of `begin`, or those of `start` from `first` on, as far as there are any."""
    known = jax.tree.map(lambda leaf: leaf[first : first + jax.tree.leaves(begin)[0].shape[0]], start)
    return jax.tree.map(lambda x, y: jnp.concatenate([y, x[y.shape[0] :]]), begin, known)


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
