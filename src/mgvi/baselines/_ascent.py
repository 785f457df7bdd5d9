"""Stochastic ascent of the evidence lower bound of a Gaussian in standardised coordinates.

A problem and a family of Gaussians come in; parameters of the family after some more steps go out.
It must not know when to stop for the user's sake, nor what the result is for.

Gradients are reparametrised, taken at antithetic pairs, and without the score of the Gaussian itself ("sticking the
landing"), so that their noise vanishes where the Gaussian fits. Steps are Adam's. Windows of steps grow with their
number; when the bound of a window is no better than that of the window before, by more than its noise or the
tolerance, the step is halved; when three halvings in a row bring less than that, the ascent has arrived. The result is
the average of the parameters over the last window.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from mgvi import _files, _tree
from mgvi._compile import number, program
from mgvi.baselines._steps import Stepwise
from mgvi.gaussian import DenseGaussian
from mgvi.linalg import inverse_of_triangle
from mgvi.problem import Problem
from mgvi.problem.density import density
from mgvi.status import Status

_LONGEST_CALL = 200  # steps
_WINDOW_GROWTH = 0.15  # length of a window over the number of steps so far
_SHORTEST_JUDGED_WINDOW = 100  # steps
_FIRST_SD = 0.1  # of every latent, in standard deviations of the prior
_IDLE_HALVINGS = 3  # halvings of the step size in a row without gain that end the ascent
_DECAY, _SQUARES, _EPSILON = 0.9, 0.999, 1e-8  # Adam's beta1, beta2 and epsilon


@dataclass(frozen=True)
class Diagonal:
    """A family of Gaussians: those without correlations.

    Members of a family are trees of parameters with a vector "mean". S stands for a root of a member's covariance,
    S S^T; `colour` and `score` take rows of white noise.
    """

    def start(self, size, dtype, sd):
        """Parameters: mean and logarithm of the standard deviation."""
        return {"mean": jnp.zeros(size, dtype), "log_sd": jnp.full(size, np.log(sd), dtype)}

    def colour(self, params, noise):
        """S noise."""
        return jnp.exp(params["log_sd"]) * noise

    def score(self, params, noise):
        """S^-T noise."""
        return jnp.exp(-params["log_sd"]) * noise

    def log_det(self, params):
        """log |S|."""
        return jnp.sum(params["log_sd"])

    def approximation(self, params, latent):
        """The Gaussian, for a Posterior."""
        mean = _tree.from_row(params["mean"], latent)
        return DenseGaussian(mean, _tree.from_row(np.exp(-2 * params["log_sd"]), latent))


@dataclass(frozen=True)
class Dense(Diagonal):
    """All Gaussians, as S = diag(sd) (1 + T / sqrt(N)) with T strictly lower triangular.

    With the root of the number N of latents a step in all entries of T changes a draw as much as one in the others.
    """

    def start(self, size, dtype, sd):
        """Parameters: mean, logarithm of sd, and T."""
        return {**super().start(size, dtype, sd), "lower": jnp.zeros((size, size), dtype)}

    def colour(self, params, noise):
        """S noise."""
        mixed = noise + jnp.matmul(noise, self._lower(params).T, precision=lax.Precision.HIGHEST)
        return jnp.exp(params["log_sd"]) * mixed

    def _lower(self, params):
        return jnp.tril(params["lower"], -1) / np.sqrt(params["lower"].shape[0])

    def score(self, params, noise):
        """S^-T noise."""
        upper = self._lower(params).T
        return jnp.exp(-params["log_sd"]) * solve_triangular(upper, noise.T, lower=False, unit_diagonal=True).T

    def approximation(self, params, latent):
        """The Gaussian, for a Posterior."""
        lower = np.asarray(self._lower(params), np.float64)
        sd = np.exp(np.asarray(params["log_sd"], np.float64))
        inverse = inverse_of_triangle(np.eye(len(sd)) + lower) / sd
        return DenseGaussian(_tree.from_row(params["mean"], latent), inverse.T @ inverse)


class _State(NamedTuple):
    params: Any
    first: Any  # Adam's moments of the gradient
    second: Any
    average: Any  # of the parameters over the window
    step: Any
    in_window: Any


@program(static_argnames=("family", "pairs"))
def _ascend(problem, state: _State, seed, size, count, *, family, pairs):
    """So many Adam steps of a size; also the negative bound at each of them."""
    key = jax.random.key(seed)

    def body(i, carry):
        state, values = carry
        value, gradient = _gradient(problem, state.params, jax.random.fold_in(key, state.step), family, pairs)
        return _adam(state, gradient, size), values.at[i].set(value)

    values = jnp.zeros(_LONGEST_CALL, jnp.result_type(float))
    return lax.fori_loop(0, count, body, (state, values))


def _gradient(problem, params, key, family, pairs):
    """An estimate of the negative bound, up to a constant, and of its gradient."""
    half = jax.random.normal(key, (pairs, params["mean"].shape[0]), params["mean"].dtype)
    noise = jnp.concatenate([half, -half])
    score = lax.stop_gradient(family.score(params, noise))

    def surrogate(params):
        rows = params["mean"] + family.colour(params, noise)
        energy = jax.vmap(partial(density, problem))(_tree.from_rows(rows, problem.latent))
        entropy = family.log_det(params) + 0.5 * jnp.mean(jnp.sum(noise**2, axis=1))
        return jnp.mean(energy - jnp.sum(score * rows, axis=1)), jnp.mean(energy) - entropy

    (_, value), gradient = jax.value_and_grad(surrogate, has_aux=True)(params)
    return value, gradient


def _adam(state, gradient, size):
    step = state.step + 1
    first = jax.tree.map(lambda m, g: _DECAY * m + (1 - _DECAY) * g, state.first, gradient)
    second = jax.tree.map(lambda v, g: _SQUARES * v + (1 - _SQUARES) * g * g, state.second, gradient)
    rate = size * jnp.sqrt(1 - _SQUARES**step) / (1 - _DECAY**step)
    params = jax.tree.map(
        lambda p, m, v: p - (rate * m / (jnp.sqrt(v) + _EPSILON)).astype(p.dtype), state.params, first, second
    )
    share = 1.0 / (state.in_window + 1.0)
    average = jax.tree.map(lambda a, p: a + (share * (p - a)).astype(a.dtype), state.average, params)
    return _State(params, first, second, average, step, state.in_window + 1)


class Ascent(Stepwise):
    """An ascent under way."""

    def __init__(self, problem: Problem, family, seed: int, *, name: str, options: "Options"):
        super().__init__(problem, name, {"seed": seed, **options._asdict()})
        self._family, self._options = family, options
        dtype = jnp.result_type(*(leaf.dtype for leaf in problem.latent.values()))
        params = family.start(_tree.size(problem.latent), dtype, _FIRST_SD)
        zero = jax.tree.map(jnp.zeros_like, params)
        self._state = _State(params, zero, zero, params, number(0), number(0))
        self._judged = _Judged(options.step)

    def advance(self) -> dict[str, Any] | None:
        """As many steps as are left of the window, up to a limit."""
        judged = self._judged
        count = min(judged.window - len(judged.values), _LONGEST_CALL, self._options.max_steps - self._step)
        state = self._state if judged.values else self._state._replace(in_window=number(0))
        arguments = (self._problem, state, number(self.settings["seed"]), number(float(judged.size)), number(count))
        static = {"family": self._family, "pairs": self._options.pairs}
        state, values = self._problem.static.compiled.call(_ascend, *arguments, **static)
        values = np.asarray(values, np.float64)[:count]
        if not (np.all(np.isfinite(values)) and all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state))):
            return None
        size, self._state = judged.size, state
        self._move(count)
        judged.add(values, self._step, self._options.tolerance)
        return {"method": self.name, "step": self._step, "elbo": -float(np.mean(values)), "step_size": float(size)}

    def outcome(self) -> Status | None:
        """Whether it has arrived."""
        if self._judged.idle >= _IDLE_HALVINGS:
            return Status.CONVERGED
        return Status.ITERATION_LIMIT if self._step >= self._options.max_steps else None

    def approximation(self):
        """The Gaussian, averaged over the window so far."""
        return self._family.approximation(_tree.on_host(self._state.average), self._problem.latent)

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """The state."""
        return {"state": _files.packed(self._state)}, {**vars(self._judged), **self._count_to_facts()}

    def from_files(self, arrays: dict[str, dict[str, Any]], facts: dict) -> None:
        """Go on from a state."""
        self._state = _files.unpacked(arrays["state"], self._state)
        self._count_from_facts(facts)
        vars(self._judged).update({name: facts[name] for name in vars(self._judged)})


class _Judged:
    """Windows of steps, and what they said: plain values only."""

    def __init__(self, size: float):
        self.size, self.window, self.idle = size, 1, 0
        self.values: list[float] = []  # negative bounds of the window so far
        self.last: list[float] | None = None  # bound of the last window and its variance, at this step size
        self.stage = float("inf")  # bound at the end of the last step size

    def add(self, values: np.ndarray, step: int, tolerance: float) -> None:
        """Some more values of the window."""
        self.values += [float(x) for x in values]
        if len(self.values) >= self.window:
            self._judge(np.array(self.values), tolerance)
            self.values, self.window = [], max(1, int(_WINDOW_GROWTH * step))

    def _judge(self, values: np.ndarray, tolerance: float) -> None:
        """Halve the step where the window brought no more than noise, and count halvings that brought nothing."""
        if len(values) < _SHORTEST_JUDGED_WINDOW:
            return
        bound, variance = float(np.mean(values)), float(np.var(values)) / len(values)
        if self.last is not None and self.last[0] - bound < max(tolerance, float(np.sqrt(variance + self.last[1]))):
            gain = self.stage - bound
            self.idle = self.idle + 1 if gain < max(tolerance, 2 * np.sqrt(variance)) else 0
            self.stage, self.last = min(self.stage, bound), None
            self.size *= 0.5
            return
        self.last = [bound, variance]


class Options(NamedTuple):
    """What a user may choose of an ascent."""

    step: float
    pairs: int
    max_steps: int
    tolerance: float
