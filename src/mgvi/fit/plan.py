"""Plans: what the next round of a fit does, from what the rounds so far did.

The records of a fit come in; settings of the next round, or how the fit ends, go out. A plan is a pure function of
these records, so a checkpoint needs no more than them.
It must not know the problem, only its sizes.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from mgvi.budget import Budget
from mgvi.fit.records import AVERAGE, BEGIN, FEW, SETTLE, TEMPER, Record, RoundSettings
from mgvi.status import Status


class Plan(Protocol):
    """What `mgvi.fit(schedule=...)` takes: `next` tells the settings of a round, or how the fit ends."""

    def next(self, history: Sequence[Record]) -> RoundSettings | Status:
        """From the records of all rounds so far."""
        ...


# Powers of the likelihood in the first of the rounds in which it comes in, step by step.
FIRST_POWER, FIRST_POWER_UNDERDETERMINED = 1e-4, 1e-2
FAR_SHIFT = 0.3  # posterior sds that the mean moved, above which curvatures and steps may be rough
AGREEING_ERROR = 0.15  # Monte Carlo error, in sds, below which few samples agree on a curvature
LOST_ERROR = 2.0  # Monte Carlo error, in sds, above which few samples disagree where the minimum is
STUCK_DECREMENT = 1.0  # squared Newton decrement above which a dense problem that finds no descent is stuck
STUCK_DECREMENT_PER_LATENT = 1e-3  # the same for a large problem, for each latent
STALLED_DECREMENT = 0.1  # squared Newton decrement above which a failed line search is no convergence
FEW_ROUNDS = 10  # most rounds with few pairs of a dense problem
FEW_ROUNDS_LARGE = 2  # the same of a large one, unless the KL falls by much
FEW_STEPS = 6  # most Newton steps with few pairs: then the metric is that of another place
MUCH_PER_LATENT = 0.01  # decrease of the KL in a round, for each latent, that is much
HOVERING_ROUNDS = 6  # in which the mean moves no less than in as many before: rounds lead around, not to an end
HOVERING_SHARE = 0.7  # of the moves before, above which they are no less
CALM_SHIFT = 0.5  # of the Monte Carlo error: a smaller shift tells that more pairs are needed
CALM_CHANGE = 0.2  # relative change of deviations below which too few pairs have told what they can
# Shift of a large problem's mean that is rest, however large the noise, in units of the tolerance: while pairs can be
# added, and with the most of them.
FEW_PAIRS_SHIFT, RESTING_SHIFT = 20.0, 4.0
STEADY_CHANGE = 2.0  # relative change of deviations that counts as none, in units of the tolerance
HOPELESS_ERROR = 2.0  # Monte Carlo error, in sds, with which pairs are not settled before others are added
MORE_PAIRS = 4  # times as many, where they are added
ERROR_ENOUGH = 2.0  # Monte Carlo error at which pairs are enough, in units of the tolerance
ERROR_TAKEN = (4.0, 10.0)  # the same with the most pairs, of a dense and of a large problem
MOST_PAIRS_UNLESS_NOISY = 32  # pairs of a large problem, unless its error would be above the one that is taken
AVERAGED_ROUNDS = 16  # most rounds with fresh samples whose means are averaged
AVERAGING_GOAL = 0.8  # Monte Carlo error at which enough rounds are averaged, in units of the one that is taken
NOISY_ERROR = 0.5  # Monte Carlo error, in sds, above which a fit warns
LONG_DRAW = 60  # products for a draw beyond which a larger preconditioner pays
RECYCLED_ROUNDS = 3  # that a preconditioner is used for again
RECYCLING_SHIFT = 0.5  # sds that the mean may move meanwhile
ROUGH_PROBES = 8  # of the metric's diagonal while there are few pairs
CREEPING_LEAD = 1.5  # times the move of the global latents while there are few pairs: scales creep then
FARTHEST_LEAD = 0.5  # most sds of the move of a mean that is led on because its rounds creep


class AutoPlan:
    """Begins, settles the mean on a fixed set of samples, and takes more of them while their noise dominates.

    A dense problem begins with the whole likelihood at modest scales, with few pairs and the Fisher metric; from then
    on its curvature is the Hessian averaged over the last deviations. If it gets lost it begins anew, with a likelihood
    that comes in step by step, and without a chart: products of unknowns lead astray in one. A large problem always
    begins that way, with the Fisher metric, in which the information of some families of data is averaged over the last
    deviations, and with a chart, without which its scales collapse or come out too certain.

    When the mean rests, or hovers, on the most pairs that there is room for and their noise is still too large, rounds
    with fresh samples follow, whose means are averaged.

    Parameters
    ----------
    budget : Budget
        Of the problem.
    latents, data : int
        Its sizes.
    tolerance : float
        Shift of the mean between rounds, in posterior sds of the worst site, at which a dense problem rests.
    """

    def __init__(self, budget: Budget, latents: int, data: int, tolerance: float = 0.05):
        self._budget, self._dense, self._latents, self._tolerance = budget, budget.dense, latents, tolerance
        self._overdetermined = data > latents
        self._most_cg = min(10 * latents + 20, 2000)
        self._taken = ERROR_TAKEN[0 if self._dense else 1] * tolerance

    def next(self, history: Sequence[Record]) -> RoundSettings | Status:
        """Settings of the next round, or how the fit ends."""
        if not history:
            return self._begin()
        starts = [i for i, record in enumerate(history) if record.start] or [0]
        history, is_first = history[starts[-1] :], len(starts) == 1
        if self._is_lost(history, is_first):
            return self._begin_anew() if is_first and self._dense else Status.NO_DESCENT
        after = {BEGIN: self._after_few, TEMPER: self._after_tempering, FEW: self._after_few}
        step = after.get(history[-1].phase, self._after_settling)(history)
        return step if isinstance(step, Status) else self._adapted(step, history, is_first)

    def later(self) -> list[RoundSettings]:
        """Rounds to come whose programs may compile ahead; the first round of a large problem has all of them."""
        return [self._settle(self._budget.usual)] if self._dense else []

    def is_stuck(self, last: Record) -> bool:
        """Whether smaller deviations should be tried: the mean found no way down where the KL is far from flat."""
        return not self._dense and self._found_no_way(last)

    def _found_no_way(self, last: Record) -> bool:
        least = STUCK_DECREMENT if self._dense else STUCK_DECREMENT_PER_LATENT * self._latents
        return last.newton_status == Status.NO_DESCENT and last.decrement > least

    def _adapted(self, step: RoundSettings, history: Sequence[Record], is_first: bool) -> RoundSettings:
        """Settings that do not depend on the phase."""
        if self._dense:
            return step if is_first else replace(step, centre=False)
        last = history[-1]
        thorough = any(record.draw_cg > LONG_DRAW for record in history)
        recycle = thorough == last.thorough and _rests(history)
        return replace(step, thorough=thorough, recycle=recycle, newton_damping=last.damping)

    # Where it goes on, phase by phase.

    def _after_tempering(self, history) -> RoundSettings:
        last = history[-1]
        if last.beta < 1:
            return self._temper(_next_power(last))
        return self._settle(self._budget.usual, rough=_is_far(last)) if self._dense else self._few(last)

    def _after_few(self, history) -> RoundSettings:
        last = history[-1]
        if self._dense:
            # Once more, at least: the first deviations are those of where it began.
            moves = last.shift > 1 or last.newton_status != Status.CONVERGED
            again = last.phase == BEGIN or (moves and len(history) < FEW_ROUNDS)
            return self._few(last) if again else self._settle(self._budget.usual)
        with_few = [r.kl for r in history if r.phase == FEW]
        if self._overdetermined and len(with_few) > 1 and self._falls(*with_few[-2:]):
            # A long way to go. With the same samples round after round the mean would be caught between them.
            return replace(self._few(last), fresh=True)
        enough = last.shift < 1 or len(with_few) >= FEW_ROUNDS_LARGE
        return self._settle(self._budget.usual, last.shift) if enough else self._few(last)

    def _after_settling(self, history) -> RoundSettings | Status:
        """On few pairs the mean over-fits its own samples: more are taken as soon as their noise dominates."""
        last = history[-1]
        if last.phase == AVERAGE:
            return self._after_averaging(last)
        weight, most = self._weight(history), self._most(last)
        # From this round's move to where the rounds lead to.
        ahead = max(weight, 1.0) / min(last.weight, 1.0) if self._dense else 1 / (last.lead * (1 - last.contraction))
        hovers = _hovers(history)
        if hovers and last.pairs >= most:
            return self._average(last)
        if hovers or self._is_told(last, most):
            return self._more(last, most)
        if not self._has_settled(last, ahead, most):
            again = self._settle(last.pairs, last.shift / min(last.weight, 1.0), weight, _is_far(last))
            return again if self._dense else replace(again, lead=_lead(last))
        if last.newton_status == Status.NO_DESCENT and last.decrement > STALLED_DECREMENT and self._dense:
            return Status.NO_DESCENT  # the mean stands still because it is stuck, not because it has arrived
        may_end = last.pairs >= most or last.round_error <= ERROR_ENOUGH * self._tolerance
        if not self._dense and may_end and self._may_gain(history):
            return replace(self._settle(last.pairs), measure=True)
        if max(last.error, last.round_error) <= ERROR_ENOUGH * self._tolerance:
            return Status.CONVERGED
        return self._more(last, most)

    def _may_gain(self, history) -> bool:
        """Whether a large problem needs a round at rest, which measures its error, or its KL still falls by much."""
        last = history[-1]
        is_sampled = last.noise is not None
        return is_sampled and (not last.measure or self._falls(history[-2].kl, last.kl))

    def _has_settled(self, last: Record, ahead: float, most: int) -> bool:
        """The rule of convergence: neither mean nor deviations are farther from their end than noise allows.

        A matrix makes rounds cheap, so a dense problem goes to the tolerance, and to a tenth of it if noise is less.
        """
        tolerance, shift, change = self._tolerance, ahead * last.shift, ahead * (last.change or 0.0)
        if self._dense:
            still = shift < min(tolerance, max(last.round_error, 0.1 * tolerance))
            return still and change < STEADY_CHANGE * tolerance
        few = last.pairs < most
        unknown = math.inf if last.change is None else last.change
        steady = not few or unknown <= STEADY_CHANGE * tolerance or last.round_error >= HOPELESS_ERROR
        most_shift = min(max(last.round_error, tolerance), (FEW_PAIRS_SHIFT if few else RESTING_SHIFT) * tolerance)
        return last.shrink == 1 and shift <= most_shift and steady

    def _is_told(self, last: Record, most: int) -> bool:
        """Whether more pairs of a dense problem will be needed, and these do not tell the way any more."""
        calm = last.shift < CALM_SHIFT * last.round_error and (last.change or 0.0) < CALM_CHANGE
        return self._dense and calm and last.round_error > ERROR_ENOUGH * self._tolerance and last.pairs < most

    def _more(self, last: Record, most: int) -> RoundSettings | Status:
        """More pairs; with the most of them means of rounds with fresh samples, if their noise is not taken."""
        if last.pairs < most:
            return self._settle(min(MORE_PAIRS * last.pairs, most), 1.0 if not self._dense else 0.0)
        return Status.CONVERGED if last.error <= self._taken else self._average(last)

    def _after_averaging(self, last: Record) -> RoundSettings | Status:
        if last.averaged_rounds < AVERAGED_ROUNDS and last.error > AVERAGING_GOAL * self._taken:
            return self._average(last)
        return Status.CONVERGED if last.error <= NOISY_ERROR else Status.NOISY

    def _is_lost(self, history: Sequence[Record], is_first: bool) -> bool:
        """Whether the fit is stuck where the KL is far from flat, or its few samples disagree where the minimum is."""
        last = history[-1]
        if not self._dense:
            return last.phase != TEMPER and self._found_no_way(last)
        if not last.finite:
            return True
        if not is_first:
            return last.beta == 1 and all(map(self._found_no_way, history[-2:]))
        few = last.phase in (BEGIN, FEW)
        if last.newton_status == Status.CONVERGED:
            return few and last.round_error > LOST_ERROR
        return self._found_no_way(last) or (few and len(history) >= FEW_ROUNDS and last.decrement > STUCK_DECREMENT)

    def _falls(self, before: float, after: float) -> bool:
        """Whether the KL still falls by much."""
        return before - after > MUCH_PER_LATENT * self._latents

    def _most(self, last: Record) -> int:
        if self._dense or last.round_error > self._taken:
            return self._budget.most
        return min(self._budget.most, MOST_PAIRS_UNLESS_NOISY)

    def _weight(self, history) -> float:
        """Aitken's extrapolation: below 1 where rounds overshoot, above where they creep in one direction.

        The move of the last round times this number is where the rounds lead to, were they linear.
        """
        last = history[-1]
        before = history[-2] if len(history) > 1 else last
        alike = before.phase != TEMPER and before.pairs == last.pairs and before.shift <= 1
        if last.along is None or not alike:
            return 1.0
        cosine, square = last.along
        ratio = min(before.weight, 1.0) / min(last.weight, 1.0)  # moves are as long as their weights
        cosine, square = ratio * cosine, ratio**2 * square
        return min(max(before.weight * (1 - cosine) / max(1 - 2 * cosine + square, 1e-3), 0.1), 20.0)

    # Settings of the phases.

    def _begin(self) -> RoundSettings:
        if not self._dense:
            return self._temper(FIRST_POWER if self._overdetermined else FIRST_POWER_UNDERDETERMINED)
        return replace(self._few(None), phase=BEGIN, start="modest", newton_decrement=0.5)

    def _begin_anew(self) -> RoundSettings:
        return replace(self._temper(FIRST_POWER), start="prior")

    def _temper(self, beta: float) -> RoundSettings:
        if self._dense:
            pairs = self._budget.usual // 8
            fixed = {"most_steps": 15, "newton_decrement": 0.5, "fresh": False, "spread": self._budget.averaged}
            return RoundSettings(TEMPER, pairs, beta, rough=True, **fixed)
        return RoundSettings(
            TEMPER,
            self._budget.fewest,
            beta,
            fresh=False,
            draw_residual=5e-3,
            draw_energy=10.0,
            most_draw_cg=self._most_cg,
            most_steps=8,
            newton_decrement=2.0,
            most_newton_cg=self._most_cg,
            newton_residual=0.05,
            newton_share=0.01,
            precondition=True,
            probes=ROUGH_PROBES,
            centre=True,
            spread=self._budget.averaged,
        )

    def _few(self, last: Record | None) -> RoundSettings:
        """A round far from the end. Averaged Hessians of few pairs may come out flat: the Fisher metric does not."""
        fewest, shift = self._budget.fewest, last.shift if last else 0.0
        if self._dense:
            return replace(self._settle(fewest), phase=FEW, spread=0, newton_decrement=0.05, most_steps=FEW_STEPS)
        return replace(self._settle(fewest, shift), phase=FEW, probes=ROUGH_PROBES, lead=CREEPING_LEAD)

    def _settle(self, pairs: int, shift: float = 0.0, weight: float = 1.0, rough: bool = False) -> RoundSettings:
        if self._dense:
            weight = 1.0 if weight == 1 else min(max(weight, 0.5), max(1.0, FARTHEST_LEAD / max(shift, 0.1)))
            fixed = {"fresh": False, "most_steps": 15, "newton_decrement": 1e-4, "centre": True}
            return RoundSettings(SETTLE, pairs, spread=self._budget.averaged, rough=rough, weight=weight, **fixed)
        far = shift > FAR_SHIFT
        return RoundSettings(
            SETTLE,
            pairs,
            fresh=False,
            # Small in the end: directions that no datum sees are found last, and too large a variance there feeds
            # itself by way of a learned spectrum.
            draw_residual=1e-4,
            draw_energy=min(max(0.1, shift), 10.0),
            most_draw_cg=self._most_cg,
            most_steps=6 if far else 10,
            newton_decrement=0.05,
            most_newton_cg=self._most_cg,
            newton_residual=0.1 if far else 0.03,
            # Not looser: what no datum sees gains little energy, and would stay where the first rounds left it.
            newton_share=0.01 if far else 5e-3,
            precondition=True,
            centre=True,
            spread=self._budget.averaged,
        )

    def _average(self, last: Record) -> RoundSettings:
        return replace(self._settle(last.pairs), phase=AVERAGE, fresh=True, centre=False)


def _next_power(last: Record) -> float:
    """Power of the likelihood in the next round: the easier the last one, the faster the likelihood comes in."""
    easy = last.newton_steps <= 4 and last.shortest_step == 1.0
    factor = 100.0 if easy else 10.0 if last.newton_steps <= 8 else 3.0
    return min(1.0, last.beta * (3.0 if last.newton_status == Status.NO_DESCENT else factor))


def _is_far(last: Record) -> bool:
    """Whether the mean still goes far, and its samples agree where: then their curvatures do too."""
    return last.rough and last.shift > FAR_SHIFT and last.round_error < AGREEING_ERROR


def _lead(last: Record) -> float:
    """How much farther the global latents of a large problem go where its rounds creep: to where they lead, if near."""
    return min(1 / (1 - last.contraction), max(1.0, FARTHEST_LEAD * last.lead / max(last.shift, 0.01)))


def _hovers(history: Sequence[Record]) -> bool:
    """Whether rounds lead around, not to an end: heavy tails of the posterior do that."""
    alike = [r.shift for r in history if r.phase == SETTLE and r.pairs == history[-1].pairs]
    before, after = sum(alike[-2 * HOVERING_ROUNDS : -HOVERING_ROUNDS]), sum(alike[-HOVERING_ROUNDS:])
    return len(alike) >= 2 * HOVERING_ROUNDS and after > HOVERING_SHARE * before


def _rests(history: Sequence[Record]) -> bool:
    """Whether the metric has changed so little since its preconditioner was made that it will do once more."""
    made = max((i for i, r in enumerate(history) if not r.recycle), default=0)
    since = history[made:]
    settled = all(r.phase in (FEW, SETTLE, AVERAGE) and r.shift < RECYCLING_SHIFT for r in since)
    return len(since) > 0 and settled and (len(since) <= RECYCLED_ROUNDS or since[-1].phase == AVERAGE)
