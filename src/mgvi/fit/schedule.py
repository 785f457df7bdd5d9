"""Settings of the rounds: given ones, the paper's, or chosen from what the last round did.

The history of a fit comes in; the settings of the next round, or the decision to stop, go out. A schedule is a pure
function of the history, so a checkpoint needs no more than that.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

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

_STALLED = 0.1  # squared Newton decrement, in posterior sds, above which a failed line search is no convergence


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
    fresh: bool = True  # new keys this round, or those of the last fresh one
    measure_noise: bool = False

    def to_json(self) -> dict:
        """As a dict of plain values."""
        return asdict(self)


class Staged:
    """A fixed sequence of stages."""

    def __init__(self, stages: Sequence[Stage]):
        self._rounds = [stage for stage in stages for _ in range(stage.rounds)]

    def next(self, history: Sequence[dict]) -> Settings | Status:
        """Settings of the next round, or how the fit ends."""
        if len(history) >= len(self._rounds):
            return Status.CONVERGED
        stage = self._rounds[len(history)]
        return Settings(pairs=stage.pairs, draw_cg=stage.cg, newton_steps=stage.newton, newton_cg=stage.cg)


class Automatic:
    """Tempers the likelihood in, settles the mean on a fixed set of samples, and adds samples while noise dominates.

    Parameters
    ----------
    latents, data : int
        Sizes of the problem.
    tolerance : float
        Largest shift of the mean between rounds, in posterior standard deviations of any site, at which the fit counts
        as converged. Pairs are added while the standard error of the mean is above twice that; if it is still above
        four times that with the most pairs, the fit counts as noisy.
    float64 : bool
        Whether solves may be that accurate.
    """

    def __init__(self, latents: int, data: int, *, tolerance: float = 0.05, float64: bool = False):
        size = latents + data
        self._base, self._most = (256, 1024) if size < 2_000 else (32, 128) if size < 20_000 else (8, 32)
        if size > 300_000:
            self._base, self._most = 4, 8
        self._tolerance = tolerance
        self._latents = latents
        self._exact = latents < 2000
        self._residual = 1e-8 if float64 else 1e-5
        self._cg = min(10 * latents + 20, 2000)

    def next(self, history: Sequence[dict]) -> Settings | Status:
        """Settings of the next round, or how the fit ends."""
        if not history:
            return self._tempering(1e-4)
        last = history[-1]
        if last["beta"] < 1:
            return self._tempering(min(1.0, last["beta"] * self._factor(last)))
        if last["fresh"]:
            return self._settling(last["pairs"])
        shift, noise = last["shift"], last["noise"] or 0.0  # a single pair has no scatter to measure
        if not (shift < self._tolerance and shift < max(noise, 0.1 * self._tolerance)):
            return self._settling(last["pairs"])
        if last["newton_status"] == Status.NO_DESCENT and last["decrement"] > _STALLED:
            return Status.NO_DESCENT  # the mean stands still because it is stuck, not because it has arrived
        if noise <= 2 * self._tolerance:
            return Status.CONVERGED
        if last["pairs"] >= self._most:
            return Status.NOISY if noise > 4 * self._tolerance else Status.CONVERGED
        return self._settling(min(4 * last["pairs"], self._most))

    def _factor(self, last) -> float:
        """The easier the last round, the faster the likelihood comes in."""
        if last["newton_steps"] <= 4 and last["shortest_step"] == 1.0:
            return 100.0
        return 10.0 if last["newton_steps"] <= 8 else 3.0

    def _tempering(self, beta: float) -> Settings:
        return Settings(
            pairs=self._base,
            beta=beta,
            draw_residual=1e-3 if self._exact else 1e-2,
            draw_energy=1e-3 * self._latents,
            draw_cg=self._cg,
            newton_steps=15,
            newton_decrement=0.5,
            newton_cg=self._cg,
            newton_residual=0.05,
        )

    def _settling(self, pairs: int) -> Settings:
        return Settings(
            pairs=pairs,
            draw_residual=self._residual if self._exact else 1e-3,
            draw_energy=0.0 if self._exact else 1e-4 * self._latents,
            draw_cg=self._cg,
            newton_steps=15,
            newton_decrement=1e-4 if self._exact else 1e-2,
            newton_cg=self._cg,
            newton_residual=0.01,
            fresh=False,
            measure_noise=True,
        )
