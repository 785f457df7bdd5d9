"""An approximate inverse of a metric: a diagonal for most latents, a matrix for few.

A product, the diagonal and the names of the small sites come in; a `Preconditioner` goes out.
It must not know what the sites stand for.

The few are the small sites, which many others share, and of the large ones the entries with the largest diagonal. Where
data have gaps, or a trend competes with the long waves of a field, nothing is known of some sums of these; conjugate
gradients would find them last, or never.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgvi import _tree

_SITE = 128  # entries of a site that counts as global
_TOTAL = 256  # entries of all of them
_CHOSEN = 128  # entries of other sites that the matrix is for as well
_COLUMNS = 8  # of the block that are made at once: all of them would fill the memory


class Preconditioner(NamedTuple):
    """Divides by a diagonal, or multiplies with a matrix: sites without a diagonal, then the chosen entries of others.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.linalg import Preconditioner
    >>> print(Preconditioner({"x": jnp.array([2.0, 4.0])}).apply({"x": jnp.ones((1, 2))})["x"])
    [[0.5  0.25]]
    """

    diagonal: dict[str, Any]
    inverse: Any = None
    chosen: dict[str, Any] | None = None  # where they are in the flattened site

    def damped(self, damping):
        """The same for M + damping, as far as the diagonal tells."""
        return self._replace(diagonal=jax.tree.map(lambda d: d + damping, self.diagonal))

    def apply(self, stack):
        """An approximation of M^-1 on a stack of vectors."""
        out = {name: leaf / self.diagonal[name] for name, leaf in stack.items() if name in self.diagonal}
        if self.inverse is None:
            return out
        few = {name: leaf[0] for name, leaf in stack.items() if name not in self.diagonal}
        chosen = self.chosen or {}
        return _placed(
            jnp.matmul(_rows(stack, few, chosen), self.inverse, precision=lax.Precision.HIGHEST), few, chosen, out
        )


def _rows(stack, few, chosen):
    """The entries that the matrix is for."""
    whole = [_tree.to_rows({name: stack[name] for name in few})] if few else []
    return jnp.concatenate(whole + [_flat(stack[name])[:, index] for name, index in sorted(chosen.items())], axis=1)


def _placed(rows, few, chosen, others):
    """The stack that has these entries, and other ones where the matrix has none."""
    first = _tree.size(few)
    out = {**others, **(_tree.from_rows(rows[:, :first], few) if few else {})}
    for name, index in sorted(chosen.items()):
        part, first = rows[:, first : first + index.size], first + index.size
        out[name] = _flat(others[name]).at[:, index].set(part, unique_indices=True).reshape(others[name].shape)
    return out


def _flat(stack):
    return stack.reshape(stack.shape[0], -1)


def global_sites(latent: dict[str, Any]) -> tuple[str, ...]:
    """The smallest sites, as many as a matrix may be made for; none if there is nothing beside them."""
    names, total = [], 0
    for name in sorted(latent, key=lambda name: (_tree.size(latent[name]), name)):
        total += _tree.size(latent[name])
        if _tree.size(latent[name]) > _SITE or total > _TOTAL:
            return tuple(sorted(names))
        names.append(name)
    return ()


def some_entries(
    latent: dict[str, Any], names: tuple[str, ...], diagonal: dict[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Where the sites that are not in `names` have their largest diagonal, 128 places in all; any, if none is given."""
    many = {name: leaf for name, leaf in latent.items() if name not in names}
    sizes = {name: min(_CHOSEN // len(many), _tree.size(leaf)) for name, leaf in many.items()}
    sizes = {name: size for name, size in sizes.items() if size}
    if diagonal is None:
        return {name: np.arange(size, dtype=np.int32) for name, size in sizes.items()}
    # Found on the host: an accelerator would sort everything.
    place = lambda name, size: np.argpartition(-np.ravel(np.asarray(diagonal[name])), size - 1)[:size]
    return {name: np.sort(place(name, size)).astype(np.int32) for name, size in sizes.items()}


def block_preconditioner(
    mv: Callable,
    diagonal: dict[str, Any],
    names: tuple[str, ...],
    chosen: dict[str, Any] | None = None,
    inside: Any = None,
) -> tuple[Preconditioner, Any]:
    """The diagonal of a metric for most entries, its block for few; also the block of the sites `names`.

    `mv` is the product with the metric, of a stack of vectors; `chosen` are entries of other sites that are in the
    block too. Products are made for the first `inside` entries only, or for all; others have the diagonal there too.
    """
    chosen = chosen or {}
    few = {name: diagonal[name] for name in names}
    many = {name: leaf for name, leaf in diagonal.items() if name not in names}
    if not few and not chosen:
        return Preconditioner(many), jnp.zeros((0, 0))
    none = jax.tree.map(lambda leaf: jnp.zeros((_COLUMNS, *leaf.shape), leaf.dtype), many)
    known = _rows(jax.tree.map(lambda leaf: leaf[None], diagonal), few, chosen)[0]
    first, size = _tree.size(few), known.size

    def add(i, block):
        """Some of the block's rows; those beyond its last mean nothing."""
        units = (i * _COLUMNS + jnp.arange(_COLUMNS)[:, None] == jnp.arange(size)).astype(known.dtype)
        products = _rows(mv(_placed(units, few, chosen, none)), few, chosen)
        return lax.dynamic_update_slice_in_dim(block, products, i * _COLUMNS, 0)

    inside = size if inside is None else inside
    block = lax.fori_loop(0, -(-inside // _COLUMNS), add, jnp.pad(jnp.diag(known), ((0, _COLUMNS), (0, 0))))[:size]
    block = 0.5 * (block + block.T)
    made = jnp.arange(size) < inside
    block = jnp.where(made[:, None] & made, block, jnp.diag(known))
    # Entries that are not inside have the diagonal: a much smaller matrix will do then.
    inverse = lax.cond(inside > first, _inverse, partial(_inverse_of_first, count=first), block)
    return Preconditioner(many, inverse, chosen), block[:first, :first]


def block_preconditioner_like(latent: dict[str, Any], names: tuple[str, ...], chosen: dict[str, Any]) -> Preconditioner:
    """Shapes and dtypes of what `block_preconditioner` makes."""
    many = {name: leaf for name, leaf in latent.items() if name not in names}
    size = _tree.size({name: latent[name] for name in names}) + _tree.size(chosen)
    if not size:
        return Preconditioner(many)
    dtype = jnp.result_type(*(latent[name].dtype for name in (*names, *chosen)))
    return Preconditioner(many, jax.ShapeDtypeStruct((size, size), dtype), chosen)


def _inverse(block):
    """The inverse of a positive matrix, positive too where rounding would make it otherwise."""
    root = jnp.sqrt(jnp.diag(block))
    values, vectors = jnp.linalg.eigh(block / (root[:, None] * root))
    floor = 10 * jnp.finfo(block.dtype).eps * values[-1]
    scaled = vectors / root[:, None]
    return jnp.matmul(scaled / jnp.maximum(values, floor), scaled.T, precision=lax.Precision.HIGHEST)


def _inverse_of_first(block, count):
    """The inverse of a block that is diagonal but for its first entries."""
    inverse = jnp.diag(1 / jnp.diag(block))
    return inverse.at[:count, :count].set(_inverse(block[:count, :count])) if count else inverse


def sub_blocks(block: Any, like: dict[str, Any]) -> dict[str, Any]:
    """The blocks of the single sites of a block of the metric."""
    found, first = {}, 0
    for name in sorted(like):
        size = _tree.size(like[name])
        found[name] = block[first : first + size, first : first + size]
        first += size
    return found
