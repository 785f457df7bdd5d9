"""One round: draw deviations around the mean, move the mean, and estimate how uncertain that move was.

A mean, the last deviations, keys and settings come in; the new mean, its deviations and a record go out.
It must not know why the settings are what they are.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgvi import _tree
from mgvi._program import number, numbers
from mgvi.fit.schedule import Settings
from mgvi.linalg import Preconditioner, Stop, at_least, global_sites, sub_blocks
from mgvi.minimizers import Limits, NewtonReport
from mgvi.objective import SampledKL, taken
from mgvi.problem import Problem, in_rows
from mgvi.samplers import Draws, with_partners
from mgvi.status import Status

_AT_ONCE = 125_000  # numbers of a small problem's pairs that are taken together
_LITTLE = 50_000  # numbers of a small problem's pairs: so few that any program for them is fast
_TURNED = 256  # latents of a small problem's site up to which sums of them may be coordinates
_FEW = 16  # points for a small problem's curvature where that need not be precise
_GROWTH = 4.0  # times the variance of the last round: the most that a small problem's deviations get in the next
_FLOOR = 0.02  # of the prior's sd: a large problem may know a scalar better than its pairs can tell


# Steps of a large problem's round, for those who wait.
_STEPS = PREPARING, DRAWING, MOVING = "preparing the solves", "drawing deviations", "moving the mean"


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


class _Knobs(NamedTuple):
    """Settings of the minimisation that may change without recompilation."""

    beta: Any  # power of the likelihood
    pairs: Any
    newton: Limits
    lead: Any  # of a large problem's global latents


class _Moved(NamedTuple):
    """What moving the mean did."""

    kl: Any
    newton: NewtonReport
    finite: Any
    step: dict[str, Any]  # mean square of the mean's move, by site


class _Squares(NamedTuple):
    """Mean squares over the pairs and entries of each site."""

    deviations: dict[str, Any]
    moves: dict[str, Any]  # to where a pair alone would have the mean, from where all do
    changes: dict[str, Any]  # of the deviations


class _Measured(NamedTuple):
    """How far a round went, by site."""

    shift: dict[str, Any]  # rms change of the mean over rms deviation
    noise: dict[str, Any] | None = None  # standard error of the mean over rms deviation
    change: dict[str, Any] | None = None  # rms change of the deviations over their rms
    along: Any = None  # the move in terms of the last one: its share along it, its squared length


@partial(jax.jit, static_argnames=("antithetic", "minimizer", "batch"))
def _minimize(problem, mean, deviations, inverse, preconditioner, knobs: _Knobs, free, *, antithetic, minimizer, batch):
    """Minimise the sampled KL over the mean; also what tells how the pairs scatter."""
    if inverse is not None:
        latent, (problem, rows, back) = problem.latent, in_rows(problem)
        mean = rows(jax.tree.map(lambda m: m[None], mean))[0]
        deviations = rows(deviations)
        inverse = rows(_tree.from_rows(rows(_tree.from_rows(inverse, latent)).T, latent))
        free = _tree.to_row({name: jnp.full(leaf.shape, free[name], leaf.dtype) for name, leaf in latent.items()})
    fixed = (problem, deviations, knobs.beta, free, inverse, preconditioner, antithetic)
    objective = SampledKL(*fixed, knobs.pairs, batch)
    new, (value, scatter), newton_report = minimizer.minimize(objective, mean, knobs.newton)
    finite = jnp.isfinite(value) & (newton_report.status != Status.NOT_FINITE)
    if inverse is None:
        few = global_sites(problem.static.latent)
        new = {name: mean[name] + knobs.lead * (x - mean[name]) if name in few else x for name, x in new.items()}
    else:
        new, mean = (jax.tree.map(lambda m: m[0], back(x[None])) for x in (new, mean))
        scatter = back(scatter)
    step = {name: jnp.mean((x - mean[name]) ** 2) for name, x in new.items()}
    return new, scatter, _Moved(value, newton_report, finite, step)


@jax.jit
def _located(problem, mean):
    """The standard-normal latent of a mean, and logarithms of the scales there."""
    standard = problem.standard(mean)
    return standard, problem.log_scales(standard)


@jax.jit
def _recentred_large(problem, mean, diagonal, block):
    """The mean in coordinates with their origin there and the best powers, those coordinates, and the diagonal."""
    inner = sub_blocks(
        jnp.linalg.inv(block), {name: problem.static.latent[name] for name in global_sites(problem.static.latent)}
    )
    standard = problem.standard(mean)
    logs = problem.log_scales(standard)
    coordinates, diagonal = {}, dict(diagonal)
    for name, at in problem.coordinates.items():
        site = problem.static.scaled[name]
        if "basis" in at:
            coordinates[name] = {**site.turned(inner[name]), "origin": logs[name]}
            continue
        squeezed = site.latent(at, logs[name], jnp.ones(site.shape, mean[name].dtype))
        diagonal[name] = 1 + (diagonal[name] - 1) / squeezed**2
        coordinates[name] = {**at, "power": site.power(diagonal[name]), "origin": logs[name]}
    return standard, coordinates, diagonal


@jax.jit
def _compared(old, deviations, count):
    """Mean squares, by site, of the first deviations of a large problem, and of their change; one by one."""
    squares = lambda stack: {name: jnp.mean(d * d) for name, d in stack.items()}

    def add(i, sums):
        was, now = (taken(stack, i, 1) for stack in (old, deviations))
        return _tree.add(sums, (squares(now), squares(_tree.subtract(now, was))))

    none = {name: jnp.zeros((), leaf.dtype) for name, leaf in deviations.items()}
    return _tree.scale(1 / count, lax.fori_loop(0, count, add, (none, none)))


def _measure(step, squares: _Squares, count, floor=0.0) -> _Measured:
    """How far a round went, from the mean square of the mean's step and those of its pairs."""
    rms = {name: np.sqrt(x) for name, x in squares.deviations.items()}
    # 1, the prior's, for a site that has no deviations.
    spread = {name: np.where(r > 0, np.maximum(r, floor), 1.0) for name, r in rms.items()}
    shift = {name: np.sqrt(x) / spread[name] for name, x in step.items()}
    noise = {name: np.sqrt(x / max(count - 1, 1)) / spread[name] for name, x in squares.moves.items()}
    change = {name: np.sqrt(x) / np.where(rms[name] > 0, rms[name], 1.0) for name, x in squares.changes.items()}
    return _Measured(shift, noise, change)


def _on_device(tree) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def _stack(mean, count):
    """As many zeros as deviations from a mean will be numbers."""
    return {name: np.zeros((count, *m.shape), m.dtype) for name, m in mean.items()}


def _mean_squares(stack):
    return {name: np.mean(d * d) for name, d in stack.items()}


def _entry_spread(deviations):
    spread = np.sqrt(np.mean(deviations * deviations, axis=0))
    return np.where(spread > 0, spread, 1.0)


class Rounds:
    """Runs the rounds of one fit.

    Small problems, whose metric is a matrix, and others, whose metric is only multiplied with, differ in how deviations
    are drawn; moving the mean is the same program.
    """

    def __init__(self, problem: Problem, sampler, minimizer, draws: Draws, moving: dict[str, Any], plan: Any):
        self._problem = problem
        self._sampler = sampler
        self._draws = draws
        self._moving = moving
        self._most, self._usual = plan.most, plan.at_once
        self.state: State  # from `start`, or a checkpoint
        self._results: list[Any] = []
        # Pairs of a large problem are taken one by one: more at once are no faster, and take memory. Of a small one as
        # many are taken as stay in the cache of a CPU.
        batch = 1
        if draws.dense:
            size = _tree.size(problem.latent) + _tree.size(problem.data)
            batch = min(plan.fewest, 2 ** int(math.log2(max(_AT_ONCE // size, 1))))
        self._static = {"antithetic": sampler.antithetic, "minimizer": minimizer, "batch": batch}

    @property
    def step(self) -> str:
        """The step of a large problem's round whose result is not there yet; asking does not disturb the device."""
        if self._draws.dense:
            return ""
        results = list(self._results)  # of the steps that were asked for so far; another thread may ask
        waiting = (i for i, tree in enumerate(results) if not all(x.is_ready() for x in _on_device(tree)))
        return _STEPS[min(next(waiting, len(results)), len(_STEPS) - 1)]

    def start(self, keys) -> State:
        """The state before the first round: the prior for small problems, its mean for others."""
        mean = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in self._problem.latent.items()}
        if not self._draws.dense:
            return State(mean, coordinates=self._start_coordinates(mean))
        deviations = _tree.from_rows(self._draws.white(keys), self._problem.latent)
        return State(mean, deviations, mean, self._start_coordinates(mean), pairs=len(keys))

    def run(self, keys, settings: Settings, shrink: float) -> tuple[State, dict[str, Any]]:
        """The state after a round, and a record of plain numbers.

        Whether that is the `state` from now on, the caller decides. With a large problem it is, meanwhile, the mean
        from before the round with deviations that were drawn there, so that those of the last round are not kept.
        """
        run = self._run_dense if self._draws.dense else self._run_iterative
        state, report, moved, measured = run(keys, settings, shrink)
        return state, _record(*jax.device_get((report, moved, measured)))

    def _minimized(self, *given):
        """The moved mean, what tells how the pairs scatter, and what moving it did."""
        arguments, options = self._minimization(*given)
        return self._problem.static.compiled.call(_minimize, *arguments, **options)

    def _minimization(self, mean, deviations, inverse, preconditioner, settings):
        """Arguments and options of the program that moves the mean."""
        cg = Stop(settings.newton_residual, 0.0, settings.newton_cg, settings.newton_share)
        limits = Limits(settings.newton_steps, settings.newton_decrement, cg, settings.newton_damping)
        knobs = numbers(_Knobs(settings.beta, settings.pairs, limits, settings.lead))
        arguments = (self._draws.problem, mean, deviations, inverse, preconditioner, knobs, self._moving)
        size = _tree.size(self._problem.latent) + _tree.size(self._problem.data)
        effort = 2 if not self._draws.dense else int(self._usual * size > _LITTLE)
        return arguments, {**self._static, "effort": effort}

    def _prepare(self, inverse, preconditioner, mean, settings):
        """Compile what will move the mean, while deviations are drawn."""
        arguments, options = self._minimization(mean, _stack(mean, self._most), inverse, preconditioner, settings)
        self._problem.static.compiled.prepare(_minimize, *arguments, **options)

    def _run_dense(self, keys, settings, shrink):
        state = self.start(keys) if settings.restart else self.state
        state = self._recentred_small(state) if settings.centre and state.block else state
        self._draws.problem = self._problem.in_coordinates(state.coordinates or {})
        spread = self.spread(state, settings)
        if spread is not None:
            spread = {name: d * d.dtype.type(shrink) for name, d in spread.items()}
        size = _tree.size(state.mean)
        like = np.empty((size, size), jax.tree.leaves(state.mean)[0].dtype)
        self._prepare(like, None, state.mean, settings)
        room = (_FEW if settings.rough else None, settings.spread)
        curvature = self._draws.curvature(state.mean, settings.beta, spread, *room)
        if state.block and settings.spread and (settings.bounded or not (settings.centre and state.coordinates)):
            # An average over wide deviations may come out flat along some direction by chance, and samples that went
            # far along it would tell nothing of the way back.
            curvature = at_least(curvature, state.block["metric"] / _GROWTH)
        new = self._draws.colour(curvature, keys)
        new = {name: d * d.dtype.type(shrink) for name, d in new.items()}
        old: Any = state.deviations
        weight = settings.weight
        if settings.fresh or state.pairs != len(keys):
            old, weight = new, max(weight, 1.0)  # other keys: nothing to compare with
        drawn, share = new, min(weight, 1.0)
        deviations = {name: (old[name] + share * (d - old[name])).astype(d.dtype) for name, d in new.items()}
        metric = self._draws.metric(curvature, self._moving)
        inverse = metric.inverse.astype(jax.tree.leaves(deviations)[0].dtype)
        padded = _tree.filled(deviations, self._most)  # one program for any number of pairs
        mean, pairs, moved = _tree.on_host(self._minimized(state.mean, padded, inverse, None, settings))
        pairs = {name: g[: len(keys)] for name, g in pairs.items()}
        finite = moved.finite and all(np.all(np.isfinite(x)) for x in jax.tree.leaves((mean, deviations)))
        beyond, move, along = self._extrapolate(state, mean, deviations, weight)
        moves = metric.solve({name: g - g.mean(axis=0) for name, g in pairs.items()})
        count = len(keys)
        ahead = _tree.subtract(drawn, old)  # where the deviations would have gone with their whole weight
        squares = _Squares(*map(_mean_squares, (deviations, moves, ahead)))
        measured = _measure(moved.step, squares, count)._replace(along=along)
        state = State(beyond, deviations, move, state.coordinates, {"metric": curvature}, pairs=count)
        return state, None, moved._replace(finite=finite), measured

    def _recentred_small(self, state):
        """The state of a small problem in the best coordinates, as far as the last round's curvature tells them."""
        if not state.coordinates:
            return state
        problem = self._problem.in_coordinates(state.coordinates)
        mean, logs = _tree.on_host(self._problem.static.compiled.call(_located, problem, state.mean, effort=0))
        blocks = sub_blocks(state.block["metric"], self._problem.latent)
        coordinates = {}
        for name, at in state.coordinates.items():
            site = self._problem.static.scaled[name]
            if "basis" in at:
                best = site.turned(np.linalg.inv(blocks[name]), np)
            else:
                best = {"power": np.asarray(site.power(np.diag(blocks[name]).reshape(site.shape)))}
            coordinates[name] = {
                "origin": logs[name],
                **{kind: x.astype(logs[name].dtype) for kind, x in best.items()},
            }
        return state._replace(mean=mean, coordinates=coordinates)

    def _extrapolate(self, state, mean, deviations, weight):
        """The mean, beyond it where a weight above 1 asks for that, the move, and how it compares with the last one."""
        old, last = state.mean, state.move
        move = {n: (new - old[n]) / _entry_spread(deviations[n]) for n, new in mean.items()}
        size = sum(float(np.sum(m * m)) for m in last.values()) or 1.0
        cosine = sum(float(np.sum(m * last[n])) for n, m in move.items()) / size
        square = sum(float(np.sum(m * m)) for m in move.values()) / size
        beyond = {n: (old[n] + max(weight, 1.0) * (new - old[n])).astype(old[n].dtype) for n, new in mean.items()}
        return beyond, move, (cosine, square)

    def _start_coordinates(self, mean):
        if not self._problem.static.scaled or not self._sampler.draws:  # a maximum is one of standard coordinates only
            return {}
        sizes = {name: _tree.size(leaf) for name, leaf in self._problem.latent.items()}
        small = global_sites(self._problem.latent)
        small = [n for n, size in sizes.items() if size <= _TURNED] if self._draws.dense else small
        logs = jax.eval_shape(self._problem.log_scales, mean)
        coordinates = {
            name: site.start(np.zeros(logs[name].shape, logs[name].dtype), site.shares_scale and name in small)
            for name, site in self._problem.static.scaled.items()
        }
        # These are the latents themselves, wherever the origin is: the program that later rounds need tells it.
        problem = self._problem.in_coordinates(coordinates)
        _, logs = _tree.on_host(self._problem.static.compiled.call(_located, problem, mean, effort=0))
        return {name: {**at, "origin": logs[name]} for name, at in coordinates.items()}

    def _run_iterative(self, keys, settings, shrink):
        compiled = self._problem.static.compiled
        stop = Stop(settings.draw_residual, settings.draw_energy, settings.draw_cg)
        self._results = []
        state = self.state
        # A round that is tried again has its deviations in the state already, too large ones, and what they told.
        known = self.information(state, settings) if shrink == 1 else state.known
        self._draws.problem = self._problem.in_coordinates(state.coordinates or {})
        preconditioner, block = None, state.block
        if settings.precondition and settings.recycle and state.diagonal is not None and block is not None:
            preconditioner = Preconditioner(state.diagonal, block.get("inverse"), state.chosen or {})
        elif settings.precondition:
            diagonal = self._draws.diagonal(state.mean, settings.beta, known, settings.probes)
            if settings.centre and state.coordinates and state.block:
                arguments = (self._draws.problem, state.mean, diagonal, state.block["metric"])
                mean, coordinates, diagonal = compiled.call(_recentred_large, *arguments)
                state = state._replace(mean=mean, coordinates=coordinates)
                self._draws.problem = self._problem.in_coordinates(coordinates)
            fixed = (state.mean, settings.beta, known, diagonal, settings.thorough)
            preconditioner, block = self._draws.preconditioner(*fixed)
            block = {"metric": block}
            if preconditioner.inverse is not None:
                block["inverse"] = preconditioner.inverse
        self._prepare(None, preconditioner, state.mean, settings)
        self._results.append(preconditioner)
        start = None if settings.fresh or shrink != 1 else state.deviations
        fixed = (state.mean, keys, stop, settings.beta, known, preconditioner)
        deviations, report = self._draws.draw(*fixed, settings.pairs, start, state.pairs)
        if shrink != 1:
            deviations = _tree.scale(shrink, deviations)
        self._results.append(deviations)
        old = deviations if start is None else start
        squares = compiled.call(_compared, old, deviations, number(settings.pairs))
        has_change = start is not None and state.pairs == settings.pairs  # else other keys: nothing to compare with
        kept = (preconditioner.diagonal, preconditioner.chosen) if preconditioner is not None else (None, None)
        fixed = (state.mean, deviations, None, state.coordinates, block, known)
        state = self.state = State(*fixed, *kept, settings.pairs)
        del start, old  # the deviations of the last round: no memory for them while the mean moves
        mean, scatter, moved = self._minimized(state.mean, deviations, None, preconditioner, settings)
        moved, scatter, (spread, changes) = jax.device_get((moved, scatter, squares))
        measured = _measure(moved.step, _Squares(spread, scatter, changes), settings.pairs, _FLOOR)
        if not has_change:
            measured = measured._replace(change=None)
        if not settings.measure_noise or settings.pairs == 1:
            measured = measured._replace(noise=None)
        return state._replace(mean=mean), report, moved, measured

    def spread(self, state: State, settings: Settings) -> Any:
        """The deviations to average a curvature over: some of the last round's, or None for that at the mean."""
        if not settings.spread or state.deviations is None:
            return None
        some = {name: d[: settings.spread] for name, d in state.deviations.items()}
        return with_partners(some, self._sampler.antithetic)

    def information(self, state: State, settings: Settings) -> Any:
        """Information of a large problem's data averaged over the last samples, or None for that at the mean."""
        if not settings.spread or not self._sampler.draws:
            return None
        self._draws.problem = self._problem.in_coordinates(state.coordinates or {})
        deviations, count = state.deviations, min(state.pairs, settings.spread)
        if deviations is None:  # none yet, but in the shape of those to come: nothing is compiled twice
            deviations = _stack(state.mean, self._most)
        new = self._draws.information(state.mean, deviations, max(count, 1))
        # Half way only: more variance may mean more information, which means less variance, and so on for ever.
        return jax.tree.map(lambda a, b: 0.5 * (a + b), state.known, new) if state.known else new


def _record(report, moved, measured) -> dict[str, Any]:
    def worst(by_site):
        return None if by_site is None else float(max(by_site.values()))

    return {
        "kl": float(moved.kl),
        "shift": worst(measured.shift),
        "change": worst(measured.change),
        "along": None if measured.along is None else list(measured.along),
        "noise": worst(measured.noise),
        "draw_cg": 0 if report is None else int(report.iterations.max()),
        "draw_status": 0 if report is None else int(report.status.max()),
        "newton_steps": int(moved.newton.steps),
        "newton_cg": int(moved.newton.cg_iterations),
        "newton_status": int(moved.newton.status),
        "damping": float(moved.newton.damping),
        "decrement": float(moved.newton.decrement),
        "shortest_step": float(moved.newton.shortest),
        "finite": bool(moved.finite) and all(math.isfinite(float(x)) for x in measured.shift.values()),
    }
