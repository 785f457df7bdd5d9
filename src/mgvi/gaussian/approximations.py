"""What a posterior is approximated by: the distribution of its latents.

A problem, a number and a seed come in; standard latents from that distribution go out, and its density at given ones.
It must not know how the approximation was found.
"""

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _files, _tree
from mgvi._compile import number, program
from mgvi.gaussian.curvature import Keys
from mgvi.gaussian.dense import white
from mgvi.gaussian.draws import Drawn
from mgvi.gaussian.krylov import Drawing, KrylovCurvature, drawn_into, empty_room, preconditioned
from mgvi.gaussian.samplers import MGVI
from mgvi.linalg import Stop, inverse_root, one_thread_for
from mgvi.pairs import Pairs
from mgvi.problem import Chart, Problem
from mgvi.status import Status

_EXACT = 2000  # latents up to which final draws are solved to the accuracy of the arithmetic


@program("once")
def _standard_many(problem, mean, deviations):
    """The standard latent of a mean in a chart, and how standard latents of points around it deviate from it."""
    centre = problem.located(mean)[0]
    apart = lambda d: _tree.subtract(problem.located(_tree.add(mean, d))[0], centre)
    return centre, jax.vmap(apart)(deviations)


@program("once")
def _charted_many(problem, mean, deviations, centre):
    """Deviations from the mean in a chart of standard latents around a centre, and log-determinants of that map."""

    def one(deviation):
        point, volume = problem.charted(_tree.add(centre, deviation))
        return _tree.subtract(point, mean), volume

    return jax.vmap(one)(deviations)


class _InChart:
    """A Gaussian in a chart: the way to standard latents and back, and to files and back."""

    mean: Any
    chart: Chart
    mcse: dict[str, float]

    @property
    def refusal(self) -> str | None:
        """None: samples can be weighed."""
        return None

    def standard(self, problem: Problem, deviations: Any, status: Status = Status.CONVERGED) -> Drawn:
        """Standard latents, on the host, of deviations from the mean in the chart."""
        if not self.chart:
            return Drawn(self.mean, deviations, status)
        centre, parts, here = self.mean, [], problem.in_chart(self.chart)
        rehearses = problem.static.compiled.rehearses
        for some, count in _tree.batches(deviations, problem.budget.evaluated):
            centre, found = problem.static.compiled.call(_standard_many, here, self.mean, some)
            # The device has no room for all of them beside those that they are made of.
            parts.append(found if rehearses else _tree.first_of(_tree.on_host(found), count))
        return Drawn(centre, _tree.joined(parts), status)

    def log_density(self, problem: Problem, centre: Any, deviations: Any) -> np.ndarray:
        """Logarithm of the density of standard latents, up to a constant."""
        rehearses, volumes = problem is not None and problem.static.compiled.rehearses, 0.0
        if self.chart:
            parts, here = [], problem.in_chart(self.chart)
            for some, count in _tree.batches(deviations, problem.budget.evaluated):
                found = problem.static.compiled.call(_charted_many, here, self.mean, some, centre)
                parts.append(found if rehearses else _tree.first_of(_tree.on_host(found), count))
            deviations, volumes = _tree.joined(parts)
        if rehearses:
            return np.zeros(0)
        deviations = {name: np.asarray(d) / self._width(name) for name, d in deviations.items()}
        rows = np.asarray(_tree.to_rows(deviations), np.float64)
        return np.asarray(volumes, np.float64) - 0.5 * self._quadratic(problem, rows)

    def _quadratic(self, problem: Problem, rows: np.ndarray) -> np.ndarray:
        """d^T M d for rows of deviations in the chart."""
        raise NotImplementedError

    def _width(self, site: str) -> float:
        """By how much deviations are wider, for the Monte Carlo error of the mean."""
        return math.sqrt(1 + self.mcse.get(site, 0.0) ** 2)

    def _wider(self, deviations: Any) -> Any:
        return (
            {name: d * d.dtype.type(self._width(name)) for name, d in deviations.items()} if self.mcse else deviations
        )

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        groups, facts = {}, {}
        for name in (f.name for f in fields(self)):  # pyright: ignore[reportArgumentType]
            value = self._stored(name)
            if name == "chart":
                groups[name] = _files.flattened(value)
            elif isinstance(value, np.ndarray):
                groups[name] = {"": value}
            elif isinstance(value, dict) and name != "mcse":
                groups[name] = value
            else:
                facts[name] = value
        return {name: tree for name, tree in groups.items() if tree}, facts

    def _stored(self, name: str) -> Any:
        return getattr(self, name)

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> Any:
        """What `to_files` wrote."""
        groups = {f.name: arrays[f.name] for f in fields(cls) if f.name in arrays}  # pyright: ignore
        trees = {name: tree[""] if set(tree) == {""} else tree for name, tree in groups.items()}
        return cls(**{**facts, **trees, "chart": _files.nested(groups.get("chart", {}))})


@dataclass(frozen=True)
class DenseGaussian(_InChart):
    """A Gaussian whose precision is known entry by entry.

    Parameters
    ----------
    mean : dict
        In the chart.
    precision : array, dict, or a function that makes an array when it is needed
        A matrix in the order of the leaves of the latent, or its diagonal, by site.
    chart : dict
        The coordinates in which it is Gaussian; by default the standard latents.
    free : dict, optional
        1 for each latent site that varies, 0 for each that has no deviation.
    antithetic : bool
        Whether samples come in pairs that are mirror images in the chart.
    mcse : dict
        Monte Carlo error of the mean, by latent site, in its rms deviations; samples are wider by it.

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
    mcse: dict[str, float] = field(default_factory=dict)

    @cached_property
    def matrix(self) -> np.ndarray:
        """The precision, or its diagonal as a row."""
        if isinstance(self.precision, dict):
            return np.asarray(_tree.to_row(_tree.on_host(self.precision)), np.float64)
        return np.asarray(self.precision() if callable(self.precision) else self.precision, np.float64)

    @cached_property
    def _root(self) -> np.ndarray:
        return inverse_root(self.matrix)

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` standard latents."""
        keys = Keys(seed, stream, -(-n // 2) if self.antithetic else n)

        def make():
            noise = white(keys, _tree.size(self.mean))
            with one_thread_for(noise.shape[1]):
                rows = noise / np.sqrt(self.matrix) if self.matrix.ndim == 1 else noise @ self._root
            found = _tree.from_rows(rows, problem.latent)
            found = Pairs(_tree.multiply_sites(self.free, found) if self.free else found, mirrored=self.antithetic)
            return self._wider({name: d[:n] for name, d in found.both().items()})

        like = _tree.shapes_of_stack(problem.latent, n)
        return self.standard(problem, problem.static.compiled.on_host(make, like))

    def _quadratic(self, problem, rows):
        with one_thread_for(rows.shape[1]):
            return np.sum((rows * self.matrix if self.matrix.ndim == 1 else rows @ self.matrix) * rows, axis=1)

    def _stored(self, name):
        is_made = name == "precision" and not isinstance(self.precision, dict)
        return self.matrix if is_made else super()._stored(name)


@dataclass(frozen=True)
class KrylovGaussian(_InChart):
    """A Gaussian whose precision is the Fisher metric, which is only multiplied with.

    Parameters
    ----------
    mean : dict
        In the chart.
    chart : dict
        The coordinates in which it is Gaussian; by default the standard latents.
    free : dict, optional
        1 for each latent site that varies, 0 for each that has no deviation.
    information : dict
        Information of the data, by observed site, that takes the place of that at the mean.
    thorough : bool
        Whether solves are long enough for the larger preconditioner.
    antithetic, coupled : bool
        As for `MGVI`.
    mcse : dict
        Monte Carlo error of the mean, by latent site, in its rms deviations; samples are wider by it.
    """

    mean: Any
    chart: Chart = field(default_factory=dict)
    free: dict[str, Any] | None = None
    information: dict[str, Any] = field(default_factory=dict)
    thorough: bool = False
    antithetic: bool = True
    coupled: bool = True
    mcse: dict[str, float] = field(default_factory=dict)

    def _curvature(self, problem):
        free = self.free or dict.fromkeys(problem.latent, number(1.0))
        return KrylovCurvature(problem.in_chart(self.chart), self.mean, free, information=self.information)

    def draw(self, problem: Problem, n: int, seed: int, stream: int) -> Drawn:
        """`n` standard latents, by solving linear systems."""
        problem, sampler = problem.matrix_free(), MGVI(self.antithetic, self.coupled)
        count = -(-n // (2 if self.antithetic else 1))
        curvature, _ = preconditioned(self._curvature(problem), thorough=self.thorough)
        keys = Keys(seed, stream, max(count, problem.budget.most))  # as in a fit: nothing is compiled anew
        room, what = empty_room(problem, keys.count), Drawing(0, count, _final_stop(problem))
        found, reports, _ = drawn_into(curvature, room, keys, what, coupled=self.coupled)
        if problem.static.compiled.rehearses:
            return self.standard(problem, found)
        worst = Status(max(int(report.status.max()) for report in jax.device_get(reports)))
        found = self._wider(found)
        found = {name: d[:n] for name, d in sampler.paired(curvature, found).both(count).items()}
        return self.standard(problem, found, worst)

    def _quadratic(self, problem, rows):
        curvature, parts = self._curvature(problem), []
        for some, count in _tree.batches(_tree.from_rows(rows, problem.latent), problem.budget.evaluated):
            found = problem.static.compiled.call(_products, curvature, some)
            parts.append(_tree.to_rows(_tree.on_host(found))[:count])
        return np.sum(np.concatenate(parts) * rows, axis=1, dtype=np.float64)


@program()
def _products(curvature, stack):
    return curvature.metric.mv_stack(stack)


def _final_stop(problem: Problem) -> Stop:
    """When a final draw ends: near the accuracy of the arithmetic for few latents, at 1 % of an sd for many."""
    size = _tree.size(problem.latent)
    double = any(leaf.dtype == jnp.float64 for leaf in problem.latent.values())
    if size < _EXACT:
        return Stop(1e-10 if double else 1e-6, 0.0, 10 * size + 20)
    return Stop(1e-3, 0.1, 4000)  # of a preconditioned residual, in which all directions count alike, and of the energy
