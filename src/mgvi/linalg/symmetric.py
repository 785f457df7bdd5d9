"""Symmetric matrices on the host: factors, inverses and eigenvalues that do not give up.

NumPy matrices come in; NumPy matrices go out. Everything is done by NumPy, so there is nothing to compile.
It must not know what a matrix stands for.
"""

import numpy as np

_ATTEMPTS = 4  # at the eigenvalues of a matrix, each with its rows in another order
_WHOLE = 64  # rows up to which a triangle is inverted like any matrix


def cholesky(matrix: np.ndarray) -> np.ndarray | None:
    """The lower Cholesky factor, or None if the matrix is not finite or not positive definite to rounding."""
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    return factor if np.all(np.isfinite(factor)) else None


def inverse_root(matrix: np.ndarray) -> np.ndarray:
    """The inverse of the Cholesky factor: W with W^T W the inverse of the matrix; NaN if there is no factor."""
    factor = cholesky(matrix)
    return np.full_like(matrix, np.nan) if factor is None else inverse_of_triangle(factor)


def inverse_of_triangle(lower: np.ndarray) -> np.ndarray:
    """The inverse of a lower triangular matrix, by halves.

    NumPy, which does not use the triangle, takes three times as long. SciPy's LAPACK would use it, but its threads
    compete with NumPy's: fits take half as long again.
    """
    half = len(lower) // 2
    if len(lower) <= _WHOLE:
        return np.linalg.inv(lower)
    inverse = np.zeros_like(lower)
    first, last = inverse_of_triangle(lower[:half, :half]), inverse_of_triangle(lower[half:, half:])
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[half:, :half] = -last @ lower[half:, :half] @ first
    return inverse


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
    factor = cholesky(least)
    if factor is None or cholesky(matrix - least) is not None:  # far cheaper than eigenvalues, which few need
        return matrix
    inner = np.linalg.solve(factor, np.linalg.solve(factor, matrix).T)
    values, vectors = eigh(0.5 * (inner + inner.T))
    vectors = factor @ vectors
    return (vectors * np.maximum(values, 1.0)) @ vectors.T


def eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, in rising order, and eigenvectors of a symmetric matrix.

    LAPACK's divide and conquer does not converge for some harmless matrices; with their rows and columns in another
    order it does.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.linalg import eigh
    >>> print(eigh(np.diag([4.0, 0.5]))[0])
    [0.5 4. ]
    """
    order, rng = np.arange(len(matrix)), np.random.default_rng(0)
    for _ in range(_ATTEMPTS - 1):
        try:
            values, vectors = np.linalg.eigh(matrix[np.ix_(order, order)])
        except np.linalg.LinAlgError:
            order = rng.permutation(len(matrix))
            continue
        return values, vectors[np.argsort(order)]
    return np.linalg.eigh(matrix)
