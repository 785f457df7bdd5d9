"""Infer the brightness of the Galactic centre in gamma rays.

Photons above 10 GeV, counted by Fermi-LAT and binned here in 100 by 200 pixels of 0.2 degrees, are Poisson
numbers with a rate of exposure times intensity; the log intensity is a level and a field whose power spectrum is
learned. The program paints counts, intensity and its uncertainty to `out/fermi_counts.png`. It reads
`experiments.datasets.fermi_counts()`.
"""

import dataclasses
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

PIXEL = 0.2  # degrees
UNIT = 1e-6  # photons / (cm^2 s sr): unit of the intensity, in which it is of order 1
SEED = 1
PICTURE = Path("out") / "fermi_counts.png"

BLUE = "#0072B2"


def merge(data):
    """The data in blocks of two by two pixels, without the last row and column, which have no partner."""
    blocks = lambda x: x[:-1, :-1].reshape(len(data.glat) // 2, 2, len(data.glon) // 2, 2)
    pairs = lambda x: x[:-1].reshape(-1, 2).mean(axis=1)
    return dataclasses.replace(
        data,
        counts=blocks(data.counts).sum(axis=(1, 3)),
        exposure=blocks(data.exposure).mean(axis=(1, 3)),
        glon=pairs(data.glon),
        glat=pairs(data.glat),
    )


def model(counts, exposure, grid):
    level = numpyro.sample("level", dist.Normal(0.0, 3.0))
    spectrum = smooth_spectrum("power", grid, sd=(1.0, 1.0), slope=(-3.0, 1.0))
    field = grid.crop(numpyro.sample("field", StationaryField(grid, spectrum)))
    intensity = numpyro.deterministic("intensity", jnp.exp(level + field))
    numpyro.sample("counts", dist.Poisson(jnp.asarray(exposure, float) * intensity), obs=counts)


def print_report(posterior, data, seconds):
    print(posterior.report())
    mean, sd = posterior.mean["intensity"], posterior.sd["intensity"]
    print("intensity in 10^-6 photons / (cm^2 s sr), along the Galactic plane")
    print(f"{'longitude':>10} {'counts':>7} {'mean':>7} {'sd':>7}")
    row = int(np.argmin(np.abs(data.glat)))
    for column in range(0, len(data.glon), len(data.glon) // 8):
        values = f"{mean[row, column]:>7.2f} {sd[row, column]:>7.2f}"
        print(f"{data.glon[column]:>10.1f} {data.counts[row, column]:>7} {values}")
    rounds, compiling = len(posterior.history), sum(r["compile_seconds"] for r in posterior.history)
    print(f"fit: {posterior.status.name}, {rounds} rounds, {seconds:.1f} s, of which {compiling:.1f} s compilation")


def paint(posterior, data, grid):
    mean, relative = posterior.mean["intensity"], posterior.sd["intensity"] / posterior.mean["intensity"]
    figure, axes = plt.subplots(2, 2, figsize=(11, 6), layout="constrained")
    half = PIXEL / 2
    extent = (data.glon[0] + half, data.glon[-1] - half, data.glat[0] - half, data.glat[-1] + half)
    root = np.sqrt(data.counts)  # so that single photons show beside the centre
    panels = (
        (axes[0, 0], root, "photons counted", "viridis", "linear", "square root of counts per pixel"),
        (
            axes[0, 1],
            mean,
            "posterior mean of the intensity",
            "viridis",
            "log",
            "$10^{-6}$ cm$^{-2}$ s$^{-1}$ sr$^{-1}$",
        ),
        (axes[1, 0], relative, "its relative uncertainty", "cividis", "linear", "sd / mean"),
    )
    for panel, image, title, colours, norm, unit in panels:
        shown = panel.imshow(image, origin="lower", extent=extent, cmap=colours, norm=norm, interpolation="nearest")
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel("Galactic longitude in degrees")
        panel.set_ylabel("latitude in degrees")
        figure.colorbar(shown, ax=panel, label=unit, shrink=0.75)
    k, (low, median, high) = spectrum_axis(grid), posterior.quantile([0.05, 0.5, 0.95])["power"]
    power = axes[1, 1]
    power.fill_between(k, low, high, color=BLUE, alpha=0.25, lw=0, label="90 % interval")
    power.loglog(k, median, color=BLUE, lw=1.8, label="median")
    power.set_xlim(k[0], k[-1])
    power.set_title("learned spectrum of the log intensity", fontsize="medium")
    power.set_xlabel("spatial frequency in cycles per degree")
    power.set_ylabel("power in square degrees")
    power.legend(frameon=False)
    power.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main():
    try:
        data = merge(datasets.fermi_counts())
    except mgvi.FileError as error:
        sys.exit(str(error))
    exposure = data.exposure * np.radians(PIXEL) ** 2 * UNIT  # photons to expect in a pixel of unit intensity
    grid = Grid(data.counts.shape, spacing=PIXEL, periodic=False, padding=0.2)
    problem = mgvi.from_numpyro(model, data.counts, exposure, grid)
    print(problem)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=SEED, time_limit=80)
    seconds = time.perf_counter() - start

    print_report(posterior, data, seconds)
    paint(posterior, data, grid)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
