"""Examples with real data end as they should."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mgvi

ROOT = Path(__file__).parents[2]
needs = pytest.mark.skipif(
    "MGVI_DATA_DIR" not in os.environ or importlib.util.find_spec("matplotlib") is None,
    reason="needs the data in MGVI_DATA_DIR, and matplotlib",
)


@pytest.mark.slow
@needs
def test_map_of_heather_without_noise_does_not_run_away(tmp_path):
    paths = [str(Path(mgvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(ROOT / "examples" / "heather.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "fit: CONVERGED" in done.stdout
    scores = [float(line.split("%")[1].split()[0]) for line in done.stdout.splitlines() if re.match(r"\s*hidden", line)]
    assert len(scores) == 2 and max(-s for s in scores) < 0.7, done.stdout  # better than the share of heather alone
    assert (tmp_path / "out" / "heather.png").exists()
