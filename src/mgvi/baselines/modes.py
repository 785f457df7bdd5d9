"""The mode of the posterior, alone or with a Gaussian around it.

A problem comes in; a maximum a posteriori estimate or a Laplace approximation goes out.
It must not know how samples are drawn.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgvi import _tree
from mgvi._compile import numbers
from mgvi.baselines._run import Run, start
from mgvi.errors import FitError
from mgvi.linalg import Stop
from mgvi.minimizers import Limits, NewtonCG
from mgvi.objective import SampledKL
from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.samplers import DenseGaussian, InverseMetric, Point
from mgvi.status import Status

_STALLED = 0.1  # squared Newton decrement, in posterior sds, above which a failed line search is no convergence
_AT_ONCE = 64  # columns of a Hessian
DENSE = 4000  # most latents of a matrix


def map_estimate(
    problem: Problem,
    *,
    seed: int = 0,
    tolerance: float = 1e-4,
    max_steps: int = 200,
    progress: bool = True,
    callbacks: Iterable[Callable] = (),
    time_limit: float = math.inf,
) -> Posterior:
    """The maximum of the posterior density in standardised coordinates, by natural-gradient steps.

    Parameters
    ----------
    problem : Problem
        From `from_numpyro` or `from_function`.
    seed : int
        Changes nothing here; all methods take one.
    tolerance : float
        It ends when the next step is smaller than this, rms over the latents, in standard deviations of the Fisher
        metric.
    max_steps : int
        End with what there is after so many steps.
    progress : bool
        Whether to show lines of progress on standard error.
    callbacks : iterable of callable
        Called now and then with a record and a Posterior; their time is not counted.
    time_limit : float
        End with what there is after so many seconds.

    Returns
    -------
    Posterior
        One sample, the estimate.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> posterior = mgvi.baselines.map_estimate(problem, progress=False)
    >>> print(f"{posterior.mean['mu']:.2f}, exactly {16 / 9:.2f}")
    1.78, exactly 1.78
    """
    run = Run(problem, seed, 1, progress, callbacks, time_limit)
    mode = _Mode(problem, tolerance, max_steps)
    status, history = run.drive(mode)
    return run.finish(mode.state(), status, history)


def laplace(
    problem: Problem,
    *,
    seed: int,
    fisher: bool = False,
    samples: int | None = None,
    tolerance: float = 1e-4,
    max_steps: int = 200,
    progress: bool = True,
    callbacks: Iterable[Callable] = (),
    time_limit: float = math.inf,
) -> Posterior:
    """A Gaussian around the mode, with the inverse Hessian or the inverse Fisher metric there as covariance.

    Parameters
    ----------
    problem : Problem
        From `from_numpyro` or `from_function`.
    seed : int
        Of the samples; same seed, same bits.
    fisher : bool
        Whether the Fisher metric takes the place of the Hessian, which is a matrix and needs at most 4000 latents.
    samples : int, optional
        Number of samples in the result.
    tolerance, max_steps, progress, callbacks, time_limit
        As for `map_estimate`.

    Returns
    -------
    Posterior

    Raises
    ------
    FitError
        If the Hessian is not positive definite: the point found is no maximum.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> posterior = mgvi.baselines.laplace(problem, seed=1, progress=False)
    >>> round(float(posterior.sd["mu"]), 1)  # exactly 2/3
    0.7
    """
    if not fisher:
        must_be_small(problem, DENSE, "the Hessian is a matrix; fisher=True needs none")
    run = Run(problem, seed, samples, progress, callbacks, time_limit)
    mode = _Mode(problem, tolerance, max_steps)

    def around(mean, _):
        return mean, InverseMetric() if fisher else DenseGaussian(_hessian_root(problem, mean))

    return run.finish(*run.conclude(mode, "laplace", around))


class _Mode:
    """A search for the mode, a few steps at a time."""

    name = "map_estimate"

    def __init__(self, problem: Problem, tolerance: float, max_steps: int):
        self._problem = problem
        self._mean = start(problem)
        self._zero = jax.tree.map(lambda m: jnp.zeros((1, *m.shape), m.dtype), self._mean)
        self._decrement = tolerance**2 * _tree.size(problem.latent)
        self._max_steps = max_steps
        self._status: Status | None = None
        self.step = 0

    def advance(self) -> dict[str, Any]:
        """One step at first, more later."""
        steps = min(max(1, self.step // 3), self._max_steps - self.step)
        cg = Stop(0.01, 0.0, min(10 * _tree.size(self._problem.latent) + 20, 2000))
        limits = numbers(Limits(steps, self._decrement, cg))
        arguments = (self._problem, self._mean, self._zero, limits)
        self._mean, value, report = self._problem.static.compiled.call(_newton, *arguments)
        value, report = jax.device_get((value, report))
        self.step += int(report.steps)
        code, decrement = Status(int(report.status)), float(report.decrement)
        if code is not Status.ITERATION_LIMIT:
            stuck = code is Status.NO_DESCENT and decrement <= _STALLED  # at the accuracy of the arithmetic
            self._status = Status.CONVERGED if stuck else code
        finite = bool(np.isfinite(value)) and code is not Status.NOT_FINITE
        return {"step": self.step, "neg_log_density": float(value), "decrement": decrement, "finite": finite}

    def outcome(self) -> Status | None:
        """Whether it has arrived."""
        if self._status is None and self.step >= self._max_steps:
            return Status.ITERATION_LIMIT
        return self._status

    def state(self):
        """The point, and nothing around it."""
        return self._mean, InverseMetric(Point())


@jax.jit
def _newton(problem, mean, zero, limits):
    free = {name: jnp.ones(()) for name in mean}
    objective = SampledKL(problem, zero, jnp.ones(()), free)
    mean, known, report = NewtonCG().minimize(objective, mean, limits)
    return mean, known.value, report


def must_be_small(problem: Problem, most: int, why: str) -> None:
    """Refuse a problem that is too large for a matrix."""
    size = _tree.size(problem.latent)
    if size > most:
        raise ValueError(f"this problem has {size} latents, expected at most {most}: {why}.")


def _hessian_root(problem: Problem, mean: Any) -> np.ndarray:
    hessian = np.asarray(problem.static.compiled.call(_hessian, problem, mean), np.float64)
    return covariance_root(hessian, "the Hessian at the point found")


def covariance_root(precision: np.ndarray, what: str) -> np.ndarray:
    """L with L L^T = precision^-1."""
    try:
        factor = np.linalg.cholesky(0.5 * (precision + precision.T))
    except np.linalg.LinAlgError as error:
        least = np.linalg.eigvalsh(0.5 * (precision + precision.T))[0] if np.all(np.isfinite(precision)) else np.nan
        raise FitError(
            f"{what} is not positive definite (smallest eigenvalue {least:.3g}): there is no Gaussian around it. A "
            "smaller tolerance or float64 may help; `laplace(fisher=True)` always has a covariance."
        ) from error
    return np.linalg.inv(factor).T


@jax.jit
def _hessian(problem, mean):
    return second_derivatives(problem.neg_log_density, mean)


def second_derivatives(function: Callable, at: Any) -> jax.Array:
    """The Hessian of a function of a tree, as a matrix over its entries."""
    size = _tree.size(at)
    dtype = jnp.result_type(*(leaf.dtype for leaf in jax.tree.leaves(at)))
    gradient = jax.grad(function)

    def column(direction):
        tree = jax.tree.map(lambda leaf: leaf[0], _tree.from_rows(direction[None], at))
        product = jax.jvp(gradient, (at,), (tree,))[1]
        return _tree.to_rows(jax.tree.map(lambda leaf: leaf[None], product))[0]

    return lax.map(column, jnp.eye(size, dtype=dtype), batch_size=_AT_ONCE)
