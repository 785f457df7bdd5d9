"""What the commands have in common: how they fail, warn and speak to machines.

Results and errors come in; lines on standard error, JSON on standard output and exit codes go out.
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
    """How a command ends."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    NOT_CONVERGED = 3


class CommandError(Exception):
    """A command cannot do what it was asked to; the message is one sentence or two for the user.

    Parameters
    ----------
    message : str
        What is wrong and what to do.
    code : Exit
        The exit status.
    """

    def __init__(self, message: str, code: Exit = Exit.FAILED):
        super().__init__(message)
        self.code = code


def usage(message: str) -> CommandError:
    """The error for a command that was called in a wrong way."""
    return CommandError(message, Exit.USAGE)


def say(line: str = "") -> None:
    """A line for people; standard output belongs to results."""
    print(line, file=sys.stderr, flush=True)


def one_line(text: Any) -> str:
    """Text without line breaks."""
    return " ".join(str(text).split())


def print_json(value: Any) -> None:
    """A value on standard output as strict JSON."""
    print(to_json(value))


def to_json(value: Any) -> str:
    """A value as strict JSON: arrays become lists, what is not finite becomes null."""
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
    """Send whatever is printed meanwhile to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def short_warnings() -> Iterator[None]:
    """Show each warning once, as a line on standard error, without the place in the code that raised it."""

    def show(message, category, filename, lineno, file=None, line=None):
        say(f"mgvi: warning: {one_line(message)}")

    with warnings.catch_warnings():
        # A test runner that turns warnings into errors would otherwise hide what a user sees.
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield
