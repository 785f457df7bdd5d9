"""Tables of the harmonic modes of a grid, computed inside the program that uses them.

The size and the spacing of each axis come in; squared lengths, multiplicities and weights of modes go out.
It must not know spectra or fields.

Every table is arithmetic on integers counted by the program itself (iota). A compiled program then holds no constant
of the size of a field, and the compiler, which does not evaluate such arithmetic, has nothing to fold.
"""

import math
import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp


def squared_lengths(shape: Sequence[int], spacing: Sequence[float], dtype: Any) -> jax.Array:
    """Squared lengths of the modes up to sign along each axis, in squared cycles per unit of distance."""
    axes = [((n // 2 + 1), 1 / (n * d)) for n, d in zip(shape, spacing, strict=True)]
    return _outer_sum([(jax.lax.iota(dtype, n) * step) ** 2 for n, step in axes])


def stretched_squared_lengths(shape: Sequence[int], spacing: Sequence[float], scale: Any, dtype: Any) -> jax.Array:
    """Squared lengths of the modes that a real transform gives, where each axis is multiplied by a scale first."""
    axes = []
    for axis, (n, d) in enumerate(zip(shape, spacing, strict=True)):
        index = jax.lax.iota(dtype, n // 2 + 1 if axis == len(shape) - 1 else n)
        axes.append((jnp.minimum(index, n - index) * (scale[axis] / (n * d))) ** 2)
    return _outer_sum(axes)


def multiplicity(shape: Sequence[int], dtype: Any) -> jax.Array:
    """How many modes of the whole grid each mode up to sign stands for."""
    total = jnp.ones((), dtype)
    for n in shape:
        total = total[..., None] * face_or_pair(n, 1.0, 2.0, dtype)
    return total


def half_weights(shape: Sequence[int], dtype: Any) -> jax.Array:
    """Standard deviations of the modes of white noise, as a real transform wants them, along the last axis."""
    size = math.prod(shape)
    return face_or_pair(shape[-1], math.sqrt(size), math.sqrt(0.5 * size), dtype)


def face_or_pair(n: int, face: float, pair: float, dtype: Any) -> jax.Array:
    """One number for the modes 0 ... n // 2 of an axis that are their own mirror image, another for the rest."""
    index = jax.lax.iota(jnp.int32, n // 2 + 1)
    return jnp.where((index == 0) | (2 * index == n), face, pair).astype(dtype)


def without_constant_mode(table: jax.Array) -> jax.Array:
    """A table of modes with 0 at the mode of length 0."""
    is_zero = (jax.lax.broadcasted_iota(jnp.int32, table.shape, axis) == 0 for axis in range(table.ndim))
    return jnp.where(reduce(operator.and_, is_zero), 0.0, table)


def _outer_sum(axes: list[jax.Array]) -> jax.Array:
    total = axes[0]
    for axis in axes[1:]:
        total = total[..., None] + axis
    return total
