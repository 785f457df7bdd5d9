"""Stochastic ascent of the evidence lower bound of a Gaussian in standardised coordinates.

A problem and a family of Gaussians come in; parameters of the family after some more steps go out.
It must not know when to stop for the user's sake, nor what the result is for.

Gradients are reparametrised, taken at antithetic pairs, and without the score of the Gaussian itself ("sticking the
landing"), so that their noise vanishes where the Gaussian fits. Steps are Adam's. Windows of steps grow with their
number; when the bound of a window is no better than that of the window before, by more than its noise or the
tolerance, the step is halved; when three halvings in a row bring less than that, the ascent has arrived. The result is
the average of the parameters over the last window.
"""

from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from mgvi import _tree
from mgvi._compile import number
from mgvi.problem import Problem, neg_log_likelihood_terms
from mgvi.samplers import DenseGaussian, DiagonalGaussian
from mgvi.status import Status

_CHUNK = 200  # steps to a call, at most
_GROWTH = 0.15  # length of a window over the steps so far
_JUDGED = 100  # steps of the shortest window that is judged
_SD = 0.1  # of every latent at the start
_IDLE = 3  # halvings without gain at the end
_DECAY, _SQUARES, _EPSILON = 0.9, 0.999, 1e-8  # Adam's


class Family(Protocol):
    """A family of Gaussians; its members are trees of parameters with a vector "mean"."""

    def start(self, size: int, dtype: Any, sd: float) -> dict[str, jax.Array]:
        """Mean zero and the same standard deviation everywhere."""
        ...

    def colour(self, params: Any, noise: jax.Array) -> jax.Array:
        """S noise, where S S^T is the covariance, for rows of noise."""
        ...

    def score(self, params: Any, noise: jax.Array) -> jax.Array:
        """S^-T noise."""
        ...

    def log_det(self, params: Any) -> jax.Array:
        """log |S|."""
        ...


class Diagonal(NamedTuple):
    """Gaussians without correlations."""

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
        return DiagonalGaussian(_one(_tree.from_rows(np.exp(params["log_sd"])[None], latent)))


class Dense(NamedTuple):
    """All Gaussians, as S = diag(sd) (1 + T / sqrt(N)) with T strictly lower triangular.

    With the root of the number N of latents a step in all entries of T changes a draw as much as one in the others.
    """

    def start(self, size, dtype, sd):
        """Parameters: mean, logarithm of sd, and T."""
        return {**Diagonal().start(size, dtype, sd), "lower": jnp.zeros((size, size), dtype)}

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

    def log_det(self, params):
        """log |S|."""
        return jnp.sum(params["log_sd"])

    def approximation(self, params, latent):
        """The Gaussian, for a Posterior."""
        lower = np.asarray(self._lower(params), np.float64)
        sd = np.exp(np.asarray(params["log_sd"], np.float64))
        return DenseGaussian(sd[:, None] * (np.eye(len(sd)) + lower))


class _State(NamedTuple):
    params: Any
    first: Any  # Adam's moments of the gradient
    second: Any
    average: Any  # of the parameters over the window
    step: Any
    in_window: Any


@partial(jax.jit, static_argnames=("family", "pairs"))
def _ascend(problem, state: _State, seed, size, count, *, family, pairs):
    """So many Adam steps of a size; also the negative bound at each of them."""
    key = jax.random.key(seed)

    def body(i, carry):
        state, values = carry
        value, gradient = _gradient(problem, state.params, jax.random.fold_in(key, state.step), family, pairs)
        return _adam(state, gradient, size), values.at[i].set(value)

    values = jnp.zeros(_CHUNK, jnp.result_type(float))
    return lax.fori_loop(0, count, body, (state, values))


def _gradient(problem, params, key, family, pairs):
    """An estimate of the negative bound, up to a constant, and of its gradient."""
    half = jax.random.normal(key, (pairs, params["mean"].shape[0]), params["mean"].dtype)
    noise = jnp.concatenate([half, -half])
    score = lax.stop_gradient(family.score(params, noise))

    def surrogate(params):
        rows = params["mean"] + family.colour(params, noise)
        energy = jax.vmap(partial(_energy, problem))(_tree.from_rows(rows, problem.latent))
        entropy = family.log_det(params) + 0.5 * jnp.mean(jnp.sum(noise**2, axis=1))
        return jnp.mean(energy - jnp.sum(score * rows, axis=1)), jnp.mean(energy) - entropy

    (_, value), gradient = jax.value_and_grad(surrogate, has_aux=True)(params)
    return value, gradient


def _energy(problem, xi):
    terms = neg_log_likelihood_terms(problem, xi)
    return 0.5 * _tree.dot(xi, xi) + sum((jnp.sum(t) for t in terms.values()), start=jnp.zeros(()))


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


class Ascent:
    """An ascent under way."""

    def __init__(self, problem: Problem, family, seed: int, *, name: str, options: "Options"):
        self.name = name
        self._problem, self._family, self._seed, self._options = problem, family, seed, options
        dtype = jnp.result_type(*(leaf.dtype for leaf in problem.latent.values()))
        params = family.start(_tree.size(problem.latent), dtype, _SD)
        zero = jax.tree.map(jnp.zeros_like, params)
        self._state = _State(params, zero, zero, params, number(0), number(0))
        self._size, self._values = options.step, []
        self._window = 1
        self._last: tuple[float, float] | None = None  # bound of the last window and its variance, at this step size
        self._stage = np.inf  # bound at the end of the last step size
        self._idle, self._status = 0, None
        self._step = 0

    def advance(self) -> dict[str, Any]:
        """As many steps as are left of the window, up to a limit."""
        count = min(self._window - len(self._values), _CHUNK, self._options.max_steps - self._step)
        if not self._values:
            self._state = self._state._replace(in_window=number(0))
        arguments = (self._problem, self._state, number(self._seed), number(float(self._size)), number(count))
        static = {"family": self._family, "pairs": self._options.pairs}
        self._state, values = self._problem.static.compiled.call(_ascend, *arguments, **static)
        values = np.asarray(values, np.float64)[:count]
        self._values.extend(values)
        self._step += count
        size = self._size
        if len(self._values) >= self._window:
            self._judge(np.array(self._values))
            self._values = []
            self._window = max(1, int(_GROWTH * self._step))
        finite = bool(np.all(np.isfinite(values)) and all(np.all(np.isfinite(x)) for x in jax.tree.leaves(self._state)))
        return {"step": self._step, "elbo": -float(np.mean(values)), "step_size": float(size), "finite": finite}

    def _judge(self, values: np.ndarray) -> None:
        """Halve the step where the window brought no more than noise, and end where halving brings nothing."""
        if len(values) < _JUDGED:
            return
        bound, variance = float(np.mean(values)), float(np.var(values)) / len(values)
        tolerance = self._options.tolerance
        if self._last is not None and self._last[0] - bound < max(tolerance, np.sqrt(variance + self._last[1])):
            gain = self._stage - bound
            self._idle = self._idle + 1 if gain < max(tolerance, 2 * np.sqrt(variance)) else 0
            self._stage, self._last = min(self._stage, bound), None
            self._size *= 0.5
            if self._idle >= _IDLE:
                self._status = Status.CONVERGED
            return
        self._last = bound, variance

    def outcome(self) -> Status | None:
        """Whether it has arrived."""
        if self._status is None and self._step >= self._options.max_steps:
            return Status.ITERATION_LIMIT
        return self._status

    def state(self):
        """Mean and Gaussian, averaged over the window so far."""
        params = _tree.on_host(self._state.average)
        mean = _one(_tree.from_rows(params["mean"][None], self._problem.latent))
        return mean, self._family.approximation(params, self._problem.latent)


class Options(NamedTuple):
    """What a user may choose of an ascent."""

    step: float
    pairs: int
    max_steps: int
    tolerance: float


def _one(stack):
    return jax.tree.map(lambda leaf: leaf[0], stack)
