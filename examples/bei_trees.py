"""Infer the density of trees in a rain forest, and what it has to do with the ground.

3604 trees in a plot of 1000 by 500 metres are counted in cells of 10 metres: a log-Gaussian Cox process, whose log
density is a level, two coefficients times elevation and steepness of the ground, and a field whose power spectrum is
learned. The program paints trees, density and its uncertainty to `out/bei_trees.png`. It reads
`experiments.datasets.bei_trees()`.
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
from mgvi.fields import Grid, StationaryField, smooth_spectrum, spectrum_axis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the clone, for `experiments`
from experiments import datasets

CELL = 10.0  # metres
SEED = 1
PICTURE = Path("out") / "bei_trees.png"

BLUE = "#0072B2"


def bin_trees(data):
    """Trees in each cell; rows follow y."""
    rows, columns = round(data.height / CELL), round(data.width / CELL)
    edges = np.arange(rows + 1) * CELL, np.arange(columns + 1) * CELL
    return np.histogram2d(data.y, data.x, bins=edges)[0].astype(int)


def at_cells(table):
    """A standardised covariate in the middle of each cell, which is every second point of its own grid."""
    middle = table[1::2, 1::2]
    return (middle - middle.mean()) / middle.std()


def model(counts, elevation, gradient, grid):
    level = numpyro.sample("level", dist.Normal(0.0, 3.0))
    uphill = numpyro.sample("elevation", dist.Normal(0.0, 1.0))
    steep = numpyro.sample("gradient", dist.Normal(0.0, 1.0))
    spectrum = smooth_spectrum("power", grid, sd=(1.0, 1.0), slope=(-3.0, 1.0))
    field = grid.crop(numpyro.sample("field", StationaryField(grid, spectrum)))
    log_density = level + uphill * jnp.asarray(elevation, float) + steep * jnp.asarray(gradient, float) + field
    numpyro.deterministic("density", jnp.exp(log_density))  # trees in 100 square metres, the area of a cell
    numpyro.sample("counts", dist.Poisson(jnp.exp(log_density)), obs=counts)


def print_report(posterior, counts, seconds):
    print(posterior.report())
    print(f"{'':>24} {'mean':>8} {'sd':>8} {'5 %':>8} {'95 %':>8}")
    for site in ("level", "elevation", "gradient", "power_sd", "power_slope"):
        print(f"{site:>24} " + _row(posterior.samples[site]))
    total = posterior.samples["density"].sum(axis=(1, 2))
    print(f"{'trees in the plot':>24} " + _row(total) + f" (seen: {counts.sum()})")
    rounds, compiling = len(posterior.history), sum(r["compile_seconds"] for r in posterior.history)
    print(f"fit: {posterior.status.name}, {rounds} rounds, {seconds:.1f} s, of which {compiling:.1f} s compilation")


def _row(x):
    return " ".join(f"{v:>8.3f}" for v in (x.mean(), x.std(), *np.quantile(x, [0.05, 0.95])))


def paint(posterior, data, grid):
    figure, axes = plt.subplots(2, 2, figsize=(11, 6), layout="constrained")
    mean, sd = posterior.mean["density"], np.log(posterior.samples["density"]).std(axis=0)
    extent = (0, data.width, 0, data.height)
    axes[0, 0].plot(data.x, data.y, ".", color="black", ms=1.2)
    axes[0, 0].set_title("3604 trees", fontsize="medium")
    for panel, image, title, colours, norm, unit in (
        (axes[0, 1], mean, "posterior mean of the density", "viridis", "log", r"trees per 100 m$^2$"),
        (axes[1, 0], sd, "its relative uncertainty", "cividis", "linear", "sd of ln(density)"),
    ):
        shown = panel.imshow(image, origin="lower", extent=extent, cmap=colours, norm=norm)
        panel.set_title(title, fontsize="medium")
        figure.colorbar(shown, ax=panel, label=unit, shrink=0.8)
    for panel in (axes[0, 0], axes[0, 1], axes[1, 0]):
        panel.set_aspect("equal")
        panel.set_xlim(0, data.width)
        panel.set_ylim(0, data.height)
        panel.set_xlabel("x in m")
        panel.set_ylabel("y in m")
    k, (low, median, high) = spectrum_axis(grid), posterior.quantile([0.05, 0.5, 0.95])["power"]
    power = axes[1, 1]
    power.fill_between(k, low, high, color=BLUE, alpha=0.25, lw=0, label="90 % interval")
    power.loglog(k, median, color=BLUE, lw=1.8, label="median")
    power.set_xlim(k[0], k[-1])
    power.set_title("learned spectrum of the log density", fontsize="medium")
    power.set_xlabel("spatial frequency in cycles per m")
    power.set_ylabel(r"power in m$^2$")
    power.legend(frameon=False)
    power.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main():
    try:
        data = datasets.bei_trees()
    except mgvi.FileError as error:
        sys.exit(str(error))
    counts = bin_trees(data)
    grid = Grid(counts.shape, spacing=CELL, periodic=False, padding=0.2)
    problem = mgvi.from_numpyro(model, counts, at_cells(data.elevation), at_cells(data.gradient), grid)
    print(problem)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=SEED, time_limit=90)
    seconds = time.perf_counter() - start

    print_report(posterior, counts, seconds)
    paint(posterior, data, grid)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
