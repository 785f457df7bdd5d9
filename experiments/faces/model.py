"""Non-negative matrix factorisation of the Frey faces: data, masks, model and how results are judged.

Frames of a video come in; a problem, its held-out part and figures of merit of a posterior go out.
It must not know how the problem is solved.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from experiments.datasets import frey_faces
from mgvi.diagnostics import Predictive, predictive_log_likelihood

SHAPE = (28, 20)
PIXELS = SHAPE[0] * SHAPE[1]
MASKED_SHARE = 0.1  # share of all pixels that are held out at random


class Setup(NamedTuple):
    """A problem, the same model for the held-out pixels, and the masks."""

    problem: mgvi.Problem
    held_out: mgvi.Problem
    images: np.ndarray  # (frames, pixels), counts
    seen: np.ndarray  # (frames, pixels)
    frame: int  # whose lower half is hidden


def make(frames: int, components: int, seed: int) -> Setup:
    """Frames at equal distances in the video; a tenth of the pixels and half of the frame in the middle are hidden."""
    video = frey_faces().images
    index = np.linspace(0, len(video) - 1, frames).round().astype(int)
    images = video[index].reshape(frames, PIXELS).astype(np.int32)
    masked = np.random.default_rng(seed).random(images.shape) < MASKED_SHARE
    frame = frames // 2
    lower = np.arange(PIXELS) >= PIXELS // 2
    seen = ~masked
    seen[frame] &= ~lower
    # As in the paper, the predictive likelihood is that of the random pixels; the half frame is for the figures.
    rows, columns = np.nonzero(masked)
    return Setup(
        problem=mgvi.from_numpyro(model, jnp.asarray(images), jnp.asarray(seen), components),
        held_out=mgvi.from_numpyro(
            held_out_model,
            jnp.asarray(images[rows, columns]),
            jnp.asarray(rows),
            jnp.asarray(columns),
            frames,
            components,
        ),
        images=images,
        seen=seen,
        frame=frame,
    )


def factors(frames: int, components: int) -> tuple[Any, Any]:
    """Mixture and components, all entries Gamma(1, 1)."""
    gamma = dist.Gamma(1.0, 1.0)
    mixture = numpyro.sample("mixture", gamma.expand([frames, components]).to_event(2))
    return mixture, numpyro.sample("components", gamma.expand([components, PIXELS]).to_event(2))


def model(images, seen, components):
    """Counts of a mixture of components."""
    mixture, parts = factors(images.shape[0], components)
    numpyro.sample("images", dist.Poisson(mixture @ parts).mask(seen), obs=images)


def held_out_model(values, rows, columns, frames, components):
    """The same for single pixels of single frames."""
    mixture, parts = factors(frames, components)
    rate = jnp.sum(mixture[rows] * parts.T[columns], axis=-1)
    numpyro.sample("values", dist.Poisson(rate), obs=values)


def metrics(held_out: mgvi.Problem) -> dict[str, Callable[[mgvi.Posterior], float]]:
    """Log-likelihood of the held-out pixels, in nats a pixel: of the samples and at the latent mean."""

    @lru_cache(maxsize=1)  # the metrics of one posterior are computed one after another
    def predictive(posterior: mgvi.Posterior) -> Predictive:
        return predictive_log_likelihood(posterior, held_out)

    return {
        "log_likelihood": lambda posterior: predictive(posterior).samples,
        "log_likelihood_joint": lambda posterior: predictive(posterior).joint,
        "log_likelihood_at_mean": lambda posterior: predictive(posterior).mean,
    }


def frame_rates(posterior: mgvi.Posterior, frame: int) -> np.ndarray:
    """Samples of one frame: (samples, pixels)."""
    mixture, parts = posterior.samples["mixture"], posterior.samples["components"]
    return np.einsum("nk,nkp->np", mixture[:, frame], parts)


def contrast(setup: Setup, posterior: mgvi.Posterior) -> float:
    """Mean sd of the hidden half frame over that of the same pixels in the frame before, which are mostly seen."""
    lower = np.arange(PIXELS) >= PIXELS // 2
    hidden, shown = (
        frame_rates(posterior, frame)[:, lower].std(axis=0).mean() for frame in (setup.frame, setup.frame - 1)
    )
    return float(hidden / shown)
