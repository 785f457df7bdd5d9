"""Binary Gaussian-process classification with a learned kernel: data, model and how results are judged.

A size and a seed come in; a problem with its truth goes out, and figures of merit of a posterior.
It must not know how the problem is solved.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from experiments.datasets import Checkerboard, checkerboard
from mgvi.diagnostics import average_significance, rms
from mgvi.fields import Grid, StationaryField, smooth_spectrum, spectrum_axis

# Priors of the spectrum, for which the paper gives no numbers; the truth is drawn with the same.
SD = (1.0, 0.5)  # mean and sd of the log-normal prior of s's sd, which replaces the paper's Gaussian offset b
SLOPE = (-3.0, 0.5)  # mean and sd of the normal prior of the exponent a
BEND = 1.0  # rms of tau, the departure of ln(power) from a power law
NODES = 65  # points of the spectrum; tau starts at zero and has 64 parameters


class Setup(NamedTuple):
    """A problem and what is known of its truth."""

    problem: mgvi.Problem
    board: Checkerboard
    grid: Grid


def make(size: int, seed: int, squares: int = 16) -> Setup:
    """Data on the white squares of a checkerboard, and the model that is fitted to them."""
    board = checkerboard(seed, size, squares=squares, sd=SD[0], slope=SLOPE[0], bend=BEND)
    grid = Grid((size, size), spacing=1 / size)
    problem = mgvi.from_numpyro(model, jnp.asarray(board.data), jnp.asarray(board.white), grid)
    return Setup(problem, board, grid)


def model(data, white, grid):
    """mu = (1 + tanh s) / 2 of a stationary field s with power spectrum exp(a ln k + b + tau(ln k))."""
    spectrum = smooth_spectrum("power", grid, sd=SD, slope=SLOPE, smoothness=BEND, nodes=NODES)
    s = numpyro.sample("s", StationaryField(grid, spectrum))
    logits = 2 * s  # (1 + tanh s) / 2 is the logistic function of 2 s
    numpyro.deterministic("rate", jax.nn.sigmoid(logits))
    numpyro.sample("data", dist.Bernoulli(logits=logits).mask(white), obs=data)


def metrics(board: Checkerboard) -> dict[str, Callable[[mgvi.Posterior], float]]:
    """Figures of merit on the black (held-out) squares; log-likelihoods are in nats a datum."""
    functions = {
        "log_likelihood": _of_samples,
        "log_likelihood_at_mean": _at_mean,
        "rms": _rms,
        "average_significance": _significance,
    }
    return {name: partial(function, board) for name, function in functions.items()}


def _of_samples(board, posterior):
    # The probability of a binary datum is linear in the rate: its average over samples is that of the mean rate.
    return _log_likelihood(board, posterior.mean["rate"])


def _at_mean(board, posterior):
    return _log_likelihood(board, np.asarray(posterior.at_mean["rate"]))


def _log_likelihood(board, rate):
    black = ~board.white
    rate = rate[black].astype(float)
    with np.errstate(divide="ignore"):  # a rate rounded to 0 or 1 may give probability 0
        return float(np.mean(np.log(np.where(board.data[black] == 1, rate, 1 - rate))))


def _rms(board, posterior):
    black = ~board.white
    return rms(board.rate[black], posterior.mean["rate"][black])


def _significance(board, posterior):
    black = ~board.white
    with np.errstate(divide="ignore", invalid="ignore"):  # few samples may have an sd of 0
        return average_significance(board.rate[black], posterior.mean["rate"][black], posterior.sd["rate"][black])


def contrast(board: Checkerboard, posterior: mgvi.Posterior) -> float:
    """Mean sd of the rate on black squares over that on white squares."""
    sd = posterior.sd["rate"]
    return float(sd[~board.white].mean() / sd[board.white].mean())


def wave_numbers(grid: Grid) -> np.ndarray:
    """In cycles per side, where the site `power` is given."""
    return spectrum_axis(grid, NODES)
