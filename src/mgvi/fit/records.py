"""Settings of a round and the record of what it did: plain values, which checkpoints hold.

Numbers come in; the same numbers go out, as JSON too.
It must not know what a round does with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

BEGIN, TEMPER, FEW, SETTLE, AVERAGE, GIVEN = "begin", "temper", "few", "settle", "average", "given"  # phases


@dataclass(frozen=True)
class RoundSettings:
    """Everything that is chosen for one round."""

    phase: str
    pairs: int
    beta: float = 1.0  # power of the likelihood
    start: str | None = None  # a dense problem's round begins anew: at the "prior", or at "modest" scales
    fresh: bool = True  # new keys this round, or those of the rounds before
    draw_residual: float = 0.0
    draw_energy: float = 0.0
    most_draw_cg: int = 100  # iterations
    most_steps: int = 10  # of Newton's method
    newton_decrement: float = 0.0
    most_newton_cg: int = 100  # iterations of a step
    newton_residual: float = 0.1
    newton_share: float = 0.0
    newton_damping: float = 0.0  # of the first step
    precondition: bool = False  # by an estimate of the metric's diagonal
    probes: int = 32  # for that estimate
    thorough: bool = False  # precondition the latents that data know best by a matrix too
    recycle: bool = False  # the preconditioner of the last round, and its chart
    centre: bool = False  # adapt the chart
    # Pairs of the last round over which a dense curvature, or the information of a large problem's data, is averaged;
    # 0: that at the mean.
    spread: int = 0
    rough: bool = False  # a dense curvature from a few of those pairs only
    lead: float = 1.0  # how far a large problem's global latents go, in terms of how far the KL wants them to
    # Of a dense problem: weight of the new deviations against the last round's, if those have the same keys; above 1,
    # of the mean's move instead.
    weight: float = 1.0
    measure: bool = False  # the Monte Carlo error of a large problem's mean, by halves of its pairs


@dataclass(frozen=True, kw_only=True)
class Record(RoundSettings):
    """What one round did; a shift, a change and a noise are those of the worst site, in posterior sds."""

    round: int = 0
    shrink: float = 1.0  # of the deviations, because longer ones broke the round
    kl: float = 0.0
    shift: float = 0.0  # of the mean
    change: float | None = None  # of the deviations, relative
    noise: float | None = None  # Monte Carlo error of this round's mean, were it at its end
    mcse: Mapping[str, float] = field(default_factory=dict)  # Monte Carlo error of where rounds lead to, by site
    contraction: float = 0.0  # of the moves of rounds with the same samples, of the slowest site
    along: tuple[float, float] | None = None  # the move in terms of the last: its share along it, its squared length
    averaged_rounds: int = 0  # whose means are averaged
    finite: bool = True
    draw_cg: int = 0  # iterations of the longest draw
    draw_status: int = 0
    newton_steps: int = 0
    newton_cg: int = 0  # iterations of all steps
    newton_status: int = 0
    damping: float = 0.0  # of the next step
    decrement: float = 0.0
    shortest_step: float = 1.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From the values of a history; others are left out."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})

    @property
    def error(self) -> float:
        """The Monte Carlo error of the mean of the worst site."""
        return max(self.mcse.values(), default=0.0)

    @property
    def round_error(self) -> float:
        """What this round adds to it; 0 where nothing tells it."""
        return self.noise or 0.0
