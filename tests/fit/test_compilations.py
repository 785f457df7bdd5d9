"""A fit compiles few programs: what a user waits for before a small one runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mgvi

PROBLEMS = {
    "eight schools": "mgvi.from_numpyro(test_fit.eight_schools, *test_fit.SCHOOLS)",
    "logistic": "models.logistic_problem()",
}
SCRIPT = """
import warnings
import jax
import mgvi
from tests.fit import models, test_fit

seconds = []

def note(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        seconds.append(duration)

jax.monitoring.register_event_duration_secs_listener(note)
warnings.simplefilter("ignore", mgvi.MgviWarning)
str(mgvi.fit({problem}, seed=1, progress=False).summary())
print(*seconds)
"""


@pytest.mark.parametrize("name", PROBLEMS)
def test_fit_and_summary_of_a_small_model_compile_at_most_twelve_large_programs(name):
    root = Path(__file__).parents[2]
    paths = [str(root), str(Path(mgvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-c", SCRIPT.format(problem=PROBLEMS[name])]
    for _ in range(3):  # other work on the machine makes small programs look large, but never large ones small
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)
        assert done.returncode == 0, done.stderr
        seconds = [float(word) for word in done.stdout.split()]
        large = [s for s in seconds if s > 0.05]
        print(f"{name}: {len(large)} of {len(seconds)} compilations took more than 50 ms, {sum(seconds):.2f} s in all")
        if len(large) <= 12:
            break
    assert 1 <= len(large) <= 12
