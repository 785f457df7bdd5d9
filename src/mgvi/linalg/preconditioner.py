"""An approximate inverse of a metric: a diagonal for the many latents, a matrix for the few that they share.

A product, the diagonal and the names of the small sites come in; a `Preconditioner` goes out.
It must not know what the sites stand for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree

_SITE = 128  # entries of a site that counts as global
_TOTAL = 256  # entries of all of them


class Preconditioner(NamedTuple):
    """Divides by a diagonal; sites that it does not have are multiplied with a matrix, in the order of their names.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.linalg import Preconditioner
    >>> print(Preconditioner({"x": jnp.array([2.0, 4.0])}).apply({"x": jnp.ones((1, 2))})["x"])
    [[0.5  0.25]]
    """

    diagonal: dict[str, Any]
    inverse: Any = None

    def apply(self, stack):
        """An approximation of M^-1 on a stack of vectors."""
        out = {name: leaf / self.diagonal[name] for name, leaf in stack.items() if name in self.diagonal}
        few = {name: leaf for name, leaf in stack.items() if name not in self.diagonal}
        if few:
            rows = jnp.matmul(_tree.to_rows(few), self.inverse, precision=lax.Precision.HIGHEST)
            out |= _tree.from_rows(rows, jax.tree.map(lambda leaf: leaf[0], few))
        return out


def global_sites(latent: dict[str, Any]) -> tuple[str, ...]:
    """The smallest sites, as many as a matrix may be made for; none if there is nothing beside them."""
    names, total = [], 0
    for name in sorted(latent, key=lambda name: (_tree.size(latent[name]), name)):
        total += _tree.size(latent[name])
        if _tree.size(latent[name]) > _SITE or total > _TOTAL:
            return tuple(sorted(names))
        names.append(name)
    return ()


def block_preconditioner(mv: Callable, diagonal: dict[str, Any], names: tuple[str, ...]) -> tuple[Preconditioner, Any]:
    """The diagonal of a metric for most sites, and its block of the sites `names`; also that block.

    `mv` is the product with the metric, of single vectors.
    """
    if not names:
        return Preconditioner(diagonal), jnp.zeros((0, 0))
    few = {name: diagonal[name] for name in names}
    many = {name: leaf for name, leaf in diagonal.items() if name not in names}
    none = _tree.zeros(many)

    def column(row):
        """One of the block's columns, which are made one by one: many of them would fill the memory."""
        product = mv({**none, **jax.tree.map(lambda x: x[0], _tree.from_rows(row[None], few))})
        return _tree.to_rows({name: product[name][None] for name in names})[0]

    block = lax.map(column, jnp.eye(_tree.size(few), dtype=jnp.result_type(*few.values())))
    block = 0.5 * (block + block.T)
    return Preconditioner(many, _inverse(block)), block


def _inverse(block):
    """The inverse of a positive matrix, positive too where rounding would make it otherwise."""
    root = jnp.sqrt(jnp.diag(block))
    values, vectors = jnp.linalg.eigh(block / (root[:, None] * root))
    floor = 10 * jnp.finfo(block.dtype).eps * values[-1]
    scaled = vectors / root[:, None]
    return jnp.matmul(scaled / jnp.maximum(values, floor), scaled.T, precision=lax.Precision.HIGHEST)


def sub_blocks(block: Any, like: dict[str, Any]) -> dict[str, Any]:
    """The blocks of the single sites of a block of the metric."""
    found, first = {}, 0
    for name in sorted(like):
        size = _tree.size(like[name])
        found[name] = block[first : first + size, first : first + size]
        first += size
    return found
