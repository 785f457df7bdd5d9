"""The command `demo`: a first fit, with files to start an own model from.

A folder comes in; a model file, a data file and the result of a fit are written to it.
It must not know how to fit: it calls the function behind `mgvi fit`.
"""

from pathlib import Path

import numpy as np

from mgvi.cli import console, fitting
from mgvi.cli.console import Exit

MODEL = '''"""A rate that changes smoothly with time, seen through counts. Change it, and fit again."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(time, counts=None):
    level = numpyro.sample("level", dist.Normal(2.0, 1.0))
    trend = numpyro.sample("trend", dist.Normal(0.0, 1.0))
    swing = numpyro.sample("swing", dist.HalfNormal(1.0))
    phase = numpyro.sample("phase", dist.Normal(0.0, 1.0))
    rate = numpyro.deterministic("rate", jnp.exp(level + trend * time + swing * jnp.sin(6.0 * time + phase)))
    numpyro.sample("counts", dist.Poisson(rate), obs=counts)
'''
_TRUE_VALUES = {"level": 2.5, "trend": 0.5, "swing": 0.7, "phase": 0.3}
_TIMES = 100  # number of simulated counts


def demo(out: Path, *, seed: int, as_json: bool) -> int:
    """Write model and data, fit them, and print the command that fits them again."""
    out.mkdir(parents=True, exist_ok=True)
    model, data = out / "model.py", out / "data.npz"
    if not model.exists():  # it may hold the user's changes
        model.write_text(MODEL)
    if not data.exists():
        time, counts = make_data(seed)
        np.savez(data, time=time, counts=counts)
    request = fitting.Request(
        model=f"{model}:model", data=data, out=out / "result", overwrite=True, options={"seed": seed, "progress": True}
    )
    code = fitting.run(request, as_json=as_json)
    if code == Exit.FINE:
        console.say(f"the counts were made with {', '.join(f'{name} {value}' for name, value in _TRUE_VALUES.items())}")
        console.say(f"\nNow change {model}, and: mgvi fit {model}:model --data {data} --out {out}/result --overwrite")
    return code


def make_data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and Poisson counts, drawn from the model of `MODEL` with the values `_TRUE_VALUES`."""
    t = _TRUE_VALUES
    time = np.linspace(0.0, 2.0, _TIMES)
    rate = np.exp(t["level"] + t["trend"] * time + t["swing"] * np.sin(6.0 * time + t["phase"]))
    return time, np.random.default_rng(seed).poisson(rate)
