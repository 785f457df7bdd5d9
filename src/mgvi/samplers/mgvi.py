"""Deviations from the inverse Fisher metric, by solving linear systems.

A metric and keys come in; draws of N(0, M^-1) go out, one a key.
It must not know data or a mean.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi.linalg import Report, Stop, solve
from mgvi.metric import FisherMetric


@dataclass(frozen=True)
class MGVI:
    """Draws deviations with covariance M^-1.

    Each draw solves M d = R^T n + eta, where n and eta are white noise, starting at the prior draw eta: directions that
    the solve has not reached yet keep the variance of the prior.

    Parameters
    ----------
    antithetic : bool
        Whether each deviation comes with its negative.
    coupled : bool
        Whether the systems of all keys share one Krylov space.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from mgvi.metric import FisherMetric
    >>> from mgvi.samplers import MGVI
    >>> metric = FisherMetric(lambda v: 3.0 * v, jax.ShapeDtypeStruct((2,), jnp.float32))
    >>> deviations, report = MGVI().draw(metric, jax.random.split(jax.random.key(0), 4))
    >>> deviations.shape, int(report.status.max())
    ((4, 2), 0)
    """

    antithetic: bool = True
    coupled: bool = True
    draws: ClassVar[bool] = True

    def draw(self, metric: FisherMetric, keys: jax.Array, stop: Stop = Stop()) -> tuple[Any, Report]:  # noqa: B008
        """One deviation for each key, stacked; the same key gives the same noise whatever the metric."""
        return self.solve(metric, *self.excite(metric, keys), stop)

    def excite(self, metric: FisherMetric, keys: jax.Array, count: Any = None) -> tuple[Any, Any]:
        """Right-hand sides R^T n + eta, one for each of the first `count` keys, and prior draws eta to start from."""

        def add(i, stacks):
            noise, eta = metric.noise(keys[i])
            both = _tree.add(metric.rmatvec(noise), eta), eta
            return jax.tree.map(lambda stack, x: stack.at[i].set(x), stacks, both)

        none = jax.tree.map(lambda leaf: jnp.zeros((keys.shape[0], *leaf.shape), leaf.dtype), metric.latent)
        count = keys.shape[0] if count is None else jnp.minimum(count, keys.shape[0])
        # One by one: random numbers for all of them would take the most memory.
        return jax.lax.fori_loop(0, count, add, (none, none))

    def solve(
        self, metric: FisherMetric, b: Any, start: Any, stop: Stop, preconditioner: Any = None
    ) -> tuple[Any, Report]:
        """M^-1 b for a stack of right-hand sides, from starting points."""
        coupled = self.coupled and jax.tree.leaves(b)[0].shape[0] > 1
        return solve(metric.mv_stack, b, start, stop, coupled=coupled, preconditioner=preconditioner)


@dataclass(frozen=True)
class Point:
    """Draws nothing: the posterior is its mean, and a fit is a maximum a posteriori estimate.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from mgvi.metric import FisherMetric
    >>> from mgvi.samplers import Point
    >>> metric = FisherMetric(lambda v: 3.0 * v, jax.ShapeDtypeStruct((2,), jnp.float32))
    >>> print(Point().draw(metric, jax.random.split(jax.random.key(0), 1))[0])
    [[0. 0.]]
    """

    antithetic: bool = False
    draws: ClassVar[bool] = False

    def draw(self, metric: FisherMetric, keys: jax.Array, stop: Stop = Stop()) -> tuple[Any, Report]:  # noqa: B008
        """Deviations that are zero, one a key."""
        return self.solve(metric, *self.excite(metric, keys), stop)

    def excite(self, metric: FisherMetric, keys: jax.Array, count: Any = None) -> tuple[Any, Any]:
        """Zeros, one a key."""
        zero = jax.tree.map(lambda leaf: jnp.zeros((keys.shape[0], *leaf.shape), leaf.dtype), metric.latent)
        return zero, zero

    def solve(
        self, metric: FisherMetric, b: Any, start: Any, stop: Stop, preconditioner: Any = None
    ) -> tuple[Any, Report]:
        """Nothing to solve."""
        none = jnp.zeros(jax.tree.leaves(b)[0].shape[0])
        return start, Report(none.astype(int), none, none.astype(int))


def with_partners(deviations: Any, antithetic: bool, count: int | None = None) -> Any:
    """All deviations of a round: the first `count` of those that were drawn and, if antithetic, their negatives.

    These are copies: what they were made of may be used up.
    """
    if not _tree.is_on_host(deviations):
        return _with_partners(deviations, antithetic=antithetic, count=count)
    return jax.tree.map(lambda d: np.concatenate([d[:count], -d[:count]] if antithetic else [d[:count]]), deviations)


@partial(jax.jit, static_argnames=("antithetic", "count"))
def _with_partners(deviations, *, antithetic, count):
    both = lambda d: jnp.concatenate([d[:count], -d[:count]]) if antithetic else jnp.array(d[:count], copy=True)
    return jax.tree.map(both, deviations)
