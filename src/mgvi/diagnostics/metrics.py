"""Metrics of a posterior, as the paper defines them.

Posteriors, truths and held-out data come in; numbers and tables go out. It must not know how a posterior was made.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mgvi._table import Table
from mgvi.posterior import Posterior
from mgvi.problem import Problem


def rms(a: Any, b: Any) -> float:
    """Root of the mean squared difference of two arrays.

    Parameters
    ----------
    a, b : array
        Of the same shape, or shapes that broadcast.

    Returns
    -------
    float

    Examples
    --------
    >>> from mgvi.diagnostics import rms
    >>> rms([1.0, 2.0], [1.0, 4.0]) == 2**0.5
    True
    """
    return float(np.sqrt(np.mean(np.square(np.asarray(a, np.float64) - np.asarray(b, np.float64)))))


def average_significance(truth: Any, mean: Any, sd: Any) -> float:
    """Mean distance of a truth from its estimate, in standard deviations.

    It is sqrt(2 / pi) = 0.80 for a Gaussian whose mean and standard deviation are right, more where the standard
    deviation is too small.

    Parameters
    ----------
    truth, mean, sd : array
        Of the same shape.

    Returns
    -------
    float

    Examples
    --------
    >>> from mgvi.diagnostics import average_significance
    >>> average_significance([1.0, 2.0], [0.0, 2.0], [0.5, 1.0])
    1.0
    """
    truth, mean, sd = (np.asarray(x, np.float64) for x in (truth, mean, sd))
    return float(np.mean(np.abs(truth - mean) / sd))


class Predictive(NamedTuple):
    """Log-likelihood of held-out data, in nats a datum."""

    samples: float  # each datum's likelihood averaged over the samples
    joint: float  # the likelihood of all data together averaged over the samples, as in the paper
    mean: float  # at the latent mean


def predictive_log_likelihood(posterior: Posterior, held_out: Problem) -> Predictive:
    """Log-likelihood of data that the posterior has not seen, in nats a datum.

    The likelihood is averaged over the samples before the logarithm is taken. `samples` does so datum by datum, which a
    few samples estimate well; `joint` does so for all data together, which is the paper's formula and which, with many
    data, the best sample decides. `mean` is the logarithm of the likelihood at the latent mean, the best guess.

    Parameters
    ----------
    posterior : Posterior
        Of the data that were not held out.
    held_out : Problem
        The same model with the held-out data; it must have the same latent.

    Returns
    -------
    Predictive
        `samples`, `joint` and `mean`.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> posterior = mgvi.fit(mgvi.from_numpyro(model, jnp.array([1.0, 3.0])), seed=1, progress=False)
    >>> held_out = mgvi.from_numpyro(model, jnp.array([2.0]))
    >>> print(f"{mgvi.diagnostics.predictive_log_likelihood(posterior, held_out).mean:.2f}")
    -0.94
    """
    expected = {name: leaf.shape for name, leaf in posterior.problem.latent.items()}
    found = {name: leaf.shape for name, leaf in held_out.latent.items()}
    if expected != found:
        raise ValueError(f"the held-out problem must have the same latent: expected {expected}, found {found}.")
    moved = Posterior(held_out, posterior.latent_mean, posterior.deviations)
    of_samples = _rows(moved.log_likelihood(), len(moved))
    at_mean = _rows(
        {name: np.asarray(x)[None] for name, x in held_out.log_likelihood(posterior.latent_mean).items()}, 1
    )
    count = _count(held_out, posterior.latent_mean)
    return Predictive(
        float(np.sum(_log_mean_exp(of_samples)) / count),
        float(_log_mean_exp(np.sum(of_samples, axis=1)) / count),
        float(np.sum(at_mean) / count),
    )


def _rows(by_site, count) -> np.ndarray:
    return np.concatenate([np.asarray(x, np.float64).reshape(count, -1) for x in by_site.values()], axis=1)


def _log_mean_exp(x: np.ndarray) -> np.ndarray:
    largest = np.max(x, axis=0)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):  # data that no sample allows have the logarithm of zero
        return largest + np.log(np.mean(np.exp(x - largest), axis=0))


def _count(problem: Problem, latent: Any) -> int:
    """Number of data that are not masked."""
    moments = problem.predicted_moments(latent)
    likelihood = problem.log_likelihood(latent)
    sizes = {name: np.size(x) for name, x in likelihood.items()}
    for name, (*_, counts) in moments.items():
        if np.size(counts) == sizes[name]:
            sizes[name] = int(np.sum(counts))
    return max(sum(sizes.values()), 1)


def compare(posteriors: Mapping[str, Posterior], reference: Posterior, sites: Iterable[str] | None = None) -> Table:
    """RMS of means and standard deviations against a reference: the paper's table.

    Parameters
    ----------
    posteriors : dict of Posterior
        By name; each is a row.
    reference : Posterior
        What they are compared with, for example of `mgvi.baselines.nuts`.
    sites : iterable of str, optional
        Sites whose entries are compared; by default all that are sampled, without deterministic ones.

    Returns
    -------
    Table
        Rows by name; columns `mean` and `sd`: `table["mgvi"]["sd"]`.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> fit = mgvi.fit(problem, seed=1, progress=False)
    >>> laplace = mgvi.baselines.laplace(problem, seed=1, progress=False)
    >>> table = mgvi.diagnostics.compare({"laplace": laplace}, reference=fit)
    >>> table["laplace"]["mean"] < 0.01
    True
    """
    names = list(sites) if sites is not None else [n for n in reference.problem.latent if n in reference.samples]
    unknown = [name for name in names if name not in reference.samples]
    if unknown:
        raise ValueError(f"no site {unknown}; there are {sorted(reference.samples)}.")

    def difference(posterior, moment):
        ours, theirs = getattr(posterior, moment), getattr(reference, moment)
        return rms(*(np.concatenate([np.ravel(x[name]) for name in names]) for x in (ours, theirs)))

    rows = [(name, [difference(p, "mean"), difference(p, "sd")]) for name, p in posteriors.items()]
    return Table("RMS against the reference", ["mean", "sd"], rows)
