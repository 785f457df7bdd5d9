"""A sparse symmetric matrix from few products: columns that share no row are told from one product for all of them.

Where a matrix is not zero comes in; the vectors to multiply it with go out, and the matrix from the products.
Nothing here knows whose Hessian that is.
"""

import numpy as np

_TRIED = 12  # numbers of columns to have a product of their own, twice
_FULL = 0.7  # share of entries above which there is nothing to gain


class Compression:
    """Which products tell a symmetric matrix that is zero outside a pattern.

    Some columns, those with most entries, have a product of their own. By symmetry that tells their rows as well, so
    that others may share a product if they share none of the remaining rows.

    Parameters
    ----------
    pattern : array of bool
        Square; False where the matrix is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.linalg import Compression
    >>> matrix = np.diag([1.0, 2.0, 3.0, 4.0])
    >>> matrix[0, :] = matrix[:, 0] = [1.0, 5.0, 6.0, 7.0]
    >>> compression = Compression(matrix != 0)
    >>> print(compression.vectors)
    [[1. 0. 0. 0.]
     [0. 1. 1. 1.]]
    >>> bool(np.all(compression.recover(compression.vectors @ matrix) == matrix))
    True
    """

    def __init__(self, pattern: np.ndarray):
        self._pattern = pattern | pattern.T | np.eye(len(pattern), dtype=bool)
        self._alone, self._group = np.ones(len(pattern), bool), np.arange(len(pattern))  # all columns by themselves
        if self._pattern.mean() > _FULL:
            return
        entries = self._pattern.sum(axis=1)
        fullest = np.argsort(-entries, kind="stable")
        drops = 1 + np.argsort(np.diff(entries[fullest]), kind="stable")[:_TRIED]  # where other columns begin
        for count in sorted({0, *drops, *np.geomspace(1, len(pattern) - 1, _TRIED).astype(int)}):
            self._try(fullest[:count])

    def _try(self, alone):
        """Take those columns by themselves, and share products among the others, if that needs fewer."""
        group, single = np.empty(len(self._pattern), int), np.zeros(len(self._pattern), bool)
        group[alone], single[alone] = np.arange(len(alone)), True
        rest = np.flatnonzero(~single)
        entries = self._pattern[np.ix_(rest, rest)].astype(np.float32)
        clash = entries.T @ entries > 0
        of_rest = np.full(len(rest), -1)
        for i in range(len(rest)):
            taken = set(of_rest[:i][clash[i, :i]])
            of_rest[i] = next(g for g in range(len(rest)) if g not in taken)
            if len(alone) + of_rest[i] >= self._group.max():
                return
        group[rest] = len(alone) + of_rest
        self._alone, self._group = single, group

    @property
    def vectors(self) -> np.ndarray:
        """The vectors to multiply the matrix with, as rows."""
        found = np.zeros((int(self._group.max()) + 1, len(self._group)))
        found[self._group, np.arange(len(self._group))] = 1.0
        return found

    def recover(self, products: np.ndarray) -> np.ndarray:
        """The matrix, from its products with the vectors, as rows."""
        matrix = np.where(self._pattern, products[self._group].T, 0.0)  # one column for each
        own = matrix[:, self._alone]
        matrix[self._alone, :] = own.T
        matrix[:, self._alone] = own
        return matrix
