"""Settings of a small problem's rounds, chosen from what the last one did.

The history of a fit comes in; the settings of the next round, or the decision to stop, go out.
It must not know the problem, only its size.
"""

from collections.abc import Sequence
from dataclasses import replace

from mgvi.budget import Budget
from mgvi.fit.schedule import Settings, next_power
from mgvi.status import Status

_BEYOND = 0.5  # sds that the mean may be led by where its rounds creep, but not more than five times
_CALM = 0.5  # shift of the mean over its standard error, and
_CHANGING = 0.2  # relative change of the deviations, below which pairs that are too few have told what they can
_FAR = 0.3  # shift of the mean, in sds, above which a curvature may be rough,
_AGREED = 0.15  # if the standard error is below this
_HOVER = 6  # rounds in which the mean goes no less far than in as many before
_LOST = 2.0  # standard error of the mean, in sds, beyond which samples disagree
_STALLED = 0.1  # squared Newton decrement, in posterior sds, above which a failed line search is no convergence
_SHORT = 6  # Newton steps with few pairs, at most: then the metric is that of another place
_PATIENCE = 10  # such rounds, after which the minimum must be near, and more pairs tell the way
_START = 1e-4  # power of the likelihood in the first round, where it comes in step by step


class SmallPlan:
    """Begins with the whole likelihood and few pairs, settles the mean on many, and adds more while noise dominates.

    A fit that gets lost begins anew, with a likelihood that comes in step by step, and without the coordinates that
    adapt to hierarchies (see `mgvi.problem.charts`): products of unknowns lead astray in them.

    With few pairs the curvature is the Fisher metric at the mean. From then on it is the Hessian averaged over the last
    round's deviations, which is that of the best Gaussian.

    Parameters
    ----------
    budget : Budget
        Of the problem: how many pairs there are, at first, later and at most.
    tolerance : float
        Largest shift of the mean between rounds, in posterior standard deviations of any site, at which the fit counts
        as converged. Pairs are added while the standard error of the mean is above twice that; if it is still above
        four times that with the most pairs, the fit counts as noisy.
    """

    def __init__(self, budget: Budget, tolerance: float = 0.05):
        self._base, self.most, self.fewest = budget.usual, budget.most, budget.fewest
        self._tolerance = tolerance
        self.averaged = budget.averaged  # pairs of the last round, in a curvature

    def later(self) -> list[Settings]:
        """Rounds to come, whose programs may compile ahead."""
        return [self._settling(self._base)]

    def next(self, history: Sequence[dict]) -> Settings | Status:
        """Settings of the next round, or how the fit ends."""
        begins = [i for i, record in enumerate(history) if record["begin"]]
        if not begins:
            return replace(self._with_few(0.5), begin="modest")
        history, first = history[begins[-1] :], len(begins) == 1
        if self._is_lost(history, first):
            return replace(self._tempering(_START), begin="prior") if first else Status.NO_DESCENT
        step = self._next(history, first)
        return step if first or isinstance(step, Status) else replace(step, centre=False)

    def is_stuck(self, last: dict) -> bool:
        """Never: a fit that is begins anew."""
        return False

    def _next(self, history, first: bool) -> Settings | Status:
        last = history[-1]
        if last["beta"] < 1:
            return self._tempering(next_power(last))
        if first and last["pairs"] < self._base:
            # Once more, at least: the first deviations are those of where it began.
            moves = last["shift"] > 1 or last["newton_status"] != Status.CONVERGED
            again = last["begin"] or (moves and len(history) < _PATIENCE)
            return self._with_few(0.05) if again else self._settling(self._base)
        if not last["measure_noise"]:  # the first round with the whole likelihood
            return self._settling(self._base, rough=_is_far(last))
        weight = _weight(history)
        if _hovers(history) and last["pairs"] >= self.most:
            return Status.NOISY
        if _hovers(history) or self._is_noisy(last):
            return self._settling(min(4 * last["pairs"], self.most))
        if not self._is_settled(last, weight):
            farthest = max(1.0, _BEYOND / max(last["shift"] / min(last["weight"], 1.0), 0.1))
            return self._settling(last["pairs"], min(max(weight, 0.5), farthest), _is_far(last))
        if last["newton_status"] == Status.NO_DESCENT and last["decrement"] > _STALLED:
            return Status.NO_DESCENT  # the mean stands still because it is stuck, not because it has arrived
        noise = last["noise"] or 0.0
        if noise <= 2 * self._tolerance:
            return Status.CONVERGED
        if last["pairs"] >= self.most:
            return Status.NOISY if noise > 4 * self._tolerance else Status.CONVERGED
        return self._settling(min(4 * last["pairs"], self.most))

    def _is_lost(self, history, first: bool) -> bool:
        """Whether the fit is stuck where the KL is far from flat, or its few samples disagree where the minimum is."""
        last = history[-1]
        if not last["finite"]:
            return True
        if not first:
            return last["beta"] == 1 and all(map(_is_stuck, history[-2:]))
        few = last["pairs"] < self._base
        if last["newton_status"] == Status.CONVERGED:
            return few and (last["noise"] or 0.0) > _LOST
        return _is_stuck(last) or (few and len(history) >= _PATIENCE and last["decrement"] > 1)

    def _is_settled(self, last, weight) -> bool:
        """Whether neither mean nor deviations are farther from where they lead to than they may be."""
        noise = last["noise"] or 0.0  # a single pair has no scatter to measure
        ahead = max(weight, 1.0) / min(last["weight"], 1.0)
        shift = ahead * last["shift"]
        still = shift < self._tolerance and shift < max(noise, 0.1 * self._tolerance)
        return still and ahead * (last["change"] or 0.0) < 2 * self._tolerance

    def _is_noisy(self, last) -> bool:
        """Whether more pairs will be needed, and these do not tell the way any more."""
        noise = last["noise"] or 0.0
        calm = last["shift"] < _CALM * noise and (last["change"] or 0.0) < _CHANGING
        return calm and noise > 2 * self._tolerance and last["pairs"] < self.most

    def _with_few(self, decrement: float) -> Settings:
        """A round far from the end, with the Fisher metric: averaged Hessians of few pairs may come out flat."""
        return replace(self._settling(self.fewest), spread=0, newton_decrement=decrement, newton_steps=_SHORT)

    def _tempering(self, beta: float) -> Settings:
        return Settings(
            pairs=self._base // 8,
            beta=beta,
            newton_steps=15,
            newton_decrement=0.5,
            fresh=False,
            spread=self.averaged,
            rough=True,
        )

    def _settling(self, pairs: int, weight: float = 1.0, rough: bool = False) -> Settings:
        return Settings(
            pairs=pairs,
            newton_steps=15,
            newton_decrement=1e-4,
            fresh=False,
            measure_noise=True,
            centre=True,
            spread=self.averaged,
            rough=rough,
            weight=weight,
        )


def _is_stuck(last) -> bool:
    """Whether the mean found no way down where the KL is far from flat."""
    return last["newton_status"] == Status.NO_DESCENT and last["decrement"] > 1


def _is_far(last) -> bool:
    """Whether the mean still goes far, and its samples agree where: then their curvatures do too."""
    return last["rough"] and last["shift"] > _FAR and (last["noise"] or 0.0) < _AGREED


def _hovers(history) -> bool:
    """Whether rounds lead around, not to an end: heavy tails of the posterior do that."""
    alike = [r["shift"] for r in history if r["measure_noise"] and r["pairs"] == history[-1]["pairs"]]
    before, after = sum(alike[-2 * _HOVER : -_HOVER]), sum(alike[-_HOVER:])
    return len(alike) >= 2 * _HOVER and after > 0.7 * before


def _weight(history) -> float:
    """By Aitken's rule: less than 1 where rounds overshoot, more where they creep in one direction.

    The move of the last round times this number is where the rounds lead to, were they linear.
    """
    last, before = history[-1], history[-2]
    alike = before["measure_noise"] and before["pairs"] == last["pairs"] and before["shift"] <= 1
    if last["along"] is None or not alike:
        return 1.0
    cosine, square = last["along"]
    ratio = min(before["weight"], 1.0) / min(last["weight"], 1.0)  # moves are as long as their weights
    cosine, square = ratio * cosine, ratio**2 * square
    return min(max(before["weight"] * (1 - cosine) / max(1 - 2 * cosine + square, 1e-3), 0.1), 20.0)
