"""Algebra on pytrees of arrays.

Trees of arrays come in, trees or scalars go out.
Nothing here knows what a tree stands for.
"""

import jax
import jax.numpy as jnp


def random_normal(key: jax.Array, like):
    """A tree of independent standard normals with the shapes and dtypes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, max(len(leaves), 1))
    draws = [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=False)]
    return jax.tree.unflatten(treedef, draws)


def zeros(like):
    """A tree of zeros with the shapes and dtypes of `like`."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def add(a, b):
    """Sum of two trees."""
    return jax.tree.map(jnp.add, a, b)


def dot(a, b):
    """Inner product of two trees."""
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)), start=jnp.zeros(()))
