"""The rounds of a fit, from the first to the last.

A problem comes in; a Posterior goes out.
It must not know an inner product.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi._compile import number
from mgvi.errors import FitError, MgviWarning
from mgvi.fit.checkpoint import Checkpoint
from mgvi.fit.large import DRAWING, MOVING, LargeRounds
from mgvi.fit.large_plan import LargePlan
from mgvi.fit.progress import Progress
from mgvi.fit.rounds import State
from mgvi.fit.schedule import PAPER, Settings, Stage, Staged
from mgvi.fit.small import SmallRounds
from mgvi.fit.small_plan import SmallPlan
from mgvi.minimizers import NewtonCG
from mgvi.posterior import Posterior, default_samples, prepare
from mgvi.problem import Problem
from mgvi.samplers import (
    MGVI,
    Draws,
    InverseMetric,
    affordable_pairs,
    is_small,
    keys_at_once,
    most_pairs,
    with_partners,
)
from mgvi.status import Status

_SHRINKS = (1.0, 0.5, 0.25, 0.1)  # tried in turn when a round breaks down or its mean is stuck
_FINAL, _SETTLE, _FRESH = 1, 2, 3  # streams of keys: final draws, rounds that share theirs, rounds that do not


def fit(
    problem: Problem,
    *,
    seed: int,
    schedule: str | Sequence[Stage] = "auto",
    samples: int | None = None,
    tolerance: float = 0.05,
    max_rounds: int = 60,
    time_limit: float = math.inf,
    callbacks: Iterable[Callable] = (),
    checkpoint: Any = None,
    progress: bool = True,
    sampler: Any = None,
    point_estimates: Sequence[str] = (),
    constants: Sequence[str] = (),
) -> Posterior:
    """Approximate the posterior of a problem by a Gaussian in its latent space.

    Parameters
    ----------
    problem : Problem
        From `from_numpyro` or `from_function`.
    seed : int
        Same seed, same bits.
    schedule : "auto", "paper" or a sequence of Stage
        How many pairs, iterations and steps each round takes. "auto" chooses them from what the last round did.
    samples : int, optional
        Number of samples in the result; by default 2048 for small problems, fewer for large ones.
    tolerance : float
        For "auto": the fit ends when no site's mean moves by more than this many posterior standard deviations in a
        round, nor by more than its own noise, and deviations have settled too; pairs are added while the standard error
        of the mean due to their finite number is above twice the tolerance. A large problem has more than 32 only if
        that error is above ten times the tolerance, and also ends when its last rounds only tremble, by less than that.
    max_rounds, time_limit : int, float
        End the fit, with what it has, after so many rounds or seconds.
    callbacks : iterable of callable
        Each is called after every round with the round's record (a dict) and a Posterior of the round's samples. Their
        time is not counted as the fit's.
    checkpoint : path-like, optional
        A folder that the state is written to after every round. The same call again goes on from there.
    progress : bool
        Whether to show a line a round on standard error.
    sampler : optional
        `samplers.MGVI()` by default; `samplers.Point()` gives a maximum a posteriori estimate.
    point_estimates : sequence of str
        Sites that are estimated without uncertainty.
    constants : sequence of str
        Sites that stay at their prior median.

    Returns
    -------
    Posterior
        Its `status` tells how the fit ended, its `history` what each round did.

    Raises
    ------
    FitError
        If a round breaks down and no smaller step helps; carries the last good posterior.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(counts):
    ...     rate = numpyro.sample("rate", dist.Gamma(2.0, 0.1))
    ...     numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    >>> problem = mgvi.from_numpyro(model, jnp.array([17, 23, 19]))
    >>> posterior = mgvi.fit(problem, seed=1, progress=False)
    >>> posterior.status.name, f"{posterior.mean['rate']:.1f}"  # exactly 61 / 3.1 = 19.7
    ('CONVERGED', '19.7')
    """
    state = _Fit(problem, seed, schedule, sampler or MGVI(), tolerance, tuple(point_estimates), tuple(constants))
    store = Checkpoint(checkpoint, problem, state.settings) if checkpoint is not None else None
    if store is not None:
        state.resume(store.read())
    show, callbacks = Progress() if progress else None, tuple(callbacks)
    deadline = time.monotonic() + time_limit
    try:
        while (status := state.outcome(max_rounds, deadline)) is None:
            with show.waiting(len(state.history) + 1, state.doing) if show is not None else nullcontext():
                state.advance()
            if store is not None:
                store.write(state.state, state.history)
            if show is not None:
                show(state.history[-1])
            deadline += state.tell(callbacks)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return state.posterior(status, samples)


class _Fit:
    """A fit under way: a state and a history; everything else follows from them."""

    def __init__(self, problem, seed, schedule, sampler, tolerance, point_estimates, constants):
        for names, what in ((point_estimates, "point_estimates"), (constants, "constants")):
            unknown = set(names) - set(problem.latent)
            if unknown:
                raise ValueError(f"{what} names no latent site: {sorted(unknown)}; there are {sorted(problem.latent)}")
        self._problem = problem
        self._sampler = sampler
        self._seed = seed
        self._plan = _plan(problem, schedule, tolerance)
        self._drawn = {n: number(float(n not in point_estimates + constants)) for n in problem.latent}
        moving = {n: number(float(n not in constants)) for n in problem.latent}
        first = self._plan.next([])
        batch = min(keys_at_once(problem), self._plan.at_once)
        draws = Draws(problem, sampler, batch, self._drawn, None if schedule == "auto" else False)
        kind = SmallRounds if draws.dense else LargeRounds
        minimizer = NewtonCG() if schedule == "auto" else NewtonCG(memory=0)  # others are those of the paper
        self._rounds = kind(problem, sampler, minimizer, draws, moving, self._plan)
        self.history: list[dict] = []
        pairs = first.pairs if isinstance(first, Settings) else 1
        self.state = self._rounds.start(self._rounds.keys(seed, _SETTLE, pairs))
        self.settings = {
            "seed": seed,
            "schedule": schedule if isinstance(schedule, str) else [vars(stage) for stage in schedule],
            "sampler": repr(sampler),
            "tolerance": tolerance,
            "point_estimates": sorted(point_estimates),
            "constants": sorted(constants),
        }

    @property
    def state(self) -> State:
        """Where the fit stands; also within a round, for those who interrupt it."""
        return self._rounds.state

    @state.setter
    def state(self, state: State) -> None:
        self._rounds.state = state

    def resume(self, found) -> None:
        """Go on from a checkpoint, if there is one."""
        if found is not None:
            self.state, self.history = found

    def outcome(self, max_rounds, deadline) -> Status | None:
        """How the fit ends here, or None if it goes on."""
        step = self._plan.next(self.history)
        if isinstance(step, Status):
            return step
        if len(self.history) >= max_rounds:
            return Status.ITERATION_LIMIT
        return Status.TIME_LIMIT if time.monotonic() > deadline else None

    def doing(self) -> str:
        """What the round is doing at the moment, and how long that took in the last one."""
        step = self._rounds.step
        last = self.history[-1] if self.history else {}
        taken = {DRAWING: last.get("draw_cg"), MOVING: last.get("newton_cg")}.get(step)
        return f"{step} ({taken} iterations in the last round)" if taken else step

    def advance(self) -> None:
        """One round, with smaller deviations if it breaks down or gets nowhere."""
        settings = self._plan.next(self.history)
        assert isinstance(settings, Settings)
        compiled = self._problem.static.compiled
        start, before = time.perf_counter(), compiled.seconds
        stream = _FRESH + len(self.history) if settings.fresh else _SETTLE
        keys = self._rounds.keys(self._seed, stream, settings.pairs)
        tries_only = settings.begin == "modest"  # if it fails, the next round begins anew
        for shrink in _SHRINKS[:1] if tries_only else _SHRINKS:
            new, record = self._rounds.run(keys, settings, shrink)
            if record["finite"] and not self._plan.is_stuck(record):
                break
        if record["finite"]:
            self.state = new
        elif not tries_only:
            raise self._failure()
        if not self.history:
            prepare(self._problem.in_coordinates(new.coordinates or {}), new.mean)
        compile_seconds = compiled.seconds - before
        seconds = time.perf_counter() - start - compile_seconds
        chosen = {"round": len(self.history), "shrink": shrink, **settings.to_json()}
        self.history.append({**chosen, **record, "seconds": seconds, "compile_seconds": compile_seconds})

    def tell(self, callbacks) -> float:
        """Show the round to the callbacks, and return the seconds that they took."""
        if not callbacks:
            return 0.0
        start = time.monotonic()
        now = with_partners(self.state.deviations or {}, self._sampler.antithetic, self.state.pairs)
        shown = self._posterior(now, Status.ITERATION_LIMIT, self.history[:])
        for callback in callbacks:
            callback(dict(self.history[-1]), shown)
        return time.monotonic() - start

    def _failure(self) -> FitError:
        mean, problem = self.state.mean, self._problem.in_coordinates(self.state.coordinates or {})
        name = _non_finite_site(problem, mean)
        where = f"the prediction of site {name!r} is" if name else "the density of the samples is"
        return FitError(
            f"round {len(self.history) + 1}: {where} not finite, also with smaller deviations. Look for overflow (exp "
            "of large values), log of zero or division by zero in the model; a narrower prior or float64 may help. The "
            "last good state is in `error.posterior`.",
            Posterior(
                problem,
                mean,
                jax.tree.map(lambda m: jnp.zeros((1, *m.shape), m.dtype), mean),
                history=self.history,
                status=Status.NOT_FINITE,
            ),
        )

    def posterior(self, status: Status, samples: int | None) -> Posterior:
        """The result, with deviations drawn accurately at the final mean."""
        bare = self._posterior({}, status, self.history, final=True)
        count = samples or default_samples(self._problem)
        result = bare.sample(count, self._seed, _FINAL)
        if not result.status.ok:  # the final draws may have failed where the rounds did not
            warnings.warn(f"the fit ended as {result.status.name}. {result.status.advice}", MgviWarning, stacklevel=3)
        ended = result.status.ok or result.status is Status.NOISY  # by itself
        if ended and result.check is not None and not result.check.ok:
            warnings.warn(str(result.check), MgviWarning, stacklevel=3)
        return result

    def _posterior(self, deviations, status, history, final=False) -> Posterior:
        found = {}
        if self.history:
            last = Settings(**{f.name: self.history[-1][f.name] for f in dataclasses.fields(Settings)})
            found = self._rounds.approximation(last, final)
        return Posterior(
            self._problem.in_coordinates(self.state.coordinates or {}),
            self.state.mean,
            deviations,
            history=history,
            status=status,
            approximation=InverseMetric(self._sampler, self._drawn, **found),
        )


def _plan(problem, schedule, tolerance):
    if isinstance(schedule, str) and schedule not in ("auto", "paper"):
        raise ValueError(f"schedule must be 'auto', 'paper' or a sequence of Stage, found {schedule!r}")
    if schedule == "auto":
        sizes = _tree.size(problem.latent), _tree.size(problem.data)
        if is_small(problem):
            return SmallPlan(*sizes, affordable_pairs(problem), tolerance)
        return LargePlan(*sizes, most_pairs(problem), tolerance)
    return Staged(PAPER if schedule == "paper" else schedule)


def _non_finite_site(problem, mean) -> str | None:
    """An observed site whose prediction is not finite within a prior standard deviation of the mean."""
    for step in (0.0, 1.0, -1.0):
        terms = problem.log_likelihood(jax.tree.map(lambda m, step=step: m + step, mean))
        for name, value in terms.items():
            if not np.all(np.isfinite(np.asarray(value))):
                return name
    return None
