"""Deviations in pairs: what a sampler draws around a mean.

Stacks of deviations come in; single ones, batches and all of them together go out.
It must not know how deviations are drawn. Nobody else may assume that the partner of a deviation is its negative.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgvi import _tree


@partial(jax.tree_util.register_dataclass, data_fields=["first", "second"], meta_fields=["mirrored"])
@dataclass(frozen=True)
class Pairs:
    """Deviations, each with a partner or alone.

    Parameters
    ----------
    first : tree
        One deviation of each pair, stacked along the leading axis.
    second : tree, optional
        Their partners, if these are not the negatives.
    mirrored : bool
        Whether the partner of each deviation is its negative, which is not stored. A deviation that is not mirrored and
        has no `second` is alone.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.pairs import Pairs
    >>> print(Pairs({"x": np.array([1.0, 2.0])}).both()["x"])
    [ 1.  2. -1. -2.]
    """

    first: Any
    second: Any = None
    mirrored: bool = True

    def __len__(self) -> int:
        return jax.tree.leaves(self.first)[0].shape[0]

    @property
    def each(self) -> int:
        """How many deviations a pair has: 2, or 1 if they are alone."""
        return 2 if self.mirrored or self.second is not None else 1

    @property
    def is_centred(self) -> bool:
        """Whether the deviations of each pair sum to zero."""
        return self.mirrored

    def map(self, function: Any) -> "Pairs":
        """The same pairs with a function of stacks applied."""
        return replace(self, first=function(self.first), second=None if self.second is None else function(self.second))

    def batch(self, i: Any, size: int) -> "Pairs":
        """The i-th batch of so many pairs."""
        return self.map(lambda stack: jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, i * size, size), stack))

    def both(self, count: int | None = None) -> Any:
        """All deviations of the first `count` pairs: one of each, then the partners.

        These are copies, so the pairs' own memory may be used again.
        """
        if _tree.is_on_host(self.first):
            return _both(np, self, count)
        return _both_on_device(self, count=count)

    def deviation(self, i: Any) -> Any:
        """One deviation; those of a pair have consecutive numbers."""
        pick = lambda stack: jax.tree.map(lambda d: lax.dynamic_index_in_dim(d, i // self.each, keepdims=False), stack)
        if self.mirrored:
            return _tree.scale(1 - 2 * (i % 2), pick(self.first))
        if self.second is None:
            return pick(self.first)
        return jax.tree.map(lambda a, b: jnp.where(i % 2 == 0, a, b), pick(self.first), pick(self.second))

    @property
    def stacks(self) -> list[Any]:
        """One deviation of each pair, stacked, then the partners, if there are any."""
        second = jax.tree.map(lambda d: -d, self.first) if self.mirrored else self.second
        return [self.first] if second is None else [self.first, second]


def _both(numpy, pairs, count):
    return jax.tree.map(lambda *leaves: numpy.concatenate([leaf[:count] for leaf in leaves]), *pairs.stacks)


@partial(jax.jit, static_argnames="count")
def _both_on_device(pairs, *, count):
    return _both(jnp, pairs, count)
