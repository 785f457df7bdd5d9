"""One round: draw deviations around the mean, move the mean, and estimate how uncertain that move was.

A mean, the last deviations, keys and settings come in; the new mean, its deviations and a record go out.
It must not know why the settings are what they are, nor how deviations are drawn.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi._compile import numbers
from mgvi.fit.schedule import Settings
from mgvi.linalg import Stop, global_sites
from mgvi.minimizers import Limits, NewtonReport
from mgvi.objective import SampledKL
from mgvi.problem import Problem, in_rows
from mgvi.samplers import Draws
from mgvi.status import Status


class State(NamedTuple):
    """Where a fit stands: the latent mean, and deviations from it without their antithetic partners."""

    mean: dict[str, Any]
    deviations: dict[str, Any] | None = None  # None before the first round
    move: dict[str, Any] | None = None  # of a small problem's mean in the last round, in rms deviations of each entry
    coordinates: dict[str, Any] | None = None  # that mean and deviations are in, by site; None: the standard ones
    block: dict[str, Any] | None = None  # the last metric: of a small problem whole, of a large one its global sites
    known: dict[str, Any] | None = None  # information of a large problem's data that the last draws were made with
    diagonal: dict[str, Any] | None = None  # of a large problem's last preconditioner, whose matrix is in the block
    chosen: dict[str, Any] | None = None  # where the entries are that this matrix is for
    pairs: int = 0  # how many deviations count; the rest are zeros


class Knobs(NamedTuple):
    """Settings of the minimisation that may change without recompilation."""

    beta: Any  # power of the likelihood
    pairs: Any
    newton: Limits
    lead: Any  # of a large problem's global latents


class Moved(NamedTuple):
    """What moving the mean did."""

    kl: Any
    newton: NewtonReport
    finite: Any
    step: dict[str, Any]  # mean square of the mean's move, by site


class Squares(NamedTuple):
    """Mean squares over the pairs and entries of each site."""

    deviations: dict[str, Any]
    moves: dict[str, Any]  # to where a pair alone would have the mean, from where all do
    changes: dict[str, Any]  # of the deviations


class Measured(NamedTuple):
    """How far a round went, by site."""

    shift: dict[str, Any]  # rms change of the mean over rms deviation
    noise: dict[str, Any] | None = None  # standard error of the mean over rms deviation
    change: dict[str, Any] | None = None  # rms change of the deviations over their rms
    along: Any = None  # the move in terms of the last one: its share along it, its squared length


@partial(jax.jit, static_argnames=("antithetic", "minimizer", "batch"))
def _minimize(problem, mean, deviations, inverse, preconditioner, knobs: Knobs, free, *, antithetic, minimizer, batch):
    """Minimise the sampled KL over the mean; also what tells how the pairs scatter."""
    if inverse is not None:
        latent, (problem, rows, back) = problem.latent, in_rows(problem)
        mean = rows(jax.tree.map(lambda m: m[None], mean))[0]
        deviations = rows(deviations)
        inverse = rows(_tree.from_rows(rows(_tree.from_rows(inverse, latent)).T, latent))
        free = _tree.to_row({name: jnp.full(leaf.shape, free[name], leaf.dtype) for name, leaf in latent.items()})
    fixed = (problem, deviations, knobs.beta, free, inverse, preconditioner, antithetic)
    objective = SampledKL(*fixed, knobs.pairs, batch)
    new, known, newton_report = minimizer.minimize(objective, mean, knobs.newton)
    value, scatter = known.value, known.scatter
    finite = jnp.isfinite(value) & (newton_report.status != Status.NOT_FINITE)
    if inverse is None:
        few = global_sites(problem.static.latent)
        new = {name: mean[name] + knobs.lead * (x - mean[name]) if name in few else x for name, x in new.items()}
    else:
        new, mean = (jax.tree.map(lambda m: m[0], back(x[None])) for x in (new, mean))
        scatter = back(scatter)
    step = {name: jnp.mean((x - mean[name]) ** 2) for name, x in new.items()}
    return new, scatter, Moved(value, newton_report, finite, step)


@jax.jit
def located(problem, mean):
    """The standard-normal latent of a mean, and logarithms of the scales there."""
    return problem.located(mean)


def measured_by(step, squares: Squares, count, floor=0.0) -> Measured:
    """How far a round went, from the mean square of the mean's step and those of its pairs."""
    rms = {name: np.sqrt(x) for name, x in squares.deviations.items()}
    # 1, the prior's, for a site that has no deviations.
    spread = {name: np.where(r > 0, np.maximum(r, floor), 1.0) for name, r in rms.items()}
    shift = {name: np.sqrt(x) / spread[name] for name, x in step.items()}
    noise = {name: np.sqrt(x / max(count - 1, 1)) / spread[name] for name, x in squares.moves.items()}
    change = {name: np.sqrt(x) / np.where(rms[name] > 0, rms[name], 1.0) for name, x in squares.changes.items()}
    return Measured(shift, noise, change)


class Rounds:
    """Runs the rounds of one fit; what is the same for problems of any size."""

    def __init__(self, problem: Problem, sampler, minimizer, draws: Draws, moving: dict[str, Any], plan: Any):
        self._problem = problem
        self._sampler = sampler
        self._draws = draws
        self._moving = moving
        self._plan = plan
        self.state: State  # from `start`, or a checkpoint
        self._static = {"antithetic": sampler.antithetic, "minimizer": minimizer, "batch": self._batch()}

    step = ""  # that a round is at, for those who wait

    def _size(self) -> int:
        return _tree.size(self._problem.latent) + _tree.size(self._problem.data)

    def _batch(self) -> int:
        """How many pairs are taken together while the mean moves."""
        raise NotImplementedError

    def _effort(self) -> int:
        """How much the compilation of what moves the mean is worth."""
        raise NotImplementedError

    def keys(self, seed: int, stream: int, pairs: int) -> Any:
        """A key for each deviation of a round."""
        raise NotImplementedError

    def start(self, keys) -> State:
        """The state before the first round."""
        raise NotImplementedError

    def approximation(self, settings: Settings, final: bool) -> dict[str, Any]:
        """What, beside the sampler, decides the deviations that are drawn around the mean of the state.

        `settings` are those of the last round; if `final`, all that its deviations told is taken into account.
        """
        raise NotImplementedError

    def _round(self, keys, settings: Settings, shrink: float) -> tuple[State, Any, Moved, Measured]:
        """The state after a round, what the solves did, what moving the mean did, and how far it went."""
        raise NotImplementedError

    def run(self, keys, settings: Settings, shrink: float) -> tuple[State, dict[str, Any]]:
        """The state after a round, and a record of plain numbers.

        Whether that is the `state` from now on, the caller decides.
        """
        state, reports, moved, measured = self._round(keys, settings, shrink)
        return state, _record(*jax.device_get((reports, moved, measured)))

    def _minimized(self, *given):
        """The moved mean, what tells how the pairs scatter, and what moving it did."""
        return self._problem.static.compiled.call(*self._minimization(*given), effort=self._effort(), **self._static)

    def _prepare(self, *given):
        """Begin to compile what will move the mean, given the shapes of what it will be given."""
        self._problem.static.compiled.prepare(*self._minimization(*given), effort=self._effort(), **self._static)

    def _minimization(self, mean, deviations, inverse, preconditioner, settings):
        """The program that moves the mean, and its arguments."""
        cg = Stop(settings.newton_residual, 0.0, settings.newton_cg, settings.newton_share)
        limits = Limits(settings.newton_steps, settings.newton_decrement, cg, settings.newton_damping)
        knobs = numbers(Knobs(settings.beta, settings.pairs, limits, settings.lead))
        return _minimize, self._draws.problem, mean, deviations, inverse, preconditioner, knobs, self._moving

    def _start_coordinates(self, mean, small):
        """Coordinates that are the latents themselves; for the sites that are `small` also sums of latents."""
        if not self._problem.static.scaled or not self._sampler.draws:  # a maximum is one of standard coordinates only
            return {}
        logs = jax.eval_shape(self._problem.log_scales, mean)
        coordinates = {
            name: site.start(np.zeros(logs[name].shape, logs[name].dtype), site.shares_scale and name in small)
            for name, site in self._problem.static.scaled.items()
        }
        # These are the latents themselves, wherever the origin is: the program that later rounds need tells it.
        problem = self._problem.in_coordinates(coordinates)
        _, logs = _tree.on_host(self._problem.static.compiled.call(located, problem, mean, effort=0))
        return {name: {**at, "origin": logs[name]} for name, at in coordinates.items()}


def _record(reports, moved, measured) -> dict[str, Any]:
    def worst(by_site):
        return None if by_site is None else float(max(by_site.values()))

    return {
        "kl": float(moved.kl),
        "shift": worst(measured.shift),
        "change": worst(measured.change),
        "along": None if measured.along is None else list(measured.along),
        "noise": worst(measured.noise),
        "draw_cg": max((int(report.iterations.max()) for report in reports), default=0),
        "draw_status": max((int(report.status.max()) for report in reports), default=0),
        "newton_steps": int(moved.newton.steps),
        "newton_cg": int(moved.newton.cg_iterations),
        "newton_status": int(moved.newton.status),
        "damping": float(moved.newton.damping),
        "decrement": float(moved.newton.decrement),
        "shortest_step": float(moved.newton.shortest),
        "finite": bool(moved.finite) and all(math.isfinite(float(x)) for x in measured.shift.values()),
    }
