"""Compilation of jitted functions ahead of their first call.

A jitted function and arguments, or their types, come in; its compiled version goes out, kept for the next call.
Nothing here knows what the function computes.

Algorithms call their programs through `Compiled.call` and say nothing of compilation. A rehearsal runs an algorithm on
the types of its arguments: each program that it calls begins to compile in the background, and answers with the types
of its results.
"""

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.dtypes import canonicalize_dtype

_MATRIX = 10_000  # entries of a product of matrices from which on it dominates a program
_THREADS = 4  # that compile: parts of a compilation use one core, so more threads than cores keep all of them busy

_PURPOSES: dict[Any, str] = {}


def program(purpose: str = "solves", **options: Any) -> Callable[[Callable], Any]:
    """Jit a function and note what it is for, which decides how much its compilation is worth.

    Parameters
    ----------
    purpose : str
        A key of `Budget.effort`.
    **options
        Of `jax.jit`.
    """

    def decorator(function):
        jitted = jax.jit(function, **options)
        _PURPOSES[jitted] = purpose
        return jitted

    return decorator


class Compiled:
    """Compiled versions of jitted functions, kept with the problem they are for, and the seconds they took.

    Parameters
    ----------
    effort : dict, optional
        How much compilation is worth, by purpose: an index of the compiler options below; 1 by default.
    """

    def __init__(self, effort: Mapping[str, int] | None = None):
        self._effort = dict(effort or {})
        self._programs: dict[Any, Any] = {}
        self._rehearses = False
        self.seconds = 0.0

    def call(self, function, *arguments, **static):
        """Call a jitted function; compile it first if it has not seen arguments of these types."""
        if self._rehearses:
            return self._begun(function, arguments, static)
        return self.ready(function, *arguments, **static)(*arguments)

    def ready(self, function, *arguments, **static) -> Callable:
        """The compiled version of a jitted function for arguments of these types."""
        start = time.perf_counter()
        signature = _signature(function, arguments, static)
        found = self._programs.get(signature)
        if found is None:
            self._programs[signature] = lowered(function, arguments, static, self._level(function))[0]()
            self.seconds += time.perf_counter() - start
        elif isinstance(found, tuple):
            self._programs[signature] = found[0].result()
            self.seconds += time.perf_counter() - start
        return self._programs[signature]

    def _begun(self, function, arguments, static):
        """Begin to compile a program, and tell the types of its results."""
        start = time.perf_counter()
        signature = _signature(function, arguments, static)
        if signature not in self._programs:
            compile_it, results = lowered(function, arguments, static, self._level(function))
            self._programs[signature] = _BACKGROUND.submit(compile_it), results
            self.seconds += time.perf_counter() - start
        found = self._programs[signature]
        return found[1] if isinstance(found, tuple) else function.eval_shape(*arguments, **static)

    def _level(self, function) -> int:
        return self._effort.get(_PURPOSES.get(function, ""), 1)

    def rehearse(self, function: Callable, *arguments: Any) -> None:
        """Begin to compile all programs that a function calls, given arguments or their types."""
        self._rehearses = True
        try:
            function(*arguments)
        finally:
            self._rehearses = False

    def on_host(self, function: Callable, like: Any, *arguments: Any) -> Any:
        """What a function of NumPy arrays returns; in a rehearsal its type, which is `like`."""
        return like if self._rehearses else function(*arguments)

    @property
    def rehearses(self) -> bool:
        """Whether arrays are only types at the moment."""
        return self._rehearses

    def texts(self) -> dict[str, list[str]]:
        """The optimised text of every program that was compiled, by the name of its function."""
        found: dict[str, list[str]] = {}
        for signature, made in self._programs.items():
            made = made[0].result() if isinstance(made, tuple) else made
            found.setdefault(signature[0].__name__, []).append(made.as_text())
        return found


_BACKGROUND = ThreadPoolExecutor(_THREADS, "mgvi-compiles")


def _signature(function, arguments, static):
    leaves, treedef = jax.tree.flatten(arguments)
    types = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in leaves)
    return function, treedef, types, tuple(sorted(static.items()))


def lowered(function, arguments, static, effort) -> tuple[Callable[[], Any], Any]:
    """A function that compiles a program, and the types of the program's results."""
    made = function.lower(*arguments, **static)
    options = _OPTIONS[jax.default_backend()][effort] if jax.default_backend() in _OPTIONS else None
    types = jax.tree.map(lambda out: jax.ShapeDtypeStruct(out.shape, out.dtype), made.out_info)
    return partial(made.compile, compiler_options=options), types


# Compiler options by backend and effort.
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cpu": [
        {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
        # The fusion emitters take twice as long to compile. Loops full of exponentials run faster with them.
        {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False},
        # Higher levels take longer to compile than they save, at any size.
        {"xla_backend_optimization_level": 1},
    ],
    # Programs have few products of matrices: to try all ways to make them takes longer than the best one saves.
    "gpu": [{"xla_gpu_autotune_level": 0}] * 3,
}


def multiplies_matrices(function: Callable, *example: Any) -> bool:
    """Whether products of two matrices, not only of a matrix and a vector, dominate the time of a function."""
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
    return min(rest) > 1 and math.prod(equation.outvars[0].aval.shape) > _MATRIX


def number(x):
    """A Python number as an array of a fixed type, so that one compiled program takes every value."""
    # `jnp.result_type` would take fifty times as long.
    return np.asarray(x, canonicalize_dtype(int if isinstance(x, int) else float))


def numbers(tree):
    """A tree of Python numbers as arrays of fixed types."""
    return jax.tree.map(number, tree)
