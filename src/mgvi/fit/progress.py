"""One line of progress a round.

Records of rounds come in; lines on standard error go out.
It must not change anything.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from mgvi._progress import printer, ticking


class Progress:
    """Prints one line for each round, coloured by rich if that is installed and standard error is a terminal."""

    def __init__(self):
        self._print = printer()

    def waiting(self, number: int, doing: Callable[[], str]) -> AbstractContextManager[None]:
        """Show now and then that a long round is under way, and what it is doing."""
        return ticking(self._print, f"round {number:3d}", doing=doing)

    def __call__(self, record: dict) -> None:
        """Show one round."""
        stage = f"likelihood^{record['beta']:.0e}" if record["beta"] < 1 else "settling"
        noise = "" if record["noise"] is None else f"  noise {record['noise']:.3f} sd"
        compiled = f" (+{record['compile_seconds']:.1f} s compiling)" if record["compile_seconds"] > 0.05 else ""
        self._print(
            f"round {record['round'] + 1:3d}  {stage:16s}  kl {record['kl']:.6g}  shift {record['shift']:.3f} sd{noise}"
            f"  pairs {record['pairs']}  {record['seconds']:.2f} s{compiled}"
        )
