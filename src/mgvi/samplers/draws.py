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
from mgvi._compile import number, numbers
from mgvi.linalg import (
    DenseMetric,
    Preconditioner,
    Report,
    Stop,
    at_least,
    block_preconditioner,
    block_preconditioner_like,
    global_sites,
    some_entries,
)
from mgvi.problem import Problem, averaged_information, tempered_metric
from mgvi.samplers.hessians import averaged_hessian, information_matrix, prepare_hessian
from mgvi.samplers.white import stratified_normals

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
    return 32 if is_small(problem) else 2  # as many as there are pairs at first


def most_pairs(problem: Problem) -> int:
    """For how many antithetic pairs of a large problem there is room."""
    size = _tree.size(problem.latent) + _tree.size(problem.data)
    return 128 if size < 100_000 else 32 if size < 300_000 else 8


def affordable_pairs(problem: Problem) -> int:
    """Over how many antithetic pairs the curvature of a small problem may be averaged."""
    size = _tree.size(problem.latent)
    work = size * (size + _tree.size(problem.data))
    return max(8, min(32, int(_DENSE_WORK // work)), int(0.05 * _DENSE_WORK // work)) // 2 * 2  # even, for two cores


_averaged = jax.jit(averaged_information)


@partial(jax.jit, static_argnames="count")
def _make_keys(seed, stream, *, count):
    # Not split: the first of many keys are the same as those of few, so a fit goes on smoothly when pairs are added.
    return jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(seed), stream)))(jnp.arange(count))


@jax.jit
def _diagonal(problem, mean, seed, known, beta, free, probes):
    return tempered_metric(problem, mean, known, beta, free).diagonal(jax.random.key(seed), probes)


@jax.jit
def _preconditioner(problem, mean, diagonal, chosen, known, beta, free, inside):
    metric = tempered_metric(problem, mean, known, beta, free)
    return block_preconditioner(metric.mv_stack, diagonal, global_sites(problem.static.latent), chosen, inside)


@partial(jax.jit, static_argnames="sampler")
def _draw(problem, mean, keys, start, given, count, stop, preconditioner, known, beta, free, *, sampler):
    """A deviation for each of the first `count` keys, the first `given` of them from a start; then zeros."""
    metric = tempered_metric(problem, mean, known, beta, free)
    b, eta = sampler.excite(metric, keys, count)
    begin = _tree.where_first(given, start, eta)
    begin = _tree.where_first(count, begin, _tree.zeros(begin))
    solution, report = sampler.solve(metric, b, begin, stop, preconditioner)
    return _tree.multiply(free, solution), report


@partial(jax.jit, static_argnames="count")
def _room(like, *, count):
    return _tree.zeros(_tree.shapes_of_stack(like, count))


@partial(jax.jit, static_argnames="size")
def _taken(stack, first, *, size):
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), stack)


@partial(jax.jit, donate_argnums=0)
def _put(room, old, new, first, count):
    """Deviations in place of old ones; also, by site, sums over the first `count` of mean squares, and of changes."""
    counts = jnp.arange(jax.tree.leaves(new)[0].shape[0]) < count

    def squares(stack):
        means = {name: jnp.mean(d * d, axis=tuple(range(1, d.ndim))) for name, d in stack.items()}
        return {name: jnp.sum(jnp.where(counts, x, 0.0)) for name, x in means.items()}

    room = jax.tree.map(lambda all, some: jax.lax.dynamic_update_slice_in_dim(all, some, first, 0), room, new)
    return room, (squares(new), squares(_tree.subtract(new, old)))


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
        self._factorised: DenseMetric | None = None
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
            seed, stream, _ = keys[0]  # the first that `keys` made, with all that follow it
            self._noise = {name: stratified_normals(np.random.default_rng((seed, stream)), len(keys), size)}
        return self._noise[name]

    def curvature(self, mean, beta=1.0, spread=None, most=None, room=None) -> np.ndarray:
        """The curvature of a small problem: the Fisher metric at the mean, or the Hessian averaged over mean + spread.

        The average is kept positive, and no wider than the prior: a variance of more than the prior's is granted to
        sums of latents that a scale ties together, not to single ones. It takes at most so many points, if told; with
        room for more pairs than the spread has, no other program is compiled when it has them.
        """
        one = np.eye(_tree.size(self.problem.latent))
        if spread is not None:
            found = averaged_hessian(self.problem, mean, beta, spread, most, room)
            if np.all(np.isfinite(found)):
                return self._restrained(0.5 * (found + found.T), 1.0 if beta < 1 else 1 / _WIDEST)
        found = information_matrix(self.problem, mean)
        return one + beta * 0.5 * (found + found.T)

    def prepare_curvature(self, mean, room: int) -> None:
        """Compile what averages the curvature of a small problem over as many pairs as there is room for."""
        prepare_hessian(self.problem, mean, room)

    def metric(self, curvature: np.ndarray, free: dict[str, Any] | None = None) -> DenseMetric:
        """The metric of a small problem, for directions that are free."""
        latent, free = self.problem.latent, free or self.free
        mask, one = _entries(latent, free), np.eye(len(curvature))
        if not np.all(mask == 1):
            return DenseMetric(one + np.outer(mask, mask) * (curvature - one), latent)
        if self._factorised is None or self._factorised.matrix is not curvature:
            self._factorised = DenseMetric(curvature, latent)  # for all who ask in a round
        return self._factorised

    def _restrained(self, matrix, least) -> np.ndarray:
        matrix = at_least(matrix, least * np.eye(len(matrix)))
        tied = {name: float(name in self.problem.coordinates) for name in self.problem.latent}
        single = np.flatnonzero(_entries(self.problem.latent, tied) == 0)
        covariance = self.metric(matrix, dict.fromkeys(self.problem.latent, 1.0)).inverse
        added = np.zeros(len(matrix))
        for _ in range(10 * len(single)):  # some more than once; for ever, where rounding makes variances of nothing
            worst = single[np.argmax(np.diag(covariance)[single])]
            variance = covariance[worst, worst]
            if not variance > 1 + 1e-9:
                break
            added[worst] += 1 - 1 / variance
            column = covariance[:, worst]
            covariance = covariance - np.outer(column, column) * (1 - 1 / variance) / variance
        return matrix + np.diag(added) if added.any() else matrix

    def colour(self, curvature: np.ndarray, keys) -> dict[str, np.ndarray]:
        """A deviation for each key of a small problem with that curvature."""
        return self.only_free(self.metric(curvature).colour(self.white(keys)))

    def information(self, mean, deviations, count) -> dict[str, Any]:
        """The information of a large problem's data averaged over the first deviations, for `known` below."""
        return self.problem.static.compiled.call(_averaged, self.problem, mean, deviations, number(count))

    def information_like(self, mean, deviations) -> dict[str, Any]:
        """Shapes and dtypes of that information."""
        return _averaged.eval_shape(self.problem, mean, deviations, number(1))

    def diagonal(self, mean, beta=1.0, known=None, probes=_PROBES, seed=0) -> Any:
        """An estimate of the diagonal of the metric at a mean."""
        arguments = (mean, number(seed), known or {}, number(beta), self.free, number(probes))
        return self.problem.static.compiled.call(_diagonal, self.problem, *arguments)

    def preconditioner(self, mean, beta=1.0, known=None, diagonal=None, thorough=False) -> tuple[Preconditioner, Any]:
        """An approximate inverse of the metric, for the solves at a mean, and the metric's block of global sites.

        `diagonal` is the metric's, if it is known. If `thorough`, the latents with the largest diagonal are in the
        block too; if not, and while the likelihood comes in, a block would cost more than it saves.
        """
        diagonal = self.diagonal(mean, beta, known) if diagonal is None else diagonal
        arguments = self._preconditioning(mean, beta, known, diagonal, thorough)
        return self.problem.static.compiled.call(_preconditioner, *arguments)

    def preconditioner_like(self) -> Preconditioner:
        """Shapes and dtypes of a preconditioner."""
        latent = self.problem.latent
        return block_preconditioner_like(latent, global_sites(latent), self._chosen(latent, thorough=False))

    def _preconditioning(self, mean, beta, known, diagonal, thorough):
        names, chosen = global_sites(self.problem.latent), self._chosen(diagonal, thorough)
        few = _tree.size({name: self.problem.latent[name] for name in names})
        inside = few + _tree.size(chosen) if thorough else few if beta == 1 else 0
        return self.problem, mean, diagonal, chosen, known or {}, number(beta), self.free, number(inside)

    def _chosen(self, diagonal, thorough) -> dict[str, Any]:
        """Entries of large sites that are in the preconditioner's block."""
        names = global_sites(self.problem.latent)
        if thorough:
            return some_entries(self.problem.latent, names, diagonal)
        # Room for them: there it is compilation that takes long.
        return some_entries(self.problem.latent, names) if jax.default_backend() == "cpu" else {}

    def prepare(self, mean, keys, known, preconditioner) -> None:
        """Begin to compile what draws deviations of a large problem, given shapes and dtypes of what it depends on."""
        prepare, size = self.problem.static.compiled.prepare, min(self._batch, len(keys))
        some = jax.ShapeDtypeStruct((size,), keys.dtype), _tree.shapes_of_stack(mean, size)
        rest = (number(0), number(0), numbers(Stop()), preconditioner, known or {}, number(1.0), self.free)
        prepare(_draw, self.problem, mean, *some, *rest, sampler=self._sampler)
        if preconditioner is not None:
            arguments = (mean, number(0), known or {}, number(1.0), self.free, number(_PROBES))
            prepare(_diagonal, self.problem, *arguments)
            prepare(_preconditioner, *self._preconditioning(mean, 1.0, known, self.problem.latent, False))

    def draw(self, mean, keys, stop: Stop, beta=1.0, known=None, preconditioner=None, count=None) -> tuple[Any, Report]:
        """Deviations of a large problem from the metric at a mean, one for each of the first `count` keys; then zeros.

        `known` is information of data that takes the place of that at the mean.
        """
        count = len(keys) if count is None else count
        fixed = (mean, keys, stop, beta, known, preconditioner)
        deviations, reports, _ = self.redraw(self.room(mean, len(keys)), 0, count, *fixed)
        return deviations, jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *jax.device_get(reports))

    def redraw(
        self, room, given: int, count: int, mean, keys, stop: Stop, beta=1.0, known=None, preconditioner=None
    ) -> tuple[Any, list[Report], list[Any]]:
        """Deviations for the first `count` keys, in the place of those that are in a room, which is used up.

        The first `given` of these are those that a similar metric gave, where solves start. Also a report for each
        batch of keys, and the sums over it, by site, of the mean squares of its deviations and of their changes.
        """
        size = min(self._batch, len(keys))
        keys = _filled(keys, size)
        call = self.problem.static.compiled.call
        reports, squares = [], []
        for first in range(0, count, size):
            some, old = call(_taken, (keys, room), number(first), size=size)
            counts = number(max(given - first, 0)), number(count - first)
            rest = (numbers(stop), preconditioner, known or {}, number(beta), self.free)
            new, report = call(_draw, self.problem, mean, some, old, *counts, *rest, sampler=self._sampler)
            room, both = call(_put, room, old, new, number(first), counts[1])
            reports.append(report)
            squares.append(both)
        return room, reports, squares

    def room(self, mean, count: int) -> dict[str, Any]:
        """Zeros in the place of so many deviations of a large problem from a mean, in whole batches."""
        batch = min(self._batch, count)
        return self.problem.static.compiled.call(_room, mean, count=-(-count // batch) * batch)

    def only_free(self, deviations):
        """Deviations without those of sites that have none."""
        return jax.tree.map(lambda f, d: d * f.astype(d.dtype), self.free, deviations)


def _entries(latent, by_site) -> np.ndarray:
    """A number for each site as a vector with an entry for each latent."""
    return np.concatenate([np.full(math.prod(leaf.shape), by_site[name]) for name, leaf in sorted(latent.items())])


def _filled(keys, batch):
    """Keys in whole batches; those added are new ones: two equal right-hand sides would make a block singular."""
    missing = -len(keys) % batch
    if not missing:
        return keys
    return jnp.concatenate([keys, jax.vmap(lambda key: jax.random.fold_in(key, _FILL))(keys[:missing])])
