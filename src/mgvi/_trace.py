"""A function traced once, whose array constants are arguments.

A Python function of a dict of arrays comes in; a program that can be evaluated, differentiated and compiled without
running that function again goes out, and with it the arrays that the function closed over.
Nothing here knows what the function computes.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from mgvi._canonical import label, label_array, label_outputs, label_tree
from mgvi._compile import lowered

MAX_CONCRETE_SIZE = 4096  # entries of an output that depends on no input and is kept as a NumPy array, not an argument


def mark(name: str, value: Any, *others: Any) -> Any:
    """The value itself; a `Program` that is called with `exchange` has `exchange(name, value, *others)` instead."""
    return _mark.bind(value, *others, name=name)


# A primitive that does nothing, so that a traced program shows where its marks are.
_mark = jex.Primitive("mark")
_mark.def_impl(lambda value, *others, name: value)
_mark.def_abstract_eval(lambda value, *others, name: jax.core.ShapedArray(value.shape, value.dtype))
mlir.register_lowering(_mark, mlir.lower_fun(lambda value, *others, name: value, multiple_results=False))
ad.primitive_jvps[_mark] = lambda primals, tangents, name: (primals[0], tangents[0])
batching.primitive_batchers[_mark] = lambda arguments, axes, name: (arguments[0], axes[0])


def kept(value: Any) -> Any:
    """A value that is costly to compute: one of the constants that `trace` returns, if no input enters it."""
    return _kept.bind(value)


_kept = jex.Primitive("kept")
_kept.def_impl(lambda value: value)
_kept.def_abstract_eval(lambda value: jax.core.ShapedArray(value.shape, value.dtype))
mlir.register_lowering(_kept, mlir.lower_fun(lambda value: value, multiple_results=False))
ad.deflinear(_kept, lambda cotangent: [cotangent])
batching.primitive_batchers[_kept] = lambda arguments, axes: (kept(arguments[0]), axes[0])


class Program:
    """A traced function. Calling it needs the `constants` that `trace` returned beside it, or the pool they are in."""

    def __init__(self, jaxpr, in_tree, out_tree, fixed: dict[int, Any], depends: dict[str, list[bool]], places=None):
        self._jaxpr = jaxpr  # of the outputs that depend on an input
        self._in_tree = in_tree
        self._out_tree = out_tree
        self._fixed = fixed  # the other outputs by index: a NumPy array, or the index of a large one in the constants
        self._depends = depends  # by name of an input, for each output
        self._places = places  # where the constants are in a pool
        self._labels: dict[str, str] = {}

    def pooled(self, constants, pool: list[Any]) -> "Program":
        """The same program, to be called with a pool of constants; its own are added unless the pool has an equal one.

        Programs with a common pool can be compiled into one, which computes only once what several of them compute
        from the same constants.
        """

        def place(array):
            found = next((i for i, other in enumerate(pool) if _is_same(array, other)), len(pool))
            pool.extend([array] * (found == len(pool)))
            return found

        places = jax.tree.map(place, constants)
        return Program(self._jaxpr, self._in_tree, self._out_tree, self._fixed, self._depends, places)

    def __call__(self, constants, tree, exchange: Callable | None = None):
        """Evaluate at a tree of inputs, with `exchange(name, value, *others)` in the place of marked values."""
        leaves, in_tree = jax.tree.flatten(tree)
        if in_tree != self._in_tree:
            raise ValueError(f"expected inputs of structure {self._in_tree}, found {in_tree}")
        hoisted, large = self._own(constants)
        computed = self._computed([*hoisted, *leaves], exchange or (lambda name, value, *others: value))
        return jax.tree.unflatten(self._out_tree, self._outputs(computed, large, lambda value: value))

    def label(self, constants) -> str:
        """A hash of what the program computes, the same in every process.

        `constants` are as in a call, with each array replaced by its `label_array`.
        """
        key = str(constants)
        if key not in self._labels:
            self._labels = {key: self._label(*self._own(constants))}
        return self._labels[key]

    def _label(self, hoisted, large) -> str:
        paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self._in_tree, self._jaxpr.invars))
        inputs = [label("input", jax.tree_util.keystr(path), v.aval.shape, str(v.aval.dtype)) for path, v in paths]
        computed = iter(label_outputs(self._jaxpr, hoisted, inputs))
        return label_tree(self._out_tree, iter(self._outputs(computed, large, label_array)))

    def _own(self, constants):
        """The program's own constants, from themselves or from the pool: arrays in the jaxpr, large fixed outputs."""
        return constants if self._places is None else jax.tree.map(lambda i: constants[i], self._places)

    def _outputs(self, computed, large, concrete: Callable[[Any], Any]) -> list[Any]:
        """All outputs in order: those that are computed, large arrays, and small ones that `concrete` is applied to."""
        outputs = []
        for i in range(self._out_tree.num_leaves):
            value = self._fixed.get(i)
            if value is None:
                outputs.append(next(computed))
            else:
                outputs.append(large[value] if isinstance(value, int) else concrete(value))
        return outputs

    def _computed(self, given, exchange):
        known = dict(zip([*self._jaxpr.constvars, *self._jaxpr.invars], given, strict=True))
        read = lambda v: v.val if isinstance(v, jex.Literal) else known[v]
        for part, marked in self._parts:
            values = jex.jaxpr_as_fun(jex.ClosedJaxpr(part, []))(*map(read, part.invars))
            known.update(zip(part.outvars, values, strict=True))
            if marked is not None:
                known[marked.outvars[0]] = exchange(marked.params["name"], *map(read, marked.invars))
        return map(read, self._jaxpr.outvars)

    @cached_property
    def _parts(self) -> list[tuple[Any, Any]]:
        """The program cut at its marks: the jaxprs between them, each with the mark that follows it, or None."""
        equations: list[Any] = [*self._jaxpr.eqns]
        places = [i for i, equation in enumerate(equations) if equation.primitive is _mark]
        needed: dict[Any, int] = {}  # by variable: index of the last equation that reads it
        for i, equation in enumerate(equations):
            needed.update(dict.fromkeys(_variables(equation.invars), i))
        needed.update(dict.fromkeys(_variables(self._jaxpr.outvars), len(equations)))
        parts, first = [], 0
        for place in [*places, len(equations)]:
            some = equations[first:place]
            made = list(dict.fromkeys(v for equation in some for v in equation.outvars))
            inside = set(made)
            used = _variables(v for equation in some for v in equation.invars)
            part = self._jaxpr.replace(
                constvars=[],
                invars=[v for v in used if v not in inside],
                eqns=some,
                outvars=[v for v in made if needed.get(v, -1) >= place],
                debug_info=self._jaxpr.debug_info._replace(arg_names=None, result_paths=None),
            )
            parts.append((part, equations[place] if place < len(equations) else None))
            first = place + 1
        return parts

    def dependence(self, name: str | None = None):
        """Tree of bools: which outputs depend on an input (named by its key in the input dict) or on any."""
        flags = self._depends[name] if name is not None else _any_of(self._depends)
        return jax.tree.unflatten(self._out_tree, flags)


def trace(function: Callable, example: dict[str, Any]) -> tuple[Program, Any]:
    """Trace a function of a dict of arrays at the shapes of `example`."""
    leaves, in_tree = jax.tree.flatten(example)
    out_trees = []

    def flat(*inputs):
        outputs, out_tree = jax.tree.flatten(function(jax.tree.unflatten(in_tree, inputs)))
        out_trees.append(out_tree)
        return outputs

    # By default, accelerators round the factors of matrix products to about three digits. The density would then be a
    # step function, which no minimiser can differentiate.
    with jax.default_matmul_precision("highest"):
        closed = _with_kept(jax.make_jaxpr(flat)(*leaves))
    owner = [str(path[0].key) for path, _ in jax.tree_util.tree_flatten_with_path(example)[0]]
    depends = {name: _reachable(closed.jaxpr, [o == name for o in owner]) for name in dict.fromkeys(owner)}
    depends = depends or {"": [False] * len(closed.jaxpr.outvars)}
    free = [not flag for flag in _any_of(depends)]
    fixed, large = {}, []
    values = _evaluated(_slice(closed, free))
    for i, value in zip(np.flatnonzero(free), map(jnp.asarray, values), strict=True):
        if value.size <= MAX_CONCRETE_SIZE and not jnp.issubdtype(value.dtype, jax.dtypes.extended):
            fixed[int(i)] = np.asarray(value)
        else:
            fixed[int(i)] = len(large)
            large.append(value)
    needed = _slice(closed, [not is_free for is_free in free])
    return Program(needed.jaxpr, in_tree, out_trees[-1], fixed, depends), (list(needed.consts), large)


def _with_kept(closed):
    """The same program, with the values that are kept and that no input enters among its constants."""
    closed = _slice(closed, [True] * len(closed.jaxpr.outvars))
    jaxpr, depends, chosen, others = closed.jaxpr, set(closed.jaxpr.invars), [], []
    for equation in jaxpr.eqns:
        enters = not depends.isdisjoint(_variables(equation.invars))
        depends.update(equation.outvars if enters else ())
        is_chosen = equation.primitive is _kept and not enters and _variables(equation.invars)
        (chosen if is_chosen else others).append(equation)
    if not chosen:
        return closed
    wanted = [equation.invars[0] for equation in chosen]
    asked = jaxpr.replace(outvars=wanted, debug_info=jaxpr.debug_info._replace(result_paths=None))
    consts = [*closed.consts, *_evaluated(_slice(jex.ClosedJaxpr(asked, closed.consts), [True] * len(wanted)))]
    jaxpr = jaxpr.replace(constvars=[*jaxpr.constvars, *(e.outvars[0] for e in chosen)], eqns=others)
    return jex.ClosedJaxpr(jaxpr, consts)


def _variables(atoms) -> list[Any]:
    """The distinct variables among atoms of a jaxpr, without its literals."""
    return list(dict.fromkeys(v for v in atoms if not isinstance(v, jex.Literal)))


def _evaluated(closed) -> list[Any]:
    """Outputs of a jaxpr that depend on no input, compiled as one program instead of one for each operation."""
    if not closed.jaxpr.eqns:
        return jex.jaxpr_as_fun(closed)(*(np.zeros(v.shape, v.dtype) for v in closed.in_avals))
    inputs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in closed.in_avals]
    function = lambda consts, *inputs: jex.jaxpr_as_fun(jex.ClosedJaxpr(closed.jaxpr, consts))(*inputs)
    compiled = lowered(jax.jit(function), (closed.consts, *inputs), {}, 0)[0]()
    return compiled(closed.consts, *(np.zeros(v.shape, v.dtype) for v in closed.in_avals))


def _is_same(a, b) -> bool:
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype or jnp.issubdtype(a.dtype, jax.dtypes.extended):
        return False
    return np.array_equal(np.asarray(a), np.asarray(b))


def _any_of(depends: dict[str, list[bool]]) -> list[bool]:
    return [any(flags) for flags in zip(*depends.values(), strict=True)]


def _slice(closed, keep: list[bool]):
    """A jaxpr restricted to some of its outputs: only the equations and constants that they need."""
    jaxpr = closed.jaxpr
    outvars = [v for v, is_kept in zip(jaxpr.outvars, keep, strict=True) if is_kept]
    needed, equations = set(_variables(outvars)), []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            equations.append(equation)
            needed.update(_variables(equation.invars))
    used = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in needed]
    part = jaxpr.replace(
        constvars=[v for v, _ in used],
        eqns=equations[::-1],
        outvars=outvars,
        effects=set(),
        debug_info=jaxpr.debug_info._replace(result_paths=None),
    )
    return jex.ClosedJaxpr(part, [c for _, c in used])


def _reachable(jaxpr, inputs: list[bool]) -> list[bool]:
    """Which outputs of a jaxpr depend on the flagged inputs.

    Conservative for loops and branches: all of their outputs depend on each of their inputs.
    """
    marked = {var for var, is_on in zip(jaxpr.invars, inputs, strict=True) if is_on}

    def on(atom):
        return not isinstance(atom, jex.Literal) and atom in marked

    for equation in jaxpr.eqns:
        flags = [on(v) for v in equation.invars]
        if not any(flags):
            continue
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        outs = _reachable(inner.jaxpr, flags) if inner is not None else [True] * len(equation.outvars)
        marked.update(v for v, is_on in zip(equation.outvars, outs, strict=True) if is_on)
    return [on(v) for v in jaxpr.outvars]
