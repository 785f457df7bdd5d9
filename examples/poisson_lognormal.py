"""Infer the rate of a Poisson log-normal process on a line.

A smooth positive rate on a periodic grid of 128 pixels is seen through Poisson counts. The program makes such counts
from one prior draw, fits the posterior, compares it with the truth and paints data, truth and posterior to
`out/poisson_lognormal.png`.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import mgvi

PIXELS = 128
MEDIAN_RATE = 8.0  # counts a pixel
SIGMA = 0.7  # prior standard deviation of the log rate
LENGTH = 0.06  # correlation length, in units of the whole line
SHOWN = 12  # posterior samples in the picture
SEED = 3
PICTURE = Path("out") / "poisson_lognormal.png"

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8C8C8C"  # Okabe-Ito, told apart by colour-blind readers


def smooth_field(xi):
    """Turn white noise into a periodic Gaussian process with squared exponential covariance.

    The amplitude of each wave is the root of the covariance's Fourier transform; the Hartley transform
    (real minus imaginary part of the Fourier transform) keeps real numbers real.
    """
    wave = jnp.fft.fftfreq(PIXELS, 1 / PIXELS)
    amplitude = SIGMA * jnp.sqrt(LENGTH * jnp.sqrt(2 * jnp.pi)) * jnp.exp(-((jnp.pi * LENGTH * wave) ** 2))
    transform = jnp.fft.fft(amplitude * xi)
    return transform.real - transform.imag


def model(counts=None):
    xi = numpyro.sample("xi", dist.Normal(0, 1).expand([PIXELS]).to_event(1))
    rate = numpyro.deterministic("rate", MEDIAN_RATE * jnp.exp(smooth_field(xi)))
    numpyro.sample("counts", dist.Poisson(rate).to_event(1), obs=counts)


def print_report(posterior, truth, seconds):
    mean, sd = posterior.mean["rate"], posterior.sd["rate"]
    low, high = posterior.quantile([0.05, 0.95])["rate"]
    print(f"{'pixel':>7} {'counts':>7} {'truth':>7} {'mean':>7} {'sd':>7} {'5 %':>7} {'95 %':>7}")
    for i in range(0, PIXELS, PIXELS // 8):
        row = (truth["rate"][i], mean[i], sd[i], low[i], high[i])
        print(f"{i:>7} {int(truth['counts'][i]):>7} " + " ".join(f"{float(x):>7.2f}" for x in row))
    inside = ((low <= truth["rate"]) & (truth["rate"] <= high)).mean()
    print(f"the true rate lies in the 90 % interval at {inside:.0%} of the pixels")
    print(posterior.report())
    print(f"fit: {seconds:.1f} s, of which {sum(r['compile_seconds'] for r in posterior.history):.1f} s compilation")


def paint(posterior, truth):
    position = (jnp.arange(PIXELS) + 0.5) / PIXELS
    rates = posterior.samples["rate"]
    low, high = posterior.quantile([0.05, 0.95])["rate"]
    figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
    axes.fill_between(position, low, high, color=BLUE, alpha=0.18, lw=0, label="90 % interval")
    axes.plot(position, rates[0], color=GREY, lw=0.6, label=f"{SHOWN} posterior samples")
    axes.plot(position, rates[1:SHOWN].T, color=GREY, lw=0.6)
    axes.plot(position, posterior.mean["rate"], color=BLUE, lw=2, label="posterior mean")
    axes.plot(position, truth["rate"], color=ORANGE, lw=2, label="true rate")
    # Not clipped, so that a count of zero is a whole dot on the axis.
    axes.plot(position, truth["counts"], "o", color="black", ms=3, clip_on=False, label="data")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("position")
    axes.set_ylabel("counts per pixel")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside upper center", ncols=5, fontsize="small")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main():
    once = numpyro.infer.Predictive(model, num_samples=1)(jax.random.key(SEED))
    truth = {name: value[0] for name, value in once.items()}

    problem = mgvi.from_numpyro(model, counts=truth["counts"])
    print(problem)
    start = time.perf_counter()
    posterior = mgvi.fit(problem, seed=SEED)
    seconds = time.perf_counter() - start

    print_report(posterior, truth, seconds)
    paint(posterior, truth)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
