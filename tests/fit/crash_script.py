"""A fit that is there to be killed: `python -m tests.fit.crash_script CHECKPOINT RESULT PAUSE`.

It prints a line where a phase begins, and pauses for PAUSE seconds at every step of writing a checkpoint and after
every round, so that most of its time is spent where a crash could do harm.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import mgvi
from mgvi.checkpoint import Checkpoint
from tests.fit import models


def say(*words):
    print(*words, flush=True)


def slow_down(pause):
    """Make the steps of writing slow: pause before a file is synced, and before and after a folder is renamed."""
    sync, replace, write = os.fsync, os.replace, Checkpoint.write

    def slow_sync(*arguments):
        time.sleep(pause)
        sync(*arguments)

    def slow_replace(*arguments):
        time.sleep(pause)
        replace(*arguments)
        time.sleep(pause)

    def announced_write(store, arrays, facts, history):
        say("writing", len(history) - 1)
        write(store, arrays, facts, history)

    os.fsync, os.replace, Checkpoint.write = slow_sync, slow_replace, announced_write


def main(checkpoint, result, pause):
    def after_round(record, posterior):
        say("between", record["round"])
        time.sleep(4 * pause)
        say("computing", record["round"] + 1)

    problem = models.logistic_problem()
    say("ready")
    slow_down(pause)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mgvi.MgviWarning)
        posterior = mgvi.fit(problem, seed=3, progress=False, checkpoint=checkpoint, callbacks=[after_round])
    temporary = Path(f"{result}.part")
    with temporary.open("wb") as file:
        np.savez(file, **posterior.samples)
    temporary.replace(result)
    say("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
