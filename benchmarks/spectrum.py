"""How often the true power spectrum lies in the 90 % band of a learned one: 20 data sets drawn from the model itself.

Spectrum and field are drawn anew for each; four pixels in five of a grid of 64 x 64 are seen. Modes count as well
constrained where the true power is above that of the noise. A calibrated posterior has 0.90. The size of the noise is
known first, then drawn anew and inferred too: a spectrum that is flat at its short end can then hardly be told from it.
"""

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from mgvi.fields import Grid, StationaryField, select, smooth_spectrum

SHAPE = (64, 64)
DATA_SETS = 20
NOISE = 0.3
GRID = Grid(SHAPE)


def model(data, seen, known=None):
    spectrum = smooth_spectrum("power", GRID, sd=(1.0, 0.5), slope=(-3.0, 0.5))
    field = numpyro.sample("field", StationaryField(GRID, spectrum))
    noise = numpyro.sample("noise", dist.LogNormal(np.log(NOISE), 0.5)) if known is None else known
    numpyro.sample("data", dist.Normal(select(GRID, seen)(field), noise), obs=data)


def run() -> Iterator[dict]:
    seen = np.random.default_rng(0).random(SHAPE) < 0.8
    truths = mgvi.sample_prior(jax.random.key(1), DATA_SETS, model, None, seen)
    nothing = jnp.zeros(int(seen.sum()))
    for is_known in (True, False):
        first = mgvi.from_numpyro(model, nothing, seen, NOISE if is_known else None)
        rows = [measure({name: x[i] for name, x in truths.items()}, i, seen, first) for i in range(DATA_SETS)]
        for i, row in enumerate(rows):
            yield {"noise": "known" if is_known else "inferred", "data set": i, **row}
        share = np.average([row["of them inside"] for row in rows], weights=[row["modes"] for row in rows])
        yield {
            "noise": "known" if is_known else "inferred",
            "data set": "all",
            **dict.fromkeys(rows[0]),
            "modes": sum(row["modes"] for row in rows),
            "of them inside": float(share),
            "field inside": float(np.mean([row["field inside"] for row in rows])),
        }


def measure(truth: dict, i: int, seen: np.ndarray, first: mgvi.Problem) -> dict:
    """One data set, as other data for a problem that is compiled once."""
    infers_noise = "noise" in first.latent
    noise = float(truth["noise"]) if infers_noise else NOISE
    data = truth["field"][seen] + noise * jax.random.normal(jax.random.key(100 + i), (int(seen.sum()),))
    problem = mgvi.Problem({**first.arrays, "data": {"data": data}}, first.static)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=1, progress=False, samples=128)
    seconds = time.perf_counter() - start
    bands = posterior.quantile([0.05, 0.95])
    inside = {n: (bands[n][0] <= truth[n]) & (truth[n] <= bands[n][1]) for n in ("power", "field")}
    constrained = np.asarray(truth["power"]) > noise**2 * GRID.pixel_volume
    return {
        "status": posterior.status.name,
        "rounds": len(posterior.history),
        "seconds": seconds,
        "true noise": noise,
        "found": float(posterior.mean["noise"]) if infers_noise else None,
        "modes": int(constrained.sum()),
        "of them inside": float(np.mean(inside["power"][constrained])),
        "field inside": float(np.mean(inside["field"])),
    }
