"""Labels of what traced programs compute: equal for equal programs, in every process.

A jaxpr with labels of its inputs, or any static value, comes in; a label goes out, a hash that depends on nothing but
what decides the numbers. It must not know what the programs are for.

The label of a value is a hash of the primitive that computes it, the parameters of the primitive and the labels of its
inputs (a Merkle tree). It contains no position of an equation, of a constant or of an operand of a loop: NumPyro keeps
the fields of a distribution in a set, so that their order, hence that of outputs and operands, differs between
processes. Names of variables, calls, shardings and memory addresses leave no trace either.
"""

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_LIBRARIES = {"builtins", "jax", "jaxlib", "mgvi", "numpy", "numpyro", "scipy"}  # a name there always means the same
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
_MOVES = {"device_put", "sharding_constraint", "mesh_cast", "reshard"}  # of arrays between devices
_PLACEMENT = ("sharding", "layout", "weak_type", "debug_info")  # parts of names of parameters that decide no number


def label(*parts: Any) -> str:
    """A hash of strings, integers, and nested lists and tuples of them."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def label_array(x: Any, dtype: Any = None) -> str:
    """A label of the shape, dtype and content of an array; random keys are arrays too."""
    if isinstance(x, jax.core.Tracer):
        return label("unknown array", str(x.aval))
    kind = ""
    if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.extended):
        kind, x = str(x.dtype), jax.random.key_data(x)
    array = np.asarray(x, dtype, order="C")
    if array.dtype == object:
        return label("array of objects", array.shape, [static(entry) for entry in array.flat])
    return label("array", kind, array.shape, array.dtype.name, hashlib.sha256(array.tobytes()).hexdigest())


def label_outputs(jaxpr: Any, constants: list[str], inputs: list[str], depth: int = 0) -> list[str]:
    """Labels of the outputs of a jaxpr, given those of its constants and inputs; `depth` counts the loops around it."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def read(atom: Any) -> str:
        aval: Any = atom.aval
        return label_array(atom.val, aval.dtype) if isinstance(atom, jex.Literal) else known[atom]

    for equation in jaxpr.eqns:
        rule = _RULES.get(equation.primitive.name, _primitive)
        known.update(zip(equation.outvars, rule(equation, [read(v) for v in equation.invars], depth), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _closed(closed, inputs, depth) -> list[str]:
    if not isinstance(closed, jex.ClosedJaxpr):
        return label_outputs(closed, [], inputs, depth)
    return label_outputs(closed.jaxpr, [label_array(c) for c in closed.consts], inputs, depth)


def _primitive(equation, inputs, depth) -> list[str]:
    chosen = {k: v for k, v in equation.params.items() if not any(part in k for part in _PLACEMENT)}
    whole = label(equation.primitive.name, static(chosen), inputs)
    return [label(whole, i) for i in range(len(equation.outvars))]


def _custom_derivative(equation, inputs, depth):
    rules = [_rule_name(equation.params.get(key)) for key in ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd")]
    return [label("custom", rules, value) for value in _closed(equation.params["call_jaxpr"], inputs, depth)]


def _rule_name(rule) -> str:
    """The name of a function that JAX has wrapped, without the file and line that follow it."""
    return str(getattr(getattr(rule, "debug_info", None), "func_src_info", "")).partition(" at ")[0]


def _carried(first, depth) -> list[str]:
    """Labels of what a loop carries, within it."""
    return [label("carried", depth, i, value) for i, value in enumerate(first)]


def _scan(equation, inputs, depth):
    params = equation.params
    n, m = params["num_consts"], params["num_carry"]
    shared, first, rows = inputs[:n], inputs[n : n + m], inputs[n + m :]
    rows = [label("row", depth, row) for row in rows]
    found = _closed(params["jaxpr"], [*shared, *_carried(first, depth), *rows], depth + 1)
    loop = label("scan", params["length"], params["reverse"], first, found[:m])
    return [label(loop, "last", i) for i in range(m)] + [label(loop, "rows", row) for row in found[m:]]


def _while(equation, inputs, depth):
    params = equation.params
    n, m = params["cond_nconsts"], params["body_nconsts"]
    asked, shared, first = inputs[:n], inputs[n : n + m], inputs[n + m :]
    carried = _carried(first, depth)
    goes_on = _closed(params["cond_jaxpr"], [*asked, *carried], depth + 1)
    found = _closed(params["body_jaxpr"], [*shared, *carried], depth + 1)
    loop = label("while", first, goes_on, found)
    return [label(loop, i) for i in range(len(found))]


def _branches(equation, inputs, depth):
    which, *operands = inputs
    branches = [_closed(branch, operands, depth) for branch in equation.params["branches"]]
    return [label("branches", which, values) for values in zip(*branches, strict=True)]


_RULES: dict[str, Callable[[Any, list[str], int], list[str]]] = {
    **dict.fromkeys(_CALLS, lambda equation, inputs, depth: _closed(equation.params["jaxpr"], inputs, depth)),
    **dict.fromkeys(_MOVES, lambda equation, inputs, depth: inputs),
    "custom_jvp_call": _custom_derivative,
    "custom_vjp_call": _custom_derivative,
    "scan": _scan,
    "while": _while,
    "cond": _branches,
}


def label_tree(tree: Any, leaves: Iterator[str]) -> str:
    """A label of a pytree from its structure and the labels of its leaves."""
    node = tree.node_data()
    if node is None:
        return next(leaves)
    kind, fixed = node
    children: list[Any] = [label_tree(child, leaves) for child in tree.children()]
    if hasattr(kind, "gather_pytree_data_fields"):  # a NumPyro distribution; the order of its fields is that of a set
        children = sorted(zip(kind.gather_pytree_data_fields(), children, strict=True))
        fixed = dict(zip(kind.gather_pytree_aux_fields(), fixed, strict=True))
    return label(_class(kind), static(fixed), children)


def static(value: Any, around: tuple[int, ...] = ()) -> str:
    """A description of a static value; `around` are the ids of the objects that it is a part of."""
    if type(value) in _PLAIN:
        return f"{type(value).__name__} {value!r}"
    if id(value) in around:
        return "itself"
    within = lambda part: static(part, (*around, id(value)))
    for kinds, describe in _DESCRIPTIONS:
        if isinstance(value, kinds):
            return f"{_name(type(value))}: {describe(value, within)}"
    if callable(value) and hasattr(value, "__wrapped__"):  # such as a jitted function
        return within(value.__wrapped__)
    return f"{_name(type(value))}: {within(_attributes(value))}"


def _attributes(value) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    declared = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    slots = [name for names in declared for name in ((names,) if isinstance(names, str) else names)]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    # Hashes of strings that an object remembers differ between processes.
    return {name: part for name, part in found.items() if "hash" not in name and not name.startswith("__")}


def _name(thing) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def _is_library(thing) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in _LIBRARIES


def _class(kind) -> list[str]:
    """Name of a class and, if it is the user's, the code of its methods and of those that it inherits."""
    found = [_name(kind)]
    for base in kind.__mro__:
        for name, member in sorted(vars(base).items()) if not _is_library(base) else []:
            for function in (member, *(getattr(member, key, None) for key in ("__func__", "fget", "__wrapped__"))):
                if isinstance(function, types.FunctionType):
                    found += [name, static(function)]
    return found


def _function(function, within) -> str:
    """Name and closure of a function; its code too, unless it is a library's."""
    closed = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
    parts = [_name(function), within(closed), within(function.__defaults__), within(function.__kwdefaults__)]
    return ", ".join(parts if _is_library(function) else [*parts, within(function.__code__)])


def _is_empty(cell) -> bool:
    """A cell is empty until the variable that it stands for has a value."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _code(code, within) -> str:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return label(code.co_code.hex(), names, within(code.co_consts))


def _program(closed, within) -> str:
    jaxpr = closed.jaxpr if isinstance(closed, jex.ClosedJaxpr) else closed
    inputs = [label("argument", i, str(v.aval.shape), str(v.aval.dtype)) for i, v in enumerate(jaxpr.invars)]
    constants = [label("constant", i) for i in range(len(jaxpr.constvars))]
    return label(_closed(closed, inputs, 0) if closed is not jaxpr else label_outputs(jaxpr, constants, inputs))


def _structure(tree, within) -> str:
    return label_tree(tree, iter([""] * tree.num_leaves))


# The first kind that fits decides: subclasses come before their bases.
_DESCRIPTIONS: list[tuple[Any, Callable[[Any, Callable[[Any], str]], str]]] = [
    (enum.Enum, lambda value, within: value.name),
    (type, lambda value, within: _name(value)),
    ((jax.Array, np.ndarray, np.generic), lambda value, within: label_array(value)),
    (np.dtype, lambda value, within: str(value)),
    ((jax.core.ShapedArray, jax.ShapeDtypeStruct), lambda value, within: f"{value.shape} {value.dtype}"),
    ((jex.ClosedJaxpr, jex.Jaxpr), _program),
    (jax.tree_util.PyTreeDef, _structure),
    (Sharding, lambda value, within: ""),
    ((Mesh, AbstractMesh), lambda value, within: within(dict(value.shape))),
    (PartitionSpec, lambda value, within: within(tuple(value))),
    (Mapping, lambda value, within: str(sorted((within(k), within(v)) for k, v in value.items()))),
    ((set, frozenset), lambda value, within: str(sorted(map(within, value)))),
    ((tuple, list), lambda value, within: str([within(part) for part in value])),
    ((int, float, complex, str, bytes), lambda value, within: repr(value)),
    (types.ModuleType, lambda value, within: value.__name__),
    (types.CodeType, _code),
    (types.FunctionType, _function),
    ((types.BuiltinFunctionType, np.ufunc), lambda value, within: value.__name__),
    (types.MethodType, lambda value, within: f"{within(value.__func__)} of {within(value.__self__)}"),
    (functools.partial, lambda value, within: within((value.func, value.args, value.keywords))),
]
