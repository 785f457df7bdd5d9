"""Files of data sets: found in a local folder or downloaded once, and read.

A path relative to the data folder and a reader come in; what the reader makes of the file goes out.
It must not know what the data mean.
"""

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mgvi.errors import FileError

_VARIABLE = "MGVI_DATA_DIR"  # environment variable that names the data folder
# Exceptions of readers for files that are truncated, corrupt or of another kind.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile, zlib.error)


class Remote(NamedTuple):
    """A public file: what pooch needs to download and verify it."""

    url: str
    file: str
    sha256: str


def find(relative: str) -> Path | None:
    """The path of a file in the data folder, or None."""
    folder = os.environ.get(_VARIABLE)
    path = Path(folder).expanduser() / relative if folder else None
    return path if path is not None and path.is_file() else None


def local(name: str, relative: str, read: Callable[[Path], Any]) -> Any:
    """Read a file of the data folder; raise `FileError` if there is none."""
    path = find(relative)
    if path is None:
        raise FileError(f"{name} cannot be had: {_found(relative)}. {_advice(relative)}")
    return _read(name, path, read)


def fetch(name: str, relative: str, remote: Remote, read: Callable[[Path], Any]) -> Any:
    """Read a public file, which is downloaded the first time."""
    try:
        import pooch
    except ImportError:
        raise FileError(
            f"{name} cannot be had: {_found(relative)}, and pooch, which downloads {remote.url}, is not installed. "
            f"{_advice(relative)[:-1]}, or install it: pip install pooch."
        ) from None
    try:
        # The progress bar would need the package tqdm.
        path = pooch.retrieve(
            remote.url, f"sha256:{remote.sha256}", fname=remote.file, path=pooch.os_cache("mgvi"), progressbar=False
        )
    except (OSError, ValueError) as error:  # no network, or a file with another hash
        raise FileError(
            f"{name} cannot be had: {_found(relative)}, and the download of {remote.url} failed ({error}). "
            f"{_advice(relative)}"
        ) from error
    return _read(name, Path(path), read)


def _found(relative: str) -> str:
    folder = os.environ.get(_VARIABLE)
    return f"{_VARIABLE} is not set" if not folder else f"{_VARIABLE} is {folder!r}, which has no {relative}"


def _advice(relative: str) -> str:
    return f"Set {_VARIABLE} to a folder that has {relative}."


def _read(name: str, path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except ImportError as error:
        raise FileError(f"{name} cannot be read: {path} needs the package {error.name}. Install it.") from None
    except _UNREADABLE as error:
        raise FileError(f"{name} cannot be read: {path} is damaged ({error}). Get the file anew.") from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a .npz file by name."""
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def read_table(path: Path) -> dict[str, list[str]]:
    """Columns of a CSV file by name, as text."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {column: list(values) for column, values in zip(header, zip(*rows, strict=True), strict=True)}


def read_matlab(path: Path) -> dict[str, np.ndarray]:
    """Variables of a MATLAB file by name."""
    from scipy.io import loadmat

    return loadmat(path)


def read_stata(path: Path) -> dict[str, np.ndarray]:
    """Columns of a Stata file by name."""
    from pandas import read_stata

    frame: Any = read_stata(path, convert_categoricals=False)
    return {str(column): frame[column].to_numpy() for column in frame.columns}


def numbers(values) -> np.ndarray:
    """Floats from strings or numbers; nan for an empty string or None."""
    return np.array([np.nan if v is None or v == "" else float(v) for v in values])


def typed(table: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Columns converted to the first type that fits: integers, floats (nan for empty cells), text."""
    columns = {}
    for name, values in table.items():
        try:
            column = numbers(values)
        except ValueError:
            column = np.array(values)
        else:
            if not any("." in v or v == "" for v in values):
                column = column.astype(int)
        columns[name] = column
    return columns
