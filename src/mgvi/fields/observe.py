"""What instruments see of a field: selections, values between pixels, blurs, integrals along lines.

A grid and a geometry come in; plain differentiable functions of a field go out. It must not know the field's prior.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi._trace import kept
from mgvi.fields import _modes
from mgvi.fields._sparse import SparseMap
from mgvi.fields.grid import Grid


def select(grid: Grid, where: Any) -> Callable[[Any], jax.Array]:
    """The values of a field at some pixels, as a vector.

    Parameters
    ----------
    grid : Grid
        The grid of the field.
    where : array
        A mask of the domain's shape, or an integer array (points, axes) of pixel indices.

    Returns
    -------
    callable
        From a field on the extended grid to a vector, in the order of the mask or of the indices. Neither it nor its
        transpose scatters.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np
    >>> from mgvi.fields import Grid, select
    >>> print(select(Grid(4), np.array([True, False, True, False]))(jnp.arange(4.0)))
    [0. 2.]
    """
    where = np.asarray(where)
    if where.dtype == bool:
        if where.shape != grid.shape:
            raise ValueError(f"a mask must have the shape {grid.shape} of the domain, found {where.shape}")
        where = np.argwhere(where)
    where = _points(grid, where)
    if np.any(where < 0) or np.any(where >= np.asarray(grid.shape)):
        raise ValueError(f"pixel indices must lie in the domain {grid.shape}")
    flat = np.asarray(np.ravel_multi_index(tuple(where.T), grid.full_shape))
    return _on_field(grid, SparseMap(np.arange(len(flat)), flat, np.ones(len(flat)), (len(flat), grid.size)))


def interpolate(grid: Grid, points: Any) -> Callable[[Any], jax.Array]:
    """The values of a field at any points of the domain, by linear interpolation.

    Parameters
    ----------
    grid : Grid
        The grid of the field.
    points : array
        Coordinates (points, axes), in units of the spacing's; the first pixel is at 0.

    Returns
    -------
    callable
        From a field on the extended grid to a vector.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.fields import Grid, interpolate
    >>> print(interpolate(Grid(4, spacing=2.0), [[1.0], [5.0]])(jnp.arange(4.0)))
    [0.5 2.5]
    """
    points = _points(grid, np.asarray(points, float))
    columns, values = _interpolation(grid, points)
    rows = np.broadcast_to(np.arange(len(points)), columns.shape)
    return _on_field(grid, SparseMap(rows.ravel(), columns.ravel(), values.ravel(), (len(points), grid.size)))


def line_of_sight(grid: Grid, starts: Any, ends: Any, steps: int | None = None) -> Callable[[Any], jax.Array]:
    """Integrals of a field along straight lines.

    Parameters
    ----------
    grid : Grid
        The grid of the field.
    starts, ends : array
        Coordinates (lines, axes) of both ends of each line.
    steps : int, optional
        Points to a line, by default two a pixel of the longest one.

    Returns
    -------
    callable
        From a field on the extended grid to a vector with one integral a line.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.fields import Grid, line_of_sight
    >>> ray = line_of_sight(Grid((8, 8)), [[0.0, 3.0]], [[6.0, 3.0]])
    >>> print(ray(jnp.ones((8, 8))))
    [6.]
    """
    starts, ends = (_points(grid, np.asarray(x, float)) for x in (starts, ends))
    if starts.shape != ends.shape:
        raise ValueError(f"starts and ends must have the same shape, found {starts.shape} and {ends.shape}")
    lengths = np.linalg.norm(ends - starts, axis=1)
    steps = steps or max(2, math.ceil(2 * lengths.max() / min(grid.spacing)))
    middle = (np.arange(steps) + 0.5) / steps
    points = starts[:, None] + middle[:, None] * (ends - starts)[:, None]
    columns, values = _interpolation(grid, points.reshape(-1, grid.ndim))
    rows = np.broadcast_to(np.repeat(np.arange(len(starts)), steps), columns.shape)
    values = values * np.repeat(lengths / steps, steps)
    return _on_field(grid, _summed(rows.ravel(), columns.ravel(), values.ravel(), (len(starts), grid.size)))


def blur(grid: Grid, width: float | tuple[float, ...]) -> Callable[[Any], jax.Array]:
    """Convolution with a Gaussian of a given standard deviation (one for all axes or one for each), periodic.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.fields import Grid, blur
    >>> print(blur(Grid(8), 1.0)(jnp.ones(8)).round(3))
    [1. 1. 1. 1. 1. 1. 1. 1.]
    """
    widths = np.broadcast_to(np.asarray(width, float), (grid.ndim,))
    return _Instrument(_blurred, grid, widths)


def convolve(grid: Grid, kernel: Any) -> Callable[[Any], jax.Array]:
    """Convolution with a point-spread function given on pixels, its centre in the middle, periodic.

    Parameters
    ----------
    grid : Grid
        The grid of the field.
    kernel : array
        At most as large as the extended grid along each axis; it is not normalised.

    Returns
    -------
    callable
        From a field on the extended grid to the blurred field.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np
    >>> from mgvi.fields import Grid, convolve
    >>> print(convolve(Grid(6), np.array([0.25, 0.5, 0.25]))(jnp.array([0.0, 0, 4, 0, 0, 0])).round(3) + 0.0)
    [0. 1. 2. 1. 0. 0.]
    """
    kernel = np.asarray(kernel, float)
    if kernel.ndim != grid.ndim or any(a > b for a, b in zip(kernel.shape, grid.full_shape, strict=True)):
        raise ValueError(f"the kernel must fit into {grid.full_shape}, found shape {kernel.shape}")
    return _Instrument(_convolved, grid, kernel)


@partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=["apply", "grid"])
@dataclass(frozen=True, eq=False)
class _Instrument:
    """A linear function of a field, with what it needs: `apply(grid, table, field)`.

    It is a pytree: as an argument of a compiled function, its table is an argument too and no constant.
    """

    apply: Callable
    grid: Grid
    table: Any

    def __call__(self, field: Any) -> jax.Array:
        return self.apply(self.grid, self.table, field)


def _blurred(grid, widths, field):
    widths = jnp.asarray(widths, field.dtype)
    squares = _modes.stretched_squared_lengths(grid.full_shape, grid.spacing, widths, field.dtype)
    return _filtered(grid, field, jnp.exp(-2 * math.pi**2 * squares))


def _convolved(grid, kernel, field):
    # The barrier keeps the compiler from making a constant of the size of a field out of the kernel.
    kernel = jax.lax.optimization_barrier(jnp.asarray(kernel, field.dtype))
    whole = jnp.pad(kernel, [(0, n - m) for n, m in zip(grid.full_shape, kernel.shape, strict=True)])
    whole = jnp.roll(whole, [-(n // 2) for n in kernel.shape], axis=tuple(range(grid.ndim)))
    return _filtered(grid, field, jnp.fft.rfftn(whole))


def _filtered(grid, field, response):
    """A field whose modes are multiplied by a response."""
    axes = tuple(range(-grid.ndim, 0))
    modes = jnp.fft.rfftn(field, axes=axes)
    return jnp.fft.irfftn(modes * kept(response), s=grid.full_shape, axes=axes)


def _points(grid, points):
    if points.ndim != 2 or points.shape[1] != grid.ndim:
        raise ValueError(f"expected an array (points, {grid.ndim}), found shape {points.shape}")
    return points


def _interpolation(grid, points):
    """Pixels around each point and their weights, both (corners, points)."""
    position = points / np.asarray(grid.spacing)
    limit = np.asarray(grid.shape) - 1
    if np.any(position < -1e-9) or np.any(position > limit + 1e-9):
        raise ValueError(f"points must lie in the domain: from 0 to {tuple((limit * grid.spacing).tolist())}")
    lower = np.clip(np.floor(position).astype(int), 0, limit - 1)
    share = np.clip(position - lower, 0.0, 1.0)
    columns, values = [], []
    for corner in np.ndindex(*(2,) * grid.ndim):
        step = np.asarray(corner)
        columns.append(np.ravel_multi_index(tuple((lower + step).T), grid.full_shape))
        values.append(np.prod(np.where(step, share, 1 - share), axis=1))
    return np.stack(columns), np.stack(values)


def _summed(rows, columns, values, shape):
    """A sparse map whose entries at the same place are added first."""
    place, where = np.unique(rows * shape[1] + columns, return_inverse=True)
    values = np.bincount(where.ravel(), weights=values)
    return SparseMap(place // shape[1], place % shape[1], values, shape)


def _on_field(grid, matrix):
    return _Instrument(_multiplied, grid, matrix)


def _multiplied(grid, matrix, field):
    return matrix(field.reshape(*field.shape[: field.ndim - grid.ndim], -1))
