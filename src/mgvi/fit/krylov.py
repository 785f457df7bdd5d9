"""Rounds of large problems, whose metric is only multiplied with.

A state, keys and settings come in; the new mean, its deviations and how far both went go out.
It must not know why the settings are what they are.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi._compile import number, program
from mgvi.fit.records import AVERAGE, FEW, SETTLE, Record, RoundSettings
from mgvi.fit.rounds import Rounds, Squares, State, contractions, measured_by
from mgvi.gaussian import Keys, KrylovCurvature, KrylovGaussian, StoredDraws
from mgvi.gaussian.krylov import Drawing, drawn_into, empty_room, estimated_diagonal, preconditioned, with_information
from mgvi.linalg import Stop, global_sites, sub_blocks
from mgvi.pairs import Pairs

_FLOOR = 0.02  # smallest rms deviation, in prior sds, that shifts are compared with: pairs do not tell smaller ones
_HALVES, _HALVES_STEPS = 4, 5  # halves of the pairs that tell the error of the mean, and Newton steps for each
STEPS = PREPARING, DRAWING, MOVING = "preparing the solves", "drawing deviations", "moving the mean"


@program()
def _recentred(problem, mean, diagonal, block):
    """The mean in a chart with its origin there and the best powers, that chart, and the metric's diagonal in it."""
    names = global_sites(problem.static.latent)
    inner = sub_blocks(jnp.linalg.inv(block), {name: problem.static.latent[name] for name in names})
    standard, logs = problem.located(mean)
    chart, diagonal = {}, dict(diagonal)
    for name, at in problem.chart.items():
        site = problem.static.scaled[name]
        if "basis" in at:
            chart[name] = {**site.turned(inner[name]), "origin": logs[name]}
            continue
        squeezed = site.latent(at, logs[name], jnp.ones(site.shape, mean[name].dtype))
        diagonal[name] = 1 + (diagonal[name] - 1) / squeezed**2
        chart[name] = {**at, "power": site.power(diagonal[name]), "origin": logs[name]}
    return standard, chart, diagonal


@program()
def _half_way(old, new):
    return jax.tree.map(lambda a, b: 0.5 * (a + b), old, new)


def _is_there(tree) -> bool:
    """Whether all arrays of a step's result have been computed."""
    arrays: list[Any] = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    try:
        return all(array.is_ready() for array in arrays)
    except RuntimeError:  # they were, and their memory has been used again since
        return True


class KrylovRounds(Rounds):
    """Draws by conjugate gradients, from the Fisher metric at the mean."""

    _results: list[Any] = []  # of the steps of the round that is under way

    @property
    def step(self) -> str:
        """The step of the round whose result is not there yet; asking does not disturb the device."""
        results = list(self._results)
        waiting = (i for i, tree in enumerate(results) if not _is_there(tree))
        return STEPS[min(next(waiting, len(results)), len(STEPS) - 1)]

    def start(self, keys: Keys) -> State:
        """The median of the prior, with room for deviations."""
        mean = self.problem.latent_zeros()
        pairs = Pairs(empty_room(self.problem, self.budget.most), mirrored=self.who.sampler.mirrored)
        return State(mean, pairs, self._start_chart(mean, global_sites(self.problem.latent)))

    def approximation(self, last: Record | None, final: bool) -> KrylovGaussian | StoredDraws:
        """The Gaussian with the metric at the mean."""
        state = self.state
        if not self.who.sampler.draws:
            return StoredDraws.point(state.mean)
        mean = state.mean if state.average is None else state.average.mean
        information = self._information(state._replace(mean=mean), last) if final and last else state.information
        sampler = self.who.sampler
        paired = {"antithetic": sampler.mirrored, "coupled": sampler.coupled}
        known = {"thorough": last.thorough, "mcse": dict(last.mcse)} if last else {}
        return KrylovGaussian(mean, state.chart, self.who.drawn, information or {}, **paired, **known)

    def _round(self, keys, settings, shrink):
        state, self._results = self.state, []
        # A round that is tried again has too large deviations in the state already, and what these told.
        information = self._information(state, settings) if shrink == 1 else state.information
        problem = self.problem.in_chart(state.chart)
        given = information or {}
        curvature = KrylovCurvature(problem, state.mean, self.who.drawn, number(settings.beta), given)
        state, curvature = self._preconditioned(state, curvature, settings)
        self._results.append(curvature.preconditioner)
        known = 0 if settings.fresh or shrink != 1 else state.count
        if settings.pairs < state.count:  # what does not count is zero
            known, room = 0, empty_room(self.problem, self.budget.most)
        else:
            room = state.pairs.first
        self.state = self.state._replace(pairs=None, count=0)  # new deviations take their memory, one after another
        stop = Stop(settings.draw_residual, settings.draw_energy, settings.most_draw_cg)
        what = Drawing(known, settings.pairs, stop)
        keys = keys._replace(count=self.budget.most)  # always as many, so that nothing is compiled anew for more pairs
        sampler = self.who.sampler
        if sampler.draws:
            room, reports, squares = drawn_into(curvature, room, keys, what, coupled=sampler.coupled)
        else:
            reports, squares = [], []
        pairs = sampler.paired(curvature, room)
        if shrink != 1:
            pairs = pairs.map(lambda stack: _tree.scale(shrink, stack))
        self._results.append(pairs)
        has_change = 0 < known == settings.pairs  # else other keys: nothing to compare with
        # Until the mean has moved, the fit stands at the mean from before the round, with what was drawn there.
        fixed = {"information": information, "preconditioner": curvature.preconditioner, "count": settings.pairs}
        state = self.state = state._replace(pairs=pairs, **fixed)
        mean, moved = self._minimized(replace(curvature, free=self.who.moving), pairs, settings)
        if self.compiled.rehearses:
            return None
        moved, squares = jax.device_get((moved, squares))
        spread, changes = (
            {name: shrink**2 * sum(part[i][name] for part in squares) / settings.pairs for name in state.mean}
            for i in range(2)
        )
        measured = measured_by(moved, Squares(spread, changes), settings.pairs, _FLOOR)
        if not has_change:
            measured = measured._replace(change=None)
        if settings.phase not in (FEW, SETTLE, AVERAGE) or settings.pairs == 1:
            measured = measured._replace(noise=None)
        names = global_sites(self.problem.latent)
        apart = jax.device_get({name: mean[name] - state.mean[name] for name in names})
        move = {name: x / float(measured.spread[name]) / settings.lead for name, x in apart.items()}
        if has_change and state.move is not None:
            state = state._replace(contraction=contractions(state, move))
        state = state._replace(mean=mean, move=move, weight=settings.lead)
        if settings.measure:
            errors = self._errors(replace(curvature, mean=mean, free=self.who.moving), pairs, settings)
            state = state._replace(errors={name: x / float(measured.spread[name]) for name, x in errors.items()})
        return state, moved, measured, reports

    def _errors(self, curvature: KrylovCurvature, pairs: Any, settings: RoundSettings) -> dict[str, float]:
        """Monte Carlo error of the mean, by site: rms distance to where halves of the pairs alone would have it.

        The mean of half of the pairs has twice the variance, half of which is shared with the mean of all.
        """
        rough = {"lead": 1.0, "most_steps": _HALVES_STEPS, "newton_decrement": 0.2}
        half, squares = replace(settings, pairs=settings.pairs // 2, **rough), []
        for i in range(_HALVES):
            _, moved = self._minimized(curvature, pairs, half, first=1 + i * settings.pairs // (2 * _HALVES))
            squares.append(moved.step)
        squares = jax.device_get(squares)
        return {name: float(sum(part[name] for part in squares) / _HALVES) ** 0.5 for name in curvature.mean}

    def _preconditioned(self, state: State, curvature: KrylovCurvature, settings: RoundSettings) -> Any:
        """The state in the best chart, and the curvature there with an approximate inverse."""
        if not settings.precondition:
            return state, curvature
        if settings.recycle and state.preconditioner is not None:
            return state, replace(curvature, preconditioner=state.preconditioner)
        diagonal = estimated_diagonal(curvature, settings.probes)
        if settings.centre and state.chart and state.block is not None:
            found = self.compiled.call(_recentred, curvature.problem, state.mean, diagonal, state.block)
            mean, chart, diagonal = found
            state = state._replace(mean=mean, chart=chart)
            curvature = replace(curvature, problem=self.problem.in_chart(chart), mean=mean)
        curvature, block = preconditioned(curvature, diagonal, settings.thorough)
        return state._replace(block=block), curvature

    def _information(self, state: State, settings: RoundSettings) -> Any:
        """Information of data averaged over the last samples, or None for that at the mean."""
        if not settings.spread or not self.who.sampler.draws:
            return None
        if state.pairs is None:  # interrupted while others take their place
            return state.information
        curvature = KrylovCurvature(self.problem.in_chart(state.chart), state.mean, self.who.drawn)
        new = with_information(curvature, state.pairs, max(min(state.count, settings.spread), 1))
        # Half way only: more variance may mean more information, which means less variance, and so on for ever.
        return self.compiled.call(_half_way, state.information, new) if state.information else new
