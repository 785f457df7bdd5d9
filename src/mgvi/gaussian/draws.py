"""What a Posterior needs to know of the distribution of its latents, and draws that exist already.

A problem, a number and a seed come in; standard latents go out.
It must not know how they came about.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from mgvi import _tree
from mgvi.problem import Problem
from mgvi.status import Status


class Drawn(NamedTuple):
    """Standard latents: their centre, deviations from it, stacked, and how drawing them ended."""

    centre: Any
    deviations: Any
    status: Status = Status.CONVERGED


class Approximation(Protocol):
    """What a Posterior needs to know of the distribution of its latents."""

    @property
    def refusal(self) -> str | None:
        """Why samples cannot be weighed against the exact posterior, or None if they can."""
        ...

    @property
    def mcse(self) -> dict[str, float]:
        """Monte Carlo error of the mean, by latent site, in its rms deviations."""
        ...

    def standard(self, problem: Problem, deviations: Any) -> Drawn:
        """Standard latents of deviations from the mean in the chart."""
        ...

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` standard latents."""
        ...

    def log_density(self, problem: Problem, centre: Any, deviations: Any) -> np.ndarray:
        """Logarithm of the density of standard latents, up to a constant."""
        ...

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts that `from_files` makes the same approximation of."""
        ...


@dataclass(frozen=True)
class StoredDraws:
    """Draws that exist already: further ones are taken from them.

    Parameters
    ----------
    mean : dict
        Standard latents.
    pool : dict
        Deviations from it, stacked along a leading axis.
    refusal : str
        Why they cannot be weighed against the exact posterior.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.gaussian import StoredDraws
    >>> drawn = StoredDraws({"x": np.zeros(())}, {"x": np.arange(3.0)}).draw(None, n=3, seed=1, stream=0)
    >>> print(np.sort(drawn.deviations["x"]))
    [0. 1. 2.]
    """

    mean: dict[str, Any]
    pool: dict[str, Any]
    refusal: str = "these are draws of the posterior itself, with no density to weigh them by."
    mcse: dict[str, float] = field(default_factory=dict)

    @classmethod
    def point(cls, mean: dict[str, Any]) -> "StoredDraws":
        """A point estimate."""
        return cls(mean, _tree.stacked(_tree.zeros(mean)), "a point estimate has no samples to weigh.")

    def __len__(self) -> int:
        return next(iter(self.pool.values())).shape[0]

    def standard(self, problem: Problem, deviations: Any) -> Drawn:
        """They are standard already."""
        return Drawn(self.mean, deviations)

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` of the draws, each at most once if there are enough; all of them in their order."""
        count, rng = len(self), np.random.default_rng((seed, stream))
        index = np.arange(n) if n == count else rng.choice(count, n, replace=n > count)
        return Drawn(self.mean, {name: np.asarray(x)[index] for name, x in self.pool.items()})

    def log_density(self, problem: Problem, centre: Any, deviations: Any) -> np.ndarray:
        """There is none."""
        raise ValueError(self.refusal)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        return {"centre": self.mean, "pool": self.pool}, {"refusal": self.refusal}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "StoredDraws":
        """What `to_files` wrote."""
        return cls(arrays["centre"], arrays["pool"], facts["refusal"])
