"""Lines of progress on standard error.

A line comes in; it is shown, coloured by rich if that is installed and standard error is a terminal.
It must not know what the line is about.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def printer() -> Callable[[str], None]:
    """A function that shows a line."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console

            console = Console(stderr=True, highlight=True)
            return lambda line: console.print(line, soft_wrap=True)
        except ImportError:
            pass
    return lambda line: print(line, file=sys.stderr, flush=True)


@contextmanager
def ticking(
    show: Callable[[str], None], what: str, every: float = 30.0, doing: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Show a line now and then while something long is under way; compiled programs are not disturbed by it.

    `doing` tells what is being done at that moment.
    """
    start, done = time.monotonic(), threading.Event()

    def tick():
        while not done.wait(every):
            now = doing()
            show(f"{what}: at work for {time.monotonic() - start:.0f} s{', ' if now else ''}{now}")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
