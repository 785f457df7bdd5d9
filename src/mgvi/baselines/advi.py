"""Automatic differentiation variational inference in standardised coordinates.

A problem comes in; a Gaussian that maximises the evidence lower bound goes out, without or with correlations.
It must not know how the bound is climbed.
"""

from typing import Unpack

from mgvi import driver
from mgvi.baselines._ascent import Ascent, Dense, Diagonal, Options
from mgvi.baselines.modes import LARGEST_DENSE, must_be_small
from mgvi.posterior import Posterior
from mgvi.problem import Problem


def advi_meanfield(
    problem: Problem,
    *,
    seed: int,
    step: float = 0.1,
    pairs: int = 1,
    max_steps: int = 100_000,
    tolerance: float = 0.01,
    **options: Unpack[driver.Options],
) -> Posterior:
    """The Gaussian without correlations that is closest to the posterior, by stochastic ascent of the ELBO.

    Adam with a step that is halved whenever a window of steps brings no more than noise, or less than the tolerance; it
    ends when three halvings in a row bring no more either, with the average over the last window. Windows grow to 15 %
    of the steps so far. It starts at the mean of the prior with a standard deviation of 0.1 in every latent.

    Parameters
    ----------
    problem : Problem
        From `from_numpyro` or `from_function`.
    seed : int
        Same seed, same bits.
    step : float
        Adam's first step, in standard deviations of the prior.
    pairs : int
        Antithetic pairs of draws to a step.
    max_steps : int
        End with what there is after so many steps.
    tolerance : float
        Gain of the ELBO, in nats, that is worth a smaller step; the noise of the estimate if that is more.
    **options
        `samples`, `progress`, `callbacks` (called on a logarithmic grid of steps), `time_limit` and `checkpoint`: see
        `mgvi.driver.Options`.

    Returns
    -------
    Posterior

    Raises
    ------
    FitError
        If a bound or a parameter is not finite; carries the last good posterior.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> posterior = mgvi.baselines.advi_meanfield(problem, seed=1, progress=False)
    >>> print(f"{posterior.mean['mu']:.2f}, exactly {16 / 9:.2f}")
    1.78, exactly 1.78
    """
    chosen = Options(step, pairs, max_steps, tolerance)
    ascent = Ascent(problem, Diagonal(), seed, name="advi_meanfield", options=chosen)
    return driver.Driver(problem, seed, **options).run(ascent)


def advi_fullrank(
    problem: Problem,
    *,
    seed: int,
    step: float = 0.1,
    pairs: int = 1,
    max_steps: int = 300_000,
    tolerance: float = 0.01,
    **options: Unpack[driver.Options],
) -> Posterior:
    """The Gaussian with all correlations that is closest to the posterior, by stochastic ascent of the ELBO.

    The same ascent as in `advi_meanfield`. The covariance is a matrix, so there may be at most 4000 latents.

    Parameters
    ----------
    problem : Problem
        From `from_numpyro` or `from_function`.
    seed : int
        Same seed, same bits.
    step, pairs, max_steps, tolerance, **options
        As for `advi_meanfield`.

    Returns
    -------
    Posterior

    Raises
    ------
    FitError
        If a bound or a parameter is not finite; carries the last good posterior.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> posterior = mgvi.baselines.advi_fullrank(problem, seed=1, progress=False)
    >>> round(float(posterior.sd["mu"]), 1)  # exactly 2/3
    0.7
    """
    must_be_small(problem, LARGEST_DENSE, "the covariance is a matrix; advi_meanfield needs none")
    chosen = Options(step, pairs, max_steps, tolerance)
    ascent = Ascent(problem, Dense(), seed, name="advi_fullrank", options=chosen)
    return driver.Driver(problem, seed, **options).run(ascent)
