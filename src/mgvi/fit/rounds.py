"""One round: draw deviations around the mean, move the mean, and estimate how uncertain that move was.

A state, keys and settings come in; the new state and a record of what happened go out.
It must not know why the settings are what they are, nor what a curvature is made of.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from mgvi import _files, _tree
from mgvi._compile import numbers
from mgvi.fit.records import AVERAGE, Record, RoundSettings
from mgvi.gaussian import Approximation, Curvature, Keys, Sampler
from mgvi.kl import Knobs, Moved, minimized
from mgvi.linalg import Preconditioner, Stop
from mgvi.newton import Limits
from mgvi.pairs import Pairs
from mgvi.problem import Chart, Problem, located

_TOLD_MOVE = 0.05  # sds: a shorter move tells nothing of how moves contract
MOST_CONTRACTION = 0.8  # of the moves of rounds with the same samples, that is believed


class Average(NamedTuple):
    """The average of the means of some rounds."""

    mean: dict[str, Any]
    rounds: int

    @classmethod
    def of(cls, so_far: "Average | None", mean: dict[str, Any]) -> "Average":
        """With one round more."""
        if so_far is None:
            return cls(mean, 1)
        rounds = so_far.rounds + 1
        return cls(_tree.add(so_far.mean, _tree.scale(1 / rounds, _tree.subtract(mean, so_far.mean))), rounds)


class State(NamedTuple):
    """Where a fit stands. Mean and pairs are in the chart."""

    mean: dict[str, Any]
    pairs: Any  # `Pairs`; None: their memory is being used for new ones
    chart: Chart
    count: int = 0  # pairs that count; the rest are zeros
    move: Any = None  # of the mean in the last round: of a large problem that of its global sites
    contraction: dict[str, float] | None = None  # of the moves of rounds with the same samples, by site
    weight: float = 1.0  # of that move: how far beyond it a dense problem's mean went
    errors: dict[str, float] | None = None  # of a large problem's mean, by site, as halves of the pairs tell them
    block: Any = None  # the last precision: of a dense problem whole, of a large one its global sites
    average: "Average | None" = None  # of the means of rounds with fresh samples
    information: dict[str, Any] | None = None  # of a large problem's data, that the last pairs were drawn with
    preconditioner: Preconditioner | None = None  # the last one of a large problem

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """Groups of arrays and plain facts."""
        groups: dict[str, Any] = {"mean": self.mean, "deviations": self.pairs.first, "partners": self.pairs.second}
        groups |= {"chart": _files.flattened(self.chart), "move": self.move, "information": self.information}
        made = self.preconditioner
        if made is not None:
            groups |= {"diagonal": made.diagonal, "chosen": made.chosen}
        block = {"block": self.block, "inverse": None if made is None else made.inverse}
        if self.average is not None:
            groups["average"] = self.average.mean
        groups["matrices"] = {name: x for name, x in block.items() if x is not None}
        rounds = 0 if self.average is None else self.average.rounds
        facts = {"count": self.count, "mirrored": self.pairs.mirrored, "averaged": rounds}
        facts |= {"contraction": self.contraction, "weight": self.weight, "errors": self.errors}
        return {name: tree for name, tree in groups.items() if tree}, facts

    @classmethod
    def from_files(cls, arrays: dict[str, dict[str, Any]], facts: dict) -> "State":
        """What `to_files` wrote."""
        made, matrices = None, arrays.get("matrices", {})
        if "diagonal" in arrays:
            made = Preconditioner(arrays["diagonal"], matrices.get("inverse"), arrays.get("chosen", {}))
        average = Average(arrays["average"], facts["averaged"]) if facts["averaged"] else None
        return cls(
            arrays["mean"],
            Pairs(arrays["deviations"], arrays.get("partners"), facts["mirrored"]),
            _files.nested(arrays.get("chart", {})),
            facts["count"],
            arrays.get("move"),
            facts["contraction"],
            facts["weight"],
            facts["errors"],
            matrices.get("block"),
            average,
            arrays.get("information"),
            made,
        )


class Measured(NamedTuple):
    """How far a round went, by site."""

    spread: dict[str, Any]  # rms deviation, 1 where there is none
    shift: dict[str, Any]  # rms change of the mean over rms deviation
    noise: dict[str, Any] | None = None  # standard error of the mean over rms deviation
    change: dict[str, Any] | None = None  # rms change of the deviations over their rms
    along: Any = None  # the move in terms of the last one: its share along it, its squared length


class Squares(NamedTuple):
    """Mean squares, over pairs and entries of each site, of deviations and of their changes."""

    deviations: dict[str, Any]
    changes: dict[str, Any]


def measured_by(moved: Moved, squares: Squares, count: int, floor: float = 0.0) -> Measured:
    """How far a round went; rms deviations below a floor count as that."""
    rms = {name: np.sqrt(x) for name, x in squares.deviations.items()}
    # The prior's sd, 1, for a site that has no deviations.
    spread = {name: np.where(r > 0, r, 1.0) for name, r in rms.items()}
    shift = {name: np.sqrt(x) / np.maximum(spread[name], floor) for name, x in moved.step.items()}
    noise = {name: np.sqrt(x / max(count - 1, 1)) / spread[name] for name, x in moved.scatter.items()}
    change = {name: np.sqrt(x) / np.where(rms[name] > 0, rms[name], 1.0) for name, x in squares.changes.items()}
    return Measured(spread, shift, noise, change)


class Who(NamedTuple):
    """Who takes part in a fit."""

    sampler: Sampler
    minimizer: Any
    drawn: dict[str, Any]  # 1 for each site that has deviations
    moving: dict[str, Any]  # 1 for each site whose mean moves


class Rounds:
    """Runs the rounds of one fit; what is the same for every kind of curvature."""

    def __init__(self, problem: Problem, who: Who):
        self.problem, self.who = problem, who
        self.budget, self.compiled = problem.budget, problem.static.compiled
        self.state: State  # from `start`, or a checkpoint

    @property
    def step(self) -> str:
        """The step of a round that is under way, for those who wait."""
        return ""

    def start(self, keys: Keys) -> State:
        """The state before the first round."""
        raise NotImplementedError

    def approximation(self, last: Record | None, final: bool) -> Approximation:
        """The Gaussian around the mean of the state, after the last round.

        If `final`, all that its deviations told is taken into account.
        """
        raise NotImplementedError

    def run(self, keys: Keys, settings: RoundSettings, shrink: float) -> tuple[State, dict[str, Any]]:
        """The state after a round, and a record of plain numbers.

        Whether that is the `state` from now on, the caller decides.
        """
        state, moved, measured, reports = self._round(keys, settings, shrink)
        if settings.phase == AVERAGE:
            state = state._replace(average=Average.of(state.average, state.mean))
        rounds = state.average.rounds if state.average else 0
        mcse = _errors(state.errors or measured.noise or {}, state.contraction or {}, rounds)
        slowest = max((state.contraction or {}).values(), default=0.0)
        told = {"mcse": mcse, "averaged_rounds": rounds, "contraction": slowest}
        return state, {**_record(moved, measured, reports), **told}

    def rehearse(self, keys: Keys, settings: RoundSettings) -> None:
        """Begin to compile the programs of a round."""
        kept = self.state
        try:
            self.compiled.rehearse(self._round, keys, settings, 1.0)
        finally:
            self.state = kept

    def _round(self, keys: Keys, settings: RoundSettings, shrink: float) -> Any:
        """The state after a round, what moving the mean did, how far it went, and reports of solves."""
        raise NotImplementedError

    def _minimized(self, curvature: Curvature, pairs: Pairs, settings: RoundSettings, first: int = 0) -> Any:
        """The mean that minimises the KL of so many pairs from a first one on, and what moving it there did."""
        cg = Stop(settings.newton_residual, 0.0, settings.most_newton_cg, settings.newton_share)
        limits = Limits(settings.most_steps, settings.newton_decrement, cg, settings.newton_damping)
        window = first, max(len(pairs) if first == 0 else self.state.count, 1)
        knobs = numbers(Knobs(settings.pairs, window, limits, settings.lead))
        static = {"minimizer": self.who.minimizer, "batch": math.gcd(settings.pairs, self.budget.batch)}
        return self.compiled.call(minimized, curvature, pairs, knobs, **static)

    def _start_chart(self, mean: Any, small: Any) -> Chart:
        """A chart in which coordinates are the latents themselves; for the sites that are `small` with a basis."""
        static = self.problem.static
        if not static.scaled or not self.who.sampler.draws:  # a maximum is one of standard coordinates only
            return {}
        logs = jax.eval_shape(self.problem.log_scales, mean)
        chart = {
            name: site.start(np.zeros(logs[name].shape, logs[name].dtype), site.shares_scale and name in small)
            for name, site in static.scaled.items()
        }
        # These are the latents themselves, wherever the origin is: the program that later rounds need tells it.
        _, logs = self.compiled.call(located, self.problem.in_chart(chart), mean)
        logs = self.compiled.on_host(_tree.on_host, logs, logs)
        return {name: {**at, "origin": logs[name]} for name, at in chart.items()}


def contractions(state: State, move: Any) -> dict[str, float]:
    """How much shorter, by site, the move of a round is than that of the round before with the same samples.

    Rounds are a fixed-point iteration, whose slowest direction shows in its last moves.
    """
    known = dict(state.contraction or {})
    for name, now in move.items():
        last = np.asarray(state.move[name])
        size = float(np.sum(last * last))
        if size > _TOLD_MOVE**2 * last.size:
            ratio = float(np.sum(np.asarray(now) * last)) / size
            found = min(max(1 - (1 - ratio) / max(state.weight, 1.0), 0.0), MOST_CONTRACTION)
            known[name] = 0.5 * (known.get(name, found) + found)
    return known


def _errors(noise: dict[str, Any], contraction: dict[str, float], rounds: int) -> dict[str, float]:
    """Monte Carlo error of the mean, by site, in sds.

    An error e of one round is followed by the errors r e, r^2 e, ... of those after it, if their moves contract by r:
    where rounds with the same samples lead to is off by e / (1 - r). The average of the means of rounds with fresh
    samples is off by that over the root of their number, and by what is left of where they began.
    """
    errors = {}
    for name, x in noise.items():
        ratio = contraction.get(name, 0.0)
        share = math.sqrt(1 / rounds + (ratio / ((1 - ratio) * rounds)) ** 2) if rounds else 1.0
        errors[name] = float(x) / (1 - ratio) * share
    return errors


def scaled_by(pairs: Pairs, shrink: float) -> Pairs:
    """Shorter deviations."""
    return pairs if shrink == 1 else pairs.map(lambda stack: {n: d * d.dtype.type(shrink) for n, d in stack.items()})


def _record(moved: Moved, measured: Measured, reports: list[Any]) -> dict[str, Any]:
    moved, measured, reports = jax.device_get((moved, measured, reports))

    def worst(by_site):
        return float(max(by_site.values())) if by_site else None

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
