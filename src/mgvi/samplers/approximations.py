"""What a posterior was approximated by: the distribution of its deviations.

A problem, a mean and a seed come in; deviations from that distribution go out, and its density at given ones.
It must not know how the approximation was found.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi.linalg import Stop
from mgvi.problem import Problem
from mgvi.samplers.draws import Draws, keys_at_once, most_pairs
from mgvi.samplers.mgvi import MGVI, Point, with_partners
from mgvi.status import Status


class Approximation(Protocol):
    """What a Posterior needs to know of the distribution of its deviations."""

    @property
    def refusal(self) -> str | None:
        """Why samples cannot be weighed against the exact posterior, or None if they can."""
        ...

    def draw(self, problem: Problem, mean: Any, n: int, seed: int, stream: int) -> tuple[Any, Status]:
        """`n` deviations, stacked, and how drawing them ended."""
        ...

    def quadratic(self, problem: Problem, mean: Any, deviations: Any) -> np.ndarray:
        """-2 log-density of each deviation, up to a constant."""
        ...

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts that `from_files` makes the same approximation of."""
        ...


@dataclass(frozen=True)
class InverseMetric:
    """A Gaussian whose covariance is the inverse of the Fisher metric; it is never formed for large problems.

    Parameters
    ----------
    sampler : MGVI or Point
        How deviations are drawn.
    free : dict, optional
        1 for each latent site that varies, 0 for each that has no deviation.
    spread : dict, optional
        Deviations for a small problem's curvature: the Hessian averaged over them takes the place of the Fisher metric
        at the mean.
    known : dict, optional
        Information of a large problem's data, by observed site, that takes the place of that at the mean.
    thorough : bool
        Whether solves are long enough for the larger preconditioner.

    Examples
    --------
    >>> from mgvi.samplers import InverseMetric, Point
    >>> InverseMetric().refusal is None
    True
    >>> InverseMetric(Point()).refusal
    'a point estimate has no samples to weigh.'
    """

    sampler: Any = field(default_factory=MGVI)
    free: dict[str, Any] | None = None
    spread: dict[str, Any] | None = None
    known: dict[str, Any] | None = None
    thorough: bool = False
    _last: list = field(default_factory=list, init=False, repr=False, compare=False)  # a curvature and where it was

    @property
    def refusal(self) -> str | None:
        """Why samples cannot be weighed, or None."""
        return None if self.sampler.draws else "a point estimate has no samples to weigh."

    def draw(self, problem: Problem, mean: Any, n: int, seed: int, stream: int) -> tuple[Any, Status]:
        """`n` deviations, by solving linear systems."""
        antithetic = self.sampler.antithetic
        draws = Draws(problem, self.sampler, keys_at_once(problem), self.free)
        count = -(-n // 2) if antithetic else n
        status = Status.CONVERGED
        if draws.dense:
            deviations = draws.colour(self._curvature(draws, mean), draws.keys(seed, stream, count))
        else:
            preconditioner = None
            if self.sampler.draws:
                preconditioner, _ = draws.preconditioner(mean, known=self.known, thorough=self.thorough)
            keys = draws.keys(seed, stream, max(count, most_pairs(problem)))  # as a fit has: nothing is compiled anew
            fixed = (mean, keys, _accurate(problem))
            deviations, report = draws.draw(*fixed, known=self.known, preconditioner=preconditioner, count=count)
            status = Status(int(report.status.max()))
        return {name: d[:n] for name, d in with_partners(deviations, antithetic, count).items()}, status

    def quadratic(self, problem: Problem, mean: Any, deviations: Any) -> np.ndarray:
        """Deviations times metric times deviations, for small problems."""
        draws = Draws(problem, self.sampler, keys_at_once(problem), self.free)
        return draws.metric(self._curvature(draws, mean)).quadratic(_tree.on_host(deviations))

    def _curvature(self, draws, mean):
        """The curvature at a mean; the last one is kept, for whoever weighs what was drawn."""
        if not self._last or self._last[0] is not mean or self._last[1] is not draws.problem:
            self._last[:] = mean, draws.problem, draws.curvature(mean, spread=self.spread)
        return self._last[2]

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        groups = {"spread": self.spread, "free": self.free, "known": self.known or None}
        facts = {"sampler": type(self.sampler).__name__, **dataclasses.asdict(self.sampler)}
        return {name: tree for name, tree in groups.items() if tree is not None}, {**facts, "thorough": self.thorough}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "InverseMetric":
        """What `to_files` wrote."""
        options = dict(facts)
        thorough = options.pop("thorough")
        sampler = {"MGVI": MGVI, "Point": Point}[options.pop("sampler")](**options)
        return cls(sampler, arrays.get("free"), arrays.get("spread"), arrays.get("known"), thorough)


@dataclass(frozen=True)
class DiagonalGaussian:
    """A Gaussian without correlations.

    Parameters
    ----------
    sd : dict
        Standard deviation of every latent.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.samplers import DiagonalGaussian
    >>> print(DiagonalGaussian({"x": np.array([1.0, 2.0])}).quadratic(None, None, {"x": np.array([[1.0, 2.0]])}))
    [2.]
    """

    sd: dict[str, Any]

    @property
    def refusal(self) -> str | None:
        """None: samples can be weighed."""
        return None

    def draw(self, problem: Problem, mean: Any, n: int, seed: int, stream: int) -> tuple[Any, Status]:
        """`n` deviations, in antithetic pairs."""
        noise = _tree.from_rows(_white(problem, n, seed, stream), problem.latent)
        return {name: x * np.asarray(self.sd[name]) for name, x in noise.items()}, Status.CONVERGED

    def quadratic(self, problem: Problem, mean: Any, deviations: Any) -> np.ndarray:
        """Squared length of the deviations in standard deviations."""
        scaled = {name: np.asarray(d) / np.asarray(self.sd[name]) for name, d in deviations.items()}
        return np.sum(_tree.to_rows(scaled).astype(np.float64) ** 2, axis=1)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        return {"sd": self.sd}, {}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "DiagonalGaussian":
        """What `to_files` wrote."""
        return cls(arrays["sd"])


@dataclass(frozen=True)
class DenseGaussian:
    """A Gaussian whose covariance is a matrix.

    Parameters
    ----------
    root : array
        L with covariance L L^T, invertible, in the order of the leaves of the latent.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.samplers import DenseGaussian
    >>> print(DenseGaussian(2.0 * np.eye(2)).quadratic(None, None, {"x": np.array([[2.0, 2.0]])}))
    [2.]
    """

    root: np.ndarray

    @property
    def refusal(self) -> str | None:
        """None: samples can be weighed."""
        return None

    def draw(self, problem: Problem, mean: Any, n: int, seed: int, stream: int) -> tuple[Any, Status]:
        """`n` deviations, in antithetic pairs."""
        rows = _white(problem, n, seed, stream) @ self.root.T
        return _tree.from_rows(rows, problem.latent), Status.CONVERGED

    def quadratic(self, problem: Problem, mean: Any, deviations: Any) -> np.ndarray:
        """Deviations times inverse covariance times deviations."""
        rows = _tree.to_rows(_tree.on_host(deviations)).astype(np.float64)
        return np.sum(np.linalg.solve(self.root, rows.T) ** 2, axis=0)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        return {"covariance": {"root": self.root}}, {}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "DenseGaussian":
        """What `to_files` wrote."""
        return cls(arrays["covariance"]["root"])


@dataclass(frozen=True)
class StoredDraws:
    """Draws that a chain made: further ones are taken from them.

    Parameters
    ----------
    pool : dict
        Deviations, stacked along a leading axis.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.samplers import StoredDraws
    >>> deviations, _ = StoredDraws({"x": np.arange(3.0)}).draw(None, None, n=3, seed=1, stream=0)
    >>> print(np.sort(deviations["x"]))
    [0. 1. 2.]
    """

    pool: dict[str, Any]

    @property
    def refusal(self) -> str | None:
        """Why samples cannot be weighed."""
        return "these are draws of the posterior itself, with no density to weigh them by."

    def draw(self, problem: Problem, mean: Any, n: int, seed: int, stream: int) -> tuple[Any, Status]:
        """`n` of the draws, each at most once if there are enough."""
        count = next(iter(self.pool.values())).shape[0]
        index = np.random.default_rng((seed, stream)).choice(count, n, replace=n > count)
        return {name: np.asarray(x)[index] for name, x in self.pool.items()}, Status.CONVERGED

    def quadratic(self, problem: Problem, mean: Any, deviations: Any) -> np.ndarray:
        """There is none."""
        raise ValueError(self.refusal)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        return {"pool": self.pool}, {}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "StoredDraws":
        """What `to_files` wrote."""
        return cls(arrays["pool"])


APPROXIMATIONS = {cls.__name__: cls for cls in (InverseMetric, DiagonalGaussian, DenseGaussian, StoredDraws)}


def _white(problem: Problem, n: int, seed: int, stream: int) -> np.ndarray:
    """Rows of standard normals, each of the first half with its negative in the second."""
    half = np.random.default_rng((seed, stream)).standard_normal((-(-n // 2), _tree.size(problem.latent)))
    return np.concatenate([half, -half])[:n]


def _accurate(problem: Problem) -> Stop:
    """When a final draw ends: near the accuracy of the arithmetic for small problems, at 1 % of an sd for others."""
    size = _tree.size(problem.latent)
    double = any(leaf.dtype == jnp.float64 for leaf in problem.latent.values())
    if size < 2000:
        return Stop(1e-10 if double else 1e-6, 0.0, 10 * size + 20)
    return Stop(1e-3, 0.1, 4000)  # of a preconditioned residual, in which all directions count alike, and of the energy
