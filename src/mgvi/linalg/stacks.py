"""Algebra on stacks of vectors: inner products, mixtures, orthonormal bases.

Trees whose leaves share a leading axis come in; matrices of inner products and other stacks go out.
Nothing here knows what the vectors are.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Relative tolerance on a squared length, in units of the machine epsilon, below which a vector counts as linearly
# dependent on others.
DEPENDENT = 32
WRITTEN_OUT = 4  # vectors up to which matrices of their inner products are made and factorised number by number


def gram(u, v) -> jax.Array:
    """Inner products of all pairs of two stacks."""
    if is_written_out(jax.tree.leaves(u)[0].shape[0]):
        product = lambda a, b: matrix_of([[jnp.sum(one * other) for other in b] for one in a])
        return sum(jax.tree.leaves(jax.tree.map(product, u, v)), start=jnp.zeros(()))
    products = jax.tree.map(
        lambda a, b: jnp.matmul(
            a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1).T, precision=lax.Precision.HIGHEST
        ),
        u,
        v,
    )
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def inner(u, v):
    """Inner products of the pairs at the same place."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b, axis=tuple(range(1, a.ndim))), u, v)
    return sum(jax.tree.leaves(products))


def scaled(factors, stack):
    """Each entry of a stack times its own number."""
    return jax.tree.map(lambda a: factors.reshape(-1, *(1,) * (a.ndim - 1)) * a, stack)


def mix(matrix: jax.Array, stack):
    """Row i of the result is the sum of matrix[i, j] times entry j of the stack."""
    count, terms = matrix.shape
    if not is_written_out(terms):
        return jax.tree.map(lambda a: jnp.tensordot(matrix, a, axes=1, precision=lax.Precision.HIGHEST), stack)
    row = lambda i, a: sum((matrix[i, j] * a[j] for j in range(1, terms)), start=matrix[i, 0] * a[0])
    return jax.tree.map(lambda a: jnp.stack([row(i, a) for i in range(count)]), stack)


def orthonormal(w, precondition):
    """w = q r with q orthonormal in the preconditioned product; also z = P q, and r's transpose: rows mix."""
    z = precondition(w)
    first, inverse = factors(gram(w, z))
    w, z = mix(inverse, w), mix(inverse, z)
    second, inverse = factors(gram(w, z))  # again: one pass is not orthogonal to rounding
    return mix(inverse, w), mix(inverse, z), (first @ second).T


def factors(square):
    """F with F F^T the Gram matrix, and an inverse of F that is zero along what depends on other rows to rounding.

    Rounding, made as long as all else, would otherwise go on as a direction of its own.
    """
    count, least = square.shape[0], DEPENDENT * jnp.finfo(square.dtype).eps
    square = 0.5 * (square + square.T)
    if count > WRITTEN_OUT:
        scale = jnp.sqrt(jnp.maximum(jnp.diag(square), 0.0))
        unit = jnp.where(scale > 0, 1 / jnp.where(scale > 0, scale, 1.0), 0.0)
        values, vectors = jnp.linalg.eigh(unit[:, None] * square * unit)
        root = jnp.sqrt(jnp.where(values > least, values, 0.0))
        over = jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1.0), 0.0)
        return scale[:, None] * vectors * root, (vectors * over).T * unit
    zero = jnp.zeros((), square.dtype)
    factor: list[list[Any]] = [[zero] * count for _ in range(count)]
    inverse: list[list[Any]] = [[zero] * count for _ in range(count)]
    for j in range(count):  # Cholesky's factor, and its inverse row by row
        rest = square[j, j] - sum(factor[j][m] ** 2 for m in range(j))
        is_new = rest > least * square[j, j]
        factor[j][j] = jnp.where(is_new, jnp.sqrt(jnp.where(is_new, rest, 1.0)), 0.0)
        inverse[j][j] = jnp.where(is_new, 1 / jnp.where(is_new, factor[j][j], 1.0), 0.0)
        for i in range(j + 1, count):
            factor[i][j] = (square[i, j] - sum(factor[i][m] * factor[j][m] for m in range(j))) * inverse[j][j]
        for m in range(j):
            inverse[j][m] = -inverse[j][j] * sum(factor[j][n] * inverse[n][m] for n in range(m, j))
    return matrix_of(factor), matrix_of(inverse)


def is_written_out(count):
    """Whether products of so many right-hand sides are made number by number.

    On an accelerator a call of a library for each of them takes several times as long as they do.
    """
    return count <= WRITTEN_OUT and jax.default_backend() != "cpu"


def matrix_of(rows):
    """A matrix of numbers that are traced one by one."""
    return jnp.stack([jnp.stack(row) for row in rows])
