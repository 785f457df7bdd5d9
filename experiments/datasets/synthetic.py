"""Synthetic data sets with known truth.

A seed and sizes come in; data drawn from a known process, and the process, go out.
It must not know models or inference: the truth is made here with NumPy alone.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LogNormalCounts:
    """Counts of a Poisson process on a periodic line, whose log rate is a smooth Gaussian process.

    Attributes
    ----------
    counts : int array (pixels,)
        What is seen.
    log_rate : float array (pixels,)
        The truth.
    """

    counts: np.ndarray
    log_rate: np.ndarray


@dataclass(frozen=True)
class Checkerboard:
    """0/1 data on a periodic square, of which a model may see the white fields of a checkerboard.

    Attributes
    ----------
    data : int array (size, size)
        1 with the probability `rate`, everywhere.
    rate : float array (size, size)
        The truth: (1 + tanh s) / 2 of a stationary and isotropic Gaussian field s.
    white : bool array (size, size)
        Where the data may be used; the rest is for testing.
    wave, power : float arrays
        Spectrum of s: its power at wave numbers in cycles per side. The variance of s is the sum over modes.
    """

    data: np.ndarray
    rate: np.ndarray
    white: np.ndarray
    wave: np.ndarray
    power: np.ndarray


def lognormal_counts(
    seed: int, pixels: int = 128, *, mean: float = 2.0, sd: float = 1.5, length: float = 0.05
) -> LogNormalCounts:
    """Counts whose log rate has a squared exponential covariance; see `LogNormalCounts`.

    Parameters
    ----------
    seed : int
        Same seed, same data.
    pixels : int
        Length of the line.
    mean, sd : float
        Of the log rate.
    length : float
        Correlation length in units of the whole line.

    Examples
    --------
    >>> from experiments import datasets
    >>> datasets.lognormal_counts(1).counts.shape
    (128,)
    """
    rng = np.random.default_rng(seed)
    wave = np.fft.rfftfreq(pixels, 1 / pixels)
    power = sd**2 * math.sqrt(2 * math.pi) * length * np.exp(-2 * (math.pi * length * wave) ** 2)
    log_rate = mean + _field(rng, (pixels,), power)
    return LogNormalCounts(counts=rng.poisson(np.exp(log_rate)), log_rate=log_rate)


def checkerboard(
    seed: int, size: int = 1024, *, squares: int = 16, sd: float = 1.0, slope: float = -3.0, bend: float = 1.0
) -> Checkerboard:
    """Binary data of a field whose spectrum is a power law with smooth bumps; see `Checkerboard`.

    Parameters
    ----------
    seed : int
        Same seed, same data.
    size, squares : int
        Pixels, and fields of the checkerboard, along a side.
    sd : float
        Standard deviation of the field s.
    slope : float
        Of the power law.
    bend : float
        How far ln(power) departs from the power law (rms): an integrated Wiener process over ln(wave number).

    Examples
    --------
    >>> from experiments import datasets
    >>> board = datasets.checkerboard(1, size=32)
    >>> board.data.shape, int(board.white.sum())
    ((32, 32), 512)
    """
    if squares < 2 or squares % 2 or size % squares:
        raise ValueError(
            f"squares must be even, for periodic boundaries, and divide the size: found {squares} and {size}."
        )
    rng = np.random.default_rng(seed)
    wave = np.geomspace(1.0, size / math.sqrt(2), 65)
    log_power = slope * np.log(wave) + bend * _integrated_wiener(rng, len(wave))
    lengths = np.hypot(*np.meshgrid(np.fft.fftfreq(size, 1 / size), np.fft.rfftfreq(size, 1 / size), indexing="ij"))
    modes = np.exp(np.interp(np.log(np.maximum(lengths, 1.0)), np.log(wave), log_power))
    modes[0, 0] = 0.0
    # rfftn stores one column of each conjugate pair; the first and, for even sizes, the last are their own conjugates.
    multiplicity = np.ones(lengths.shape[1])
    multiplicity[1 : (size + 1) // 2] = 2.0
    scale = sd**2 / np.sum(modes * multiplicity)
    rate = 0.5 * (1 + np.tanh(_field(rng, (size, size), scale * modes)))
    white = (np.indices((size, size)) // (size // squares)).sum(axis=0) % 2 == 0
    data = (rng.random((size, size)) < rate).astype(np.int32)
    return Checkerboard(data=data, rate=rate, white=white, wave=wave, power=scale * np.exp(log_power))


def _field(rng, shape, power):
    """A periodic Gaussian field on a unit line or square; its variance is the sum of the power over all modes."""
    noise = np.fft.rfftn(rng.normal(size=shape)) * math.sqrt(math.prod(shape))
    return np.fft.irfftn(np.sqrt(power) * noise, s=shape, axes=tuple(range(len(shape))))


def _integrated_wiener(rng, nodes):
    """An integrated Wiener process minus the line through its ends, scaled to an rms of 1."""
    path = np.cumsum(np.cumsum(rng.normal(size=nodes)))
    path -= np.linspace(path[0], path[-1], nodes)
    return path / np.sqrt(np.mean(path**2))
