"""Curvatures of a small problem as matrices, from as few products as their zeros allow.

A problem, a mean and, for an averaged Hessian, the points around it come in; a matrix goes out.
It must not know what the matrix is for.

Which entries are zero is looked for once, at points that do not depend on the fit, so that a fit that goes on from a
checkpoint has the same bits. One more product, with a random vector, tells whether they are zero; if not, all columns
are computed.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi._compile import number, program
from mgvi.linalg import Compression
from mgvi.pairs import Pairs
from mgvi.problem import Problem
from mgvi.problem.density import hessian_products, in_rows, information_products

_PATTERN_POINTS = 4  # at which entries that are always zero are looked for
_PATTERN_SPREAD = 0.5  # of these points around the prior's mean, in its sds
_WORTHWHILE = 0.7  # share of all products below which fewer products pay for their check

_hessian_products = program("solves")(hessian_products)
_information_products = program("information")(information_products)


def averaged_hessian(problem: Problem, mean: Any, beta: float, pairs: Pairs, count: int, room: int) -> np.ndarray:
    """The Hessian of the negative log-density averaged over the points of the first `count` pairs around a mean.

    `room` is the number of pairs that the program is compiled for.
    """
    return _matrix(_Hessian(problem, mean, beta, pairs, (count, room)))


def information_matrix(problem: Problem, mean: Any) -> np.ndarray:
    """R^T R at a mean."""
    return _matrix(_Information(problem, mean))


def _matrix(run: "_Products") -> np.ndarray:
    compiled = run.problem.static.compiled
    if compiled.rehearses:
        run.products(np.zeros((0, run.size)))
        return jax.ShapeDtypeStruct((run.size, run.size), np.float64)  # pyright: ignore[reportReturnType]
    return run.matrix(_compression(run))


class _Products:
    """Products with a symmetric matrix, along the bases of the chart."""

    def __init__(self, problem: Problem, mean: Any):
        self.size = _tree.size(problem.latent)
        self.problem, self._mean = problem, mean
        self._dtype = jnp.result_type(*(leaf.dtype for leaf in problem.latent.values()))

    def products(self, vectors) -> np.ndarray:
        """Rows of products with rows."""
        raise NotImplementedError

    def somewhere(self, problem: Problem, rng: np.random.Generator) -> "_Products":
        """The same at random points, where only entries vanish that vanish everywhere."""
        raise NotImplementedError

    def _batches(self, vectors) -> tuple[Any, Any]:
        """Vectors as a stack of batches, with room for as many as there can be, and how many of them count."""
        width = self.problem.budget.columns
        stack = np.zeros((-(-(self.size + 1) // width), width, self.size), self._dtype)
        stack.reshape(-1, self.size)[: len(vectors)] = vectors
        return stack, number(-(-len(vectors) // width))

    def matrix(self, compression) -> np.ndarray:
        """The matrix, in terms of the latents."""
        found = None if compression is None else self._compressed(compression)
        return self._back(self.products(np.eye(self.size)) if found is None else found)

    def _compressed(self, compression) -> np.ndarray | None:
        """The matrix from few products, or None if they do not tell it."""
        vectors = compression.vectors
        random = np.random.default_rng(0).standard_normal(self.size).astype(self._dtype)
        products = self.products(np.concatenate([vectors, random[None]]))
        matrix = compression.recover(products[:-1])
        size = np.linalg.norm(np.abs(matrix) @ np.abs(random))
        accuracy = 1e3 * np.finfo(self._dtype).eps
        return matrix if np.linalg.norm(matrix @ random - products[-1]) <= accuracy * size else None

    def _back(self, matrix):
        _, _, back = in_rows(self.problem)
        half_way = np.asarray(_tree.to_rows(_tree.on_host(back(matrix))))
        return np.asarray(_tree.to_rows(_tree.on_host(back(half_way.T)))).T


class _Information(_Products):
    """Products with R^T R."""

    def products(self, vectors) -> np.ndarray:
        compiled = self.problem.static.compiled
        found = compiled.call(_information_products, self.problem, self._mean, *self._batches(vectors))
        if compiled.rehearses:
            return found
        return np.asarray(found, np.float64).reshape(-1, self.size)[: len(vectors)]

    def somewhere(self, problem, rng):
        return _Information(problem, _random(problem.latent, rng))


class _Hessian(_Products):
    """Products with an averaged Hessian; the points are shared among the cores."""

    def __init__(self, problem, mean, beta, pairs: Pairs, counts: tuple[int, int]):
        super().__init__(problem, mean)
        (count, room), each = counts, pairs.each
        count = min(count, len(pairs))
        cores = 2 if problem.budget.cores > 1 and room % 2 == 0 and count % 2 == 0 else 1
        # Pair by pair, every second pair on the second core.
        points = jax.tree.map(
            lambda *ways: np.stack([w[:count] for w in ways], axis=1),
            *pairs.stacks,
        )
        apart = lambda d, i: d[i::cores].reshape(-1, *d.shape[2:])
        self._parts = [
            _tree.filled(jax.tree.map(lambda d, i=i: apart(d, i), points), room * each // cores) for i in range(cores)
        ]
        self._like = pairs
        self._beta, self._count = number(float(beta)), number(count * each // cores)

    def somewhere(self, problem, rng):
        mean = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in problem.latent.items()}
        pairs = self._like.map(lambda stack: _random(stack, rng))
        room = len(jax.tree.leaves(self._parts[0])[0]) * len(self._parts) // self._like.each
        return _Hessian(problem, mean, 1.0, pairs, (_PATTERN_POINTS // self._like.each, room))

    def products(self, vectors) -> np.ndarray:
        compiled = self.problem.static.compiled
        rest = self._beta, self._count, *self._batches(vectors)
        if compiled.rehearses:
            return compiled.call(_hessian_products, self.problem, self._mean, self._parts[0], *rest)
        made = compiled.ready(_hessian_products, self.problem, self._mean, self._parts[0], *rest)
        double = jnp.result_type(float) == np.float64

        def run(some):
            with jax.enable_x64(double):  # a setting of each thread
                return np.asarray(made(self.problem, self._mean, some, *rest))

        parts = list(_pool(len(self._parts)).map(run, self._parts))
        found = np.mean(parts, axis=0, dtype=np.float64)
        return found.reshape(-1, self.size)[: len(vectors)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "mgvi-hessians")


def _random(like, rng):
    return {
        n: (_PATTERN_SPREAD * rng.standard_normal(leaf.shape)).astype(leaf.dtype) for n, leaf in sorted(like.items())
    }


def _compression(run: _Products) -> Compression | None:
    """Which products tell a matrix in a chart such as this, or None if nearly all are needed."""
    problem, known = run.problem, run.problem.static.compressions
    kind = type(run), bool(problem.chart)
    if kind not in known:
        rng = np.random.default_rng(0)
        if problem.chart:
            problem = problem.in_chart({name: _any_like(at, rng) for name, at in problem.chart.items()})
        found = Compression(run.somewhere(problem, rng).products(np.eye(run.size)) != 0)
        known[kind] = found if len(found.vectors) < _WORTHWHILE * run.size else None
    return known[kind]


def _any_like(at, rng):
    """A chart of which no entry is special."""
    other = {**at, "power": rng.uniform(0.2, 0.8, np.shape(at["power"])).astype(at["power"].dtype)}
    if "basis" in at:
        other["basis"] = np.linalg.qr(rng.standard_normal(at["basis"].shape))[0].astype(at["basis"].dtype)
    return other
