"""Checkpoints of an inference: one folder a step, the last two kept.

The state after a step comes in; it is written atomically, and the newest state that is whole comes back out.
It must not know what the state means.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

from mgvi import _files
from mgvi.errors import FileError, MgviWarning
from mgvi.problem import Problem

_KEPT = 2  # checkpoints: the newest, and the one before in case of damage


class Checkpoint:
    """Writes and reads the state of one inference.

    Parameters
    ----------
    folder : path-like
        Where; made if it does not exist.
    problem : Problem
        The problem that is solved.
    settings : dict
        What else decides the result (method, seed, schedule, ...); a checkpoint made with others is refused.
    """

    def __init__(self, folder: Any, problem: Problem, settings: dict):
        self._folder = Path(folder)
        self._problem = problem
        self._settings = settings
        if self._folder.exists() and not self._folder.is_dir():
            raise FileError(f"checkpoint={str(folder)!r} is a file; give a folder.")
        for unfinished in self._folder.glob(".round-*"):  # what a crash while writing left behind
            shutil.rmtree(unfinished, ignore_errors=True)

    def write(self, arrays: dict[str, dict[str, Any]], facts: dict, history: list[dict]) -> None:
        """Store the state after the last record of `history`."""
        facts = {"kind": "checkpoint", "history": history, "settings": self._settings, "state": facts}
        _files.write(self._folder / f"round-{len(history):05d}", arrays, facts, self._problem)
        for old in self._rounds()[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def read(self) -> tuple[dict[str, dict[str, Any]], dict, list[dict]] | None:
        """Arrays, facts and history of the newest state that is whole, or None if there is none."""
        damaged = None
        for path in self._rounds():
            try:
                arrays, facts = _files.read(path, self._problem)
            except FileError as error:
                if "another problem" in str(error):
                    raise
                damaged = error
                continue
            if facts["settings"] != self._settings:
                raise FileError(
                    f"{path} was made with other settings: expected {self._settings}, found {facts['settings']}. Use "
                    "the same settings to resume, or another folder to start anew."
                )
            if damaged is not None:
                warnings.warn(f"{damaged} Resuming from the round before, {path.name}.", MgviWarning, stacklevel=3)
            return arrays, facts["state"], facts["history"]
        if damaged is not None:
            raise damaged
        return None

    def _rounds(self) -> list[Path]:
        """Folders of rounds, the newest first."""
        return sorted(self._folder.glob("round-[0-9]*"), reverse=True)
