"""What methods have in common that move by single steps: a logarithmic grid, and words for a failure.

A count of steps comes in; whether it is time to look goes out.
It must not know what the steps are.
"""

from typing import Any

from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.status import Status

_RATIO = 1.2  # of the steps at two consecutive looks


class Grid:
    """Steps so far, and when the next look is due: plain values only."""

    def __init__(self):
        self.step, self.due, self.is_due = 0, 0.0, False

    def move(self, count: int) -> None:
        """So many steps more."""
        self.step += count
        self.is_due = self.step >= self.due
        if self.is_due:
            self.due = self.step * _RATIO

    def is_shown(self) -> bool:
        """Whether a look is due."""
        return self.is_due


def shown_by(method: Any, problem: Problem, count: int, seed: int) -> Posterior:
    """Samples of a method's present approximation."""
    known = {"history": method.history[:], "status": Status.ITERATION_LIMIT}
    return Posterior.drawn(problem, method.approximation(), count, seed, **known)


def not_finite(name: str, step: int) -> str:
    """What went wrong, and what to do."""
    return (
        f"{name}: not finite after step {step}. Look for overflow (exp of large values), log of zero or division by "
        "zero in the model; a narrower prior, a smaller step or float64 may help. The last good state is in "
        "`error.posterior`."
    )
