"""Lines of progress on standard error.

A line comes in; it is shown, coloured by rich if that is installed and standard error is a terminal.
It must not know what the line is about.
"""

import sys
from collections.abc import Callable


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
