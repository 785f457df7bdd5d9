"""Outcomes of iterative work, each with advice.

A code comes in, a sentence goes out. Nothing here knows what was solved.
"""

from enum import IntEnum


class Status(IntEnum):
    """How a solve, a minimisation or a fit ended.

    Examples
    --------
    >>> from mgvi.status import Status
    >>> Status.CONVERGED.ok, Status(3).name
    (True, 'NOT_FINITE')
    """

    CONVERGED = 0
    ITERATION_LIMIT = 1
    STAGNATED = 2
    NOT_FINITE = 3
    NO_DESCENT = 4
    TIME_LIMIT = 5
    INTERRUPTED = 6
    NOISY = 7

    @property
    def ok(self) -> bool:
        """Whether the result is what was asked for."""
        return self is Status.CONVERGED

    @property
    def advice(self) -> str:
        """What it means and what to try."""
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "The requested accuracy was reached.",
    Status.ITERATION_LIMIT: "The iteration limit came first: raise it, or accept a looser tolerance.",
    Status.STAGNATED: "Rounding errors stopped the progress: loosen the tolerance, or enable float64.",
    Status.NOT_FINITE: "A NaN or inf appeared: look for overflow (exp of large values) or log of zero in the model.",
    Status.NO_DESCENT: "No step along the search direction lowered the objective: it is at the accuracy of the "
    "arithmetic, or the model has kinks; enable float64 to tell which.",
    Status.TIME_LIMIT: "The time limit came first: continue from the checkpoint, or raise it.",
    Status.INTERRUPTED: "Interrupted by the user: continue from the checkpoint.",
    Status.NOISY: "With the most samples, and after averaging, the mean of some parameter is still uncertain by more "
    "than half of its sd: see `mcse` in `summary()`. In a small problem a few samples dominate: a funnel or a heavy "
    "tail that no Gaussian describes; check against NUTS. In a large one compare seeds, or take more pairs by a "
    "`schedule`.",
}
