"""The mode of the posterior, alone or with a Gaussian around it.

A problem comes in; a maximum a posteriori estimate or a Laplace approximation goes out.
It must not know how samples are drawn.
"""

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgvi import _files, _tree, driver
from mgvi._compile import numbers, program
from mgvi.baselines._steps import Stepwise
from mgvi.errors import FitError
from mgvi.gaussian import DenseGaussian, KrylovCurvature, KrylovGaussian, StoredDraws
from mgvi.kl import SampledKL
from mgvi.linalg import Stop, cholesky
from mgvi.newton import Limits, NewtonCG
from mgvi.pairs import Pairs
from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.status import Status

_CONVERGED_DECREMENT = 0.1  # squared posterior sds; where a line search fails with less, the mode is found
_COLUMNS_AT_ONCE = 64  # of a Hessian
LARGEST_DENSE = 4000  # latents whose matrix fits into memory


def map_estimate(
    problem: Problem, *, seed: int = 0, tolerance: float = 1e-4, max_steps: int = 200, **options: Unpack[driver.Options]
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
    **options
        `progress`, `callbacks`, `time_limit` and `checkpoint`: see `mgvi.driver.Options`.

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
    return driver.Driver(problem, seed, **options).run(_Mode(problem, seed, tolerance, max_steps))


def laplace(
    problem: Problem,
    *,
    seed: int,
    fisher: bool = False,
    tolerance: float = 1e-4,
    max_steps: int = 200,
    **options: Unpack[driver.Options],
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
    tolerance, max_steps, **options
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
        must_be_small(problem, LARGEST_DENSE, "the Hessian is a matrix; fisher=True needs none")
    mode = _Mode(problem, seed, tolerance, max_steps)
    mode.settings |= {"method": "laplace", "fisher": fisher}

    def around(point):
        if fisher:
            return KrylovGaussian(point.mean)
        hessian = np.asarray(problem.static.compiled.call(_hessian, problem, point.mean), np.float64)
        return DenseGaussian(point.mean, must_be_positive(hessian, "the Hessian at the point found"))

    return driver.Driver(problem, seed, **options).run(mode, around)


class _Mode(Stepwise):
    """A search for the mode, a few steps at a time."""

    def __init__(self, problem: Problem, seed: int, tolerance: float, max_steps: int):
        super().__init__(problem, "map_estimate", {"seed": seed, "tolerance": tolerance, "max_steps": max_steps})
        self._max_steps = max_steps
        self._mean = _tree.zeros(problem.latent)
        self._decrement = tolerance**2 * _tree.size(problem.latent)
        self._status: Status | None = None

    def advance(self) -> dict[str, Any] | None:
        """One step at first, more later."""
        steps = min(max(1, self._step // 3), self._max_steps - self._step)
        cg = Stop(0.01, 0.0, min(10 * _tree.size(self._problem.latent) + 20, 2000))
        limits = numbers(Limits(steps, self._decrement, cg))
        found = self._problem.static.compiled.call(_newton, self._problem, self._mean, limits)
        mean, value, report = jax.device_get(found)
        code, decrement = Status(int(report.status)), float(report.decrement)
        if not np.isfinite(value) or code is Status.NOT_FINITE:
            return None
        self._mean = mean
        self._step += int(report.steps)
        if code is not Status.ITERATION_LIMIT:
            stuck = code is Status.NO_DESCENT and decrement <= _CONVERGED_DECREMENT  # at the accuracy of the arithmetic
            self._status = Status.CONVERGED if stuck else code
        record = {"step": self._step, "neg_log_density": float(value), "decrement": decrement}
        return {"method": self.settings["method"], **record}

    def outcome(self) -> Status | None:
        """Whether it has arrived."""
        if self._status is None and self._step >= self._max_steps:
            return Status.ITERATION_LIMIT
        return self._status

    def is_shown(self) -> bool:
        """Each time."""
        return True

    def approximation(self) -> StoredDraws:
        """The point, and nothing around it."""
        return StoredDraws.point(self._mean)

    def shown(self, count: int, seed: int) -> Posterior:
        """The point, as a single sample."""
        return super().shown(1, seed)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """The state."""
        return {"mean": _files.packed(self._mean)}, {"step": self._step, "status": self._status}

    def from_files(self, arrays: dict[str, dict[str, Any]], facts: dict) -> None:
        """Go on from a state."""
        self._mean, self._step = _files.unpacked(arrays["mean"], self._mean), facts["step"]
        self._status = None if facts["status"] is None else Status(facts["status"])


@program()
def _newton(problem, mean, limits):
    curvature = KrylovCurvature(problem, mean, {name: jnp.ones(()) for name in mean})
    objective = SampledKL(curvature, Pairs(_tree.stacked(_tree.zeros(mean)), mirrored=False))
    mean, known, report = NewtonCG().minimize(objective, mean, limits)
    return mean, known.value, report


def must_be_small(problem: Problem, most: int, why: str) -> None:
    """Refuse a problem that is too large for a matrix."""
    size = _tree.size(problem.latent)
    if size > most:
        raise ValueError(f"this problem has {size} latents, expected at most {most}: {why}.")


def must_be_positive(precision: np.ndarray, what: str) -> np.ndarray:
    """The symmetric part of a matrix, if that has an inverse that is a covariance."""
    precision = 0.5 * (precision + precision.T)
    if cholesky(precision) is None:
        least = np.linalg.eigvalsh(precision)[0] if np.all(np.isfinite(precision)) else np.nan
        raise FitError(
            f"{what} is not positive definite (smallest eigenvalue {least:.3g}): there is no Gaussian around it. A "
            "smaller tolerance or float64 may help; `laplace(fisher=True)` always has a covariance."
        )
    return precision


@program("once")
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

    return lax.map(column, jnp.eye(size, dtype=dtype), batch_size=_COLUMNS_AT_ONCE)
