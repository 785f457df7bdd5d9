"""Rounds of small problems, whose curvature is a matrix.

A state, keys and settings come in; the new mean, its deviations and how far both went go out.
It must not know why the settings are what they are.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi._compile import program
from mgvi.fit.records import Record, RoundSettings
from mgvi.fit.rounds import Rounds, Squares, State, contractions, measured_by, scaled_by
from mgvi.gaussian import DenseCurvature, DenseGaussian, Keys, StoredDraws
from mgvi.gaussian.dense import white
from mgvi.linalg import eigh, one_thread_for, sub_blocks
from mgvi.pairs import Pairs
from mgvi.problem import located

_TURNED = 256  # latents of a site up to which sums of them may be coordinates
_ROUGH_PAIRS = 8  # for a curvature that need not be precise
_MODEST = 10.0  # what data tell of each latent at a modest scale, on average, in units of the prior's precision
_SEARCH_STEPS = 30  # to find the point with modest scales
_GROWTH = 4.0  # largest growth of a variance from one round to the next


@program("once")
def _with_scales(problem, mean, logs):
    """A point near a mean whose scales have these logarithms, by the rule of Gauss and Newton."""
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

    return _tree.from_row(jax.lax.fori_loop(0, _SEARCH_STEPS, step, start), problem.latent)


class DenseRounds(Rounds):
    """Draws exactly, from the Hessian averaged over the last round's deviations, or the Fisher metric at the mean."""

    def start(self, keys: Keys) -> State:
        """The prior."""
        mean, latent = self.problem.latent_zeros(), self.problem.latent
        if self.who.sampler.draws:
            first = _tree.from_rows(white(keys, _tree.size(latent)), latent)
        else:
            first = {name: np.zeros((keys.count, *leaf.shape), leaf.dtype) for name, leaf in latent.items()}
        pairs = Pairs(first, mirrored=self.who.sampler.mirrored)
        return State(mean, pairs, self._chart_at(mean), keys.count, mean)

    def approximation(self, last: Record | None, final: bool) -> DenseGaussian | StoredDraws:
        """The Gaussian with the averaged Hessian or the metric at the mean as its precision."""
        state, mcse = self.state, dict(last.mcse) if last else {}
        if not self.who.sampler.draws:
            return StoredDraws.point(state.mean)

        def precision():
            problem, spread = self.problem.in_chart(state.chart), last.spread if last else 0
            found = self._curvature(problem, state._replace(mean=mean), spread, 1.0)
            return found.freeing(self.who.drawn).matrix

        antithetic = self.who.sampler.mirrored
        mean = state.mean if state.average is None else state.average.mean
        return DenseGaussian(mean, precision, state.chart, self.who.drawn, antithetic, mcse)

    def _curvature(self, problem, state: State, count: int, beta: float) -> DenseCurvature:
        """The Hessian averaged over the first pairs of the last round; with none the metric at the mean."""
        if not count or state.pairs is None:
            return DenseCurvature.fisher(problem, state.mean, beta)
        return DenseCurvature.averaged(problem, state.mean, state.pairs, count, beta)

    def _chart_at(self, mean):
        few = [name for name, leaf in self.problem.latent.items() if _tree.size(leaf) <= _TURNED]
        return self._start_chart(mean, few)

    def _modest(self, keys: Keys) -> State:
        """The prior's median but for scales that are far too large for what data tell: these are modest.

        From there scales find their way quickly. From above they come down as slowly as in expectation maximisation.
        """
        state = self.start(keys)
        metric = self._fisher(state)
        if self.compiled.rehearses:
            return state._replace(block=metric, count=0)
        blocks, logs = sub_blocks(metric, self.problem.latent), {}
        for name, at in state.chart.items():
            told = np.mean(np.diag(blocks[name])) - 1
            if at["origin"].size == 1 and told > _MODEST**2:  # else it is near enough
                logs[name] = (at["origin"] - 0.5 * np.log(told / _MODEST)).astype(at["origin"].dtype)
        state = state._replace(block=metric, count=0)
        if not logs:
            return state
        mean = _tree.on_host(self.compiled.call(_with_scales, self.problem, state.mean, logs))
        if not all(np.all(np.isfinite(x)) for x in mean.values()):
            return state
        state = state._replace(mean=mean, chart=self._chart_at(mean))
        return state._replace(block=self._fisher(state))

    def _fisher(self, state):
        return DenseCurvature.fisher(self.problem.in_chart(state.chart), state.mean).matrix

    def _round(self, keys, settings, shrink):
        with one_thread_for(_tree.size(self.problem.latent)):
            return self._whole_round(keys, settings, shrink)

    def _whole_round(self, keys, settings, shrink):
        begin = {None: lambda _: self.state, "prior": self.start, "modest": self._modest}[settings.start]
        state = self._recentred(begin(keys), settings)
        problem = self.problem.in_chart(state.chart)
        if settings.start == "modest" and not state.chart:
            curvature = DenseCurvature(problem, state.mean, state.block)
        else:
            count = min(settings.spread, _ROUGH_PAIRS) if settings.rough else settings.spread
            shorter = state._replace(pairs=scaled_by(state.pairs, shrink))
            curvature = self._curvature(problem, shorter, count, settings.beta)
        if state.block is not None and settings.spread:
            # An average over wide deviations may come out flat along some direction by chance, and samples that went
            # far along it would tell nothing of the way back.
            curvature = curvature.raised_to(state.block / _GROWTH)
        matrix = curvature.matrix
        drawn, _ = self.who.sampler.pairs(curvature.freeing(self.who.drawn), keys)
        moving = curvature.freeing(self.who.moving)
        if self.compiled.rehearses:
            room = Pairs(_tree.shapes_of_stack(self.problem.latent, self.budget.most), mirrored=drawn.mirrored)
            return self._minimized(moving, room, settings)
        old, drawn, weight = state.pairs, scaled_by(drawn, shrink), settings.weight
        if settings.fresh or state.count != keys.count:
            old, weight = drawn, max(weight, 1.0)  # other keys: nothing to compare with
        pairs = _mixed(old, drawn, min(weight, 1.0))
        padded = pairs.map(lambda stack: _tree.filled(stack, self.budget.most))  # one program for any number of pairs
        mean, moved = self._minimized(moving, padded, settings)
        mean, moved = _tree.on_host(mean), _tree.on_host(moved)
        finite = moved.finite and all(np.all(np.isfinite(x)) for x in jax.tree.leaves((mean, pairs)))
        beyond, move, along = self._extrapolated(state, mean, pairs.first, weight)
        # Where the deviations would have gone with their whole weight.
        ahead = _tree.subtract(drawn.first, old.first)
        squares = Squares(*map(_mean_squares, (pairs.first, ahead)))
        alike = not settings.fresh and state.count == keys.count
        measured = measured_by(moved, squares, keys.count)._replace(along=along)
        measured = measured if alike else measured._replace(change=None)
        told = contractions(state, move) if alike and settings.weight >= 1 else state.contraction
        matrices = {"block": matrix, "average": state.average}
        state = State(beyond, pairs, state.chart, keys.count, move, told, weight, **matrices)
        return state, moved._replace(finite=finite), measured, []

    def _recentred(self, state: State, settings: RoundSettings) -> State:
        """The state in the best chart, as far as the last round's curvature tells it."""
        if not (settings.centre and state.block is not None and state.chart):
            return state
        problem = self.problem.in_chart(state.chart)
        mean, logs = self.compiled.call(located, problem, state.mean)
        if self.compiled.rehearses:
            return state
        mean, logs = _tree.on_host((mean, logs))
        blocks, chart = sub_blocks(state.block, self.problem.latent), {}
        for name, at in state.chart.items():
            site = self.problem.static.scaled[name]
            if "basis" in at:
                best = site.turned(np.linalg.inv(blocks[name]), eigh)
            else:
                best = {"power": np.asarray(site.power(np.diag(blocks[name]).reshape(site.shape)))}
            best = {kind: x.astype(logs[name].dtype) for kind, x in best.items()}
            chart[name] = {**at, **best, "origin": logs[name]}
        return state._replace(mean=mean, chart=chart)

    def _extrapolated(self, state: State, mean, deviations, weight):
        """The mean, beyond it where a weight above 1 asks for that, the move, and how it compares with the last one."""
        old, last = state.mean, state.move
        move = {n: (new - old[n]) / _entry_spread(deviations[n]) for n, new in mean.items()}
        size = sum(float(np.sum(m * m)) for m in last.values()) or 1.0
        cosine = sum(float(np.sum(m * last[n])) for n, m in move.items()) / size
        square = sum(float(np.sum(m * m)) for m in move.values()) / size
        beyond = {n: (old[n] + max(weight, 1.0) * (new - old[n])).astype(old[n].dtype) for n, new in mean.items()}
        return beyond, move, (cosine, square)


def _mixed(old: Pairs, new: Pairs, share: float) -> Pairs:
    """Old deviations on the way to new ones."""
    mix = lambda a, b: {name: (a[name] + share * (d - a[name])).astype(d.dtype) for name, d in b.items()}
    second = None if new.second is None else mix(old.second, new.second)
    return Pairs(mix(old.first, new.first), second, new.mirrored)


def _mean_squares(stack):
    return {name: np.mean(d * d) for name, d in stack.items()}


def _entry_spread(deviations):
    spread = np.sqrt(np.mean(deviations * deviations, axis=0))
    return np.where(spread > 0, spread, 1.0)
