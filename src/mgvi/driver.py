"""What all inferences share: the clock, progress, callbacks, checkpoints, limits, failure and the end.

A method that moves on by a step comes in; a Posterior goes out.
It must not know what the steps are.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import jax
import jax.numpy as jnp

from mgvi.checkpoint import Checkpoint
from mgvi.errors import FitError, MgviWarning
from mgvi.gaussian import Approximation, StoredDraws
from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.progress import printer, ticking
from mgvi.status import Status

_SHOWN = 64  # samples that callbacks see, at most
_FINAL = 1  # stream of the keys of the samples that are returned
_NOT_SHOWN = ("seconds", "compile_seconds")  # of a record, among the numbers of its line


class Options(TypedDict, total=False):
    """How every inference can be run.

    `samples` is the number of samples in the result. `progress` tells whether lines are shown on standard error.
    `callbacks` are called with a record and a Posterior; their time is not counted. `time_limit` ends the inference,
    with what it has, after so many seconds. `checkpoint` is a folder that the state is written to; the same call again
    goes on from there.
    """

    samples: int | None
    progress: bool
    callbacks: Iterable[Callable]
    time_limit: float
    checkpoint: Any


class Method(Protocol):
    """An inference that can be stopped, looked at and continued after every step."""

    name: str
    unit: str  # what a step is called
    settings: dict[str, Any]  # all that decides the result; plain values
    history: list[dict]  # a record of plain numbers for each step

    def outcome(self) -> Status | None:
        """How it ended, or None if it goes on."""
        ...

    def advance(self) -> dict[str, Any] | None:
        """Move on; a record of plain numbers. None: the state is not finite, and what was before it is kept."""
        ...

    def is_shown(self) -> bool:
        """Whether callbacks and progress want to know of the last step."""
        ...

    def line(self, record: dict) -> str:
        """A line of progress."""
        ...

    def doing(self) -> str:
        """What is being done at the moment; it may be asked from another thread."""
        ...

    def approximation(self) -> Approximation:
        """The distribution of the latents, now."""
        ...

    def shown(self, count: int, seed: int) -> Posterior:
        """A Posterior of the present state for callbacks, with at most so many samples."""
        ...

    def failure(self) -> str:
        """What went wrong, and what to do, after a step that was not finite."""
        ...

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """The state as groups of arrays and plain facts."""
        ...

    def from_files(self, arrays: dict[str, dict[str, Any]], facts: dict) -> None:
        """Go on from there."""
        ...


@dataclass(frozen=True)
class Driver:
    """One call of an inference: its problem, and what the user asked for; see `Options`."""

    problem: Problem
    seed: int
    samples: int | None = None
    progress: bool = True
    callbacks: Iterable[Callable] = ()
    time_limit: float = math.inf
    checkpoint: Any = None

    def run(self, method: Method, make: Callable[[Approximation], Approximation] | None = None) -> Posterior:
        """Drive a method to its end; `make` turns its approximation into that of the result."""
        return self.finish(method, *self.drive(method, make))

    def drive(
        self, method: Method, make: Callable[[Approximation], Approximation] | None = None
    ) -> tuple[Status, Approximation]:
        """Move a method on until it ends or a limit comes."""
        store, callbacks = self._restored(method), tuple(self.callbacks)
        deadline, show = time.monotonic() + self.time_limit, printer() if self.progress else None
        approximation = None
        try:
            while (status := method.outcome()) is None:
                if time.monotonic() > deadline:
                    status = Status.TIME_LIMIT
                    break
                what = f"{method.unit} {len(method.history) + 1:3d}"
                with ticking(show, what, doing=method.doing) if show is not None else nullcontext():
                    self._advance(method)
                if store is not None:
                    store.write(*method.to_files(), method.history)
                if method.is_shown() or method.outcome() is not None:
                    if show is not None:
                        show(method.line(method.history[-1]))
                    deadline += self._tell(callbacks, method, lambda n: method.shown(n, self.seed))
            if make is not None:
                approximation, seconds = self._timed(lambda: make(method.approximation()))
                step = method.history[-1]["step"] + 1 if method.history else 0
                method.history.append({"method": method.settings["method"], "step": step, **seconds})
                known = {"history": method.history[:], "status": Status.ITERATION_LIMIT}
                self._tell(
                    callbacks, method, lambda n: Posterior.drawn(self.problem, approximation, n, self.seed, **known)
                )
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return status, approximation or method.approximation()

    def finish(self, method: Method, status: Status, approximation: Approximation) -> Posterior:
        """The result, with samples of the approximation; a warning if it is not as asked for."""
        stored = len(approximation) if isinstance(approximation, StoredDraws) else None
        count = self.samples or stored or self.problem.budget.samples
        known = {"stream": _FINAL, "history": method.history, "status": status}
        result = Posterior.drawn(self.problem, approximation, count, self.seed, **known)
        if not result.status.ok:  # final draws may have failed where the steps did not
            message = f"{method.name} ended as {result.status.name}. {result.status.advice}"
            warnings.warn(message, MgviWarning, stacklevel=4)
        return result

    def _advance(self, method: Method) -> None:
        record, seconds = self._timed(method.advance)
        if record is None:
            raise FitError(method.failure(), self._last_good(method))
        method.history.append({**record, **seconds})

    def _timed(self, function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """What a function returns, and its seconds, those of compilation apart."""
        compiled = self.problem.static.compiled
        start, before = time.perf_counter(), compiled.seconds
        result = function()  # brings its numbers to the host, so nothing is still running
        compile_seconds = compiled.seconds - before
        seconds = time.perf_counter() - start - compile_seconds
        return result, {"seconds": seconds, "compile_seconds": compile_seconds}

    def _restored(self, method: Method) -> Checkpoint | None:
        """The store of a method that goes on from it, if there is anything."""
        if self.checkpoint is None:
            return None
        store = Checkpoint(self.checkpoint, self.problem, method.settings)
        found = store.read()
        if found is not None:
            arrays, facts, method.history[:] = found
            method.from_files(arrays, facts)
        return store

    def _tell(self, callbacks: tuple[Callable, ...], method: Method, shown_by: Callable[[int], Posterior]) -> float:
        """Show the last record to the callbacks, and return the seconds that they took."""
        start = time.monotonic()
        if callbacks:
            shown = shown_by(min(_SHOWN, self.problem.budget.samples))
            for callback in callbacks:
                callback(dict(method.history[-1]), shown)
        return time.monotonic() - start

    def _last_good(self, method: Method) -> Posterior:
        approximation = method.approximation()
        mean, _, _ = approximation.draw(self.problem, 1, self.seed, _FINAL)
        one = jax.tree.map(lambda m: jnp.zeros((1, *m.shape), m.dtype), mean)
        known = {"history": method.history, "status": Status.NOT_FINITE, "approximation": approximation}
        return Posterior(self.problem, mean, one, **known)


def numbers_of(record: dict) -> str:
    """The numbers of a record, and how long it took."""
    numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and k not in _NOT_SHOWN}
    return "  ".join(f"{name} {value:.6g}" for name, value in numbers.items()) + f"  {took(record)}"


def took(record: dict) -> str:
    """How long a step took, for a line of progress."""
    compiled = f" (+{record['compile_seconds']:.1f} s compiling)" if record["compile_seconds"] > 0.05 else ""
    return f"{record['seconds']:.2f} s{compiled}"
