"""An approximate inverse of a metric: a diagonal for the many latents, a coarse space for the few that they share.

A product, the diagonal and the names of the small sites come in; a `Preconditioner` goes out.
It must not know what the sites stand for.

A few global parameters (an amplitude, a spectrum, a noise level) that act through many local ones give a metric with
directions in which the local ones make up for what the global ones do. They are the last that conjugate gradients
find, and the ones in which an error matters most. The coarse space is made of these directions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi.linalg.conjugate_gradients import Stop, gram, mix, solve

_SITE = 128  # entries of a site that counts as global
_TOTAL = 256  # entries of all of them
_RANK = 16  # directions of the coarse space
_ITERATIONS = 12  # to find how the local latents make up for a global one


class Preconditioner(NamedTuple):
    """The map r -> r / diagonal + V E V^T r with V the directions of the coarse space and E = (V^T M V)^-1.

    The coarse space holds all directions of the global sites (an orthogonal basis of them); the first of these come
    with what the local sites do to make up for them.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.linalg import Preconditioner
    >>> print(Preconditioner({"x": jnp.array([2.0, 4.0])}).apply({"x": jnp.ones((1, 2))})["x"])
    [[0.5  0.25]]
    """

    diagonal: Any
    basis: Any = None  # of the global sites, stacked
    answers: Any = None  # of the local sites to the first of them, stacked
    inverse: Any = None

    def apply(self, stack):
        """An approximation of M^-1 on a stack of vectors."""
        return _tree.add(_tree.divide(stack, self.diagonal), self.correct(stack))

    def correct(self, stack):
        """What the coarse space alone makes of the residuals of a solve: the correction that is best within it."""
        if self.basis is None:
            return jax.tree.map(jnp.zeros_like, stack)
        few = {name: stack[name] for name in self.basis}
        many = {name: stack[name] for name in self.answers}
        heard = gram(many, self.answers)
        projected = gram(few, self.basis).at[:, : heard.shape[1]].add(heard)
        weights = jnp.matmul(projected, self.inverse, precision=lax.Precision.HIGHEST)
        return {**mix(weights, self.basis), **mix(weights[:, : heard.shape[1]], self.answers)}

    def refreshed(self, push: Callable) -> "Preconditioner":
        """With the same coarse space for another metric 1 + R^T R, `push` being its R."""
        if self.basis is None:
            return self
        none = _tree.zeros({name: leaf for name, leaf in self.diagonal.items() if name not in self.basis})
        count = len(jax.tree.leaves(self.answers)[0])
        first, last = (jax.tree.map(lambda leaf, part=part: leaf[part], self.basis) for part in _parts(count))
        pushed = jax.vmap(push)({**self.answers, **first})
        if jax.tree.leaves(last)[0].shape[0]:
            more = lax.map(lambda u: push({**none, **u}), last)
            pushed = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), pushed, more)
        return self._replace(inverse=_inverse(gram(pushed, pushed), self.answers, self.basis))


def _parts(count):
    return slice(None, count), slice(count, None)


def _inverse(information, answers, basis):
    """(V^T R^T R V + V^T V)^-1; R V is formed first, so that nothing large cancels afterwards."""
    square = information + gram(basis, basis)
    count = len(jax.tree.leaves(answers)[0])
    square = square.at[:count, :count].add(gram(answers, answers))
    return jnp.linalg.inv(0.5 * (square + square.T))


def global_sites(latent: dict[str, Any]) -> tuple[str, ...]:
    """The smallest sites, as many as a coarse space may be built for; none if there is nothing beside them."""
    names, total = [], 0
    for name in sorted(latent, key=lambda name: (_tree.size(latent[name]), name)):
        total += _tree.size(latent[name])
        if _tree.size(latent[name]) > _SITE or total > _TOTAL:
            return tuple(sorted(names))
        names.append(name)
    return ()


def with_coarse_space(push: Callable, pull: Callable, diagonal: Any, names: tuple[str, ...]) -> Preconditioner:
    """For a metric 1 + R^T R: its diagonal, the directions of the sites `names`, and what all others do about them.

    `push` is R and `pull` is R^T, of single vectors.
    """
    if not names:
        return Preconditioner(diagonal)
    few = {name: diagonal[name] for name in names}
    many = {name: leaf for name, leaf in diagonal.items() if name not in names}
    outer = lambda v: {name: v[name] for name in many}
    no_few, no_many = _tree.zeros(few), _tree.zeros(many)

    size = _tree.size(few)
    unit = _tree.from_rows(jnp.eye(size, dtype=jnp.result_type(*jax.tree.leaves(few))), few)
    pushed = lax.map(lambda e: push({**no_many, **e}), unit)
    _, vectors = jnp.linalg.eigh(gram(pushed, pushed))
    vectors = vectors.T[::-1]  # the best informed directions first
    basis, pushed = _tree.from_rows(vectors, few), mix(vectors, pushed)

    first = jax.tree.map(lambda leaf: leaf[: min(_RANK, size)], pushed)
    answers, _ = solve(
        jax.vmap(lambda v: _tree.add(v, outer(pull(push({**no_few, **v}))))),
        jax.vmap(lambda u: _tree.scale(-1.0, outer(pull(u))))(first),
        stop=Stop(1e-2, 0.0, _ITERATIONS),
        preconditioner=Preconditioner(many),
    )
    answered = jax.vmap(lambda v: push({**no_few, **v}))(answers)
    pushed = jax.tree.map(lambda a, b: a.at[: len(b)].add(b), pushed, answered)
    return Preconditioner(diagonal, basis, answers, _inverse(gram(pushed, pushed), answers, basis))
