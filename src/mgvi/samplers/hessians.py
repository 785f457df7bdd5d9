"""Curvatures of a small problem as matrices, from as few products as their zeros allow.

A problem, a mean and, for an averaged Hessian, the points around it come in; a matrix goes out.
It must not know what the matrix is for.

Which entries are zero is looked for once, at points that do not depend on the fit, so that a fit that goes on from a
checkpoint has the same bits. One more product, with a random vector, tells whether they are; if not, all columns are
computed.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi._compile import number
from mgvi.linalg import Compression
from mgvi.problem import Problem, hessian_products, in_rows, information_products

_AT_ONCE = 190_000  # latents and data of the products that are made together: more of them leave the cache of a CPU
_FEWEST = 16  # of those products
_SEEN = 4  # points where zeros are looked for, on two cores
_WORTHWHILE = 0.7  # of all products: fewer than that pay for the check
_LITTLE = 100_000  # entries of R: so few that any program for them is fast
_FAR = 0.5  # how far those are from the prior's mean, in its sds

_of_hessian = jax.jit(hessian_products)
_of_information = jax.jit(information_products)
_CORES = ThreadPoolExecutor(2, "mgvi-hessians")


def averaged_hessian(
    problem: Problem, mean: Any, beta: float, spread: Any, most: int | None = None, room: int | None = None
) -> np.ndarray:
    """The Hessian of the negative log-density averaged over mean + spread, or over so many points of it at most.

    `room` is for how many pairs of points the program is compiled, if not for as many as there are.
    """
    run = _Hessian(problem, mean, beta, spread, most, room)
    return run.matrix(_compression(run))


def information_matrix(problem: Problem, mean: Any) -> np.ndarray:
    """R^T R at a mean."""
    run = _Information(problem, mean)
    return run.matrix(_compression(run))


def prepare_hessian(problem: Problem, mean: Any, room: int) -> None:
    """Compile what averages the Hessian over as many pairs of points as there is room for."""
    nowhere = {name: np.zeros((2 * room, *leaf.shape), leaf.dtype) for name, leaf in problem.latent.items()}
    _Hessian(problem, mean, 1.0, nowhere, None, room).program()


class _Products:
    """Products with a symmetric matrix, along the bases of the coordinates."""

    def __init__(self, problem: Problem, mean: Any):
        self.size = _tree.size(problem.latent)
        self.problem, self._mean = problem, mean
        self._dtype = jnp.result_type(*(leaf.dtype for leaf in problem.latent.values()))

    def products(self, vectors) -> np.ndarray:
        """Rows of products with rows."""
        raise NotImplementedError

    def somewhere(self, problem: Problem, rng: np.random.Generator) -> "_Products":
        """The same at random points, where nothing is zero that is not always."""
        raise NotImplementedError

    def _batches(self, vectors) -> tuple[Any, Any]:
        """Vectors as a stack of batches, with room for as many as there can be, and how many of them count."""
        together = _AT_ONCE // (self.size + _tree.size(self.problem.data))
        width = min(max(together, _FEWEST), self.size + 1)
        stack = np.zeros((-(-(self.size + 1) // width), width, self.size), self._dtype)
        stack.reshape(-1, self.size)[: len(vectors)] = vectors
        return stack, number(-(-len(vectors) // width))

    def matrix(self, compression) -> np.ndarray:
        """The matrix, in terms of the latents."""
        found = None if compression is None else self._compressed(compression)
        return self._back(self.products(np.eye(self.size)) if found is None else found)

    def _compressed(self, compression) -> np.ndarray | None:
        """The matrix from few products, or None if that is not the matrix."""
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
        given = self.problem, self._mean, *self._batches(vectors)
        effort = int(self.size * _tree.size(self.problem.data) > _LITTLE)
        found = np.asarray(self.problem.static.compiled.call(_of_information, *given, effort=effort), np.float64)
        return found.reshape(-1, self.size)[: len(vectors)]

    def somewhere(self, problem, rng):
        return _Information(problem, _random(problem.latent, rng))


class _Hessian(_Products):
    """Products with an averaged Hessian; half of the points on a second core."""

    def __init__(self, problem, mean, beta, spread, most, room=None):
        super().__init__(problem, mean)
        pairs = jax.tree.leaves(spread)[0].shape[0] // 2
        most = 2 * pairs if most is None else min(most, 2 * pairs)
        if room is not None and room > pairs:
            halves = ({name: d[i * pairs :][:pairs] for name, d in spread.items()} for i in range(2))
            first, second = (_tree.filled(half, room) for half in halves)
            spread = {name: np.concatenate([d, second[name]]) for name, d in first.items()}
            pairs = room
        self._spread = spread
        self._parts = [spread]
        if pairs % 2 == 0 and most % 4 == 0:  # every second pair on a second core
            apart = lambda d, i: d.reshape(2, pairs, *d.shape[1:])[:, i::2].reshape(pairs, *d.shape[1:])
            self._parts = [{name: apart(d, i) for name, d in spread.items()} for i in range(2)]
        self._beta, self._count = (number(x) for x in (beta, most // len(self._parts)))

    def _given(self, vectors) -> tuple[Any, ...]:
        """What, beside the points, the program is given."""
        return self._beta, self._count, *self._batches(vectors)

    def somewhere(self, problem, rng):
        mean = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in problem.latent.items()}
        return _Hessian(problem, mean, 1.0, _random(self._spread, rng), _SEEN)

    def program(self, rest: tuple[Any, ...] | None = None) -> Any:
        """What makes the products with vectors that are `_given`."""
        rest = self._given(np.zeros((0, self.size))) if rest is None else rest
        return self.problem.static.compiled.program(_of_hessian, self.problem, self._mean, self._parts[0], *rest)

    def products(self, vectors) -> np.ndarray:
        rest = self._given(vectors)
        program = self.program(rest)
        double = jnp.result_type(float) == np.float64

        def run(some):
            with jax.enable_x64(double):  # a setting of each thread
                return np.asarray(program(self.problem, self._mean, some, *rest))

        found = np.mean(list(_CORES.map(run, self._parts)), axis=0, dtype=np.float64)
        return found.reshape(-1, self.size)[: len(vectors)]


def _random(like, rng):
    return {n: (_FAR * rng.standard_normal(leaf.shape)).astype(leaf.dtype) for n, leaf in sorted(like.items())}


def _compression(run: _Products) -> Compression | None:
    """Which products tell a matrix in coordinates such as these, or None if nearly all are needed."""
    problem, known = run.problem, run.problem.static.compressions
    kind = type(run), bool(problem.coordinates)
    if kind not in known:
        rng = np.random.default_rng(0)
        if problem.coordinates:
            problem = problem.in_coordinates({name: _any_like(at, rng) for name, at in problem.coordinates.items()})
        found = Compression(run.somewhere(problem, rng).products(np.eye(run.size)) != 0)
        known[kind] = found if len(found.vectors) < _WORTHWHILE * run.size else None
    return known[kind]


def _any_like(at, rng):
    """Coordinates in which nothing is zero that is not always."""
    other = {**at, "power": rng.uniform(0.2, 0.8, np.shape(at["power"])).astype(at["power"].dtype)}
    if "basis" in at:
        other["basis"] = np.linalg.qr(rng.standard_normal(at["basis"].shape))[0].astype(at["basis"].dtype)
    return other
