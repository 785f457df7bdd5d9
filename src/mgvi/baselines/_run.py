"""What all baselines share: the clock, the callbacks, the limits and the end.

A method that moves on by a few steps comes in; how it ended and a history of records go out.
It must not know what the steps are.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi._progress import printer
from mgvi.errors import FitError, MgviWarning
from mgvi.posterior import Posterior, default_samples
from mgvi.problem import Problem
from mgvi.samplers import Approximation
from mgvi.status import Status

_RATIO = 1.2  # of the steps between two calls of the callbacks
_SHOWN = 64  # samples that callbacks see, at most
_FINAL = 1  # stream of the samples that are returned


class Method(Protocol):
    """An inference that can be stopped and looked at after every few steps."""

    name: str

    def advance(self) -> dict[str, Any]:
        """Move on; a record of plain numbers with the "step" it is at and whether all is "finite"."""
        ...

    def outcome(self) -> Status | None:
        """How it ended, or None if it goes on."""
        ...

    def state(self) -> tuple[Any, Approximation]:
        """Latent mean and the distribution of deviations from it, now."""
        ...


@dataclass(frozen=True)
class Run:
    """One call of a baseline: its problem, and what the user asked for."""

    problem: Problem
    seed: int
    samples: int | None = None
    progress: bool = True
    callbacks: Iterable[Callable] = ()
    time_limit: float = math.inf

    def drive(self, method: Method) -> tuple[Status, list[dict]]:
        """Move a method on until it ends or a limit comes; how it ended, and its history."""
        history: list[dict] = []
        callbacks, show = tuple(self.callbacks), printer() if self.progress else None
        deadline, mark = time.monotonic() + self.time_limit, 0.0
        good = method.state()
        try:
            while (status := method.outcome()) is None:
                if time.monotonic() > deadline:
                    return Status.TIME_LIMIT, history
                record, seconds = self.timed(method.advance)
                if not record.pop("finite"):
                    raise self._failure(method.name, record["step"], good, history)
                good = method.state()
                history.append({"method": method.name, **record, **seconds})
                if record["step"] >= mark or method.outcome() is not None:
                    mark = record["step"] * _RATIO
                    if show is not None:
                        show(_line(history[-1]))
                    deadline += self.tell(callbacks, good, history)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return status, history

    def conclude(
        self, method: Method, name: str, make: Callable[[Any, Any], tuple[Any, Approximation]]
    ) -> tuple[tuple[Any, Approximation], Status, list[dict]]:
        """Drive a method, then make the result of its last state, unless that was interrupted."""
        status, history = self.drive(method)
        state = method.state()
        if status is Status.INTERRUPTED:
            return state, status, history
        try:
            state, seconds = self.timed(lambda: make(*state))
            step = history[-1]["step"] + 1 if history else 0
            history.append({"method": name, "step": step, **seconds})
            self.tell(tuple(self.callbacks), state, history)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return state, status, history

    def timed(self, function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """What a function returns, and its seconds, those of compilation apart."""
        compiled = self.problem.static.compiled
        start, before = time.perf_counter(), compiled.seconds
        result = function()  # brings its numbers to the host, so nothing is still running
        compile_seconds = compiled.seconds - before
        seconds = time.perf_counter() - start - compile_seconds
        return result, {"seconds": seconds, "compile_seconds": compile_seconds}

    def tell(self, callbacks: Iterable[Callable], state: tuple[Any, Approximation], history: list[dict]) -> float:
        """Show the last record to the callbacks, and return the seconds that they took."""
        start = time.monotonic()
        if callbacks:
            count = min(_SHOWN, default_samples(self.problem))
            shown = self._bare(state, history[:], Status.ITERATION_LIMIT).sample(count, self.seed)
            for callback in callbacks:
                callback(dict(history[-1]), shown)
        return time.monotonic() - start

    def finish(
        self, state: tuple[Any, Approximation], status: Status, history: list[dict], deviations: Any = None
    ) -> Posterior:
        """The result, with samples of the approximation unless there are some; a warning if it is not as asked for."""
        result = self._bare(state, history, status)
        if deviations is None:
            result = result.sample(self.samples or default_samples(self.problem), self.seed, _FINAL)
        else:
            result.deviations = deviations
        if not result.status.ok:
            name = history[-1]["method"] if history else "it"
            message = f"{name} ended as {result.status.name}. {result.status.advice}"
            warnings.warn(message, MgviWarning, stacklevel=3)
        return result

    def _bare(self, state, history, status) -> Posterior:
        mean, approximation = state
        return Posterior(self.problem, mean, {}, history=history, status=status, approximation=approximation)

    def _failure(self, name, step, good, history) -> FitError:
        mean, approximation = good
        one = jax.tree.map(lambda m: jnp.zeros((1, *m.shape), m.dtype), mean)
        last = Posterior(
            self.problem, mean, one, history=history, status=Status.NOT_FINITE, approximation=approximation
        )
        return FitError(
            f"{name}: not finite at step {step}. Look for overflow (exp of large values), log of zero or division by "
            "zero in the model; a narrower prior, a smaller step or float64 may help. The last good state is in "
            "`error.posterior`.",
            last,
        )


def start(problem: Problem) -> Any:
    """The mean of the prior, where everything begins."""
    return _tree.zeros(problem.latent)


def _line(record: dict) -> str:
    numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k not in _NOT_SHOWN}
    shown = "  ".join(f"{name} {value:.6g}" for name, value in numbers.items())
    compiled = f" (+{record['compile_seconds']:.1f} s compiling)" if record["compile_seconds"] > 0.05 else ""
    return f"{record['method']}  {shown}  {record['seconds']:.2f} s{compiled}"


_NOT_SHOWN = ("seconds", "compile_seconds")
