"""Settings of a large problem's rounds, chosen from what the last one did.

The history of a fit comes in; the settings of the next round, or the decision to stop, go out.
It must not know the problem, only its size.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from mgvi.fit.schedule import Settings, last_of, next_power
from mgvi.status import Status

_AT_FIRST = 2  # rounds, at most, that the whole likelihood has few pairs, which do for scales that creep
_CHANGING = 0.1  # relative change of the deviations above which more of them are not worth their while
_FALLS = 0.01  # decrease of the KL in a round, for each latent, that is much
_FAR = 0.3  # shift of the mean, in sds, above which steps may be rough
_FEW = 2  # pairs while precision would be wasted
_HOVER = 4  # rounds with the most pairs that only tremble
_LEAD = 1.5  # times the move of the global latents while there are few pairs: scales creep then
_LONG = 60  # products for a draw, beyond which a larger preconditioner pays
_MANY = 8  # pairs from then on
_RECYCLED = 3  # rounds that a preconditioner is used for again
_RESTS = 0.5  # shift of the mean, in sds, below which it is
_ROUGH_PROBES = 8  # of the metric while there are few pairs


class LargePlan:
    """Tempers the likelihood in, settles the mean on a fixed set of samples, and adds samples while noise dominates.

    The curvature is the Fisher metric at the mean, as in the paper, with the information of some families of data
    averaged over the last deviations. Charts adapt to hierarchies (see `mgvi.problem.charts`); without them scales
    collapse or come out too certain.

    Parameters
    ----------
    latents, data : int
        Sizes of the problem.
    most : int
        Pairs at most.
    tolerance : float
        Shift of the mean between rounds, in posterior standard deviations of any site, at which the fit counts as
        converged. Pairs are added while the standard error of the mean is above twice that.
    """

    def __init__(self, latents: int, data: int, most: int, tolerance: float = 0.05):
        self.most = most
        self._tolerance = tolerance
        self._latents = latents
        self._overdetermined = data > latents
        # Power of the likelihood in the first round.
        self._start = 1e-4 if self._overdetermined else 1e-2
        self._cg = min(10 * latents + 20, 2000)

    def next(self, history: Sequence[dict]) -> Settings | Status:
        """Settings of the next round, or how the fit ends."""
        step = self._next(history) if history else self._tempering(self._start)
        if isinstance(step, Status):
            return step
        thorough = any(record["draw_cg"] > _LONG for record in history)
        recycle = thorough == last_of(history, "thorough", False) and _rests(history)
        return replace(step, thorough=thorough, recycle=recycle, newton_damping=last_of(history, "damping", 0.0))

    def later(self) -> list[Settings]:
        """Rounds to come, whose programs may compile ahead: the first has all of them."""
        return []

    def is_stuck(self, last: dict) -> bool:
        """Whether the mean found no way down where the KL is far from flat: some sample went too far."""
        return last["newton_status"] == Status.NO_DESCENT and last["decrement"] > 1e-3 * self._latents

    def _next(self, history) -> Settings | Status:
        last = history[-1]
        if last["beta"] < 1:
            return self._tempering(next_power(last))
        if not last["measure_noise"]:  # the first round with the whole likelihood
            return self._settling(_FEW, last["shift"])
        if self.is_stuck(last):
            return Status.NO_DESCENT
        return self._with_few(history) if last["pairs"] == _FEW else self._with_many(history)

    def _with_few(self, history) -> Settings:
        shift = history[-1]["shift"]
        so_far = [r["kl"] for r in history if r["measure_noise"]]
        if self._overdetermined and len(so_far) > 1 and self._falls(*so_far[-2:]):
            # A long way to go. With the same samples round after round the mean would be caught between them.
            return replace(self._settling(_FEW, shift), fresh=True)
        enough = shift < 1 or len(so_far) >= _AT_FIRST
        return self._settling(_MANY if enough else _FEW, shift)

    def _with_many(self, history) -> Settings | Status:
        """Pairs are added as soon as noise dominates progress: on few of them the mean over-fits its own samples."""
        last = history[-1]
        shift, noise = last["shift"], last["noise"] or 0.0
        # More than 32 only if the fit would be noisy otherwise.
        few = last["pairs"] < (self.most if noise > 10 * self._tolerance else min(self.most, 32))
        change = math.inf if last["change"] is None else last["change"]
        goes_on = last["shrink"] < 1 or shift > min(max(noise, self._tolerance), (20 if few else 10) * self._tolerance)
        if goes_on or (few and noise < 2 and change > _CHANGING):
            return self._settling(last["pairs"], shift)
        if noise <= 2 * self._tolerance:
            return Status.CONVERGED
        if few:
            return self._settling(min(4 * last["pairs"], self.most), 1.0)  # later rounds solve on from there
        calm = [r for r in history[-_HOVER:] if r["pairs"] == last["pairs"] and r["shift"] <= 10 * self._tolerance]
        if len(calm) < _HOVER or self._falls(calm[-2]["kl"], last["kl"]):
            return self._settling(last["pairs"])
        return Status.CONVERGED if noise <= 10 * self._tolerance else Status.NOISY

    def _falls(self, before: float, after: float) -> bool:
        """Whether the KL still falls by much."""
        return before - after > _FALLS * self._latents

    def _tempering(self, beta: float) -> Settings:
        return Settings(
            pairs=_FEW,
            beta=beta,
            draw_residual=5e-3,
            draw_energy=10.0,
            draw_cg=self._cg,
            newton_steps=8,
            newton_decrement=2.0,
            newton_cg=self._cg,
            newton_residual=0.05,
            newton_share=0.01,
            fresh=False,
            centre=True,
            spread=_MANY,
            precondition=True,
            probes=_ROUGH_PROBES,
        )

    def _settling(self, pairs: int, shift: float = 0.0) -> Settings:
        far = shift > _FAR
        return Settings(
            pairs=pairs,
            # Small in the end: directions that no datum sees are found last, and too large a variance there feeds
            # itself by way of a learned spectrum.
            draw_residual=1e-4,
            draw_energy=min(max(0.1, shift), 10.0),
            draw_cg=self._cg,
            newton_steps=6 if far else 10,
            newton_decrement=0.05,
            newton_cg=self._cg,
            newton_residual=0.1 if far else 0.03,
            # Not looser: what no datum sees gains little energy, and would stay where the first rounds left it.
            newton_share=0.01 if far else 5e-3,
            fresh=False,
            measure_noise=True,
            centre=True,
            spread=_MANY,
            precondition=True,
            probes=_ROUGH_PROBES if pairs == _FEW else Settings.probes,
            lead=_LEAD if pairs == _FEW else 1.0,
        )


def _rests(history) -> bool:
    """Whether the metric has changed so little since its preconditioner was made that it will do once more."""
    made = max((i for i, r in enumerate(history) if not r["recycle"]), default=0)
    since = history[made:]
    return 0 < len(since) <= _RECYCLED and all(r["measure_noise"] and r["shift"] < _RESTS for r in since)
