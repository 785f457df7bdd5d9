"""A fit killed at any moment and started again gives the same bits."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mgvi

PAUSE = 0.03
SECONDS = {"writing": 4 * PAUSE, "between": 4 * PAUSE, "computing": PAUSE}  # how long a phase lasts, about


class Run:
    """A process that fits, and the lines that it has printed."""

    def __init__(self, folder, pause=0.0):
        root = Path(__file__).parents[2]
        paths = [str(root), str(Path(mgvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "tests.fit.crash_script", folder / "run", folder / "result.npz", str(pause)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=environment)
        self.lines = []

    def wait_for(self, phase, count):
        """Read until a phase has begun `count` times; False if the process ends before."""
        for line in self.process.stdout:
            self.lines.append(line.split())
            count -= line.split()[0] == phase
            if not count:
                return True
        return False

    def kill(self):
        self.process.kill()
        self.lines += [line.split() for line in self.process.stdout]
        self.process.wait()
        self.process.stdout.close()

    def finish(self):
        self.lines += [line.split() for line in self.process.stdout]
        self.process.stdout.close()
        assert self.process.wait() == 0

    @property
    def first_round(self):
        """The first round that this process ran, or None if it ran none."""
        return next((int(line[1]) for line in self.lines if line[0] == "writing"), None)


def bits(folder):
    with np.load(folder / "result.npz") as file:
        return {name: (x.dtype, x.shape, x.tobytes()) for name, x in file.items()}


def newest_round(folder):
    """Number of rounds in the newest checkpoint."""
    return max((int(path.name.split("-")[1]) for path in (folder / "run").glob("round-*")), default=0)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Samples of a run that nobody kills, and the seconds that it takes until its first round is written."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    run = Run(folder)
    assert run.wait_for("ready", 1)
    start = time.monotonic()
    assert run.wait_for("writing", 1)
    seconds = time.monotonic() - start
    run.finish()
    return bits(folder), seconds


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_fit_killed_at_random_moments_and_resumed_gives_the_same_bits(kills, uninterrupted, tmp_path):
    expected, first_round_seconds = uninterrupted
    rng = random.Random(kills)
    folder, killed, finished, resumed = tmp_path / "0", [], 0, 0
    for attempt in range(6 * kills):
        # Phases in turn, the round and the moment within the phase at random.
        phase = ["writing", "ready", "between", "computing"][attempt % 4]
        enough = len(killed) >= kills and {"writing", "ready", "between"} <= {where for where, _ in killed}
        run, before = Run(folder, PAUSE), newest_round(folder)
        if not enough and run.wait_for(phase, 1 if phase == "ready" else rng.randint(1, 3)):
            time.sleep(rng.random() * (SECONDS.get(phase) or first_round_seconds))
            run.kill()
        else:
            run.finish()
        # It went on exactly where the newest checkpoint ended.
        assert run.first_round in (None, before)
        resumed += before > 0 and run.first_round == before
        if run.process.returncode == 0:
            assert bits(folder) == expected
            finished += 1
            folder = tmp_path / str(finished)
            if enough:
                break
        else:
            killed.append((run.lines[-1][0], newest_round(folder)))
    print(f"killed (phase, rounds on disk): {killed}; {finished} finished, {resumed} resumed")
    assert enough and finished
    assert resumed and any(rounds > 0 for _, rounds in killed)
