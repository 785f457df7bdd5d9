"""Plans that are given: a fixed sequence of stages, as in the paper.

Stages come in; settings of the next round, or the end, go out.
It must not know what rounds do with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mgvi.fit.records import GIVEN, Record, RoundSettings
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


class StagedPlan:
    """A fixed sequence of stages. Their iterations are those of solves, so that no curvature is a matrix."""

    def __init__(self, stages: Sequence[Stage]):
        self._rounds = [stage for stage in stages for _ in range(stage.rounds)]
        numbers = [stage.pairs for stage in self._rounds] or [1]
        self.most, self.first = max(numbers), numbers[0]  # pairs of any round, and of the first

    def next(self, history: Sequence[Record]) -> RoundSettings | Status:
        """Settings of the next round; CONVERGED when all are done."""
        if len(history) >= len(self._rounds):
            return Status.CONVERGED
        stage = self._rounds[len(history)]
        return RoundSettings(
            phase=GIVEN,
            pairs=stage.pairs,
            most_draw_cg=stage.cg,
            most_steps=stage.newton,
            most_newton_cg=stage.cg,
            newton_damping=history[-1].damping if history else 0.0,
        )
