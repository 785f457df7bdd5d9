"""The three programs of a round: excite, solve, minimise.

A problem, a mean, keys and settings come in; deviations, the new mean and what happened go out. Each program is compiled
once for each number of pairs, and the solver also serves the noise estimate and the final draws. Nothing here knows why
the settings are what they are.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mgvi import _tree
from mgvi.fit.objective import SampledKL
from mgvi.linalg import Report, Stop
from mgvi.minimizers import Limits, NewtonReport
from mgvi.problem import FisherMetric, Problem
from mgvi.samplers import with_partners


class Knobs(NamedTuple):
    """Settings of a round that may change without recompilation."""

    beta: Any  # power of the likelihood
    shrink: Any  # factor on the deviations
    draw: Stop
    newton: Limits


class Outcome(NamedTuple):
    """What moving the mean did."""

    kl: jax.Array
    shift: dict[str, jax.Array]  # rms change of the mean over rms deviation, by site
    scatter: dict[str, jax.Array]  # gradient of each pair minus their mean, by site
    newton: NewtonReport
    finite: jax.Array


def _tempered_metric(problem: Problem, mean: Any, beta: Any) -> FisherMetric:
    """The metric of the problem with its likelihood raised to the power `beta`."""
    metric = problem.metric(mean)
    return FisherMetric(lambda v: _tree.scale(jnp.sqrt(beta), metric.matvec(v)), metric.latent)


@partial(jax.jit, static_argnames="sampler")
def _excite(problem, mean, keys, beta, *, sampler):
    return sampler.excite(_tempered_metric(problem, mean, beta), keys)


@partial(jax.jit, static_argnames="sampler")
def _solve(problem, mean, b, start, residual, stop, beta, *, sampler):
    return sampler.solve(_tempered_metric(problem, mean, beta), b, start, residual, stop)


@partial(jax.jit, static_argnames=("antithetic", "minimizer"))
def _minimize(problem, mean, deviations, knobs: Knobs, *, antithetic, minimizer):
    deviations = _tree.scale(knobs.shrink, deviations)
    objective = SampledKL(problem, with_partners(deviations, antithetic), knobs.beta)
    new, (kl, gradients), newton_report = minimizer.minimize(objective, mean, knobs.newton)
    shift = {name: _rms(new[name] - mean[name]) / _positive(_rms(d)) for name, d in deviations.items()}
    count = jax.tree.leaves(deviations)[0].shape[0]
    pairs = jax.tree.map(lambda g: jnp.mean(g.reshape(-1, count, *g.shape[1:]), axis=0), gradients)
    scatter = jax.tree.map(lambda g: g - jnp.mean(g, axis=0), pairs)
    finite = jnp.isfinite(kl) & jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]))
    return new, Outcome(kl, shift, scatter, newton_report, finite)


@jax.jit
def _standard_error(moves, deviations):
    """Scatter of where each pair alone would move the mean, over the root of their number, in rms deviations."""
    count = jax.tree.leaves(moves)[0].shape[0]
    share = 1 / max(count * (count - 1), 1)
    return {
        name: jnp.sqrt(jnp.mean(jnp.sum(m * m, axis=0)) * share) / _positive(_rms(deviations[name]))
        for name, m in moves.items()
    }


def _rms(x):
    return jnp.sqrt(jnp.mean(x * x))


def _positive(x):
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


class Rounds:
    """The compiled programs of one problem; counts the seconds that compilation took."""

    def __init__(self, problem: Problem, sampler, minimizer):
        self._problem = problem
        self._sampler = sampler
        self._minimizer = minimizer
        self.compile_seconds = 0.0

    def draw(self, mean, keys, stop: Stop, beta=1.0) -> tuple[Any, Report]:
        """Deviations at a mean, one a key."""
        beta = _number(beta)
        excited = self._call(_excite, mean, keys, beta, sampler=self._sampler)
        return self._call(_solve, mean, *excited, _numbers(stop), beta, sampler=self._sampler)

    def minimize(self, mean, deviations, knobs: Knobs) -> tuple[Any, Outcome]:
        """The mean that minimises the sampled KL."""
        static = dict(antithetic=self._sampler.antithetic, minimizer=self._minimizer)
        return self._call(_minimize, mean, deviations, _numbers(knobs), **static)

    def noise(self, mean, scatter, deviations, stop: Stop, beta=1.0) -> dict[str, jax.Array]:
        """Standard error of the mean due to the finite number of pairs, in rms deviations, by site."""
        zero = jax.tree.map(jnp.zeros_like, scatter)
        moves, _ = self._call(_solve, mean, scatter, zero, scatter, _numbers(stop), _number(beta), sampler=self._sampler)
        return _standard_error(moves, deviations)

    def _call(self, program, *arguments, **static):
        cache = self._problem.static.compiled
        shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), arguments)
        signature = (program.__name__, str(shapes), tuple(sorted(static.items())))
        if signature not in cache:
            start = time.perf_counter()
            cache[signature] = program.lower(self._problem, *arguments, **static).compile()
            self.compile_seconds += time.perf_counter() - start
        return cache[signature](self._problem, *arguments)


def _number(x):
    return jnp.asarray(x, jnp.result_type(int) if isinstance(x, int) else jnp.result_type(float))


def _numbers(tree):
    """Settings as arrays of fixed types, so that one compiled program takes them all."""
    return jax.tree.map(_number, tree)
