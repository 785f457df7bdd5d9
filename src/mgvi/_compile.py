"""Compilation of jitted functions ahead of their first call.

A jitted function and arguments, or their types, come in; its compiled version goes out, kept for the next call.
Nothing here knows what the function computes.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.dtypes import canonicalize_dtype

_LITTLE = 200_000  # numbers up to which exponentials run nearly as fast with little effort
_LARGE = 10_000  # entries of a product of matrices that takes time


def multiplies_matrices(function: Callable, *example: Any) -> bool:
    """Whether a function has products of two matrices, not only of a matrix and a vector, that take its time."""
    return _has(jax.make_jaxpr(function)(*example).jaxpr, _is_matrix_product)


def _has(jaxpr, wanted) -> bool:
    return any(
        wanted(equation) or any(_has(inner, wanted) for inner in jex.jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )


def _is_matrix_product(equation) -> bool:
    if equation.primitive.name != "dot_general":
        return False
    (contracted, batched) = equation.params["dimension_numbers"]
    shapes = [v.aval.shape for v in equation.invars]
    rest = [
        math.prod(n for i, n in enumerate(shape) if i not in (*some, *others))
        for shape, some, others in zip(shapes, contracted, batched, strict=True)
    ]
    return min(rest) > 1 and math.prod(equation.outvars[0].aval.shape) > _LARGE


class Compiled:
    """Compiled versions of jitted functions, kept with the problem they are for, and the seconds they took."""

    def __init__(self):
        self._programs: dict[Any, Any] = {}
        self.seconds = 0.0

    def call(self, function, *arguments, effort: int = 1, **static):
        """Call a jitted function; compile it first if it has not seen arguments of these types.

        More effort is for programs that run for long, 0 for those that run once or on little.
        """
        return self.program(function, *arguments, effort=effort, **static)(*arguments)

    def program(self, function, *arguments, effort: int = 1, **static) -> Callable:
        """The compiled version of a jitted function for arguments of these types."""
        start = time.perf_counter()
        signature = _signature(function, arguments, static)
        if signature not in self._programs:
            self._programs[signature] = lowered(function, arguments, static, effort)()
            self.seconds += time.perf_counter() - start
        elif isinstance(self._programs[signature], Future):
            self._programs[signature] = self._programs[signature].result()
            self.seconds += time.perf_counter() - start
        return self._programs[signature]

    def prepare(self, function, *arguments, effort: int = 1, **static) -> None:
        """Begin to compile what will be called with arguments of these types."""
        start = time.perf_counter()
        signature = _signature(function, arguments, static)
        if signature not in self._programs:
            self._programs[signature] = _BACKGROUND.submit(lowered(function, arguments, static, effort))
            self.seconds += time.perf_counter() - start


# Parts of a compilation take one core, others all of them: with four at once none is idle.
_BACKGROUND = ThreadPoolExecutor(4, "mgvi-compiles")


def effort_for(numbers: int) -> int:
    """How much the compilation of exponentials and sums over so many numbers is worth."""
    return 1 if numbers <= _LITTLE else 2


def _signature(function, arguments, static):
    leaves, treedef = jax.tree.flatten(arguments)
    types = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in leaves)
    return function, treedef, types, tuple(sorted(static.items()))


def lowered(function, arguments, static, effort):
    """A function that compiles a program which is ready for it."""
    options = _OPTIONS[jax.default_backend()][effort] if jax.default_backend() in _OPTIONS else None
    return partial(function.lower(*arguments, **static).compile, compiler_options=options)


# Of compilation, by effort.
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cpu": [
        {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
        # The newer way to emit loops takes twice as long; loops full of exponentials run faster with it, others do not.
        {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False},
        # The last optimisations take longer than they save, at any size.
        {"xla_backend_optimization_level": 1},
    ],
    # Products of matrices are few: trying all ways to make them takes longer than the best one saves.
    "gpu": [{"xla_gpu_autotune_level": 0}] * 3,
}


def number(x):
    """A Python number as an array of a fixed type, so that one compiled program takes every value."""
    # `result_type` would take fifty times as long.
    return np.asarray(x, canonicalize_dtype(int if isinstance(x, int) else float))


def numbers(tree):
    """A tree of Python numbers as arrays of fixed types."""
    return jax.tree.map(number, tree)
