"""Algebra on pytrees of arrays.

Trees of arrays come in, trees or scalars go out; NumPy arrays stay NumPy arrays.
Nothing here knows what a tree stands for.
"""

import itertools
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_IN_CACHE = 300_000  # numbers that a CPU reads again without waiting for the memory


def random_normal(key: jax.Array, like):
    """A tree of independent standard normals with the shapes and dtypes of `like`."""
    leaves = jax.tree.leaves(like)
    if not leaves:
        return like
    dtype = jnp.result_type(*(leaf.dtype for leaf in leaves))
    return from_row(jax.random.normal(key, (size(like),), dtype), like)  # one generator for all: a smaller program


def random_signs(key: jax.Array, like):
    """A tree of independent signs, 1 or -1, with the shapes and dtypes of `like`."""
    total = size(like)
    bits = jax.random.bits(key, (-(-total // 32), 1), jnp.uint32) >> jnp.arange(32, dtype=jnp.uint32)  # a sign for each
    signs = 1.0 - 2.0 * (bits & 1).ravel()[:total].astype(jnp.float32)
    return from_row(signs, like)


def zeros(like):
    """A tree of zeros with the shapes and dtypes of `like`."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def shapes_of_stack(like, count: int):
    """Shapes and dtypes of a stack of trees."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), like)


def add(a, b):
    """Sum of two trees."""
    return jax.tree.map(operator.add, a, b)


def dot(a, b):
    """Inner product of two trees."""
    product = lambda x, y: jnp.vdot(x, y, precision=jax.lax.Precision.HIGHEST)
    return sum(jax.tree.leaves(jax.tree.map(product, a, b)), start=jnp.zeros(()))


def total(tree):
    """The sum of all entries."""
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def stacked(tree):
    """A stack of one tree."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


def unstacked(stack):
    """The only tree of a stack of one."""
    return jax.tree.map(lambda leaf: leaf[0], stack)


def multiply_sites(factors, stack):
    """A stack by site, each site times its own number; dtypes stay."""
    return {name: leaf * factors[name].astype(leaf.dtype) for name, leaf in stack.items()}


def subtract(a, b):
    """Difference of two trees."""
    return jax.tree.map(operator.sub, a, b)


def scale(factor, tree):
    """A tree times a number."""
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def divide(a, b):
    """Quotient of two trees, entry by entry."""
    return jax.tree.map(operator.truediv, a, b)


def multiply(a, b):
    """Product of two trees, entry by entry."""
    return jax.tree.map(operator.mul, a, b)


class RunningSum(NamedTuple):
    """A sum of trees that a compiled loop makes, one each turn.

    On a CPU small ones are added a turn later: compiled with little effort, what adds to an array in its place is not
    vectorised, nor is all that is made in the same loop over its entries. Large ones would wait for the memory.
    """

    total: Any
    last: Any  # not in the total yet; None: nothing ever waits

    @classmethod
    def of(cls, like):
        """Of trees with the shapes and dtypes of `like`, none so far."""
        waits = jax.default_backend() == "cpu" and size(like) <= _IN_CACHE
        return cls(zeros(like), zeros(like) if waits else None)

    def plus(self, tree):
        """With one tree more."""
        if self.last is None:
            return RunningSum(add(self.total, tree), None)
        return RunningSum(add(self.total, self.last), tree)

    @property
    def value(self):
        """The sum of all."""
        return self.total if self.last is None else add(self.total, self.last)


def size(tree) -> int:
    """Number of entries of all leaves together."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def to_rows(stack):
    """A tree whose leaves share a leading axis as a matrix with one row an entry of that axis."""
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(stack)]
    return (np if is_on_host(stack) else jnp).concatenate(rows, axis=1)


def from_rows(rows, like):
    """The inverse of `to_rows`, for entries with the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    ends = list(itertools.accumulate(math.prod(leaf.shape) for leaf in leaves))
    parts = [
        rows[:, end - math.prod(leaf.shape) : end].reshape(-1, *leaf.shape).astype(leaf.dtype)
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    return jax.tree.unflatten(treedef, parts)


def to_row(tree):
    """A tree as a vector."""
    return to_rows(stacked(tree))[0]


def from_row(row, like):
    """The inverse of `to_row`."""
    return unstacked(from_rows(row[None], like))


def on_host(tree):
    """A tree of NumPy arrays."""
    return jax.tree.map(np.asarray, jax.device_get(tree))


def is_on_host(tree) -> bool:
    """Whether all leaves are NumPy arrays."""
    return all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree))


def picked(stack, index):
    """Some entries of a stack."""
    return (_pick if is_on_host(stack) else _picked)(stack, index)


def _pick(stack, index):
    return jax.tree.map(lambda leaf: leaf[index], stack)


_picked = jax.jit(_pick)


def batches(stack, size: int):
    """Parts of a stack, each of that size, and how many entries of each count: the last is filled with its last entry.

    One compiled program serves all of them. A stack of types has one part.
    """
    leaves = jax.tree.leaves(stack)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        yield jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), stack), size
        return
    count = leaves[0].shape[0]
    for first in range(0, count, size):
        yield picked(stack, np.minimum(np.arange(first, first + size), count - 1)), min(size, count - first)


def first_of(stack, count: int):
    """The first entries of a stack; a stack of types stays as it is."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.ShapeDtypeStruct) else leaf[:count], stack)


def joined(parts):
    """Stacks one after another, NumPy's if they are; of stacks of types the first."""
    if len(parts) == 1 or any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(parts)):
        return parts[0]
    concatenate = np.concatenate if is_on_host(parts) else jnp.concatenate
    return jax.tree.map(lambda *leaves: concatenate(leaves), *parts)


def filled(stack, length: int):
    """A stack of NumPy arrays, filled up with zeros to a length."""

    def fill(leaf):
        whole = np.zeros((length, *leaf.shape[1:]), leaf.dtype)
        whole[: len(leaf)] = leaf
        return whole

    return jax.tree.map(fill, stack)


def where_first(count, stack, other):
    """The first `count` entries of a stack, and the rest of another."""
    first = lambda a: (jnp.arange(a.shape[0]) < count).reshape(-1, *(1,) * (a.ndim - 1))
    return jax.tree.map(lambda a, b: jnp.where(first(a), a, b), stack, other)
