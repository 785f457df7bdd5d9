"""Fits of small problems with many rows take little memory: rows are taken in batches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mgvi

LIMIT = 0.7  # GB
SCRIPT = """
import warnings
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
jax.config.update("jax_enable_x64", True)
import mgvi

rows, groups = {rows}, {groups}
rng = np.random.default_rng(0)
x, group = rng.normal(size=rows), rng.integers(0, groups, rows)
y = rng.random(rows) < 1 / (1 + np.exp(-x - 0.3 * rng.normal(size=groups)[group]))

def model(x, group, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    u = numpyro.sample("u", dist.Normal(0.0, s).expand([groups]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=a + b * x + u[group]), obs=y)

warnings.simplefilter("ignore", mgvi.MgviWarning)
problem = mgvi.from_numpyro(model, jnp.asarray(x), jnp.asarray(group), jnp.asarray(y.astype(int)))
posterior = mgvi.fit(problem, seed=1, progress=False)
posterior.summary(), posterior.report()
status = open("/proc/self/status").read()  # `ru_maxrss` of a new process counts the memory of the one that started it
print(int(status.split("VmHWM:")[1].split()[0]) / 1e6)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(("rows", "groups"), [pytest.param(3020, 1, marks=pytest.mark.slow), (11_566, 50)])
def test_fit_of_many_rows_takes_less_than_the_limit(rows, groups):
    paths = [str(Path(mgvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", SCRIPT.format(rows=rows, groups=groups)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    print(f"{rows} rows: {float(done.stdout):.2f} GB")
    assert float(done.stdout) < LIMIT
