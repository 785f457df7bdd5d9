"""Predict a hidden part of a map of heather.

A map of 200 by 100 pixels says where heather grows. Its pixels are Bernoulli numbers whose log odds are a level and a
field with a learned power spectrum. Its sd is held fixed: a map without noise says no more of it than that it is large.
A block of pixels is hidden from the fit and predicted. The program paints map, probability and uncertainty to
`out/heather.png`. It reads `experiments.datasets.heather()`.
"""

import sys
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.patches import Rectangle

import mgvi
from mgvi.fields import Grid, StationaryField, select, smooth_spectrum, spectrum_axis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the clone, for `experiments`
from experiments import datasets

PIXEL = 0.1  # metres
HIDDEN = (slice(120, 150), slice(35, 65))
EDGE = 3  # pixels: width of the margin of the hidden block that its surroundings predict well
SEED = 1
PICTURE = Path("out") / "heather.png"

BLUE = "#0072B2"


def model(heather, seen, grid):
    level = numpyro.sample("level", dist.Normal(0.0, 3.0))
    spectrum = smooth_spectrum("power", grid, sd=5.0, slope=(-3.0, 1.0))
    field = numpyro.sample("field", StationaryField(grid, spectrum))
    numpyro.deterministic("probability", jax.nn.sigmoid(level + grid.crop(field)))
    numpyro.sample("heather", dist.Bernoulli(logits=level + select(grid, seen)(field)), obs=heather[seen])


def print_report(posterior, truth, seen, seconds):
    print(posterior.report())
    probability = posterior.mean["probability"]
    inner = np.zeros_like(seen)
    inner[tuple(slice(s.start + EDGE, s.stop - EDGE) for s in HIDDEN)] = True
    share = truth[seen].mean()
    print(f"{'pixels':>26} {'number':>7} {'right':>7} {'log score':>10} {'of the share alone':>19}")
    for name, where in (("seen", seen), ("hidden, near the edge", ~seen & ~inner), ("hidden, in the middle", inner)):
        p, y = probability[where], truth[where]
        right, score = np.mean((p > 0.5) == y), np.mean(np.log(np.where(y, p, 1 - p)))
        alone = np.mean(np.log(np.where(y, share, 1 - share)))
        print(f"{name:>26} {where.sum():>7} {right:>7.0%} {score:>10.3f} {alone:>19.3f}")
    rounds, compiling = len(posterior.history), sum(r["compile_seconds"] for r in posterior.history)
    print(f"fit: {posterior.status.name}, {rounds} rounds, {seconds:.1f} s, of which {compiling:.1f} s compilation")


def paint(posterior, truth, grid):
    figure, axes = plt.subplots(2, 2, figsize=(11, 6), layout="constrained")
    extent = (0, truth.shape[0] * PIXEL, 0, truth.shape[1] * PIXEL)
    panels = (
        (axes[0, 0], truth, "heather; the framed block is hidden", "viridis", "1: heather, 0: none"),
        (axes[0, 1], posterior.mean["probability"], "posterior probability of heather", "viridis", "probability"),
        (axes[1, 0], posterior.sd["probability"], "its uncertainty", "cividis", "sd of the probability"),
    )
    for panel, image, title, colours, unit in panels:
        shown = panel.imshow(image.T, origin="lower", extent=extent, cmap=colours, interpolation="nearest", vmin=0)
        corner = [s.start * PIXEL for s in HIDDEN]
        size = [(s.stop - s.start) * PIXEL for s in HIDDEN]
        panel.add_patch(Rectangle(corner, *size, fill=False, ec="#D55E00", lw=1.8))
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel("x in m")
        panel.set_ylabel("y in m")
        figure.colorbar(shown, ax=panel, label=unit, shrink=0.8)
    k, (low, median, high) = spectrum_axis(grid), posterior.quantile([0.05, 0.5, 0.95])["power"]
    power = axes[1, 1]
    power.fill_between(k, low, high, color=BLUE, alpha=0.25, lw=0, label="90 % interval")
    power.loglog(k, median, color=BLUE, lw=1.8, label="median")
    power.set_xlim(k[0], k[-1])
    power.set_title("learned spectrum of the log odds", fontsize="medium")
    power.set_xlabel("spatial frequency in cycles per m")
    power.set_ylabel(r"power in m$^2$")
    power.legend(frameon=False)
    power.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main():
    try:
        truth = datasets.heather().coarse
    except mgvi.FileError as error:
        sys.exit(str(error))
    seen = np.ones(truth.shape, bool)
    seen[HIDDEN] = False
    grid = Grid(truth.shape, spacing=PIXEL, periodic=False, padding=0.2)
    problem = mgvi.from_numpyro(model, truth.astype(int), seen, grid)
    print(problem)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=SEED, time_limit=80)
    seconds = time.perf_counter() - start

    print_report(posterior, truth, seen, seconds)
    paint(posterior, truth, grid)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
