"""The state of conjugate gradients in which each right-hand side searches a Krylov space of its own.

A product, right-hand sides and a starting point come in; the state after one more turn goes out.
It must not know when to stop.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi.linalg.stacks import inner, scaled

WINDOW = 4  # iterations over which the decrease of the energy is judged


class Separate(NamedTuple):
    """Conjugate gradients, uncoupled."""

    x: Any
    r: Any
    s: Any  # search directions; before the first turn x, the residual of which is not known then
    gamma: jax.Array  # squared residuals
    used: jax.Array
    recent: jax.Array  # energy decreases of the last iterations
    total: jax.Array  # energy decrease so far
    first: jax.Array  # residuals of the starting point
    healthy: jax.Array
    goes_on: jax.Array
    is_fresh: Any  # whether this is before the first turn; None: there is no such turn

    @classmethod
    def at(cls, x, b, scale, used):
        """At a point whose residual is not known."""
        return cls(x, b, x, jnp.zeros_like(scale), used, *started(scale), jnp.array(True))

    @classmethod
    def at_zero(cls, x, b, z, stop, scale):
        """At zero, given b and what the preconditioner makes of it."""
        state = cls(x, b, z, scale**2, jnp.zeros((), int), *started(scale), None)
        return state._replace(goes_on=(stop.iterations > 0) & state.is_open(stop, scale))

    @property
    def size(self):
        """Residuals, by the recursion."""
        return jnp.sqrt(self.gamma)

    def is_open(self, stop, scale):
        """Whether something is left to be done."""
        return jnp.any((self.size > stop.residual * scale) & stop.gains(self.recent, self.total))

    def advanced(self, mv, precondition, goal) -> "Separate":
        """One turn later."""
        a_s = mv(self.s)
        curvature = inner(self.s, a_s)
        length = jnp.where(curvature > 0, self.gamma / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        # The first turn subtracts the product from b, and leaves x where it is.
        x = _tree.add(self.x, scaled(later(self, length, 0.0), self.s))
        r = _tree.subtract(self.r, scaled(later(self, length, 1.0), a_s))
        z = precondition(r)
        new = inner(r, z)
        kept = jnp.where(self.gamma > 0, new / jnp.where(self.gamma > 0, self.gamma, 1.0), 0.0)
        s = _tree.add(z, scaled(later(self, kept, 0.0), self.s))
        state = self._replace(x=x, r=r, s=s, gamma=new, healthy=jnp.all(jnp.isfinite(new)))
        return counted(state, length * self.gamma)


def started(scale):
    """What both kinds of state have in common."""
    recent = jnp.full((WINDOW, scale.size), jnp.inf, scale.dtype)
    return recent, jnp.zeros_like(scale), jnp.full_like(scale, jnp.inf), jnp.array(True), jnp.array(True)


def later(state, value, at_first):
    """A value for all turns but the first, and one for that."""
    return value if state.is_fresh is None else jnp.where(state.is_fresh, at_first, value)


def counted(state, decrease):
    """A state that remembers one decrease of the energy more, unless that was the first turn."""
    recent = jnp.roll(state.recent, 1, axis=0).at[0].set(decrease)
    return state._replace(
        used=later(state, state.used + 1, state.used),
        recent=later(state, recent, state.recent),
        total=later(state, state.total + decrease, state.total),
    )
