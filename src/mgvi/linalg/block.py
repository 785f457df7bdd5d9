"""The state of block conjugate gradients (O'Leary, 1980): all right-hand sides search one common Krylov space.

A product, right-hand sides and a starting point come in; the state after one more turn goes out. Residuals are kept
orthonormal by a two-pass Cholesky-QR, which drops directions that depend on others to rounding.
It must not know when to stop.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi.linalg.single import counted, later, started
from mgvi.linalg.stacks import factors, gram, mix, orthonormal


class Coupled(NamedTuple):
    """Block conjugate gradients."""

    x: Any
    q: Any  # orthonormal residual directions; before the first turn b
    s: Any  # search directions; before the first turn x
    c: jax.Array  # residuals in terms of q
    used: jax.Array
    recent: jax.Array
    total: jax.Array
    first: jax.Array
    healthy: jax.Array
    goes_on: jax.Array
    is_fresh: Any
    best: jax.Array  # smallest residuals

    @classmethod
    def at(cls, x, b, scale, used):
        """At a point whose residual is not known."""
        best = jnp.full_like(scale, jnp.inf)
        return cls(x, b, x, jnp.eye(scale.size, dtype=scale.dtype), used, *started(scale), jnp.array(True), best)

    @property
    def size(self):
        """Residuals, by the recursion."""
        return jnp.sqrt(jnp.sum(self.c**2, axis=0))

    def is_open(self, stop, scale):
        """Whether something is left to be done; not for zeros, but rounding would have them go on."""
        is_left = (self.size > stop.residual * scale) & stop.gains(self.recent, self.total)
        return jnp.any((self.first > 0) & is_left)

    def advanced(self, mv, precondition, goal) -> "Coupled":
        """One turn later."""
        a_s = mv(self.s)
        _, factor = factors(gram(self.s, a_s))
        # The first turn subtracts the product from b, and leaves x where it is.
        inverse = later(self, factor.T @ factor, jnp.eye(len(factor), dtype=factor.dtype))
        weights = later(self, inverse @ self.c, 0.0)
        q, z, factor = orthonormal(_tree.subtract(self.q, mix(inverse, a_s)), precondition)
        c = factor @ self.c
        s = _tree.add(z, mix(later(self, factor, 0.0), self.s))
        decrease, size = jnp.sum(self.c * weights, axis=0), jnp.sqrt(jnp.sum(c * c, axis=0))
        finite = jnp.all(jnp.isfinite(c)) & jnp.all(jnp.isfinite(weights)) & jnp.all(decrease >= 0)
        x = _tree.add(self.x, mix(jnp.where(finite, weights, 0.0).T, self.s))
        # A growing residual is normal within bounds; far above the best one, the recursion has lost its accuracy.
        healthy = finite & jnp.all(size <= 1e3 * jnp.maximum(self.best, goal))
        state = self._replace(x=x, q=q, s=s, c=c, healthy=healthy, best=jnp.minimum(self.best, size))
        return counted(state, decrease)
