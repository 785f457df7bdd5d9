"""Linear-response covariance of a mean-field Gaussian.

A problem comes in; a Gaussian with the means of mean-field ADVI and correlations from how they respond goes out.
It must not know how the mean field was found.
"""

from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree, driver
from mgvi._compile import program
from mgvi.baselines._ascent import Ascent, Diagonal, Options
from mgvi.baselines.modes import must_be_positive, must_be_small, second_derivatives
from mgvi.gaussian import DenseGaussian
from mgvi.posterior import Posterior
from mgvi.problem import Problem

_MAX_SIZE = 3000  # latents; the matrix has twice as many rows
_NOISE_STREAM = 4  # of random keys, for the draws that the bound is averaged over


def linear_response(
    problem: Problem,
    *,
    seed: int,
    step: float = 0.1,
    pairs: int = 64,
    max_steps: int = 100_000,
    tolerance: float = 0.01,
    **options: Unpack[driver.Options],
) -> Posterior:
    """Mean-field ADVI with the covariance that its means show when the posterior is perturbed.

    If H is the Hessian of the negative ELBO with respect to all means and log standard deviations, the covariance is
    the block of H^-1 that belongs to the means (Giordano, Broderick and Jordan, 2018). H is averaged over fixed
    antithetic draws of the mean field.

    Parameters
    ----------
    problem : Problem
        From `from_numpyro` or `from_function`; of at most 3000 latents.
    seed : int
        Same seed, same bits.
    pairs : int
        Antithetic pairs that H is averaged over.
    step, max_steps, tolerance, **options
        As for `advi_meanfield`.

    Returns
    -------
    Posterior

    Raises
    ------
    FitError
        If H is not positive definite, or the ascent breaks down.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> posterior = mgvi.baselines.linear_response(problem, seed=1, progress=False)
    >>> round(float(posterior.sd["mu"]), 1)  # exactly 2/3
    0.7
    """
    must_be_small(problem, _MAX_SIZE, "the response of all means to each other is a matrix; advi_meanfield needs none")
    ascent = Ascent(problem, Diagonal(), seed, name="advi_meanfield", options=Options(step, 1, max_steps, tolerance))
    ascent.settings |= {"method": "linear_response", "pairs": pairs}
    respond = lambda field: DenseGaussian(field.mean, _response_precision(problem, field, pairs, seed))
    return driver.Driver(problem, seed, **options).run(ascent, respond)


def _response_precision(problem: Problem, field: DenseGaussian, pairs: int, seed: int) -> np.ndarray:
    size = _tree.size(problem.latent)
    rng = np.random.default_rng((seed, _NOISE_STREAM))
    noise = _tree.from_rows(rng.standard_normal((pairs, size)), problem.latent)
    log_sd = {name: -0.5 * np.log(x) for name, x in field.precision.items()}
    found = problem.static.compiled.call(_bound_hessian, problem, {"mean": field.mean, "sd": log_sd}, noise)
    hessian = np.asarray(found, np.float64)
    # Leaves are in the order of their names: those of "mean" come before those of "sd".
    means, mixed, sds = hessian[:size, :size], hessian[:size, size:], hessian[size:, size:]
    return must_be_positive(means - mixed @ np.linalg.solve(sds, mixed.T), "the response of the means")


@program("once")
def _bound_hessian(problem, params, noise):
    return second_derivatives(partial(_negative_bound, problem, noise), params)


def _negative_bound(problem, noise, params):
    """Negative ELBO with fixed noise, without the part of the entropy that has no curvature."""

    def energy(noise):
        shift = jax.tree.map(lambda s, n: jnp.exp(s) * n, params["sd"], noise)
        here, there = _tree.add(params["mean"], shift), _tree.subtract(params["mean"], shift)
        return 0.5 * (problem.neg_log_density(here) + problem.neg_log_density(there))

    return jnp.mean(jax.vmap(energy)(noise))
