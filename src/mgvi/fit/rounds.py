"""One round: draw deviations at the mean, move the mean, and estimate how uncertain that move was.

A mean, keys and settings come in; the new mean, the deviations and a record go out.
It must not know why the settings are what they are.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi.fit.objective import SampledKL
from mgvi.fit.schedule import Settings
from mgvi.linalg import Stop
from mgvi.minimizers import Limits, NewtonReport
from mgvi.problem import Problem
from mgvi.samplers import Draws, numbers, with_partners
from mgvi.status import Status


class _Knobs(NamedTuple):
    """Settings of the minimisation that may change without recompilation."""

    beta: Any  # power of the likelihood
    shrink: Any  # factor on the deviations
    newton: Limits


class _Moved(NamedTuple):
    """What moving the mean did."""

    kl: jax.Array
    shift: dict[str, jax.Array]  # rms change of the mean over rms deviation, by site
    scatter: dict[str, jax.Array]  # gradient of each pair minus their mean, by site
    newton: NewtonReport
    finite: jax.Array


@partial(jax.jit, static_argnames=("antithetic", "minimizer"))
def _minimize(problem, mean, deviations, knobs: _Knobs, free, *, antithetic, minimizer):
    deviations = _tree.scale(knobs.shrink, deviations)
    objective = SampledKL(problem, with_partners(deviations, antithetic), knobs.beta, free)
    new, (kl, gradients), newton_report = minimizer.minimize(objective, mean, knobs.newton)
    shift = {name: _rms(new[name] - mean[name]) / _spread(d) for name, d in deviations.items()}
    count = jax.tree.leaves(deviations)[0].shape[0]
    pairs = jax.tree.map(lambda g: jnp.mean(g.reshape(-1, count, *g.shape[1:]), axis=0), gradients)
    scatter = jax.tree.map(lambda g: g - jnp.mean(g, axis=0), pairs)
    finite = jnp.isfinite(kl) & (newton_report.status != Status.NOT_FINITE)
    for leaf in jax.tree.leaves(new):
        finite = finite & jnp.all(jnp.isfinite(leaf))
    return new, _Moved(kl, shift, scatter, newton_report, finite)


@jax.jit
def _standard_error(moves, deviations):
    """Scatter of where each pair alone would move the mean, over the root of their number, in rms deviations."""
    count = jax.tree.leaves(moves)[0].shape[0]
    share = 1 / max(count * (count - 1), 1)
    return {
        name: jnp.sqrt(jnp.mean(jnp.sum(m * m, axis=0)) * share) / _spread(deviations[name])
        for name, m in moves.items()
    }


def _rms(x):
    return jnp.sqrt(jnp.mean(x * x))


def _spread(deviations):
    """rms deviation of a site; 1, the prior's, for a site that has none."""
    spread = _rms(deviations)
    return jnp.where(spread > 0, spread, 1.0)


class Rounds:
    """Runs the rounds of one fit."""

    def __init__(self, problem: Problem, sampler, minimizer, draws: Draws, moving: dict[str, Any]):
        self._problem = problem
        self._sampler = sampler
        self._minimizer = minimizer
        self._draws = draws
        self._moving = moving

    def run(self, mean, keys, settings: Settings, shrink: float) -> tuple[Any, dict[str, Any]]:
        """The new mean and a record of plain numbers."""
        stop = Stop(settings.draw_residual, settings.draw_energy, settings.draw_cg)
        cg = Stop(settings.newton_residual, 0.0, settings.newton_cg)
        limits = Limits(settings.newton_steps, settings.newton_decrement, cg)
        deviations, report = self._draws.draw(mean, keys, stop, settings.beta)
        new, moved = self._problem.static.compiled.call(
            _minimize,
            self._problem,
            mean,
            deviations,
            numbers(_Knobs(settings.beta, shrink, limits)),
            self._moving,
            antithetic=self._sampler.antithetic,
            minimizer=self._minimizer,
        )
        noise = None
        if settings.measure_noise and keys.shape[0] > 1:
            moves, _ = self._draws.solve(new, moved.scatter, stop, settings.beta)
            noise = _standard_error(moves, deviations)
        return new, _record(*jax.device_get((report, moved._replace(scatter=None), noise)))


def _record(report, moved, noise) -> dict[str, Any]:
    return {
        "kl": float(moved.kl),
        "shift": float(max(moved.shift.values())),
        "noise": None if noise is None else float(max(noise.values())),
        "draw_cg": int(report.iterations.max()),
        "draw_status": int(report.status.max()),
        "newton_steps": int(moved.newton.steps),
        "newton_cg": int(moved.newton.cg_iterations),
        "newton_status": int(moved.newton.status),
        "decrement": float(moved.newton.decrement),
        "shortest_step": float(moved.newton.shortest),
        "finite": bool(moved.finite),
    }
