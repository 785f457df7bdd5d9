"""Settings of the rounds: given ones, or the paper's.

The history of a fit comes in; the settings of the next round, or the decision to stop, go out. A schedule is a pure
function of the history, so a checkpoint needs no more than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    begin: str | None = None  # a small problem's round begins anew: from the "prior", or from "modest" scales
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


def last_of(history, name, before) -> Any:
    """What the record of the last round says, or what was so before the first."""
    return history[-1][name] if history else before


def next_power(last: dict) -> float:
    """Power of the likelihood in the next round: the easier the last one, the faster the likelihood comes in."""
    easy = last["newton_steps"] <= 4 and last["shortest_step"] == 1.0
    factor = 100.0 if easy else 10.0 if last["newton_steps"] <= 8 else 3.0
    return min(1.0, last["beta"] * (3.0 if last["newton_status"] == Status.NO_DESCENT else factor))


class Staged:
    """A fixed sequence of stages."""

    def __init__(self, stages: Sequence[Stage]):
        self._rounds = [stage for stage in stages for _ in range(stage.rounds)]
        numbers = [stage.pairs for stage in self._rounds] or [1]
        self.most, self.at_once = max(numbers), numbers[0]  # pairs of any round, and of the first

    def later(self) -> list[Settings]:
        """Rounds to come, whose programs may compile ahead: the first has all of them."""
        return []

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
            newton_damping=last_of(history, "damping", 0.0),
        )

    def is_stuck(self, last: dict) -> bool:
        """Never: what was asked for is done."""
        return False
