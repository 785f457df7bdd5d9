"""The no-U-turn sampler on the standardised density.

A problem comes in; draws of several chains, with how well they agree, go out. It must not know an approximation.
"""

from functools import partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer.hmc import hmc

from mgvi import _files, _tree, driver
from mgvi._compile import number, program
from mgvi.baselines._steps import Stepwise
from mgvi.gaussian import StoredDraws
from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.status import Status

_LONGEST_CALL = 50  # steps
_BLOCK_SIZE = 1000  # latents that are diagnosed at once
_START_STREAM, _MOVES_STREAM = 5, 6  # of random keys


class Tuning(NamedTuple):
    """How the chains are adapted.

    `dense_mass` tells whether a whole mass matrix is adapted, or its diagonal; `target` is the acceptance probability
    that the step size is adapted to; `depth` is the largest depth of a tree.
    """

    dense_mass: bool = False
    target: float = 0.8
    depth: int = 10


def nuts(
    problem: Problem,
    *,
    seed: int,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    tuning: Tuning = Tuning(),  # noqa: B008
    good: tuple[float, float] = (1.01, 400.0),
    **options: Unpack[driver.Options],
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
    tuning : Tuning
        Kind of mass matrix, acceptance probability and largest depth of a tree.
    good : tuple of float
        The status is CONVERGED if every latent has a split R-hat below the first and an effective sample size above the
        second.
    **options
        `progress`, `callbacks` (called on a logarithmic grid of steps: with where the chains are during warmup, with
        the draws so far afterwards), `time_limit` and `checkpoint`: see `mgvi.driver.Options`. All draws are kept.

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
    chosen = _Chosen(chains, warmup, draws, Tuning(*tuning))
    method = _Chains(problem, seed, chosen)
    run = driver.Driver(problem, seed, **options)
    status, found = run.drive(method)
    kept = method.kept()
    if status.ok:
        worst = {"r_hat": float(np.max(_by_column(split_gelman_rubin, kept)))}
        worst["ess"] = float(np.min(_by_column(effective_sample_size, kept)))
        method.history[-1].update(worst)
        status = status if worst["r_hat"] < good[0] and worst["ess"] > good[1] else Status.ITERATION_LIMIT
    return run.finish(method, status, found)


class _Chosen(NamedTuple):
    """What decides the draws, but for their seed."""

    chains: int
    warmup: int
    draws: int
    tuning: Tuning


class _Chains(Stepwise):
    """Chains under way."""

    def __init__(self, problem: Problem, seed: int, chosen: _Chosen):
        super().__init__(problem, "nuts", {"seed": seed, **chosen._asdict(), "tuning": list(chosen.tuning)})
        self._chosen, self._seed = chosen, seed
        rng = np.random.default_rng((seed, _START_STREAM))
        rows = rng.standard_normal((chosen.chains, _tree.size(problem.latent)))
        self._start = jax.tree.map(jnp.asarray, _tree.from_rows(rows, problem.latent))
        self._hmc: Any = None
        self._buffer = {name: jnp.zeros((chosen.draws, *z.shape), z.dtype) for name, z in self._start.items()}
        self._divergences = 0

    def advance(self) -> dict[str, Any] | None:
        """A step at first, more later; warmup and draws apart."""
        call, chosen, step = self._problem.static.compiled.call, self._chosen, self._step
        if self._hmc is None:
            self._hmc = call(_begin, self._problem, self._start, number(self._seed), chosen=chosen)
        end = chosen.warmup if step < chosen.warmup else chosen.warmup + chosen.draws
        count = min(max(1, step // 5), _LONGEST_CALL, end - step)
        given = self._problem, self._hmc, self._buffer, number(count), number(step)
        state, buffer, told = call(_move, *given, chosen=chosen)
        told = jax.device_get(told)
        if not np.all(np.isfinite(told["energy"])):
            return None
        self._hmc, self._buffer = state, buffer
        is_draw = step >= chosen.warmup
        self._move(count)
        self._divergences += int(told["divergences"]) if is_draw else 0
        return {
            "method": self.name,
            "step": self._step,
            "phase": "draws" if is_draw else "warmup",
            "leapfrogs": int(told["leapfrogs"]),
            "divergences": self._divergences,
            "acceptance": float(told["acceptance"]),
        }

    def outcome(self) -> Status | None:
        """Whether all steps are made; whether the chains agree is another question."""
        return Status.CONVERGED if self._step >= self._chosen.warmup + self._chosen.draws else None

    def line(self, record: dict) -> str:
        """A line of progress."""
        return f"{self.name}  {record['phase']}  {driver.numbers_of(record)}"

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """The state."""
        facts = {"divergences": self._divergences, **self._count_to_facts()}
        return {"chains": _files.packed(self._hmc), "buffer": self._buffer}, facts

    def from_files(self, arrays: dict[str, dict[str, Any]], facts: dict) -> None:
        """Go on from a state."""
        like = _begin.eval_shape(self._problem, self._start, number(self._seed), chosen=self._chosen)
        self._hmc, self._buffer = _files.unpacked(arrays["chains"], like), arrays["buffer"]
        self._divergences = facts["divergences"]
        self._count_from_facts(facts)

    def kept(self) -> np.ndarray:
        """Draws so far, or where the chains are during warmup: chains, draws, latents."""
        count = self._step - self._chosen.warmup
        if count > 0:
            stack = {name: np.asarray(x[:count]) for name, x in self._buffer.items()}
        else:
            now = self._start if self._hmc is None else self._hmc.z
            stack = {name: np.asarray(z)[None] for name, z in now.items()}
        rows = [x.reshape(*x.shape[:2], -1) for _, x in sorted(stack.items())]
        return np.concatenate(rows, axis=-1).swapaxes(0, 1)

    def approximation(self) -> StoredDraws:
        """The draws so far, around their mean."""
        kept = self.kept()
        rows = kept.reshape(-1, kept.shape[-1]).astype(np.float64)
        mean, latent = rows.mean(axis=0), self._problem.latent
        return StoredDraws(_tree.from_row(mean, latent), _tree.from_rows(rows - mean, latent))


def _kernel(problem, like, chosen: _Chosen):
    """NumPyro's functions to begin and to move a chain; the latter knows its tuning from a beginning."""
    begin, move = hmc(potential_fn_gen=lambda problem: problem.neg_log_density, algo="NUTS")
    begin = partial(
        begin,
        num_warmup=chosen.warmup,
        dense_mass=chosen.tuning.dense_mass,
        target_accept_prob=chosen.tuning.target,
        max_tree_depth=chosen.tuning.depth,
        model_args=(problem,),
    )
    begin(jax.tree.map(lambda z: z[0], like), rng_key=jax.random.key(0))
    return begin, move


@program(static_argnames="chosen")
def _begin(problem, start, seed, *, chosen):
    begin, _ = _kernel(problem, start, chosen)
    chains = jax.tree.leaves(start)[0].shape[0]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _MOVES_STREAM), chains)
    return jax.vmap(lambda z, key: begin(z, rng_key=key))(start, keys)


@program(static_argnames="chosen")
def _move(problem, state, buffer, count, first, *, chosen):
    """So many steps of all chains; positions after warmup go to the buffer."""
    _, move = _kernel(problem, state.z, chosen)

    def body(i, carry):
        state, buffer, leapfrogs, divergences, acceptance = carry
        state = jax.vmap(lambda s: move(s, (problem,)))(state)
        # During warmup the first row is written over and over; the first draw takes it for good.
        row = jnp.maximum(first + i - chosen.warmup, 0)
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
    parts = range(0, kept.shape[-1], _BLOCK_SIZE)
    return np.concatenate([np.asarray(diagnostic(kept[..., i : i + _BLOCK_SIZE].astype(np.float64))) for i in parts])
