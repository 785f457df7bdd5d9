"""Rounds of large problems, whose metric is only multiplied with.

A mean, the last deviations, keys and settings come in; the new mean, its deviations and how far both went go out.
It must not know why the settings are what they are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi._compile import effort_for
from mgvi.fit.rounds import Rounds, Squares, State, measured_by
from mgvi.fit.schedule import Settings
from mgvi.linalg import Preconditioner, Stop, global_sites, sub_blocks

_FLOOR = 0.02  # of the prior's sd: a scalar may be known better than the pairs can tell
_STEPS = PREPARING, DRAWING, MOVING = "preparing the solves", "drawing deviations", "moving the mean"


@jax.jit
def _recentred(problem, mean, diagonal, block):
    """The mean in coordinates with their origin there and the best powers, those coordinates, and the diagonal."""
    inner = sub_blocks(
        jnp.linalg.inv(block), {name: problem.static.latent[name] for name in global_sites(problem.static.latent)}
    )
    standard, logs = problem.located(mean)
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
def _half_way(old, new):
    return jax.tree.map(lambda a, b: 0.5 * (a + b), old, new)


def _is_there(tree) -> bool:
    """Whether all arrays of a step's result have been computed."""
    arrays: list[Any] = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    try:
        return all(array.is_ready() for array in arrays)
    except RuntimeError:  # they were, and have given way to others since
        return True


class LargeRounds(Rounds):
    """Draws by conjugate gradients, from the Fisher metric at the mean."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._results: list[Any] = []  # of the steps of a round
        self._last_keys: tuple[Any, Any] = None, None
        self._is_prepared = False

    @property
    def step(self) -> str:
        """The step of the round whose result is not there yet; asking does not disturb the device."""
        results = list(self._results)  # of the steps that were asked for so far; another thread may ask
        waiting = (i for i, tree in enumerate(results) if not _is_there(tree))
        return _STEPS[min(next(waiting, len(results)), len(_STEPS) - 1)]

    def _batch(self) -> int:
        return 1  # more at once are no faster, and take memory

    def _effort(self) -> int:
        return effort_for(self._size())

    def keys(self, seed: int, stream: int, pairs: int) -> Any:
        """Always as many as there may be pairs, so that nothing is compiled anew for more of them."""
        if self._last_keys[0] != (seed, stream):
            self._last_keys = (seed, stream), self._draws.keys(seed, stream, self._plan.most)
        return self._last_keys[1]

    def start(self, keys) -> State:
        """The mean of the prior, with room for deviations."""
        mean = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in self._problem.latent.items()}
        coordinates = self._start_coordinates(mean, global_sites(self._problem.latent))
        return State(mean, self._draws.room(mean, self._plan.most), coordinates=coordinates)

    def approximation(self, settings: Settings, final: bool) -> dict[str, Any]:
        """The information of data, and whether solves are long."""
        known = self._information(self.state, settings) if final else self.state.known
        return {"known": known, "thorough": settings.thorough}

    def _round(self, keys, settings, shrink):
        state, self._results = self.state, []
        self._draws.problem = self._problem.in_coordinates(state.coordinates or {})
        if not self._is_prepared:
            self._prepare_all(state, keys, settings)
            self._is_prepared = True
        # A round that is tried again has its deviations in the state already, too large ones, and what they told.
        known = self._information(state, settings) if shrink == 1 else state.known
        state, preconditioner, block = self._preconditioned(state, known, settings)
        self._results.append(preconditioner)
        given, room = 0 if settings.fresh or shrink != 1 else state.pairs, state.deviations
        if settings.pairs < state.pairs:  # what does not count is zero
            given, room = 0, self._draws.room(state.mean, self._plan.most)
        self.state = self.state._replace(deviations=None, pairs=0)  # they give way to the new ones, one after another
        stop = Stop(settings.draw_residual, settings.draw_energy, settings.draw_cg)
        fixed = (state.mean, keys, stop, settings.beta, known, preconditioner)
        deviations, reports, squares = self._draws.redraw(room, given, settings.pairs, *fixed)
        if shrink != 1:
            deviations = _tree.scale(shrink, deviations)
        self._results.append(deviations)
        has_change = 0 < given == settings.pairs  # else other keys: nothing to compare with
        kept = (preconditioner.diagonal, preconditioner.chosen) if preconditioner is not None else (None, None)
        fixed = (state.mean, deviations, None, state.coordinates, block, known)
        # Meanwhile that is where the fit stands: the mean from before the round, with what was drawn there.
        state = self.state = State(*fixed, *kept, settings.pairs)
        mean, scatter, moved = self._minimized(state.mean, deviations, None, preconditioner, settings)
        moved, scatter, squares = jax.device_get((moved, scatter, squares))
        spread, changes = (
            {name: shrink**2 * sum(part[name] for part in parts) / settings.pairs for name in scatter}
            for parts in zip(*squares, strict=True)
        )
        measured = measured_by(moved.step, Squares(spread, scatter, changes), settings.pairs, _FLOOR)
        if not has_change:
            measured = measured._replace(change=None)
        if not settings.measure_noise or settings.pairs == 1:
            measured = measured._replace(noise=None)
        return state._replace(mean=mean), reports, moved, measured

    def _preconditioned(self, state, known, settings):
        """The state in the best coordinates, a preconditioner there, and the block of the metric that it is made of."""
        if not settings.precondition:
            return state, None, state.block
        if settings.recycle and state.diagonal is not None and state.block is not None:
            return state, Preconditioner(state.diagonal, state.block.get("inverse"), state.chosen or {}), state.block
        diagonal = self._draws.diagonal(state.mean, settings.beta, known, settings.probes)
        if settings.centre and state.coordinates and state.block:
            arguments = (self._draws.problem, state.mean, diagonal, state.block["metric"])
            mean, coordinates, diagonal = self._problem.static.compiled.call(_recentred, *arguments)
            state = state._replace(mean=mean, coordinates=coordinates)
            self._draws.problem = self._problem.in_coordinates(coordinates)
        fixed = (state.mean, settings.beta, known, diagonal, settings.thorough)
        preconditioner, metric = self._draws.preconditioner(*fixed)
        block = {"metric": metric, "inverse": preconditioner.inverse}
        return state, preconditioner, {name: x for name, x in block.items() if x is not None}

    def _prepare_all(self, state, keys, settings):
        """Begin to compile the largest programs of a round before any of them is needed."""
        averages = settings.spread and self._sampler.draws
        known = self._draws.information_like(state.mean, state.deviations) if averages else None
        like = self._draws.preconditioner_like() if settings.precondition else None
        self._draws.prepare(state.mean, keys, known, like)
        self._prepare(state.mean, state.deviations, None, like, settings)

    def _information(self, state: State, settings: Settings) -> Any:
        """Information of data averaged over the last samples, or None for that at the mean."""
        if not settings.spread or not self._sampler.draws:
            return None
        if state.deviations is None:  # interrupted while others take their place
            return state.known
        self._draws.problem = self._problem.in_coordinates(state.coordinates or {})
        count = min(state.pairs, settings.spread)
        new = self._draws.information(state.mean, state.deviations, max(count, 1))
        # Half way only: more variance may mean more information, which means less variance, and so on for ever.
        return _half_way(state.known, new) if state.known else new
