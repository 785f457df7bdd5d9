"""Infer a field on a line and, with it, its power spectrum.

A prior draw of a Matern field on a periodic line of 512 pixels is seen with noise at two pixels in three. The program
fits the field, the noise and a spectrum of free shape, compares them with the truth and paints both to
`out/learned_spectrum.png`.
"""

import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from mgvi.fields import Grid, Matern, StationaryField, select, smooth_spectrum, spectrum_axis

PIXELS = 512
NOISE = 0.4  # standard deviation of the data
HIDDEN = slice(300, 360)  # pixels without data, besides those left out at random
SEED = 1
PICTURE = Path("out") / "learned_spectrum.png"

BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe-Ito, told apart by colour-blind readers

grid = Grid(PIXELS)
true_spectrum = Matern(1.5, length=16.0, amplitude=1.5)


def make_data(seed):
    """A field, which pixels of it are seen, and their noisy values."""
    key_field, key_seen, key_noise = jax.random.split(jax.random.key(seed), 3)
    field = StationaryField(grid, true_spectrum).sample(key_field)
    seen = np.array(jax.random.uniform(key_seen, (PIXELS,)) < 2 / 3)
    seen[HIDDEN] = False
    data = select(grid, seen)(field)
    return np.asarray(field), seen, data + NOISE * jax.random.normal(key_noise, data.shape)


def model(data, seen):
    level = numpyro.sample("level", dist.Normal(0.0, 3.0))
    spectrum = smooth_spectrum("power", grid, sd=(1.0, 1.0), slope=(-3.0, 1.0))
    field = numpyro.sample("field", StationaryField(grid, spectrum))
    numpyro.deterministic("signal", level + field)
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    numpyro.sample("data", dist.Normal(level + select(grid, seen)(field), noise), obs=data)


def print_report(posterior, field, seconds):
    print(posterior.report())
    low, high = posterior.quantile([0.05, 0.95])["signal"]
    k, true_power = spectrum_axis(grid), np.interp(spectrum_axis(grid), grid.mode_lengths, true_spectrum.power(grid))
    power = posterior.quantile([0.05, 0.5, 0.95])["power"]
    print(f"{'cycles/pixel':>13} {'true power':>11} {'5 %':>9} {'50 %':>9} {'95 %':>9}")
    for i in range(0, len(k), 9):
        print(f"{k[i]:>13.4f} {true_power[i]:>11.3g} " + " ".join(f"{p:>9.3g}" for p in power[:, i]))
    print(f"noise: {posterior.mean['noise']:.3f} +- {posterior.sd['noise']:.3f}, truth {NOISE}")
    inside = (low <= field) & (field <= high)
    print(f"the true field lies in the 90 % interval at {inside.mean():.0%} of the pixels")
    rounds, compiling = len(posterior.history), sum(r["compile_seconds"] for r in posterior.history)
    print(f"fit: {posterior.status.name}, {rounds} rounds, {seconds:.1f} s, of which {compiling:.1f} s compilation")


def paint(posterior, field, seen, data):
    pixel = np.arange(PIXELS)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1.6, 1), layout="constrained")
    low, high = posterior.quantile([0.05, 0.95])["signal"]
    left.axvspan(HIDDEN.start, HIDDEN.stop, color="black", alpha=0.06, lw=0)
    left.fill_between(pixel, low, high, color=BLUE, alpha=0.25, lw=0, label="90 % interval")
    left.plot(pixel, posterior.mean["signal"], color=BLUE, lw=1.8, label="posterior mean")
    left.plot(pixel, field, color=ORANGE, lw=1.2, label="truth")
    left.plot(pixel[seen], data, "o", color="black", ms=1.8, label="data")
    left.set_xlim(0, PIXELS - 1)
    left.set_xlabel("position in pixels")
    left.set_ylabel("field")

    k, (low, median, high) = spectrum_axis(grid), posterior.quantile([0.05, 0.5, 0.95])["power"]
    right.fill_between(k, low, high, color=BLUE, alpha=0.25, lw=0)
    right.loglog(k, median, color=BLUE, lw=1.8)
    right.loglog(grid.mode_lengths[1:], true_spectrum.power(grid)[1:], color=ORANGE, lw=1.2)
    # Beyond this line the noise outweighs the field, and the spectrum rests on its prior.
    right.axhline(NOISE**2 * seen.size / seen.sum(), color="black", lw=0.8, ls=":")
    right.text(k[0], 1.15 * NOISE**2 * seen.size / seen.sum(), "power of the noise", fontsize="small")
    right.set_xlim(k[0], k[-1])
    right.set_xlabel("spatial frequency in cycles per pixel")
    right.set_ylabel("power")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=4)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main():
    field, seen, data = make_data(SEED)
    problem = mgvi.from_numpyro(model, data, seen)
    print(problem)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=SEED, time_limit=90)
    seconds = time.perf_counter() - start

    print_report(posterior, field, seconds)
    paint(posterior, field, seen, data)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
