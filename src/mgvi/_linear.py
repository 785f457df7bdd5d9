"""Linear maps whose transpose is written by hand.

A forward function, its transpose and fixed tables come in; a function that JAX can batch, differentiate, linearise and
transpose goes out. It must not know what the map is for.

The transposes that JAX derives are right, but that of a gather is a scatter-add, and that of a real FFT makes several
passes over memory; in a loop that does little else this decides the speed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


@dataclass(frozen=True)
class Pair:
    """A linear function of its first argument and its transpose; both take leading axes and, after it, the tables."""

    forward: Callable
    backward: Callable


def linear(pair: Pair, x: Any, *tables: Any) -> Any:
    """Apply a linear map to an array, which may have further leading axes.

    Tables are arrays, such as indices or weights, that are not differentiated. Two pairs that are equal share a
    compiled program.
    """
    return _linear.bind(x, *tables, pair=pair, is_transposed=False)


def by_rows(function: Callable, x: Any) -> Any:
    """Apply a function of a vector along the last axis: row by row on CPUs, where XLA's batched gather is slow."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] == 1:
        found = function(rows[0])
    elif jax.default_backend() == "cpu":
        found = jax.lax.map(function, rows)
    else:
        found = jax.vmap(function)(rows)
    return found.reshape(*x.shape[:-1], found.shape[-1])


def _apply(x, *tables, pair, is_transposed):
    return (pair.backward if is_transposed else pair.forward)(x, *tables)


def _jvp(primals, tangents, **params):
    out = _linear.bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return out, ad.Zero.from_primal_value(out)  # pyright: ignore[reportAttributeAccessIssue]
    return out, _linear.bind(tangents[0], *primals[1:], **params)


def _transpose(cotangent, x, *tables, pair, is_transposed):
    none = [None] * len(tables)
    if type(cotangent) is ad.Zero:
        return [None, *none]
    return [_linear.bind(cotangent, *tables, pair=pair, is_transposed=not is_transposed), *none]


def _batch(arguments, axes, **params):
    x, *tables = arguments
    if any(axis is not None for axis in axes[1:]):
        raise NotImplementedError("tables of a linear map cannot be batched")
    return _linear.bind(jnp.moveaxis(x, axes[0], 0), *tables, **params), 0


def _shape(*arguments, **params):
    out = jax.eval_shape(lambda *a: _apply(*a, **params), *arguments)
    return jax.core.ShapedArray(out.shape, out.dtype)


_linear = Primitive("linear_map")
_linear.def_impl(jax.jit(_apply, static_argnames=("pair", "is_transposed")))
_linear.def_abstract_eval(_shape)
mlir.register_lowering(_linear, mlir.lower_fun(_apply, multiple_results=False))
ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
