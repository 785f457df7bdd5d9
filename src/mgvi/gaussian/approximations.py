"""What a posterior is approximated by: the distribution of its latents.

A problem, a number and a seed come in; standard latents from that distribution go out, and its density at given ones.
It must not know how the approximation was found.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _files, _tree
from mgvi._compile import number, program
from mgvi.gaussian.curvature import Keys
from mgvi.gaussian.dense import white
from mgvi.gaussian.krylov import Drawing, KrylovCurvature, drawn_into, empty_room, preconditioned
from mgvi.gaussian.samplers import MGVI, Sampler
from mgvi.linalg import Stop, inverse_root
from mgvi.pairs import Pairs
from mgvi.problem import Chart, Problem
from mgvi.status import Status

_EXACT = 2000  # latents up to which final draws are solved to the accuracy of the arithmetic


class Drawn(NamedTuple):
    """Standard latents: their centre, deviations from it, stacked, and how drawing them ended."""

    centre: Any
    deviations: Any
    status: Status


class Approximation(Protocol):
    """What a Posterior needs to know of the distribution of its latents."""

    @property
    def refusal(self) -> str | None:
        """Why samples cannot be weighed against the exact posterior, or None if they can."""
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


@program("samples")
def _standard_many(problem, mean, deviations):
    """The standard latent of a mean in a chart, and how standard latents of points around it deviate from it."""
    centre = problem.located(mean)[0]
    apart = lambda d: _tree.subtract(problem.located(_tree.add(mean, d))[0], centre)
    return centre, jax.vmap(apart)(deviations)


@program("samples")
def _charted_many(problem, mean, deviations, centre):
    """Deviations from the mean in a chart of standard latents around a centre, and log-determinants of that map."""

    def one(deviation):
        point, volume = problem.charted(_tree.add(centre, deviation))
        return _tree.subtract(point, mean), volume

    return jax.vmap(one)(deviations)


def standard(problem: Problem, mean: Any, chart: Chart, deviations: Any, status: Status = Status.CONVERGED) -> Drawn:
    """What was drawn around a mean in a chart, in standard latents."""
    if not chart:
        return Drawn(mean, deviations, status)
    centre, parts, here = mean, [], problem.in_chart(chart)
    for some, count in _tree.batches(deviations, problem.budget.evaluated):
        centre, found = problem.static.compiled.call(_standard_many, here, mean, some)
        parts.append(_tree.first_of(found, count))
    return Drawn(centre, _tree.joined(parts), status)


def _charted(problem, mean, chart, centre, deviations) -> tuple[np.ndarray, np.ndarray]:
    """Rows of deviations from a mean in a chart, and log-determinants."""
    rehearses = problem is not None and problem.static.compiled.rehearses
    volumes = np.zeros(0 if rehearses else len(next(iter(deviations.values()))))
    if chart:
        parts, here = [], problem.in_chart(chart)
        for some, count in _tree.batches(deviations, problem.budget.evaluated):
            found = problem.static.compiled.call(_charted_many, here, mean, some, centre)
            parts.append(found if rehearses else _tree.first_of(_tree.on_host(found), count))
        deviations, volumes = _tree.joined(parts)
    if rehearses:
        return np.zeros((0, 0)), volumes
    return _tree.to_rows(_tree.on_host(deviations)).astype(np.float64), np.asarray(volumes, np.float64)


@dataclass(frozen=True)
class DenseGaussian:
    """A Gaussian whose precision is a matrix.

    Parameters
    ----------
    mean : dict
        In the chart.
    precision : array, or a function that makes it when it is needed
        In the order of the leaves of the latent.
    chart : dict
        The coordinates in which it is Gaussian; by default the standard latents.
    free : dict, optional
        1 for each latent site that varies, 0 for each that has no deviation.
    antithetic : bool
        Whether samples come in pairs that are mirror images in the chart.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.gaussian import DenseGaussian
    >>> gaussian = DenseGaussian({"x": np.zeros(2)}, 0.25 * np.eye(2))
    >>> print(gaussian.log_density(None, {"x": np.zeros(2)}, {"x": np.array([[2.0, 2.0]])}))
    [-1.]
    """

    mean: Any
    precision: Any
    chart: Chart = field(default_factory=dict)
    free: dict[str, Any] | None = None
    antithetic: bool = True

    @property
    def refusal(self) -> str | None:
        """None: samples can be weighed."""
        return None

    def standard(self, problem: Problem, deviations: Any) -> Drawn:
        """Standard latents of deviations from the mean in the chart."""
        return standard(problem, self.mean, self.chart, deviations)

    @cached_property
    def matrix(self) -> np.ndarray:
        """The precision."""
        return self.precision() if callable(self.precision) else self.precision

    @cached_property
    def _root(self) -> np.ndarray:
        return inverse_root(np.asarray(self.matrix, np.float64))

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` standard latents."""
        keys = Keys(seed, stream, -(-n // 2) if self.antithetic else n)
        make = lambda: _tree.from_rows(white(keys, _tree.size(self.mean)) @ self._root, problem.latent)
        compiled = problem.static.compiled
        deviations = compiled.on_host(make, _tree.shapes_of_stack(problem.latent, n))
        if not compiled.rehearses:
            found = Pairs(
                _tree.multiply_sites(self.free, deviations) if self.free else deviations, None, self.antithetic
            )
            deviations = {name: d[:n] for name, d in found.both().items()}
        return standard(problem, self.mean, self.chart, deviations)

    def log_density(self, problem: Problem, centre: Any, deviations: Any) -> np.ndarray:
        """Logarithm of the density of standard latents, up to a constant."""
        rows, volumes = _charted(problem, self.mean, self.chart, centre, deviations)
        return volumes - 0.5 * np.einsum("ij,ij->i", rows @ self.matrix, rows) if rows.size else volumes

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        groups = {"gaussian": self.mean, "chart": _files.flattened(self.chart), "matrix": {"precision": self.matrix}}
        return {**groups, **({"free": self.free} if self.free else {})}, {"antithetic": self.antithetic}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "DenseGaussian":
        """What `to_files` wrote."""
        chart = _files.nested(arrays.get("chart", {}))
        matrix = arrays["matrix"]["precision"]
        return cls(arrays["gaussian"], matrix, chart, arrays.get("free"), facts["antithetic"])


@dataclass(frozen=True)
class KrylovGaussian:
    """A Gaussian whose precision is the Fisher metric, which is only multiplied with.

    Parameters
    ----------
    mean : dict
        In the chart.
    chart : dict
        The coordinates in which it is Gaussian; by default the standard latents.
    sampler : Sampler
        How deviations are paired.
    free : dict, optional
        1 for each latent site that varies, 0 for each that has no deviation.
    information : dict
        Information of the data, by observed site, that takes the place of that at the mean.
    thorough : bool
        Whether solves are long enough for the larger preconditioner.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.gaussian import KrylovGaussian
    >>> KrylovGaussian({"x": jnp.zeros(2)}).refusal is None
    True
    """

    mean: Any
    chart: Chart = field(default_factory=dict)
    sampler: Sampler = field(default_factory=MGVI)
    free: dict[str, Any] | None = None
    information: dict[str, Any] = field(default_factory=dict)
    thorough: bool = False

    @property
    def refusal(self) -> str | None:
        """None: samples can be weighed."""
        return None

    def standard(self, problem: Problem, deviations: Any) -> Drawn:
        """Standard latents of deviations from the mean in the chart."""
        return standard(problem, self.mean, self.chart, deviations)

    def _curvature(self, problem):
        free = self.free or dict.fromkeys(problem.latent, number(1.0))
        return KrylovCurvature(problem.in_chart(self.chart), self.mean, free, information=self.information)

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` standard latents, by solving linear systems."""
        problem = problem.matrix_free()
        count = -(-n // self.sampler.paired({}).each)
        curvature, _ = preconditioned(self._curvature(problem), thorough=self.thorough)
        keys = Keys(seed, stream, max(count, problem.budget.most))  # as in a fit: nothing is compiled anew
        room = empty_room(problem, keys.count)
        what = Drawing(0, count, _final_stop(problem))
        deviations, reports, _ = drawn_into(curvature, room, keys, what, coupled=self.sampler.coupled)
        if problem.static.compiled.rehearses:
            return standard(problem, self.mean, self.chart, deviations)
        worst = Status(max(int(report.status.max()) for report in jax.device_get(reports)))
        deviations = {name: d[:n] for name, d in self.sampler.paired(deviations).both(count).items()}
        return standard(problem, self.mean, self.chart, deviations, worst)

    def log_density(self, problem: Problem, centre: Any, deviations: Any) -> np.ndarray:
        """Logarithm of the density of standard latents, up to a constant."""
        rows, volumes = _charted(problem, self.mean, self.chart, centre, deviations)
        if not rows.size:  # a rehearsal
            return volumes
        curvature, parts = self._curvature(problem), []
        for some, count in _tree.batches(_tree.from_rows(rows, problem.latent), problem.budget.evaluated):
            found = problem.static.compiled.call(_products, curvature, some)
            parts.append(_tree.to_rows(_tree.on_host(found))[:count])
        return volumes - 0.5 * np.sum(np.concatenate(parts) * rows, axis=1, dtype=np.float64)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        groups = {"gaussian": self.mean, "chart": _files.flattened(self.chart), "free": self.free}
        options = {name: getattr(self.sampler, name) for name in ("antithetic", "coupled")}
        groups = {name: tree for name, tree in {**groups, "information": self.information}.items() if tree}
        return groups, {"thorough": self.thorough, **options}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "KrylovGaussian":
        """What `to_files` wrote."""
        sampler = MGVI(facts["antithetic"], facts["coupled"])
        chart, information = _files.nested(arrays.get("chart", {})), arrays.get("information", {})
        return cls(arrays["gaussian"], chart, sampler, arrays.get("free"), information, facts["thorough"])


@program()
def _products(curvature, stack):
    return curvature.metric.mv_stack(stack)


@dataclass(frozen=True)
class DiagonalGaussian:
    """A Gaussian without correlations.

    Parameters
    ----------
    mean : dict
        Standard latents.
    sd : dict
        Standard deviation of every latent.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.gaussian import DiagonalGaussian
    >>> gaussian = DiagonalGaussian({"x": np.zeros(2)}, {"x": np.array([1.0, 2.0])})
    >>> print(gaussian.log_density(None, {"x": np.zeros(2)}, {"x": np.array([[1.0, 2.0]])}))
    [-1.]
    """

    mean: dict[str, Any]
    sd: dict[str, Any]

    @property
    def refusal(self) -> str | None:
        """None: samples can be weighed."""
        return None

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` standard latents, in antithetic pairs."""
        rows = white(Keys(seed, stream, -(-n // 2)), _tree.size(self.mean))
        noise = _tree.from_rows(np.concatenate([rows, -rows])[:n], problem.latent)
        return Drawn(self.mean, {name: x * np.asarray(self.sd[name]) for name, x in noise.items()}, Status.CONVERGED)

    def log_density(self, problem: Problem, centre: Any, deviations: Any) -> np.ndarray:
        """Logarithm of the density of standard latents, up to a constant."""
        scaled = {name: np.asarray(d) / np.asarray(self.sd[name]) for name, d in deviations.items()}
        return -0.5 * np.sum(_tree.to_rows(scaled).astype(np.float64) ** 2, axis=1)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        return {"gaussian": self.mean, "sd": self.sd}, {}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "DiagonalGaussian":
        """What `to_files` wrote."""
        return cls(arrays["gaussian"], arrays["sd"])


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

    def standard(self, problem: Problem, deviations: Any) -> Drawn:
        """They are standard already."""
        return Drawn(self.mean, deviations, Status.CONVERGED)

    @classmethod
    def point(cls, mean: dict[str, Any]) -> "StoredDraws":
        """A point estimate."""
        return cls(mean, _tree.stacked(_tree.zeros(mean)), "a point estimate has no samples to weigh.")

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` of the draws, each at most once if there are enough."""
        count = next(iter(self.pool.values())).shape[0]
        index = np.random.default_rng((seed, stream)).choice(count, n, replace=n > count)
        return Drawn(self.mean, {name: np.asarray(x)[index] for name, x in self.pool.items()}, Status.CONVERGED)

    def log_density(self, problem: Problem, centre: Any, deviations: Any) -> np.ndarray:
        """There is none."""
        raise ValueError(self.refusal)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        return {"gaussian": self.mean, "pool": self.pool}, {"refusal": self.refusal}

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "StoredDraws":
        """What `to_files` wrote."""
        return cls(arrays["gaussian"], arrays["pool"], facts["refusal"])


APPROXIMATIONS = {cls.__name__: cls for cls in (DenseGaussian, KrylovGaussian, DiagonalGaussian, StoredDraws)}


def _final_stop(problem: Problem) -> Stop:
    """When a final draw ends: near the accuracy of the arithmetic for few latents, at 1 % of an sd for many."""
    size = _tree.size(problem.latent)
    double = any(leaf.dtype == jnp.float64 for leaf in problem.latent.values())
    if size < _EXACT:
        return Stop(1e-10 if double else 1e-6, 0.0, 10 * size + 20)
    return Stop(1e-3, 0.1, 4000)  # of a preconditioned residual, in which all directions count alike, and of the energy
