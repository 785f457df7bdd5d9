"""Draw from the prior of a Poisson log-normal model on a line.

A smooth positive rate on a periodic grid of 128 pixels is seen through Poisson counts. The program makes such
counts from one prior draw, turns model and counts into a `mgvi` problem, prints what the problem knows and
paints data, truth and further prior draws to `out/prior_draws.png`.
"""

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
DRAWS = 20
SEED = 3
PICTURE = Path("out") / "prior_draws.png"

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


def print_report(problem, truth, draws):
    start = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in problem.latent.items()}
    print("latent sites")
    for name, leaf in problem.latent.items():
        print(f"  {name:<12} {leaf.size:>6} numbers, shape {leaf.shape}, {leaf.dtype}")
    print(f"data           {truth['counts'].size:>6} counts, {int(truth['counts'].sum())} in all")
    print("negative log density, up to a constant")
    print(f"  at xi = 0     {float(problem.neg_log_density(start)):>10.2f}")
    print(f"  at the truth  {float(problem.neg_log_density({'xi': truth['xi']})):>10.2f}")

    exact_mean = MEDIAN_RATE * jnp.exp(SIGMA**2 / 2)
    exact_sd = exact_mean * jnp.sqrt(jnp.expm1(SIGMA**2))
    print(f"rate over {DRAWS} prior draws")
    print(f"  {'pixel':>7} {'mean':>7} {'sd':>7}")
    for pixel in range(0, PIXELS, PIXELS // 4):
        rate = draws["rate"][:, pixel]
        print(f"  {pixel:>7} {float(rate.mean()):>7.2f} {float(rate.std(ddof=1)):>7.2f}")
    print(f"  {'(exact)':>7} {float(exact_mean):>7.2f} {float(exact_sd):>7.2f}")


def paint(truth, draws):
    position = (jnp.arange(PIXELS) + 0.5) / PIXELS
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6.4), sharex=True, layout="constrained")

    # Not clipped, so that a count of zero is a whole dot on the axis.
    dots = {"color": BLUE, "ms": 4.5, "mec": "white", "mew": 0.4, "clip_on": False}
    top.plot(position, truth["counts"], "o", label="data", **dots)
    top.plot(position, truth["rate"], color=ORANGE, lw=2, label="true rate")
    top.set_ylim(bottom=0)
    top.set_ylabel("counts per pixel")
    top.set_title("Data and the rate they come from", loc="left")

    bottom.plot(position, draws["rate"][0], color=GREY, lw=0.8, label=f"{DRAWS} prior draws")
    bottom.plot(position, draws["rate"][1:].T, color=GREY, lw=0.8)
    bottom.plot(position, truth["rate"], color=ORANGE, lw=2, label="true rate")
    bottom.set_yscale("log")
    bottom.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    bottom.set_xlabel("position")
    bottom.set_ylabel("counts per pixel (log scale)")
    bottom.set_xlim(0, 1)
    bottom.set_title("What the prior holds possible", loc="left")

    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        # Above the axes, where no curve can pass behind it.
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, ncols=2)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


def main():
    key_truth, key_draws = jax.random.split(jax.random.key(SEED))
    once = numpyro.infer.Predictive(model, num_samples=1)(key_truth)
    truth = {name: value[0] for name, value in once.items()}

    problem = mgvi.from_numpyro(model, counts=truth["counts"])
    draws = problem.sample_prior(key_draws, DRAWS)

    print_report(problem, truth, draws)
    paint(truth, draws)
    print(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
