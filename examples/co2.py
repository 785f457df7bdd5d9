"""Separate trend, seasons and slow variations of carbon dioxide in the air.

Weekly concentrations on Mauna Loa, with 59 weeks missing, are a parabola, four harmonics of the year and a field whose
power spectrum is learned, with noise of unknown strength. The program fits all of them together and paints data,
components and spectrum to `out/co2.png`. It reads `experiments.datasets.co2()`.
"""

import sys
import time
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from mgvi.fields import Grid, StationaryField, select, smooth_spectrum, spectrum_axis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the clone, for `experiments`
from experiments import datasets

HARMONICS = 4  # of the year
SEED = 1
PICTURE = Path("out") / "co2.png"

BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe-Ito, told apart by colour-blind readers


def season_waves(years):
    phase = 2 * np.pi * years[:, None] * np.arange(1, HARMONICS + 1)
    return np.concatenate([np.cos(phase), np.sin(phase)], axis=1)


def model(ppm, years, grid):
    seen = np.isfinite(ppm)
    time_ = 2 * (years - years.mean()) / (years[-1] - years[0])  # from -1 to 1
    level = numpyro.sample("level", dist.Normal(340.0, 20.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 30.0))
    curvature = numpyro.sample("curvature", dist.Normal(0.0, 10.0))
    trend = level + slope * time_ + curvature * time_**2
    weights = numpyro.sample("weights", dist.Normal(0.0, 3.0).expand([2 * HARMONICS]).to_event(1))
    season = jnp.asarray(season_waves(years), float) @ weights

    spectrum = smooth_spectrum("power", grid, sd=(1.0, 1.0), slope=(-3.0, 1.0))
    field = grid.crop(numpyro.sample("field", StationaryField(grid, spectrum)))
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))

    total = trend + season + field
    numpyro.deterministic("trend", trend)
    numpyro.deterministic("season", season)
    numpyro.deterministic("slow", field)
    numpyro.deterministic("total", total)
    # Only weeks with a measurement; `select` has a fast transpose, indexing has not.
    pick = select(Grid(grid.shape), seen)
    numpyro.sample("ppm", dist.Normal(pick(total), noise), obs=jnp.asarray(ppm[seen], float))


def print_report(posterior, data, seconds):
    print(posterior.report())
    low, high = posterior.quantile([0.05, 0.95])["total"]
    mean, sd = posterior.mean, posterior.sd
    print(f"{'week':>11} {'data':>7} {'total':>7} {'5 %':>7} {'95 %':>7} {'trend':>7} {'season':>7} {'slow':>7}")
    for i in range(0, len(data.ppm), len(data.ppm) // 8):
        row = (data.ppm[i], mean["total"][i], low[i], high[i], mean["trend"][i], mean["season"][i], mean["slow"][i])
        print(f"{data.date[i]!s:>11} " + " ".join(f"{x:>7.2f}" for x in row))
    print(f"noise: {mean['noise']:.3f} +- {sd['noise']:.3f} ppm")
    rounds, compiling = len(posterior.history), sum(r["compile_seconds"] for r in posterior.history)
    print(f"fit: {posterior.status.name}, {rounds} rounds, {seconds:.1f} s, of which {compiling:.1f} s compilation")


def paint(posterior, data, grid):
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.4), layout="constrained")
    band = posterior.quantile([0.05, 0.95])
    low, high = ({name: values[i] for name, values in band.items()} for i in (0, 1))
    gap = np.isnan(data.ppm)

    top = axes[0, 0]
    top.plot(data.years, data.ppm, ".", color="black", ms=1.5, label="data")
    top.plot(data.years, posterior.mean["trend"] + posterior.mean["slow"], color=BLUE, lw=1.5, label="without seasons")
    top.set_ylabel(r"CO$_2$ in ppm")
    top.legend(frameon=False)

    zoom = axes[0, 1]
    window = (data.years > 1963) & (data.years < 1967)
    for year in data.years[window & gap]:
        zoom.axvspan(year - 3.5 / 365.25, year + 3.5 / 365.25, color="black", alpha=0.08, lw=0)
    zoom.fill_between(data.years[window], low["total"][window], high["total"][window], color=BLUE, alpha=0.25, lw=0)
    zoom.plot(data.years[window], posterior.mean["total"][window], color=BLUE, lw=1.2)
    zoom.plot(data.years[window], data.ppm[window], ".", color="black", ms=3)
    zoom.set_title("four years; grey: weeks without data", fontsize="medium")
    zoom.set_ylabel(r"CO$_2$ in ppm")
    zoom.set_xticks(range(1963, 1968))

    slow = axes[1, 0]
    slow.axhline(0.0, color="black", lw=0.6)
    slow.fill_between(data.years, low["slow"], high["slow"], color=BLUE, alpha=0.25, lw=0, label="90 % interval")
    slow.plot(data.years, posterior.mean["slow"], color=BLUE, lw=1, label="posterior mean")
    slow.set_title("field: neither trend nor season", fontsize="medium")
    slow.set_ylabel("ppm")
    slow.legend(frameon=False, ncols=2)
    for panel in (top, zoom, slow):
        panel.set_xlabel("year")

    k = spectrum_axis(grid)
    power = axes[1, 1]
    power.fill_between(k, low["power"], high["power"], color=BLUE, alpha=0.25, lw=0)
    power.loglog(k, np.median(posterior.samples["power"], axis=0), color=BLUE, lw=1.8, label="field")
    noise = float(posterior.mean["noise"]) ** 2 * grid.pixel_volume
    power.axhline(noise, color=ORANGE, lw=1.2, ls="--", label="noise")
    power.set_xlim(k[0], k[-1])
    power.set_xlabel("frequency in cycles per year")
    power.set_ylabel(r"power in ppm$^2$ year")
    power.legend(frameon=False)
    for panel in axes.ravel():
        panel.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main():
    try:
        data = datasets.co2()
    except mgvi.FileError as error:
        sys.exit(str(error))
    grid = Grid(len(data.ppm), spacing=7 / 365.25, periodic=False)
    problem = mgvi.from_numpyro(model, data.ppm, data.years, grid)
    print(problem)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=SEED, time_limit=90)
    seconds = time.perf_counter() - start

    print_report(posterior, data, seconds)
    paint(posterior, data, grid)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
