"""The curvature of a small problem as a matrix.

A problem, a mean in its chart and points around it come in; a factorised precision goes out.
It must not know why it is asked for.

Outside of compiled programs everything is done by NumPy in double precision, so there is nothing to compile.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgvi import _tree
from mgvi.gaussian.curvature import Keys
from mgvi.gaussian.hessians import averaged_hessian, information_matrix
from mgvi.gaussian.white import stratified_normals
from mgvi.linalg import at_least, inverse_root, sub_blocks
from mgvi.pairs import Pairs
from mgvi.problem import Problem
from mgvi.problem.density import in_rows

_WIDEST = 10.0  # largest variance along any direction, in units of the prior's
_SPREAD = 20_000  # most latents whose noise is spread evenly: 32 rows of it are made at least
_MOST_REPAIRS = 10  # of each latent, to bring its variance down to the prior's


@jax.tree_util.register_pytree_node_class
class DenseCurvature:
    """A precision matrix at a mean.

    Parameters
    ----------
    problem : Problem
        In the chart of the mean.
    mean : dict
        Where the curvature is.
    matrix : array
        The precision, in the order of the leaves of the latent.
    free : dict, optional
        1 for each site that varies, 0 for each that does not.
    beta : float
        The power of the likelihood that the curvature is for.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> from mgvi.gaussian import DenseCurvature
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> print(DenseCurvature.fisher(problem, {"mu": jnp.array(0.0)}).matrix.round(3))  # 1 + 2 * 2^2
    [[9.]]
    """

    def __init__(self, problem: Problem, mean: Any, matrix: Any, free: dict[str, Any] | None = None, beta: Any = 1.0):
        self.problem, self.mean, self.beta = problem, mean, np.asarray(beta, _dtype(problem))
        self.free = free or dict.fromkeys(problem.latent, np.float32(1.0))
        self.matrix = matrix

    @classmethod
    def fisher(cls, problem: Problem, mean: Any, beta: float = 1.0) -> "DenseCurvature":
        """The Fisher metric at a mean."""
        like = jax.ShapeDtypeStruct((_tree.size(problem.latent),) * 2, np.float64)
        made = problem.static.compiled.on_host(_metric, like, information_matrix(problem, mean), beta)
        return cls(problem, mean, made, beta=beta)

    @classmethod
    def averaged(cls, problem: Problem, mean: Any, pairs: Pairs, count: int, beta: float = 1.0) -> "DenseCurvature":
        """The Hessian of the negative log-density, averaged over the points of the first pairs around a mean.

        It is the precision of the best Gaussian. It is kept positive, and no wider than the prior: a variance above the
        prior's is granted to sums of latents that a scale ties together, not to single ones. Where the average is not
        finite, the Fisher metric takes its place.
        """
        like = jax.ShapeDtypeStruct((_tree.size(problem.latent),) * 2, np.float64)
        found = averaged_hessian(problem, mean, beta, pairs, count, problem.budget.averaged)
        compiled = problem.static.compiled
        if not compiled.on_host(lambda: bool(np.all(np.isfinite(found))), True):
            return cls.fisher(problem, mean, beta)
        least = 1.0 if beta < 1 else 1 / _WIDEST
        return cls(problem, mean, compiled.on_host(restrained, like, problem, found, least), beta=beta)

    def raised_to(self, least: np.ndarray) -> "DenseCurvature":
        """The same precision, no smaller than another along any direction."""
        made = self.problem.static.compiled.on_host(at_least, self.matrix, self.matrix, least)
        return DenseCurvature(self.problem, self.mean, made, self.free, self.beta)

    def freeing(self, free: dict[str, Any]) -> "DenseCurvature":
        """The same, for the sites that are free; others have the prior's precision and nothing in common with them."""
        mask = entries(self.problem.latent, free)
        if np.all(mask == 1) or self.problem.static.compiled.rehearses:
            made = DenseCurvature(self.problem, self.mean, self.matrix, free, self.beta)
            made.__dict__.update({k: v for k, v in self.__dict__.items() if k in ("root", "inverse")})
            return made
        one = np.eye(len(mask))
        matrix = one + np.outer(mask, mask) * (self.matrix - one)
        return DenseCurvature(self.problem, self.mean, matrix, free, self.beta)

    @cached_property
    def root(self) -> np.ndarray:
        """W with W^T W the covariance; not finite if the precision is not positive definite to rounding."""
        return inverse_root(np.asarray(self.matrix, np.float64))

    @cached_property
    def inverse(self) -> np.ndarray:
        """The covariance."""
        make = lambda: self.root.T @ self.root
        return self.problem.static.compiled.on_host(make, self.matrix)

    def draw(self, keys: Keys, stop: Any = None, coupled: bool = True) -> tuple[Any, None]:
        """Deviations, one for each key; there is no solve to stop or to report."""
        latent = self.problem.latent
        make = lambda: _tree.from_rows(white(keys, _tree.size(latent)) @ self.root, latent)
        found = self.problem.static.compiled.on_host(make, _tree.shapes_of_stack(latent, keys.count))
        return _tree.multiply_sites(self.free, found) if _tree.is_on_host(found) else found, None

    def solve(self, b: np.ndarray) -> np.ndarray:
        """M^-1 b for rows of right-hand sides."""
        return b @ self.inverse

    def block(self) -> dict[str, Any]:
        """The blocks of the single sites."""
        return sub_blocks(self.matrix, self.problem.latent)

    def quadratic(self, rows: np.ndarray) -> np.ndarray:
        """d^T M d for rows of deviations."""
        return np.einsum("ij,ij->i", rows @ self.matrix, rows)

    def inside(self) -> "_Rows":
        """Everything along the bases of the chart, as vectors."""
        latent = self.problem.latent
        problem, rows, back = in_rows(self.problem)
        mean, inverse = rows(_tree.stacked(self.mean))[0], self.inverse
        inverse = rows(_tree.from_rows(rows(_tree.from_rows(inverse, latent)).T, latent))
        free = _tree.to_row({n: jnp.full(leaf.shape, self.free[n], leaf.dtype) for n, leaf in latent.items()})
        return _Rows(problem, mean, free, self.beta, inverse, rows, back)

    def tree_flatten(self):
        """For a program: the inverse, in the precision of the problem."""
        inverse = self.inverse
        dtype = _dtype(self.problem)
        if isinstance(inverse, jax.ShapeDtypeStruct):
            inverse = jax.ShapeDtypeStruct(inverse.shape, dtype)
        elif isinstance(inverse, np.ndarray):
            inverse = inverse.astype(dtype)
        return (self.problem, self.mean, inverse, self.free, self.beta), None

    @classmethod
    def tree_unflatten(cls, _, children):
        """What a program sees: there is no matrix, only its inverse."""
        made = object.__new__(cls)
        made.problem, made.mean, made.__dict__["inverse"], made.free, made.beta = children
        return made


@dataclass(frozen=True)
class _Rows:
    """A dense curvature within a program."""

    problem: Problem
    mean: Any
    free: Any
    beta: Any
    inverse: Any
    pack: Any
    back: Any
    uses_information: ClassVar[bool] = False

    def solve(self, at, information, b, stop, damping):
        """M^-1 b; a matrix that was averaged around the mean needs no damping."""
        return jnp.matmul(b, self.inverse, precision=lax.Precision.HIGHEST), jnp.ones((), int)

    def nothing_seen(self, pairs):
        """Room for the gradients of all pairs."""
        return jnp.zeros_like(pairs.first)

    def seen(self, so_far, gradients, first):
        """All gradients."""
        return lax.dynamic_update_slice_in_dim(so_far, gradients, first, 0)

    def all_seen(self, seen, gradient, count):
        """All gradients."""
        return seen

    def scatter(self, seen, count):
        """By site."""
        counts = (jnp.arange(seen.shape[0]) < count)[:, None]
        apart = jnp.where(counts, seen - jnp.sum(seen, axis=0) / count, 0.0)
        steps = self.back(jnp.matmul(apart, self.inverse, precision=lax.Precision.HIGHEST))
        return {name: jnp.sum(s * s) / (count * s[0].size) for name, s in steps.items()}

    def longest(self, at, step):
        """Any length."""
        return 1.0

    def tree(self, x):
        """The point of a vector."""
        return _tree.from_row(x, self.problem.latent)

    def outside(self, x):
        """The point in terms of the latents."""
        return _tree.unstacked(self.back(x[None]))


def _dtype(problem):
    return jnp.result_type(*(leaf.dtype for leaf in problem.static.latent.values()))


def _metric(found: np.ndarray, beta: float) -> np.ndarray:
    return np.eye(len(found)) + beta * 0.5 * (found + found.T)


@lru_cache(maxsize=2)  # rounds that share their keys ask for the same noise again and again
def white(keys: Keys, size: int) -> np.ndarray:
    """A row of standard normals for each key, spread evenly unless there are too many numbers for that."""
    generator = np.random.default_rng((keys.seed, keys.stream))
    if size > _SPREAD:
        return generator.standard_normal((keys.count, size))
    return stratified_normals(generator, keys.count, size)


def entries(latent: dict[str, Any], by_site: dict[str, Any]) -> np.ndarray:
    """A number for each site as a vector with an entry for each latent."""
    return np.concatenate([np.full(math.prod(leaf.shape), by_site[name]) for name, leaf in sorted(latent.items())])


def restrained(problem: Problem, matrix: np.ndarray, least: float) -> np.ndarray:
    """A symmetric matrix made positive, with no variance of a single latent above the prior's.

    Latents that a chart ties to their scale are exempt.
    """
    matrix = at_least(0.5 * (matrix + matrix.T), least * np.eye(len(matrix)))
    tied = {name: float(name in problem.chart) for name in problem.latent}
    single = np.flatnonzero(entries(problem.latent, tied) == 0)
    root = inverse_root(matrix)
    covariance = root.T @ root
    added = np.zeros(len(matrix))
    # To repair one variance may raise others by rounding only, so each is repaired few times.
    for _ in range(_MOST_REPAIRS * len(single)):
        worst = single[np.argmax(np.diag(covariance)[single])]
        variance = covariance[worst, worst]
        if not variance > 1 + 1e-9:
            break
        added[worst] += 1 - 1 / variance
        column = covariance[:, worst]
        covariance = covariance - np.outer(column, column) * (1 - 1 / variance) / variance
    return matrix + np.diag(added) if added.any() else matrix
