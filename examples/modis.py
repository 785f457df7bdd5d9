"""Fill the gaps that clouds leave in a map of the surface temperature.

A simulated map of 300 by 500 pixels is seen through a real cloud mask. The model is a linear trend, a field with a
learned power spectrum, and noise of unknown size; the prior of the trend has half the sd of the data, as most of their
variance is the field's, and the spectrum may depart far from a power law, as one that levels off at long waves does.
The program predicts the hidden pixels, compares them with the truth and paints both to `out/modis.png`. It takes some
minutes and runs in double precision: there are a hundred thousand data for every global parameter. It reads
`experiments.datasets.modis()`.
"""

import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm
from scipy.stats import t as student_t

import mgvi
from mgvi.fields import Grid, StationaryField, select, smooth_spectrum

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the clone, for `experiments`
from experiments import datasets

SEED = 1
PICTURE = Path("out") / "modis.png"


def model(data, seen, grid, trends, scale):
    trend = numpyro.sample("trend", dist.Normal(0.0, scale).expand([3]).to_event(1))
    spectrum = smooth_spectrum("power", grid, sd=(3.0, 3.0), slope=(-3.0, 1.0), smoothness=3.0)
    field = numpyro.sample("field", StationaryField(grid, spectrum))
    temperature = numpyro.deterministic("temperature", jnp.tensordot(trend, trends, 1) + grid.crop(field))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    numpyro.sample("data", dist.Normal(select(Grid(seen.shape), seen)(temperature), noise), obs=data)


def print_report(posterior, truth, level, hidden, seconds):
    print(posterior.report())
    mean = posterior.mean["temperature"][hidden] + level
    sd = np.sqrt(posterior.sd["temperature"][hidden] ** 2 + np.mean(posterior.samples["noise"]) ** 2)
    z = (truth[hidden] - mean) / sd
    crps = np.mean(sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi)))
    print(f"hidden pixels: {hidden.sum()}, RMSE {np.sqrt(np.mean((sd * z) ** 2)):.3f}, CRPS {crps:.3f}")
    # The sd is that of few samples, which come in antithetic pairs: Student's interval allows for that.
    wide = student_t(len(posterior) // 2).ppf(0.975)
    print(f"coverage of the 95 % predictive interval: {np.mean(np.abs(z) < wide):.3f} (mean +- {wide:.2f} sd)")
    print(f"coverage of mean +- 1.96 sd: {np.mean(np.abs(z) < 1.96):.3f}")
    print(f"noise: {posterior.mean['noise']:.3f} +- {posterior.sd['noise']:.3f}")
    rounds, compiling = len(posterior.history), sum(r["compile_seconds"] for r in posterior.history)
    print(f"fit: {posterior.status.name}, {rounds} rounds, {seconds:.1f} s, of which {compiling:.1f} s compilation")


def paint(posterior, modis, level):
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained", sharex=True, sharey=True)
    low, high = np.nanmin(modis.full), np.nanmax(modis.full)
    panels = (
        (modis.train, "data", "viridis", "degrees C", low, high),
        (posterior.mean["temperature"] + level, "posterior mean", "viridis", "degrees C", low, high),
        (modis.full, "truth, with noise", "viridis", "degrees C", low, high),
        (posterior.sd["temperature"], "posterior sd", "cividis", "degrees C", 0, None),
    )
    for panel, (image, title, colours, unit, least, most) in zip(axes.ravel(), panels, strict=True):
        shown = panel.imshow(image, cmap=colours, vmin=least, vmax=most, interpolation="nearest")
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel("column")
        panel.set_ylabel("row")
        figure.colorbar(shown, ax=panel, label=unit, shrink=0.8)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def problem_of(modis):
    """The problem, and the level that is subtracted from the data."""
    seen = np.isfinite(modis.train)
    level = modis.train[seen].mean()
    rows, columns = (np.linspace(-1, 1, n) for n in seen.shape)
    trends = np.stack([np.ones(seen.shape), *np.meshgrid(rows, columns, indexing="ij")])
    grid = Grid(seen.shape, periodic=False)
    data = jnp.asarray(modis.train[seen] - level, float)
    return mgvi.from_numpyro(model, data, seen, grid, jnp.asarray(trends), 0.5 * float(data.std())), level


def main():
    jax.config.update("jax_enable_x64", True)
    try:
        modis = datasets.modis()
    except mgvi.FileError as error:
        sys.exit(str(error))
    hidden = np.isfinite(modis.full) & ~np.isfinite(modis.train)
    problem, level = problem_of(modis)
    print(problem)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=SEED, time_limit=200)
    seconds = time.perf_counter() - start

    print_report(posterior, modis.full, level, hidden, seconds)
    paint(posterior, modis, level)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
