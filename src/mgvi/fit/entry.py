"""The entry: a problem becomes a posterior, round by round.

A problem comes in; a Posterior goes out.
It must not know what a round is made of.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from mgvi import _tree
from mgvi._compile import number
from mgvi.driver import Driver, took
from mgvi.errors import MgviWarning
from mgvi.fit.dense import DenseRounds
from mgvi.fit.krylov import DRAWING, MOVING, KrylovRounds
from mgvi.fit.plan import AutoPlan, Plan
from mgvi.fit.records import Record, RoundSettings
from mgvi.fit.rounds import State, Who
from mgvi.fit.stages import PAPER, Stage, StagedPlan
from mgvi.gaussian import MGVI, Keys, Sampler
from mgvi.newton import NewtonCG
from mgvi.posterior import Posterior
from mgvi.problem import Problem
from mgvi.status import Status

_SHRINKS = (1.0, 0.5, 0.25, 0.1)  # lengths of deviations, tried in turn when a round breaks down or its mean is stuck
_SETTLE, _FRESH = 2, 3  # streams of keys: rounds that share theirs, rounds that do not


def fit(
    problem: Problem,
    *,
    seed: int,
    schedule: str | Sequence[Stage] | Plan = "auto",
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
    schedule : "auto", "paper", a sequence of Stage, or a Plan
        How many pairs, iterations and steps each round takes. "auto" chooses them from what the rounds so far did; an
        object with a method `next`, from records of rounds to settings of the next one or a Status, may do so too.
    samples : int, optional
        Number of samples in the result; by default 2048 for small problems, fewer for large ones.
    tolerance : float
        For "auto": shift of the mean between rounds, in posterior standard deviations of the worst site and
        extrapolated to where rounds lead to, at which the mean rests. Pairs are added while its Monte Carlo error is
        above twice that. If it is still above four times that (ten times for large problems) with as many pairs as
        there is room for, the means of rounds with fresh samples are averaged. The fit ends as NOISY, with a warning,
        if the error of a site is above half a standard deviation then.
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
    plan = _plan(problem, schedule, tolerance)
    if isinstance(plan, StagedPlan):  # its iterations are those of solves
        free = problem.matrix_free()
        problem = free.with_budget(free.budget.with_pairs(plan.first, plan.most))
    fixed = {"point_estimates": tuple(point_estimates), "constants": tuple(constants)}
    chosen = repr(schedule)
    if " at 0x" in chosen:  # an address is another one in each process
        chosen = f"{type(schedule).__module__}.{type(schedule).__qualname__}"
    settings = {"seed": seed, "schedule": chosen, "sampler": repr(sampler or MGVI()), "tolerance": tolerance}
    who = _who(problem, sampler or MGVI(), NewtonCG(memory=0 if isinstance(plan, StagedPlan) else 4), **fixed)
    method = _Fit(problem, plan, who, {**settings, **{k: sorted(v) for k, v in fixed.items()}}, max_rounds)
    driver = Driver(problem, seed, samples, progress, callbacks, time_limit, checkpoint)
    result = driver.run(method)
    ended = result.status.ok or result.status is Status.NOISY  # by itself
    if ended and result.check is not None and not result.check.ok:
        warnings.warn(str(result.check), MgviWarning, stacklevel=2)
    return result


def _who(problem: Problem, sampler: Sampler, minimizer, point_estimates, constants) -> Who:
    for names, what in ((point_estimates, "point_estimates"), (constants, "constants")):
        unknown = set(names) - set(problem.latent)
        if unknown:
            raise ValueError(f"{what} names no latent site: {sorted(unknown)}; there are {sorted(problem.latent)}")
    drawn = {n: number(float(n not in point_estimates + constants)) for n in problem.latent}
    moving = {n: number(float(n not in constants)) for n in problem.latent}
    return Who(sampler, minimizer, drawn, moving)


class _Fit:
    """A fit under way: a state and a history; everything else follows from them."""

    name, unit = "the fit", "round"

    def __init__(self, problem: Problem, plan, who: Who, settings: dict, max_rounds: int):
        self._problem, self._plan, self._who = problem, plan, who
        self.settings, self._seed, self._max_rounds = settings, settings["seed"], max_rounds
        self._rounds = (DenseRounds if problem.budget.dense else KrylovRounds)(problem, who)
        first = plan.next([])
        pairs = first.pairs if isinstance(first, RoundSettings) else 1
        self._rounds.state = self._rounds.start(Keys(self._seed, _SETTLE, pairs))
        self.history: list[dict] = []

    def outcome(self) -> Status | None:
        """How the fit ends here, or None if it goes on."""
        step = self._plan.next(self._records())
        if isinstance(step, Status):
            return step
        return Status.ITERATION_LIMIT if len(self.history) >= self._max_rounds else None

    def is_shown(self) -> bool:
        """Each round is."""
        return True

    def doing(self) -> str:
        """What the round is doing at the moment, and how long that took in the last one."""
        step = self._rounds.step
        last = self.history[-1] if self.history else {}
        taken = {DRAWING: last.get("draw_cg"), MOVING: last.get("newton_cg")}.get(step)
        return f"{step} ({taken} iterations in the last round)" if taken else step

    def line(self, record: dict) -> str:
        """A line of progress."""
        stage = f"likelihood^{record['beta']:.0e}" if record["beta"] < 1 else record["phase"]
        noise = "" if record["noise"] is None else f"  noise {record['noise']:.3f} sd"
        return (
            f"round {record['round'] + 1:3d}  {stage:16s}  kl {record['kl']:.6g}  shift {record['shift']:.3f} sd{noise}"
            f"  pairs {record['pairs']}  {took(record)}"
        )

    def advance(self) -> dict[str, Any] | None:
        """One round, with smaller deviations if it breaks down or gets nowhere."""
        settings = self._plan.next(self._records())
        assert isinstance(settings, RoundSettings)
        if settings.pairs > self._problem.budget.most:
            most = self._problem.budget.most
            raise ValueError(f"the plan asks for {settings.pairs} pairs, expected at most {most} for this problem.")
        stream = _FRESH + len(self.history) if settings.fresh else _SETTLE
        keys = Keys(self._seed, stream, settings.pairs)
        if not self._is_rehearsed:
            self._rehearse(keys, settings)
        is_stuck = getattr(self._plan, "is_stuck", lambda record: False)
        tries_only = settings.start == "modest"  # if it fails, the next round begins anew
        for shrink in _SHRINKS[:1] if tries_only else _SHRINKS:
            new, found = self._rounds.run(keys, settings, shrink)
            record = Record(**{**vars(settings), **found, "round": len(self.history), "shrink": shrink})
            if record.finite and not is_stuck(record):
                break
        if record.finite:
            self._rounds.state = new
        elif not tries_only:
            return None
        if not self.history:
            self._problem.static.compiled.rehearse(self._rehearse_result)
        return {"round": len(self.history), **vars(record)}

    def _records(self) -> list[Record]:
        return [Record.of(values) for values in self.history]

    _is_rehearsed = False

    def _rehearse(self, keys: Keys, settings: RoundSettings) -> None:
        """Begin to compile the programs of this round, and of those that the plan knows to follow."""
        self._is_rehearsed = True
        later = getattr(self._plan, "later", list)  # plans of users need not know
        for chosen in (settings, *later()):
            self._rounds.rehearse(keys, chosen)

    def _rehearse_result(self) -> None:
        count = self._problem.budget.samples
        Posterior.drawn(self._problem, self.approximation(), count, self._seed).rehearse()

    def shown(self, count: int, seed: int) -> Posterior:
        """A Posterior of the round's own samples."""
        state, status = self._rounds.state, Status.ITERATION_LIMIT
        approximation = self._approximation(final=False)
        found = approximation.standard(self._problem, state.pairs.both(state.count))
        known = {"history": self.history[:], "status": status, "approximation": approximation}
        return Posterior(self._problem, found.centre, found.deviations, **known)

    def approximation(self):
        """The Gaussian around the mean."""
        return self._approximation(final=True)

    def _approximation(self, final: bool):
        return self._rounds.approximation(Record.of(self.history[-1]) if self.history else None, final)

    def failure(self) -> str:
        """Which round, which site, and what to do."""
        state = self._rounds.state
        name = _non_finite_site(self._problem.in_chart(state.chart), state.mean)
        where = f"the prediction of site {name!r} is" if name else "the density of the samples is"
        return (
            f"round {len(self.history) + 1}: {where} not finite, also with smaller deviations. Look for overflow (exp "
            "of large values), log of zero or division by zero in the model; a narrower prior or float64 may help. The "
            "last good state is in `error.posterior`."
        )

    def to_files(self) -> tuple[dict[str, dict[str, Any]], dict]:
        """The state."""
        return self._rounds.state.to_files()

    def from_files(self, arrays: dict[str, dict[str, Any]], facts: dict) -> None:
        """Go on from a state."""
        self._rounds.state = State.from_files(arrays, facts)


def _plan(problem, schedule, tolerance) -> Plan:
    if hasattr(schedule, "next"):
        return schedule
    if isinstance(schedule, str) and schedule not in ("auto", "paper"):
        raise ValueError(f"schedule must be 'auto', 'paper', a sequence of Stage or a Plan, found {schedule!r}")
    if schedule == "auto":
        return AutoPlan(problem.budget, _tree.size(problem.latent), _tree.size(problem.data), tolerance)
    return StagedPlan(PAPER if schedule == "paper" else schedule)


def _non_finite_site(problem, mean) -> str | None:
    """An observed site whose prediction is not finite within a prior standard deviation of the mean."""
    for step in (0.0, 1.0, -1.0):
        terms = problem.log_likelihood(jax.tree.map(lambda m, step=step: m + step, mean))
        for name, value in terms.items():
            if not np.all(np.isfinite(np.asarray(value))):
                return name
    return None
