"""Output that all commands share: exit statuses, errors, warnings and JSON.

Results and messages come in; lines on standard error and JSON on standard output go out.
It must not know what any command does.
"""

import contextlib
import json
import math
import sys
import warnings
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np


class Exit(IntEnum):
    """Exit status of a command."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    NOT_CONVERGED = 3


class CommandError(Exception):
    """A command cannot do its work; the message says in one or two sentences what is wrong and what to do."""

    def __init__(self, message: str, code: Exit = Exit.FAILED):
        super().__init__(message)
        self.code = code


def usage(message: str) -> CommandError:
    """The error for wrong arguments."""
    return CommandError(message, Exit.USAGE)


def say(line: str = "") -> None:
    """Print a line on standard error; standard output is for results only."""
    print(line, file=sys.stderr, flush=True)


def one_line(text: Any) -> str:
    """Text without line breaks."""
    return " ".join(str(text).split())


def print_json(value: Any) -> None:
    """Print a value on standard output as strict JSON."""
    print(to_json(value))


def to_json(value: Any) -> str:
    """A value as strict JSON: arrays become lists, numbers that are not finite become null."""
    return json.dumps(_plain(value), indent=1, allow_nan=False, default=str)


def _plain(value):
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextlib.contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """Redirect standard output to standard error inside the block."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def short_warnings() -> Iterator[None]:
    """Show each warning once, as a line on standard error, without the place in the code that raised it."""

    def show(message, category, filename, lineno, file=None, line=None):
        say(f"mgvi: warning: {one_line(message)}")

    with warnings.catch_warnings():
        # Users always see warnings, also where a filter outside turns them into errors, as in the tests.
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield
