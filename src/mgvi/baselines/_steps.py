"""What methods have in common that move by single steps: a count of them, when to look, and words for a failure.

A subclass with the steps themselves comes in; most of what a `mgvi.driver.Method` needs goes out.
It must not know what the steps are.
"""

from typing import Any

from mgvi.driver import numbers_of
from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.status import Status

_RATIO = 1.2  # number of steps at a look over that at the look before


class Stepwise:
    """A method under way; callbacks and progress look at it on a logarithmic grid of steps.

    A subclass adds `advance`, `outcome`, `approximation`, `to_files` and `from_files`.
    """

    def __init__(self, problem: Problem, name: str, settings: dict[str, Any]):
        self.name = self.unit = name
        self.settings = {"method": name, **settings}
        self.history: list[dict] = []
        self._problem = problem
        self._step = 0  # number of steps so far
        self._due = 0.0  # number of steps at the next look
        self._is_due = False

    def _move(self, count: int) -> None:
        """Count so many steps more."""
        self._step += count
        self._is_due = self._step >= self._due
        if self._is_due:
            self._due = self._step * _RATIO

    def _count_to_facts(self) -> dict[str, Any]:
        return {"step": self._step, "due": self._due, "is_due": self._is_due}

    def _count_from_facts(self, facts: dict) -> None:
        self._step, self._due, self._is_due = facts["step"], facts["due"], facts["is_due"]

    def is_shown(self) -> bool:
        """Whether a look is due."""
        return self._is_due

    def line(self, record: dict) -> str:
        """A line of progress."""
        return f"{self.name}  {numbers_of(record)}"

    def doing(self) -> str:
        """Nothing to tell: all steps are alike."""
        return ""

    def approximation(self) -> Any:
        """The distribution of the latents, now."""
        raise NotImplementedError

    def shown(self, count: int, seed: int) -> Posterior:
        """Samples of the present approximation."""
        known = {"history": self.history[:], "status": Status.ITERATION_LIMIT}
        return Posterior.drawn(self._problem, self.approximation(), count, seed, **known)

    def failure(self) -> str:
        """What went wrong, and what to do."""
        return (
            f"{self.name}: not finite after step {self._step}. Look for overflow (exp of large values), log of zero or "
            "division by zero in the model; a narrower prior, a smaller step or float64 may help. The last good state "
            "is in `error.posterior`."
        )
