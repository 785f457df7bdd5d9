"""Fixed sparse matrices, multiplied from either side without scattering.

Entries of a matrix come in; a differentiable product whose transpose is a gather too goes out.
It must not know what the matrix does.
"""

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi._linear import Pair, by_rows, linear

_WIDTH = 32  # entries of a row that are gathered at once; longer sums are made in stages
_LONGEST_UNROLLED = 4  # entries of a row; a reduction of so short an axis takes ten times as long as a sum of terms


@jax.tree_util.register_pytree_node_class
class SparseMap:
    """A sparse matrix as a linear map on the last axis; a pytree whose leaves are its tables.

    `rows`, `columns` and `values` have an element for each entry of the matrix, whose shape is `shape`.
    """

    def __init__(self, rows, columns, values, shape: tuple[int, int]):
        rows, columns, values = np.asarray(rows), np.asarray(columns), np.asarray(values, float)
        self.shape = shape
        forward = _stages(rows, columns, values, shape[0])
        backward = _stages(columns, rows, values, shape[1])
        self._pair = _pair(len(forward), len(backward))
        self._tables = [table for stage in forward + backward for table in stage]

    def __call__(self, x: Any) -> jax.Array:
        """The product with an array whose last axis has as many entries as the matrix has columns."""
        if x.shape[-1] != self.shape[1]:
            raise ValueError(f"expected {self.shape[1]} entries along the last axis, found {x.shape[-1]}")
        return linear(self._pair, x, *(jnp.asarray(t, x.dtype if t.dtype.kind == "f" else None) for t in self._tables))

    def tree_flatten(self):
        return self._tables, (self.shape, self._pair)

    @classmethod
    def tree_unflatten(cls, auxiliary, tables):
        sparse = object.__new__(cls)
        sparse.shape, sparse._pair = auxiliary
        sparse._tables = tables
        return sparse


@lru_cache(maxsize=64)
def _pair(forward: int, backward: int) -> Pair:
    def gathered(x, index):
        return x.at[index].get(mode="promise_in_bounds")

    def multiply(tables, x):
        for index, value in zip(tables[::2], tables[1::2], strict=True):
            if len(index) <= _LONGEST_UNROLLED:
                parts = [gathered(x, i) * v for i, v in zip(index, value, strict=True)]
                x = sum(parts[1:], start=parts[0])
            else:
                x = jnp.sum(gathered(x, index) * value, axis=0)
        return x

    return Pair(
        lambda x, *tables: by_rows(partial(multiply, tables[: 2 * forward]), x),
        lambda y, *tables: by_rows(partial(multiply, tables[2 * forward :]), y),
    )


def _stages(rows, columns, values, count) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tables of what to gather, and by what to multiply it, to sum each row of a matrix in stages.

    The first stage sums entries of a row, up to `_WIDTH` at a time; each further one sums the sums of the stage before,
    until one is left for each row. A column of a table holds what goes into one sum.
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
