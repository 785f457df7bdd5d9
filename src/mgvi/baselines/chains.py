"""The no-U-turn sampler on the standardised density.

A problem comes in; draws of several chains, with how well they agree, go out.
It must not know an approximation.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer.hmc import hmc

from mgvi import _tree
from mgvi._compile import number
from mgvi.baselines._run import Run
from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.samplers import StoredDraws
from mgvi.status import Status

_CHUNK = 50  # steps to a call, at most
_COLUMNS = 1000  # latents that are diagnosed at once
_START, _MOVES = 5, 6  # streams of keys


class _Tuning(NamedTuple):
    """What is fixed when the sampler is compiled."""

    warmup: int
    dense_mass: bool
    target: float
    depth: int


def nuts(
    problem: Problem,
    *,
    seed: int,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    dense_mass: bool = False,
    target: float = 0.8,
    depth: int = 10,
    r_hat: float = 1.01,
    ess: float = 400.0,
    progress: bool = True,
    callbacks: Iterable[Callable] = (),
    time_limit: float = math.inf,
) -> Posterior:
    """Draws of the posterior itself, by NumPyro's no-U-turn sampler in standardised coordinates.

    Parameters
    ----------
    problem : Problem
        From `from_numpyro` or `from_function`.
    seed : int
        Same seed, same bits.
    chains : int
        Chains that run side by side, each from its own draw of the prior.
    warmup, draws : int
        Steps of each chain that adapt it, and steps that are kept.
    dense_mass : bool
        Whether a whole mass matrix is adapted, or its diagonal.
    target, depth : float, int
        Acceptance probability that the step size is adapted to, and largest depth of a tree.
    r_hat, ess : float
        The status is CONVERGED if every latent has a split R-hat below the first and an effective sample size above the
        second.
    progress : bool
        Whether to show lines of progress on standard error.
    callbacks : iterable of callable
        Called on a logarithmic grid of steps with a record and a Posterior: of where the chains are during warmup, of
        the draws so far afterwards. Their time is not counted.
    time_limit : float
        End with what there is after so many seconds.

    Returns
    -------
    Posterior
        Of all draws, chain after chain. The last record of its history has `r_hat`, `ess` and `divergences`.

    Raises
    ------
    FitError
        If a chain is not finite.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> posterior = mgvi.baselines.nuts(problem, seed=1, progress=False)
    >>> len(posterior), posterior.history[-1]["r_hat"] < 1.01
    (4000, True)
    """
    if chains < 2 or draws < 4:
        raise ValueError(f"expected at least 2 chains and 4 draws of each, found {chains} and {draws}.")
    run = Run(problem, seed, None, progress, callbacks, time_limit)
    tuning = _Tuning(warmup, dense_mass, target, depth)
    method = _Chains(problem, seed, chains, draws, tuning)
    status, history = run.drive(method)
    kept = method.kept()
    if status.ok:
        worst = {"r_hat": float(np.max(_by_column(split_gelman_rubin, kept)))}
        worst["ess"] = float(np.min(_by_column(effective_sample_size, kept)))
        history[-1].update(worst)
        status = status if worst["r_hat"] < r_hat and worst["ess"] > ess else Status.ITERATION_LIMIT
    mean, pool = method.state()
    return run.finish((mean, pool), status, history, deviations=pool.pool)


class _Chains:
    """Chains under way."""

    name = "nuts"

    def __init__(self, problem: Problem, seed: int, chains: int, draws: int, tuning: _Tuning):
        self._problem, self._tuning, self._draws = problem, tuning, draws
        rng = np.random.default_rng((seed, _START))
        size = _tree.size(problem.latent)
        self._start = jax.tree.map(jnp.asarray, _tree.from_rows(rng.standard_normal((chains, size)), problem.latent))
        self._seed = seed
        self._hmc: Any = None
        self._buffer = {name: jnp.zeros((draws, *z.shape), z.dtype) for name, z in self._start.items()}
        self._step = self._divergences = 0

    def advance(self) -> dict[str, Any]:
        """A step at first, more later; warmup and draws apart."""
        call, tuning = self._problem.static.compiled.call, self._tuning
        if self._hmc is None:
            self._hmc = call(_begin, self._problem, self._start, number(self._seed), tuning=tuning)
        end = tuning.warmup if self._step < tuning.warmup else tuning.warmup + self._draws
        count = min(max(1, self._step // 5), _CHUNK, end - self._step)
        self._hmc, self._buffer, told = call(
            _move, self._problem, self._hmc, self._buffer, number(count), number(self._step), tuning=tuning
        )
        told = jax.device_get(told)
        sampling = self._step >= tuning.warmup
        self._step += count
        self._divergences += int(told["divergences"]) if sampling else 0
        return {
            "step": self._step,
            "phase": "draws" if sampling else "warmup",
            "leapfrogs": int(told["leapfrogs"]),
            "divergences": self._divergences,
            "acceptance": float(told["acceptance"]),
            "finite": bool(np.all(np.isfinite(told["energy"]))),
        }

    def outcome(self) -> Status | None:
        """Whether all steps are made; whether the chains agree is another question."""
        return Status.CONVERGED if self._step >= self._tuning.warmup + self._draws else None

    def kept(self) -> np.ndarray:
        """Draws so far, or where the chains are during warmup: chains, draws, latents."""
        count = self._step - self._tuning.warmup
        if count > 0:
            stack = {name: np.asarray(x[:count]) for name, x in self._buffer.items()}
        else:
            now = self._start if self._hmc is None else self._hmc.z
            stack = {name: np.asarray(z)[None] for name, z in now.items()}
        rows = [x.reshape(*x.shape[:2], -1) for _, x in sorted(stack.items())]
        return np.concatenate(rows, axis=-1).swapaxes(0, 1)

    def state(self) -> tuple[Any, StoredDraws]:
        """Mean of the draws so far, and the draws."""
        kept = self.kept()
        rows = kept.reshape(-1, kept.shape[-1]).astype(np.float64)
        mean = rows.mean(axis=0)
        latent = self._problem.latent
        one = jax.tree.map(lambda leaf: leaf[0], _tree.from_rows(mean[None], latent))
        return one, StoredDraws(_tree.from_rows(rows - mean, latent))


def _kernel(problem, like, tuning: _Tuning):
    """NumPyro's functions to begin and to move a chain; the latter knows its tuning from a beginning."""
    begin, move = hmc(potential_fn_gen=lambda problem: problem.neg_log_density, algo="NUTS")
    begin = partial(
        begin,
        num_warmup=tuning.warmup,
        dense_mass=tuning.dense_mass,
        target_accept_prob=tuning.target,
        max_tree_depth=tuning.depth,
        model_args=(problem,),
    )
    begin(jax.tree.map(lambda z: z[0], like), rng_key=jax.random.key(0))
    return begin, move


@partial(jax.jit, static_argnames="tuning")
def _begin(problem, start, seed, *, tuning):
    begin, _ = _kernel(problem, start, tuning)
    chains = jax.tree.leaves(start)[0].shape[0]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _MOVES), chains)
    return jax.vmap(lambda z, key: begin(z, rng_key=key))(start, keys)


@partial(jax.jit, static_argnames="tuning")
def _move(problem, state, buffer, count, first, *, tuning):
    """So many steps of all chains; positions after warmup go to the buffer."""
    _, move = _kernel(problem, state.z, tuning)

    def body(i, carry):
        state, buffer, leapfrogs, divergences, acceptance = carry
        state = jax.vmap(lambda s: move(s, (problem,)))(state)
        # During warmup the first row is written over and over; the first draw takes it for good.
        row = jnp.maximum(first + i - tuning.warmup, 0)
        buffer = jax.tree.map(lambda b, z: lax.dynamic_update_index_in_dim(b, z, row, 0), buffer, state.z)
        leapfrogs = leapfrogs + jnp.sum(state.num_steps)
        divergences = divergences + jnp.sum(state.diverging)
        return state, buffer, leapfrogs, divergences, acceptance + jnp.mean(state.accept_prob)

    none = jnp.zeros((), int)
    carry = (state, buffer, none, none, jnp.zeros(()))
    state, buffer, leapfrogs, divergences, acceptance = lax.fori_loop(0, count, body, carry)
    told = {"leapfrogs": leapfrogs, "divergences": divergences, "acceptance": acceptance / count}
    return state, buffer, told | {"energy": state.potential_energy}


def _by_column(diagnostic, kept: np.ndarray) -> np.ndarray:
    parts = range(0, kept.shape[-1], _COLUMNS)
    return np.concatenate([np.asarray(diagnostic(kept[..., i : i + _COLUMNS].astype(np.float64))) for i in parts])
