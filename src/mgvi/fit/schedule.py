"""Settings of the rounds: given ones, the paper's, or chosen from what the last round did.

The history of a fit comes in; the settings of the next round, or the decision to stop, go out. A schedule is a pure
function of the history, so a checkpoint needs no more than that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mgvi.status import Status


@dataclass(frozen=True)
class Stage:
    """A number of rounds with the same settings.

    Parameters
    ----------
    pairs : int
        Deviations drawn each round; each also counts with its negative if the sampler is antithetic.
    cg : int
        Conjugate gradient iterations of each draw.
    newton : int
        Natural-gradient steps of each round.
    rounds : int
        How often.

    Examples
    --------
    >>> from mgvi.fit import Stage
    >>> Stage(pairs=1, cg=25, newton=3, rounds=20).pairs
    1
    """

    pairs: int
    cg: int
    newton: int
    rounds: int


PAPER = (
    Stage(pairs=1, cg=25, newton=3, rounds=20),
    *(Stage(pairs=1 + k, cg=25 + 75 * k // 10, newton=3 + k, rounds=1) for k in range(1, 11)),
)

_AT_FIRST = 2  # rounds, at most, that a large problem's whole likelihood has few pairs, which do for scales that creep
_BEYOND = 0.5  # sds that a small problem's mean may be led by where its rounds creep, but not more than five times
_CHANGING = 0.1  # relative change of a large problem's deviations above which more of them are not worth their while
_FALLS = 0.01  # decrease of the KL in a round, for each latent, that is much
_FAR = 0.3  # shift of the mean, in sds, above which a large problem's steps, and a small one's curvature, may be rough:
_AGREED = 0.15  # that only if the standard error is below this
_HOVER = 4  # rounds with the most pairs that only tremble
_LEAD = 1.5  # times the move of a large problem's global latents while there are few pairs: scales creep then
_LONG = 60  # products for a draw, beyond which a larger preconditioner pays
_LOST = 2.0  # standard error of a small problem's mean, in sds, beyond which its samples disagree
_RECYCLED = 3  # rounds that a large problem's preconditioner is used for again
_RESTS = 0.5  # shift of the mean, in sds, below which it is
_ROUGH_PROBES = 8  # of a large problem's metric while there are few pairs
_STALLED = 0.1  # squared Newton decrement, in posterior sds, above which a failed line search is no convergence
_WEAK = 1.0  # standard error of a small problem's mean, in sds, with samples of a prior that they tell nothing about


@dataclass(frozen=True)
class Settings:
    """Everything that is chosen for one round; plain data."""

    pairs: int
    beta: float = 1.0
    draw_residual: float = 0.0
    draw_energy: float = 0.0
    draw_cg: int = 100
    newton_steps: int = 10
    newton_decrement: float = 0.0
    newton_cg: int = 100
    newton_residual: float = 0.1
    newton_share: float = 0.0
    newton_damping: float = 0.0  # of the first step
    fresh: bool = True  # new keys this round, or those of the rounds before
    measure_noise: bool = False
    precondition: bool = False  # by an estimate of the metric's diagonal
    probes: int = 32  # for that estimate
    thorough: bool = False  # precondition the latents that data know best by a matrix too
    recycle: bool = False  # the preconditioner of the last round, and its coordinates
    centre: bool = False  # adapt the coordinates of sites whose scale depends on other latents
    bounded: bool = False  # a small problem's deviations grow by a factor of two at most in coordinates, too
    restart: bool = False  # begin anew, from the prior
    # Pairs of the last round over which a small problem's curvature, or the information of a large problem's data, is
    # averaged; 0: that at the mean.
    spread: int = 0
    rough: bool = False  # a small problem's curvature from a few points of those only
    lead: float = 1.0  # how far a large problem's global latents go, in terms of how far the KL wants them to
    # For problems whose metric is a matrix: weight of the new deviations against the last round's, if those have the
    # same keys; above 1, of the mean's move instead.
    weight: float = 1.0

    def to_json(self) -> dict:
        """As a dict of plain values."""
        return dict(vars(self))


def _last(history, name, before) -> Any:
    """What the record of the last round says, or what was so before the first."""
    return history[-1][name] if history else before


def _rests(history) -> bool:
    """Whether the metric has changed so little since its preconditioner was made that it will do once more."""
    made = max((i for i, r in enumerate(history) if not r["recycle"]), default=0)
    since = history[made:]
    return 0 < len(since) <= _RECYCLED and all(r["measure_noise"] and r["shift"] < _RESTS for r in since)


class Staged:
    """A fixed sequence of stages."""

    def __init__(self, stages: Sequence[Stage]):
        self._rounds = [stage for stage in stages for _ in range(stage.rounds)]
        numbers = [stage.pairs for stage in self._rounds] or [1]
        # Pairs of a round, as every schedule tells them: how many at most and at least, how many of a large problem are
        # drawn together.
        self.most, self.fewest, self.at_once = max(numbers), min(numbers), numbers[0]

    def next(self, history: Sequence[dict]) -> Settings | Status:
        """Settings of the next round, or how the fit ends."""
        if len(history) >= len(self._rounds):
            return Status.CONVERGED
        stage = self._rounds[len(history)]
        return Settings(
            pairs=stage.pairs,
            draw_cg=stage.cg,
            newton_steps=stage.newton,
            newton_cg=stage.cg,
            newton_damping=_last(history, "damping", 0.0),
        )

    def is_stuck(self, last: dict) -> bool:
        """Never: what was asked for is done."""
        return False


class Automatic:
    """Tempers the likelihood in, settles the mean on a fixed set of samples, and adds samples while noise dominates.

    The curvature that a small problem's deviations are drawn from is the Hessian averaged over those of the last round,
    which is that of the best Gaussian; large problems take the Fisher metric at the mean, as the paper does, with the
    information of some families of data averaged over those deviations. Both adapt
    their coordinates to hierarchies (see `mgvi.coordinates`), without which scales collapse or come out too certain.

    Parameters
    ----------
    latents, data : int
        Sizes of the problem.
    tolerance : float
        Largest shift of the mean between rounds, in posterior standard deviations of any site, at which the fit counts
        as converged. Pairs are added while the standard error of the mean is above twice that; if it is still above
        four times that with the most pairs, the fit counts as noisy.
    spread : int, optional
        Pairs to average the curvature over, for problems whose metric is a matrix.
    """

    def __init__(self, latents: int, data: int, *, tolerance: float = 0.05, spread: int | None = None):
        size = latents + data
        if spread is not None:
            self._base, self.most = (1024, 4096) if size < 200 else (256, 1024) if size < 5_000 else (64, 256)
        else:
            self._base, self.most = 8, 128 if size < 100_000 else 32 if size < 300_000 else 8
        # The first rounds need not be precise.
        self.fewest = self._first = 2 if spread is None else self._base // 8
        self.at_once = self._base
        self._tolerance = tolerance
        self._latents = latents
        self._overdetermined = data > latents
        self._dense = spread is not None
        # Power of the likelihood in the first round.
        self._start = 1e-4 if self._dense or self._overdetermined else 1e-2
        self._spread = min(spread or self._base, self._base)
        self._cg = min(10 * latents + 20, 2000)

    def next(self, history: Sequence[dict]) -> Settings | Status:
        """Settings of the next round, or how the fit ends."""
        begin = max((i for i, r in enumerate(history) if r["restart"]), default=0)
        weak = self._dense and len(history) > 0 and (history[0]["noise"] or 0.0) > _WEAK
        # Where coordinates have failed with the whole likelihood too, the latents themselves must do to the end.
        never = begin > 0 and history[begin - 1]["beta"] == 1
        late = (weak or begin > 0) and not never
        history = history[begin:]
        step = self._next(history, late) if history else self._tempering(self._start)
        if self._dense and history:
            if never and history[-1]["beta"] == 1 and all(map(self._is_lost, history[-2:])):
                return Status.NO_DESCENT
            if not never and self._is_astray(history) and (not late or history[-1]["beta"] == 1):
                return replace(self._tempering(self._start), centre=False, weight=1.0, restart=True)
        if not self._dense and isinstance(step, Settings):
            thorough = any(record["draw_cg"] > _LONG for record in history)
            recycle = thorough == _last(history, "thorough", False) and _rests(history)
            step = replace(step, thorough=thorough, recycle=recycle, newton_damping=_last(history, "damping", 0.0))
        if (late or never) and isinstance(step, Settings):
            step = replace(step, centre=False, weight=step.weight if step.measure_noise else 1.0)
            step = self._late(step) if late and step.beta == 1 else step
        return step

    def _late(self, step: Settings) -> Settings:
        """A round with the whole likelihood, in coordinates that there was no use for before.

        Samples of weak priors of scales, whose posteriors span orders of magnitude, tell nothing: while the likelihood
        comes in, only the latents themselves will do. In terms of these, scales stay wherever they got to. The way from
        there may be long, and averaged Hessians of few pairs come out flat on it.
        """
        return replace(step, centre=True, bounded=True, spread=step.spread if step.pairs >= self._base else 0)

    def _next(self, history, late: bool) -> Settings | Status:
        last = history[-1]
        if last["beta"] < 1:
            return self._tempering(min(1.0, last["beta"] * self._factor(last)))
        if not last["measure_noise"]:  # the first round with the whole likelihood
            pairs = self._base // 4 if late else self._base if self._dense else self._first
            return self._settling(pairs, shift=last["shift"], rough=self._is_far(last))
        if late and last["pairs"] < self._base:
            return self._settling(last["pairs"] if last["shift"] > 1 else self._base)
        if not self._dense:
            return self._next_of_large(history)
        weight = self._weight(history)
        if not self._is_settled(last, weight):
            farthest = max(1.0, _BEYOND / max(last["shift"] / min(last["weight"], 1.0), 0.1))
            return self._settling(last["pairs"], min(max(weight, 0.5), farthest), rough=self._is_far(last))
        if last["newton_status"] == Status.NO_DESCENT and last["decrement"] > _STALLED:
            return Status.NO_DESCENT  # the mean stands still because it is stuck, not because it has arrived
        noise = last["noise"] or 0.0
        if noise <= 2 * self._tolerance:
            return Status.CONVERGED
        if last["pairs"] >= self.most:
            return Status.NOISY if noise > 4 * self._tolerance else Status.CONVERGED
        return self._settling(min(4 * last["pairs"], self.most))

    def is_stuck(self, last) -> bool:
        """Whether a large problem's mean found no way down where the KL is far from flat: some sample went too far."""
        steep = last["decrement"] > 1e-3 * self._latents
        return not self._dense and last["newton_status"] == Status.NO_DESCENT and steep

    def _is_astray(self, history) -> bool:
        """Whether a small problem has been led astray by its coordinates: stuck where the KL is far from flat.

        While the likelihood comes in, it is enough that the minimum is not found and that samples disagree where it is;
        the first round, with samples of the prior, may be anything.
        """
        return self._is_lost(history[-1]) and (len(history) > 1 or history[-1]["beta"] == 1)

    def _is_lost(self, last) -> bool:
        """Whether the mean of a small problem is far from a minimum that the round did not find."""
        if last["beta"] == 1:
            return last["newton_status"] == Status.NO_DESCENT and last["decrement"] > 1
        noisy = (last["noise"] or 0.0) > _LOST
        return noisy and last["newton_status"] != Status.CONVERGED and last["decrement"] > 1

    def _is_settled(self, last, weight) -> bool:
        """Whether neither mean nor deviations are farther from where they lead to than they may be."""
        noise = last["noise"] or 0.0  # a single pair has no scatter to measure
        ahead = max(weight, 1.0) / min(last["weight"], 1.0)
        shift = ahead * last["shift"]
        still = shift < self._tolerance and shift < max(noise, 0.1 * self._tolerance)
        return still and ahead * (last["change"] or 0.0) < 2 * self._tolerance

    def _next_of_large(self, history) -> Settings | Status:
        """Pairs are added as soon as noise dominates progress: on few of them the mean over-fits its own samples."""
        last = history[-1]
        if self.is_stuck(last):
            return Status.NO_DESCENT
        shift, noise = last["shift"], last["noise"] or 0.0
        if last["pairs"] == self._first:
            so_far = [r["kl"] for r in history if r["measure_noise"]]
            if self._overdetermined and len(so_far) > 1 and self._falls(*so_far[-2:]):
                # A long way to go. With the same samples round after round the mean would be caught between them.
                return replace(self._settling(self._first, shift=shift), fresh=True)
            enough = shift < 1 or len(so_far) >= _AT_FIRST
            return self._settling(self._base if enough else self._first, shift=shift)
        # More than 32 only if the fit would be noisy otherwise.
        few = last["pairs"] < (self.most if noise > 10 * self._tolerance else min(self.most, 32))
        change = math.inf if last["change"] is None else last["change"]
        goes_on = last["shrink"] < 1 or shift > min(max(noise, self._tolerance), (20 if few else 10) * self._tolerance)
        if goes_on or (few and noise < 2 and change > _CHANGING):
            return self._settling(last["pairs"], shift=shift)
        if noise <= 2 * self._tolerance:
            return Status.CONVERGED
        if few:
            return self._settling(min(4 * last["pairs"], self.most), shift=1.0)  # later rounds solve on from there
        calm = [r for r in history[-_HOVER:] if r["pairs"] == last["pairs"] and r["shift"] <= 10 * self._tolerance]
        if len(calm) < _HOVER or self._falls(calm[-2]["kl"], last["kl"]):
            return self._settling(last["pairs"])
        return Status.CONVERGED if noise <= 10 * self._tolerance else Status.NOISY

    def _falls(self, before: float, after: float) -> bool:
        """Whether a large problem's KL still falls by much."""
        return before - after > _FALLS * self._latents

    def _weight(self, history) -> float:
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

    def _factor(self, last) -> float:
        """The easier the last round, the faster the likelihood comes in."""
        if last["newton_status"] == Status.NO_DESCENT:
            return 3.0
        if last["newton_steps"] <= 4 and last["shortest_step"] == 1.0:
            return 100.0
        return 10.0 if last["newton_steps"] <= 8 else 3.0

    def _tempering(self, beta: float) -> Settings:
        return Settings(
            pairs=self._first,
            beta=beta,
            draw_residual=5e-3,
            draw_energy=0.0 if self._dense else 10.0,
            draw_cg=self._cg,
            newton_steps=15 if self._dense else 8,
            newton_decrement=0.5 if self._dense else 2.0,
            newton_cg=self._cg,
            newton_residual=0.05,
            newton_share=0.01,
            fresh=False,
            centre=True,
            spread=self._spread,
            rough=self._dense,
            precondition=not self._dense,
            probes=_ROUGH_PROBES,
            weight=0.5 if self._dense else 1.0,
        )

    def _is_far(self, last) -> bool:
        """Whether a small problem's mean still goes far, and its samples agree where: then their curvatures do too."""
        return self._dense and last["rough"] and last["shift"] > _FAR and (last["noise"] or 0.0) < _AGREED

    def _settling(self, pairs: int, weight: float = 1.0, shift: float = 0.0, rough: bool = False) -> Settings:
        far = not self._dense and shift > _FAR
        return Settings(
            pairs=pairs,
            # Small in the end: directions that no datum sees are found last, and too large a variance there feeds
            # itself by way of a learned spectrum.
            draw_residual=1e-4,
            draw_energy=min(max(0.1, shift), 10.0),
            draw_cg=self._cg,
            newton_steps=15 if self._dense else 6 if far else 10,
            newton_decrement=1e-4 if self._dense else 0.05,
            newton_cg=self._cg,
            newton_residual=0.01 if self._dense else 0.1 if far else 0.03,
            # Not looser: what no datum sees gains little energy, and would stay where the first rounds left it.
            newton_share=0.0 if self._dense else 0.01 if far else 5e-3,
            fresh=False,
            measure_noise=True,
            centre=True,
            spread=self._spread,
            rough=rough,
            precondition=not self._dense,
            probes=_ROUGH_PROBES if pairs == self._first else Settings.probes,
            lead=_LEAD if pairs == self._first and not self._dense else 1.0,
            weight=weight,
        )
