"""What a curvature can do: a precision at a mean of a problem.

A problem and a mean in its chart come in; draws, blocks and, within compiled programs, solutions go out.
It must not know why they are asked for.
"""

from typing import Any, NamedTuple, Protocol

from mgvi.linalg import Stop
from mgvi.pairs import Pairs
from mgvi.problem import Latent, Problem


class Keys(NamedTuple):
    """Names of random numbers: those of the same seed, stream and place are the same, however many there are."""

    seed: int
    stream: int
    count: int


class Curvature(Protocol):
    """The precision of a Gaussian at a mean; a pytree, so that it can be an argument of compiled programs.

    `DenseCurvature` keeps a matrix, `KrylovCurvature` multiplies.
    """

    @property
    def problem(self) -> Problem:
        """In the chart of the mean."""
        ...

    @property
    def mean(self) -> Latent:
        """Where the precision is."""
        ...

    def draw(self, keys: Keys, stop: Stop = ..., coupled: bool = True) -> tuple[Any, Any]:
        """Deviations with the inverse of the precision as covariance, one for each key, and a report of the solves."""
        ...

    def block(self) -> dict[str, Any]:
        """The precision of the few global latents, for the chart: a block for each site."""
        ...

    def inside(self) -> Any:
        """An `Inside`: what a compiled program that moves the mean works with."""
        ...


class Inside(Protocol):
    """A curvature within a compiled program; points are trees, or vectors if that makes for a smaller program.

    It has the attributes `problem`, `mean`, `free` (1 for directions in which the mean moves), `beta` (the power of the
    likelihood) and `uses_information` (whether solves take information of the data, averaged over samples).
    """

    def solve(self, at: Any, information: Any, b: Any, stop: Stop, damping: Any) -> tuple[Any, Any]:
        """(M + damping)^-1 b at a point, where the data have that information, and the iterations that it took."""
        ...

    def nothing_seen(self, pairs: Pairs) -> Any:
        """What is kept of the gradients of pairs, before the first."""
        ...

    def seen(self, so_far: Any, gradients: Any, first: Any) -> Any:
        """What is kept of gradients, with those of some pairs more, the first of which has that number."""
        ...

    def all_seen(self, seen: Any, gradient: Any, count: Any) -> Any:
        """What is kept of the gradients of all pairs, given their average."""
        ...

    def scatter(self, seen: Any, count: Any) -> dict[str, Any]:
        """Mean square, by site, of where a pair alone would move the mean, from where all of them do.

        Divided by the number of pairs less one, it is the squared Monte Carlo error of the mean.
        """
        ...

    def longest(self, at: Any, step: Any) -> Any:
        """The longest part of a step from a point that is worth a try, at most 1."""
        ...

    def tree(self, x: Any) -> Latent:
        """A point as the problem takes it."""
        ...

    def pack(self, stack: Any) -> Any:
        """A stack of trees in the form of points."""
        ...

    def outside(self, x: Any) -> Latent:
        """A point as those outside of the program take it."""
        ...
