"""A small positive definite matrix on trees, factorised on the host: solves and draws without iteration.

A matrix over the entries of a tree comes in; solutions and draws, stacked along a leading axis, go out.
It must not know where the matrix comes from.
"""

from functools import cached_property
from typing import Any

import numpy as np

from mgvi import _tree

_TRIES = 4  # to find eigenvalues
_SMALL = 64  # rows up to which a triangle is inverted like any matrix


class DenseMetric:
    """A positive definite matrix M. Everything is done by NumPy, so there is nothing to compile.

    Parameters
    ----------
    matrix : array
        M, in the order of the leaves of `latent`.
    latent : tree
        Shapes and dtypes.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from mgvi.linalg import DenseMetric
    >>> metric = DenseMetric(np.diag([2.0, 4.0]), jax.ShapeDtypeStruct((2,), jnp.float32))
    >>> print(metric.solve(np.ones((1, 2))))
    [[0.5  0.25]]
    """

    def __init__(self, matrix: np.ndarray, latent: Any):
        self.matrix = np.asarray(matrix, np.float64)
        self._latent = latent

    @cached_property
    def _root(self) -> np.ndarray:
        """Inverse of the Cholesky factor; not finite if M is not, or not positive definite to rounding."""
        factor = _cholesky(self.matrix)
        if factor is None:
            return np.full_like(self.matrix, np.nan)
        return _inverse_of_triangle(factor)

    @cached_property
    def inverse(self) -> np.ndarray:
        """M^-1; not finite if M has no factor."""
        return self._root.T @ self._root

    def solve(self, b: Any) -> Any:
        """M^-1 b for a stack of right-hand sides."""
        return _tree.from_rows(_tree.to_rows(b) @ self.inverse, self._latent)

    def colour(self, noise: np.ndarray) -> Any:
        """Draws of N(0, M^-1) from rows of white noise; not finite if M has no factor."""
        return _tree.from_rows(noise @ self._root, self._latent)

    def quadratic(self, deviations: Any) -> np.ndarray:
        """d^T M d for a stack of deviations."""
        rows = _tree.to_rows(deviations).astype(np.float64)
        return np.einsum("ij,ij->i", rows @ self.matrix, rows)


def at_least(matrix: np.ndarray, least: np.ndarray) -> np.ndarray:
    """The symmetric matrix, raised along the directions in which it is smaller than a positive definite one.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.linalg import at_least
    >>> print(at_least(np.diag([4.0, 0.5]), np.diag([2.0, 1.0])))
    [[4. 0.]
     [0. 1.]]
    """
    factor = _cholesky(least)
    if factor is None or _cholesky(matrix - least) is not None:  # far cheaper than eigenvalues, which few need
        return matrix
    inner = np.linalg.solve(factor, np.linalg.solve(factor, matrix).T)
    values, vectors = eigh(0.5 * (inner + inner.T))
    vectors = factor @ vectors
    return (vectors * np.maximum(values, 1.0)) @ vectors.T


def eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, in rising order, and eigenvectors of a symmetric matrix.

    LAPACK's way to divide and conquer does not converge for some harmless matrices; with their rows and columns in
    another order it does.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.linalg import eigh
    >>> print(eigh(np.diag([4.0, 0.5]))[0])
    [0.5 4. ]
    """
    order, rng = np.arange(len(matrix)), np.random.default_rng(0)
    for _ in range(_TRIES - 1):
        try:
            values, vectors = np.linalg.eigh(matrix[np.ix_(order, order)])
        except np.linalg.LinAlgError:
            order = rng.permutation(len(matrix))
            continue
        return values, vectors[np.argsort(order)]
    return np.linalg.eigh(matrix)


def _inverse_of_triangle(lower):
    """By halves: NumPy, which sees no triangle, takes three times as long.

    SciPy's LAPACK would do it, but has threads of its own, in the way of NumPy's: fits take half as long again.
    """
    half = len(lower) // 2
    if len(lower) <= _SMALL:
        return np.linalg.inv(lower)
    inverse = np.zeros_like(lower)
    first, last = _inverse_of_triangle(lower[:half, :half]), _inverse_of_triangle(lower[half:, half:])
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[half:, :half] = -last @ lower[half:, :half] @ first
    return inverse


def _cholesky(matrix):
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    return factor if np.all(np.isfinite(factor)) else None
