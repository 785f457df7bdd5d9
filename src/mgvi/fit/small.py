"""Rounds of small problems, whose metric is a matrix.

A mean, the last deviations, keys and settings come in; the new mean, its deviations and how far both went go out.
It must not know why the settings are what they are.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi.fit.rounds import Rounds, Squares, State, located, measured_by
from mgvi.fit.schedule import Settings
from mgvi.linalg import at_least, eigh, sub_blocks
from mgvi.samplers import with_partners

_AT_ONCE = 125_000  # numbers of the pairs that are taken together: as many as stay in the cache of a CPU
_LITTLE = 50_000  # numbers of the pairs: so few that any program for them is fast
_TURNED = 256  # latents of a site up to which sums of them may be coordinates
_FEW = 16  # points for a curvature that need not be precise
_MODEST = 10.0  # times as much as the prior: what data tell of each latent, on average, at a modest scale
_STEPS = 30  # to find it
_GROWTH = 4.0  # times the variance of the last round: the most that deviations get in the next


@jax.jit
def _with_scales(problem, mean, logs):
    """The point nearest to a mean whose scales have these logarithms, or near it, by the rule of Gauss and Newton."""
    start, names = _tree.to_row(mean), sorted(logs)

    def missing(row):
        found = problem.log_scales(_tree.from_row(row, problem.latent))
        return jnp.stack([jnp.reshape(logs[name] - found[name], ()) for name in names])

    def step(_, row):
        slopes = jax.jacrev(missing)(row)
        inner = slopes @ slopes.T
        inner = inner + 1e-6 * jnp.trace(inner) * jnp.eye(len(names), dtype=inner.dtype)
        move = -slopes.T @ jnp.linalg.solve(inner, missing(row))
        return row + move / jnp.maximum(1.0, jnp.max(jnp.abs(move)))

    return _tree.from_row(jax.lax.fori_loop(0, _STEPS, step, start), problem.latent)


class SmallRounds(Rounds):
    """Draws exactly, from the Hessian averaged over the last round's deviations, or the Fisher metric at the mean."""

    def _batch(self) -> int:
        return min(self._plan.fewest, 2 ** int(math.log2(max(_AT_ONCE // self._size(), 1))))

    def _effort(self) -> int:
        return int(self._plan.at_once * self._size() > _LITTLE)

    def keys(self, seed: int, stream: int, pairs: int) -> Any:
        """As many as there are pairs."""
        return self._draws.keys(seed, stream, pairs)

    def start(self, keys) -> State:
        """The prior."""
        mean = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in self._problem.latent.items()}
        deviations = _tree.from_rows(self._draws.white(keys), self._problem.latent)
        return State(mean, deviations, mean, self._coordinates_at(mean), pairs=len(keys))

    def _coordinates_at(self, mean):
        few = [name for name, leaf in self._problem.latent.items() if _tree.size(leaf) <= _TURNED]
        return self._start_coordinates(mean, few)

    def _modest(self, keys) -> State:
        """The prior's mean but for scales that are far too large for what data tell: these are modest.

        From there scales find their way quickly. From above they come down as slowly as in expectation maximisation.
        """
        state = self.start(keys)
        metric = self._fisher(state)
        blocks, logs = sub_blocks(metric, self._problem.latent), {}
        for name, at in (state.coordinates or {}).items():
            told = np.mean(np.diag(blocks[name])) - 1
            if at["origin"].size == 1 and told > _MODEST**2:  # else it is near enough
                logs[name] = (at["origin"] - 0.5 * np.log(told / _MODEST)).astype(at["origin"].dtype)
        state = state._replace(block={"metric": metric}, pairs=0)
        if not logs:
            return state
        found = self._problem.static.compiled.call(_with_scales, self._problem, state.mean, logs, effort=0)
        mean = _tree.on_host(found)
        if not all(np.all(np.isfinite(x)) for x in mean.values()):
            return state
        state = state._replace(mean=mean, coordinates=self._coordinates_at(mean))
        return state._replace(block={"metric": self._fisher(state)})

    def _fisher(self, state):
        self._draws.problem = self._problem.in_coordinates(state.coordinates or {})
        return self._draws.curvature(state.mean)

    def approximation(self, settings: Settings, final: bool) -> dict[str, Any]:
        """The deviations to average a curvature over."""
        return {"spread": self._spread(self.state, settings)}

    def _round(self, keys, settings, shrink):
        self._begin_to_compile(settings)
        state = {None: lambda _: self.state, "prior": self.start, "modest": self._modest}[settings.begin](keys)
        state = self._recentred(state) if settings.centre and state.block else state
        self._draws.problem = self._problem.in_coordinates(state.coordinates or {})
        spread = self._spread(state, settings)
        if spread is not None:
            spread = {name: d * d.dtype.type(shrink) for name, d in spread.items()}
        if settings.begin == "modest" and not state.coordinates:
            curvature = state.block["metric"]
        else:
            most = _FEW if settings.rough else None
            curvature = self._draws.curvature(state.mean, settings.beta, spread, most, self._plan.averaged)
        if state.block and settings.spread:
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
        padded = _tree.filled(deviations, self._plan.most)  # one program for any number of pairs
        mean, pairs, moved = _tree.on_host(self._minimized(state.mean, padded, inverse, None, settings))
        pairs = {name: g[: len(keys)] for name, g in pairs.items()}
        finite = moved.finite and all(np.all(np.isfinite(x)) for x in jax.tree.leaves((mean, deviations)))
        beyond, move, along = self._extrapolate(state, mean, deviations, weight)
        moves = metric.solve({name: g - g.mean(axis=0) for name, g in pairs.items()})
        count = len(keys)
        ahead = _tree.subtract(drawn, old)  # where the deviations would have gone with their whole weight
        squares = Squares(*map(_mean_squares, (deviations, moves, ahead)))
        measured = measured_by(moved.step, squares, count)._replace(along=along)
        state = State(beyond, deviations, move, state.coordinates, {"metric": curvature}, pairs=count)
        return state, [], moved._replace(finite=finite), measured

    def _begin_to_compile(self, settings):
        """What moves the mean compiles in the background; what averages curvatures, which later rounds do, meanwhile.

        Not after the first draws: LAPACK and a compiler on the same cores take their time.
        """
        mean = self.state.mean
        self._draws.problem = self._problem.in_coordinates(self.state.coordinates or {})
        size, dtype = _tree.size(mean), jax.tree.leaves(mean)[0].dtype
        like = _tree.shapes_of_stack(mean, self._plan.most), jax.ShapeDtypeStruct((size, size), dtype)
        self._prepare(mean, *like, None, settings)
        if settings.begin:
            self._draws.prepare_curvature(mean, self._plan.averaged)

    def _recentred(self, state):
        """The state in the best coordinates, as far as the last round's curvature tells them."""
        if not state.coordinates:
            return state
        problem = self._problem.in_coordinates(state.coordinates)
        mean, logs = _tree.on_host(self._problem.static.compiled.call(located, problem, state.mean, effort=0))
        blocks = sub_blocks(state.block["metric"], self._problem.latent)
        coordinates = {}
        for name, at in state.coordinates.items():
            site = self._problem.static.scaled[name]
            if "basis" in at:
                best = site.turned(np.linalg.inv(blocks[name]), eigh)
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

    def _spread(self, state: State, settings: Settings) -> Any:
        """The deviations to average a curvature over: some of the last round's, or None for that at the mean."""
        if not settings.spread or state.deviations is None:
            return None
        return with_partners(state.deviations, self._sampler.antithetic, settings.spread)


def _mean_squares(stack):
    return {name: np.mean(d * d) for name, d in stack.items()}


def _entry_spread(deviations):
    spread = np.sqrt(np.mean(deviations * deviations, axis=0))
    return np.where(spread > 0, spread, 1.0)
