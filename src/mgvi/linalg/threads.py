"""One thread for the linear algebra of small matrices.

A size comes in; within the context NumPy's OpenBLAS works with one thread if matrices of that size gain nothing from
more. It must not know what is computed.

OpenBLAS's threads wait for each other by spinning. For small matrices two of them gain little, and where another
process uses the cores they take ten times as long as one.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_SMALL = 600  # rows of a matrix up to which one thread is as fast as two, on idle cores


@contextmanager
def one_thread_for(size: int) -> Iterator[None]:
    """Give NumPy's OpenBLAS one thread, if matrices have at most so few rows; without OpenBLAS nothing happens.

    Examples
    --------
    >>> from mgvi.linalg import one_thread_for
    >>> with one_thread_for(10):
    ...     pass
    """
    found = _openblas()
    if size > _SMALL or found is None:
        yield
        return
    read, write = found
    before = read()
    write(1)
    try:
        yield
    finally:
        write(before)


@cache
def _openblas() -> tuple[Any, Any] | None:
    """Functions that read and write the number of threads of the OpenBLAS in NumPy's wheel."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in folder.glob("*openblas*"):
            library = ctypes.CDLL(str(path))
            for prefix in ("scipy_openblas", "openblas"):
                for suffix in ("64_", "", "_64"):
                    name = f"{prefix}_{{}}_num_threads{suffix}"
                    if hasattr(library, name.format("set")):
                        return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None
