"""Fixed sparse matrices, multiplied from either side without scattering.

Entries of a matrix come in; a differentiable product whose transpose is a gather too goes out.
It must not know what the matrix does.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from mgvi._linear import Pair, linear

_WIDTH = 32  # entries of a row that are gathered at once; longer sums are made in stages
_FEW = 4  # so few of them are added up one by one: a sum over so short an axis takes ten times as long


class SparseMap:
    """A sparse matrix as a linear map on the last axis.

    Parameters
    ----------
    rows, columns : integer arrays
        Where the entries are.
    values : array
        The entries.
    shape : tuple of int
        Rows and columns.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.fields._sparse import SparseMap
    >>> average = SparseMap([0, 0, 1], [0, 1, 2], [0.5, 0.5, 1.0], (2, 3))
    >>> print(average(jnp.array([1.0, 3.0, 7.0])))
    [2. 7.]
    """

    def __init__(self, rows, columns, values, shape: tuple[int, int]):
        rows, columns, values = np.asarray(rows), np.asarray(columns), np.asarray(values, float)
        self.shape = shape
        forward = _stages(rows, columns, values, shape[0])
        backward = _stages(columns, rows, values, shape[1])
        self._pair = _pair(len(forward), len(backward))
        self._tables = [table for stage in forward + backward for table in stage]

    def __call__(self, x, tables=None):
        """The product with an array whose last axis has as many entries as the matrix has columns.

        `tables` are those of the matrix, for callers that hand them through what would make constants of them.
        """
        if x.shape[-1] != self.shape[1]:
            raise ValueError(f"expected {self.shape[1]} entries along the last axis, found {x.shape[-1]}")
        return linear(self._pair, x, *(self.tables(x.dtype) if tables is None else tables))

    def tables(self, dtype) -> list[jax.Array]:
        """Where entries are gathered from, and their values."""
        return [jnp.asarray(t, dtype if t.dtype.kind == "f" else None) for t in self._tables]


@lru_cache(maxsize=64)
def _pair(forward: int, backward: int) -> Pair:
    def gathered(x, index):
        return x.at[..., index].get(mode="promise_in_bounds")

    def one(x, tables):
        for index, value in zip(tables[::2], tables[1::2], strict=True):
            if len(index) <= _FEW:
                parts = [gathered(x, i) * v for i, v in zip(index, value, strict=True)]
                x = sum(parts[1:], start=parts[0])
            else:
                x = jnp.sum(gathered(x, index) * value, axis=-2)
        return x

    def run(x, tables):
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] == 1:
            y = one(rows[0], tables)
        elif jax.default_backend() == "cpu":  # XLA's batched gather is slow there
            y = jax.lax.map(lambda row: one(row, tables), rows)
        else:
            y = one(rows, tables)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    return Pair(
        lambda x, *tables: run(x, tables[: 2 * forward]),
        lambda y, *tables: run(y, tables[2 * forward :]),
    )


def _stages(rows, columns, values, count) -> list[tuple[np.ndarray, np.ndarray]]:
    """Gathers that end in the sum of each row: first of its entries, then of partial sums, until one is left.

    Tables have a column for each sum.
    """
    stages = []
    while True:
        per_row = np.bincount(rows, minlength=count)
        width = int(min(max(per_row.max(initial=0), 1), _WIDTH))
        chunks = np.maximum(-(-per_row // width), 1)  # a row without entries is one empty chunk
        order = np.argsort(rows, kind="stable")
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        slot = (np.cumsum(chunks) - chunks)[rows[order]] * width + rank
        index = np.zeros(chunks.sum() * width, np.int32)
        weight = np.zeros(chunks.sum() * width)
        index[slot], weight[slot] = columns[order], values[order]
        stages.append((index.reshape(-1, width).T, weight.reshape(-1, width).T))
        if chunks.max() == 1:
            return stages
        rows = np.repeat(np.arange(count), chunks)
        columns, values = np.arange(len(rows)), np.ones(len(rows))
