"""Linear interpolation between a few nodes, equally spaced in ln k, at all modes of a grid.

A grid and a number of nodes come in; the position of each mode between the nodes, tables for the transpose, and the
linear map that takes them go out. It must not know what is interpolated.

The map takes each mode from two nodes. Its transpose sums many modes into each node. A scatter would do that slowly,
and in any order on an accelerator; the tables list the modes interval by interval instead, in short columns that are
gathered and summed. They are computed by the program. A program that only interpolates never uses them, and the
compiler leaves them out.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi._linear import Pair, by_rows, linear
from mgvi._trace import kept
from mgvi.fields import _modes

_COLUMN_SIZE = 32  # modes in a column of the tables, all of one interval between two nodes
_COMPARED_COLUMNS = 32_768  # columns up to which each is compared with every interval; a further stage compiles longer

Tables = list[jax.Array]


def ends(shape: tuple[int, ...], spacing: tuple[float, ...]) -> tuple[float, float]:
    """Lengths of the longest wave on a grid and of the shortest one, in cycles per unit of distance."""
    shortest = np.sqrt(sum((n // 2 / (n * d)) ** 2 for n, d in zip(shape, spacing, strict=True)))
    return min(1 / (n * d) for n, d in zip(shape, spacing, strict=True)), float(shortest)


def tables(shape: tuple[int, ...], spacing: tuple[float, ...], nodes: int, dtype: Any) -> Tables:
    """What `expand` needs besides the values at the nodes."""
    first, last = ends(shape, spacing)
    squares = _modes.squared_lengths(shape, spacing, dtype).ravel() / first**2
    step = np.log(last / first) / (nodes - 1)
    position = 0.5 / step * jnp.log(jnp.maximum(squares, 1.0))  # the constant mode is put at the first node
    position = kept(jnp.minimum(position, nodes - 1.0))
    return [position, *map(kept, _columns(position, nodes))]


def expand(values: jax.Array, tables: Tables) -> jax.Array:
    """Values at the nodes (last axis), interpolated at the modes."""
    return linear(_pair(values.shape[-1]), values, *tables)


def _interval(position, nodes):
    """The interval that a position lies in, and the share of the node at its upper end."""
    lower = jnp.minimum(position.astype(jnp.int32), nodes - 2)
    return lower, position - lower.astype(position.dtype)


def _columns(position, nodes):
    """Modes in columns of one interval each, their shares of the upper node, and lengths and intervals of columns."""
    lower, share = _interval(position, nodes)
    order = jnp.argsort(lower, stable=True).astype(jnp.int32)
    entries, length, interval = _chunked(lower[order], nodes - 1)
    index = order[entries]
    return index, share[index], length, interval


def _chunked(ordered, intervals):
    """Cut a list of intervals in ascending order into columns of one interval each.

    There is room for one column that is not full in each interval. Places that are left over are beyond the length of
    their column; they point to any entry.
    """
    total = ordered.shape[0]
    count = -(-total // _COLUMN_SIZE) + intervals
    end = jnp.searchsorted(ordered, jnp.arange(intervals, dtype=jnp.int32), side="right").astype(jnp.int32)
    start = jnp.concatenate([jnp.zeros(1, jnp.int32), end[:-1]])
    columns = -((start - end) // _COLUMN_SIZE)
    before = jnp.cumsum(columns)
    place = jax.lax.iota(jnp.int32, count)
    interval = jnp.sum(before <= place[:, None], axis=1, dtype=jnp.int32)  # compiles faster than a search
    interval = jnp.minimum(interval, intervals - 1)
    first = start[interval] + (place - (before - columns)[interval]) * _COLUMN_SIZE
    length = jnp.clip(end[interval] - first, 0, _COLUMN_SIZE)
    entries = first + jax.lax.broadcasted_iota(jnp.int32, (_COLUMN_SIZE, count), 0)
    return jnp.minimum(entries, total - 1), length, interval


@lru_cache(maxsize=64)
def _pair(nodes: int) -> Pair:
    intervals = nodes - 1

    def forward(values, position, *_):
        lower, share = _interval(position, nodes)
        low, high = (values.at[..., lower + i].get(mode="promise_in_bounds") for i in (0, 1))
        return low * (1 - share) + high * share

    def summed(row, index, share, length, interval):
        seen = jnp.where(
            jax.lax.broadcasted_iota(jnp.int32, index.shape, 0) < length,
            row.at[index].get(mode="promise_in_bounds"),
            0.0,
        )
        low = _summed(jnp.sum(seen * (1 - share), axis=0), interval, intervals)
        high = _summed(jnp.sum(seen * share, axis=0), interval, intervals)
        return jnp.pad(low, (0, 1)) + jnp.pad(high, (1, 0))

    return Pair(forward, lambda modes, _, *tables: by_rows(lambda row: summed(row, *tables), modes))


def _summed(columns, interval, intervals):
    """Sums over the columns of each interval."""
    while columns.shape[0] > max(_COMPARED_COLUMNS, 2 * intervals):
        entries, length, interval = _chunked(interval, intervals)
        is_entry = jax.lax.broadcasted_iota(jnp.int32, entries.shape, 0) < length
        columns = jnp.sum(jnp.where(is_entry, columns[entries], 0.0), axis=0)
    belongs = interval == jax.lax.iota(jnp.int32, intervals)[:, None]
    return jnp.sum(jnp.where(belongs, columns, 0.0), axis=1)
