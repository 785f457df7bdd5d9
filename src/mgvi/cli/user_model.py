"""A user's model and data, read from files.

Names of a Python function and of a .npz file, and settings, come in; the function and its arguments go out.
It must not know what they are used for.
"""

import ast
import difflib
import importlib.util
import inspect
import json
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from mgvi.cli.console import CommandError, one_line, usage


def load_model(words: str) -> Callable:
    """The function that `FILE.py:FUNCTION` names."""
    file, colon, name = words.rpartition(":")
    if not colon or name.endswith(".py"):
        raise usage(f"expected MODEL.py:FUNCTION, found {words!r}. Which function is the model? E.g. {words}:model")
    path = Path(file)
    if not path.is_file():
        raise usage(f"there is no file {file!r}.")
    if path.suffix != ".py":
        raise usage(f"expected a Python file (.py), found {file!r}.")
    module = _import_file(path)
    found = getattr(module, name, None)
    if found is None:
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value) and n[0] != "_"]
        close = difflib.get_close_matches(name, functions, n=1)
        hint = f", did you mean {close[0]!r}?" if close else "."
        raise usage(f"{file} has no function {name!r}{hint} It has: {', '.join(functions) or 'none'}.")
    if not callable(found):
        raise usage(f"{name!r} of {file} is no function: found {type(found).__name__}.")
    return found


def _import_file(path: Path):
    """Import a Python file by its path; it may import other modules of its folder."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"_mgvi_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise CommandError(f"{error.filename}, line {error.lineno}: {error.msg}.") from error
    except Exception as error:
        raise CommandError(f"{_place(path, error)}: {type(error).__name__}: {one_line(error)}") from error
    return module


def _place(path: Path, error: Exception) -> str:
    """File and line of the last frame of the traceback that is in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) in (path, path.resolve())]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def load_data(path: Path | None) -> dict[str, Any]:
    """Arrays of a .npz file by name; arrays without axes become Python scalars (numbers, booleans, strings)."""
    if path is None:
        return {}
    if not path.is_file():
        raise usage(f"there is no file {str(path)!r}.")
    how = "Write one in Python with numpy.savez('data.npz', x=x, y=y)."
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise usage(f"{path} holds a single array without a name, expected a .npz file. {how}")
        with file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if zipfile.is_zipfile(path) and "pickle" in str(error):
            raise usage(f"{path} holds an array of Python objects; numbers and text work. {how}") from error
        raise usage(f"{path} is no .npz file, or it is damaged. {how}") from error
    return {name: _argument(array) for name, array in arrays.items()}


def _argument(array: np.ndarray) -> Any:
    if array.ndim == 0:
        return array.item()
    return array if array.dtype.kind in "USM" else jnp.asarray(array)


def load_settings(words: list[str]) -> dict[str, Any]:
    """Arguments of the model from words of the form NAME=VALUE."""
    settings = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise usage(f"--set {word}: expected NAME=VALUE, as in --set length=2.5 or --set periodic=true.")
        settings[name] = _value(text)
    return settings


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


def check_arguments(model: Callable, arguments: dict[str, Any], data: Path | None) -> None:
    """Raise an error that names the arguments that the model does not take, or needs and does not get."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):
        return
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        unknown = [name for name in arguments if name not in names]
        if unknown:
            raise usage(
                f"the model {model.__name__}({', '.join(names)}) takes no {_names(unknown)}, which "
                f"{'--set gives' if data is None else f'{data} or --set gives'}. Rename it, or leave it out."
            )
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in arguments
    ]
    if missing:
        where = f"{data} has {_names(list(arguments)) or 'nothing'}" if data else "there is no --data file"
        raise usage(f"the model needs {_names(missing)}, but {where}. Add it to the file, or use --set NAME=VALUE.")


def _names(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
