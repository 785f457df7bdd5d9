"""How the cost of a fit grows with the number of pixels: classification with learned spectrum, default settings."""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from mgvi.fields import Grid, PowerLaw, StationaryField, smooth_spectrum


def classification(size: int, seed: int = 0):
    """0/1 data on the white squares of a checkerboard, drawn from a known field; the black squares are held out."""
    grid = Grid((size, size), spacing=1 / size)
    truth = StationaryField(grid, PowerLaw(-3.5, 1.0)).sample(jax.random.key(seed))
    data = jax.random.bernoulli(jax.random.key(seed + 1), jax.nn.sigmoid(2 * truth)).astype(int)
    white = (np.indices((size, size)) // max(size // 16, 1)).sum(axis=0) % 2 == 0

    def model(data, white):
        spectrum = smooth_spectrum("p", grid, sd=(1.0, 0.5), slope=(-3.0, 0.5))
        s = numpyro.sample("s", StationaryField(grid, spectrum))
        numpyro.deterministic("rate", jax.nn.sigmoid(2 * s))
        numpyro.sample("data", dist.Bernoulli(logits=2 * s).mask(white), obs=data)

    return mgvi.from_numpyro(model, data, jnp.asarray(white)), truth, data, white


def measure(size: int, time_limit: float = 600.0) -> dict:
    """Fit one size, cold, and judge the result where nothing was observed."""
    problem, truth, data, white = classification(size)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=1, progress=False, time_limit=time_limit)
    seconds = time.perf_counter() - start
    rate = posterior.samples["rate"]
    mean, sd = rate.mean(axis=0)[~white], rate.std(axis=0)[~white]
    held_out = np.asarray(data)[~white]
    true_rate = np.asarray(jax.nn.sigmoid(2 * truth))[~white]
    return {
        "device": jax.devices()[0].device_kind,
        "grid": f"{size}^2",
        "fit (s)": seconds,
        "of that compiling": sum(record["compile_seconds"] for record in posterior.history),
        "rounds": len(posterior.history),
        "status": posterior.status.name,
        "AS, 0.80 if calibrated": float(np.mean(np.abs(true_rate - mean) / sd)),
        "held-out log-likelihood": f"{np.mean(np.log(np.where(held_out == 1, mean, 1 - mean))):.4f}",
        "peak host memory (GB)": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def run(sizes=(128, 256, 512, 1024, 2048)):
    """A row for each size, and one with the exponent of the time without compilation against the pixels."""
    rows = []
    for size in sizes:
        rows.append({**measure(size), "exponent": None})
        yield rows[-1]
    pixels = np.log([size**2 for size in sizes])
    times = np.log([row["fit (s)"] - row["of that compiling"] for row in rows])
    yield {**dict.fromkeys(rows[0]), "grid": "all", "exponent": float(np.polyfit(pixels, times, 1)[0])}
