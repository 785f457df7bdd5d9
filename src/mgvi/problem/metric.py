"""The Fisher metric of a problem at one latent.

The linearised map from latents to whitened data comes in; matrix-free products, solves and draws go out.
It must not know model or data.
"""

from typing import Any

import jax
from jax import lax

from mgvi import _tree
from mgvi._compile import multiplies_matrices
from mgvi.linalg import Report, Stop, solve


class FisherMetric:
    """The metric M = 1 + R^T R at one latent, as matrix-free products.

    Parameters
    ----------
    matvec : callable
        R: from a latent tangent to the whitened data space.
    latent : tree
        Shapes and dtypes of the latent.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from mgvi.problem import FisherMetric
    >>> metric = FisherMetric(lambda v: 3.0 * v, jax.ShapeDtypeStruct((), jnp.float32))
    >>> print(metric.mv(jnp.array(2.0)))
    20.0
    """

    def __init__(self, matvec, latent):
        self.matvec = matvec
        self.latent = latent
        self.white = jax.eval_shape(matvec, latent)
        transpose = jax.linear_transpose(matvec, latent)
        self.rmatvec = lambda u: transpose(u)[0]

    def mv(self, v):
        """M v."""
        return _tree.add(v, self.rmatvec(self.matvec(v)))

    def mv_stack(self, v):
        """M v for a stack of vectors."""
        if jax.tree.leaves(v)[0].shape[0] > 1:
            # Products of matrices, stacked, take a CPU several times as long as one by one; all else is the faster.
            alone = jax.default_backend() == "cpu" and multiplies_matrices(self.matvec, self.latent)
            return lax.map(self.mv, v) if alone else jax.vmap(self.mv)(v)
        one = self.mv(jax.tree.map(lambda leaf: leaf[0], v))  # an axis of length 1 would cost a pass here and there
        return jax.tree.map(lambda leaf: leaf[None], one)

    def solve(self, b, stop: Stop = Stop(), preconditioner=None) -> tuple[Any, Report]:  # noqa: B008
        """M^-1 b for one right-hand side, by conjugate gradients."""
        one = jax.tree.map(lambda leaf: leaf[None], b)
        x, report = solve(self.mv_stack, one, stop=stop, preconditioner=preconditioner)
        return jax.tree.map(lambda leaf: leaf[0], (x, report))

    def diagonal(self, key: jax.Array, probes: Any):
        """An estimate of the diagonal of M, from signs in the data space; at least 1."""

        def add(i, total):
            pulled = self.rmatvec(_tree.random_signs(jax.random.fold_in(key, i), self.white))
            return _tree.add(total, _tree.multiply(pulled, pulled))

        total = lax.fori_loop(0, probes, add, _tree.zeros(self.latent))
        return jax.tree.map(lambda t: 1 + t / probes, total)

    def noise(self, key: jax.Array):
        """White noise in the data space and in the latent space."""
        key_data, key_prior = jax.random.split(key)
        return _tree.random_normal(key_data, self.white), _tree.random_normal(key_prior, self.latent)

    def draw(self, key: jax.Array):
        """A draw from N(0, M)."""
        noise, eta = self.noise(key)
        return _tree.add(self.rmatvec(noise), eta)
