"""Samplers: a curvature and keys become pairs of deviations.

A curvature and keys come in; deviations of both partners go out.
It must not know data or what the deviations are for.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mgvi import _tree
from mgvi.gaussian.curvature import Curvature, Keys
from mgvi.linalg import Stop
from mgvi.pairs import Pairs


class Sampler(Protocol):
    """How deviations from a mean are made."""

    @property
    def draws(self) -> bool:
        """Whether there are deviations at all."""
        ...

    @property
    def coupled(self) -> bool:
        """Whether the solves of all keys may share one Krylov space."""
        ...

    def pairs(self, curvature: Curvature, keys: Keys, stop: Stop = ...) -> tuple[Pairs, Any]:
        """A pair of deviations for each key, and a report of the solves."""
        ...

    @property
    def mirrored(self) -> bool:
        """Whether partners are the negatives of each other."""
        ...

    def paired(self, curvature: Curvature, deviations: Any) -> Pairs:
        """Pairs of deviations that a curvature has drawn."""
        ...


@dataclass(frozen=True)
class MGVI:
    """Deviations from the Gaussian whose precision is the curvature.

    With a metric that is only multiplied with, each draw solves M d = R^T n + eta, where n and eta are white noise,
    starting at the prior draw eta: directions that the solve has not reached yet keep the variance of the prior.

    Parameters
    ----------
    antithetic : bool
        Whether each deviation comes with its negative.
    coupled : bool
        Whether the systems of all keys share one Krylov space.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> from mgvi.gaussian import MGVI, DenseCurvature, Keys
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> pairs, _ = MGVI().pairs(
    ...     DenseCurvature.fisher(problem, {"mu": jnp.array(0.0)}), Keys(seed=1, stream=0, count=64)
    ... )
    >>> round(float(pairs.first["mu"].std()), 1)  # exactly 1/3
    0.3
    """

    antithetic: bool = True
    coupled: bool = True
    draws: bool = field(default=True, init=False, repr=False)

    def pairs(self, curvature: Curvature, keys: Keys, stop: Stop = Stop()) -> tuple[Pairs, Any]:  # noqa: B008
        """A pair of deviations for each key, and a report of the solves."""
        deviations, report = curvature.draw(keys, stop, self.coupled)
        return self.paired(curvature, deviations), report

    @property
    def mirrored(self) -> bool:
        """Whether each deviation comes with its negative."""
        return self.antithetic

    def paired(self, curvature: Curvature, deviations: Any) -> Pairs:
        """Each deviation with its negative, or alone."""
        return Pairs(deviations, mirrored=self.antithetic)


@dataclass(frozen=True)
class Point:
    """No deviations: the posterior is its mean, and a fit is a maximum a posteriori estimate.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> from mgvi.gaussian import DenseCurvature, Keys, Point
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> pairs, _ = Point().pairs(
    ...     DenseCurvature.fisher(problem, {"mu": jnp.array(0.0)}), Keys(seed=1, stream=0, count=2)
    ... )
    >>> print(pairs.first["mu"])
    [0. 0.]
    """

    draws: bool = field(default=False, init=False, repr=False)
    coupled: bool = field(default=False, init=False, repr=False)

    def pairs(self, curvature: Curvature, keys: Keys, stop: Stop = Stop()) -> tuple[Pairs, Any]:  # noqa: B008
        """Zeros, one for each key."""
        shapes = _tree.shapes_of_stack(curvature.problem.latent, keys.count)
        return self.paired(curvature, {n: np.zeros(leaf.shape, leaf.dtype) for n, leaf in shapes.items()}), None

    @property
    def mirrored(self) -> bool:
        """There are no partners."""
        return False

    def paired(self, curvature: Curvature, deviations: Any) -> Pairs:
        """Each deviation alone."""
        return Pairs(deviations, mirrored=False)
