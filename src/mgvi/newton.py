"""Natural-gradient descent: Newton's method with a Fisher metric as curvature and inexact solves.

An objective (its gradient, solves with its curvature, its change between two points) comes in; the minimum and a
report go out.
It must not know how the objective is made.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi.linalg import Stop, gram, mix
from mgvi.status import Status

_HALVINGS = 11  # at most
_BEYOND = 100.0  # times the decrement: after a rise by more, or one without end, a step is halved three times at once
_SHARE = 1e-4  # of the expected decrease that a step must deliver
_GOES_ON = -1
_DAMPS = 4.0  # times the damping after a step that was too long by far, and one over that after a good one:
_FAR_TOO_LONG = 0.5  # the part of it, of what was tried first, below which it was
_GOOD = 0.25  # of its decrement, twice the expected decrease, that it must deliver at full length


class Objective(Protocol):
    """What a minimizer needs to know."""

    def gradient(self, x: Any, /) -> tuple[Any, Any]:
        """Gradient at x, and anything else that is known there."""
        ...

    def nothing(self) -> Any:
        """What is known of a point, in zeros."""
        ...

    def solve(self, x: Any, known: Any, b: Any, stop: Stop, damping: Any, /) -> tuple[Any, Any]:
        """(M + damping)^-1 b with a positive definite curvature M at x, and the iterations that it took.

        `known` is what `gradient` had to say at x.
        """
        ...

    def longest(self, x: Any, step: Any, /) -> Any:
        """The longest part of a step from x that is worth a try, at most 1."""
        ...

    def change(self, x: Any, known: Any, step: Any, there: Any, /) -> Any:
        """The objective at x + step minus that at x, resolved better than either, from what is known at both."""
        ...


class Limits(NamedTuple):
    """When a minimisation ends; traced numbers, so that changing them does not recompile."""

    steps: Any = 20
    decrement: Any = 1e-3  # of the squared Newton decrement: twice the expected decrease
    cg: Stop = Stop(residual=0.1, iterations=100)
    damping: Any = 0.0  # of the first step


class NewtonReport(NamedTuple):
    """What a minimisation did."""

    steps: jax.Array
    cg_iterations: jax.Array
    decrement: jax.Array
    shortest: jax.Array  # shortest step length taken
    decrease: jax.Array
    status: jax.Array
    damping: jax.Array  # that the next step would have


@dataclass(frozen=True)
class NewtonCG:
    """Newton's method with a Fisher metric as curvature, conjugate gradients, and a backtracking line search.

    Where steps must be shortened, the metric is damped: it promises too much along some directions, and a shorter step
    along all of them would not get far.

    Parameters
    ----------
    memory : int
        Steps that are remembered, for what they told of the curvature beyond the metric.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from mgvi.newton import Limits, NewtonCG
    >>> class Quadratic:
    ...     def gradient(self, x):
    ...         return 5.0 * (x - 2.0), None
    ...
    ...     def nothing(self):
    ...         return None
    ...
    ...     def solve(self, x, known, b, stop, damping):
    ...         return b / (5.0 + damping), 1
    ...
    ...     def longest(self, x, step):
    ...         return 1.0
    ...
    ...     def change(self, x, known, step, there):
    ...         return 2.5 * jnp.sum(step * (step + 2 * (x - 2.0)))
    >>> x, _, report = NewtonCG().minimize(Quadratic(), jnp.zeros(3), Limits())
    >>> print(x, int(report.status))
    [2. 2. 2.] 0
    """

    memory: int = 4

    def minimize(self, objective: Objective, x: Any, limits: Limits) -> tuple[Any, Any, NewtonReport]:
        """The minimum from x on, what is known there, and a report.

        Each turn of the loop looks at one point. Nearly all that are tried are better than the one before, so what the
        next step needs is found out there at once: a line search that asks for the value alone would need a program of
        its own.
        """
        zero, none, zeros = jnp.zeros(()), jnp.zeros((), int), _tree.zeros(x)
        report = NewtonReport(none, none, zero, zero + 1.0, zero, none + _GOES_ON, zero + limits.damping)
        trial = _Try(zeros, zero, zero, none - 1)  # the first step is none
        start = _State(x, objective.nothing(), zeros, _Secants.none(x, self.memory), trial, report)
        end = lax.while_loop(lambda s: s.report.status == _GOES_ON, partial(_advanced, objective, limits), start)
        return end.x, end.known, end.report


class _Try(NamedTuple):
    """A step that is tried, the longest part of it that is worth that, and the part whose turn it is."""

    step: Any
    longest: Any
    length: Any
    halvings: Any  # so far; -1: there is no step yet


class _State(NamedTuple):
    x: Any
    known: Any  # at x
    gradient: Any
    secants: "_Secants"
    trial: _Try
    report: NewtonReport


def _advanced(objective, limits: Limits, state: _State) -> _State:
    """One point more: the end of a new step, or of half of the one that was too long."""
    is_first = state.trial.halvings < 0
    is_new = (state.trial.halvings == 0) & (state.trial.length == 0)
    trial, report = lax.cond(is_new, partial(_step, objective, limits), lambda s: (s.trial, s.report), state)
    step = _tree.scale(trial.length, trial.step)
    there = _tree.add(state.x, step)
    gradient, known = objective.gradient(there)
    change, decrement = objective.change(state.x, state.known, step, known), report.decrement
    accepted = is_first | (jnp.isfinite(decrement) & (change <= -_SHARE * trial.length * decrement))
    gives_up = ~accepted & (trial.halvings >= _HALVINGS)
    secants = state.secants.learn(step, _tree.subtract(gradient, state.gradient), accepted)
    here = state.x, state.known, state.gradient
    x, known, gradient = lax.cond(accepted, lambda: (there, known, gradient), lambda: here)
    code = jnp.where(accepted & (report.steps >= limits.steps), Status.ITERATION_LIMIT, _GOES_ON)
    code = jnp.where(gives_up, Status.NO_DESCENT, code)
    code = jnp.where((accepted | gives_up) & (decrement < limits.decrement), Status.CONVERGED, code)
    code = jnp.where(jnp.isfinite(decrement), code, Status.NOT_FINITE)
    damping = _next_damping(report.damping, trial.length / trial.longest, change, decrement)
    counts = accepted & ~is_first
    report = report._replace(
        shortest=jnp.where(counts, jnp.minimum(report.shortest, trial.length), report.shortest),
        decrease=report.decrease - jnp.where(counts, change, 0.0),
        status=jnp.where(is_first, _GOES_ON, code),
        damping=jnp.where(counts | gives_up, damping, report.damping),
    )
    more = jnp.where(change <= _BEYOND * decrement, 1, 3)
    length = jnp.where(accepted, 0.0, trial.length * 0.5**more)
    halvings = jnp.where(accepted, 0, trial.halvings + more)
    return _State(x, known, gradient, secants, trial._replace(length=length, halvings=halvings), report)


def _step(objective, limits, state: _State) -> tuple[_Try, NewtonReport]:
    """The next step."""
    report, secants = state.report, state.secants
    inner, alphas = secants.before(state.gradient)
    outer, iterations = objective.solve(state.x, state.known, inner, limits.cg, report.damping)
    step = _tree.scale(-1.0, secants.after(outer, alphas))
    longest = jnp.zeros(()) + objective.longest(state.x, step)
    report = report._replace(
        steps=report.steps + 1,
        cg_iterations=report.cg_iterations + iterations,
        decrement=-_tree.dot(state.gradient, step),
    )
    return _Try(step, longest, longest, jnp.zeros((), int)), report


class _Secants(NamedTuple):
    """What the last steps told of the curvature beyond the metric: limited-memory BFGS around its inverse.

    The two loops of its usual form, one before and one after the inverse metric, are recurrences of inner products:
    these are made at once.
    """

    steps: Any  # stacked
    changes: Any  # of the gradient along them
    rates: Any  # one over the products of both; 0 for those that tell nothing
    newest: Any  # where that is in the stacks; the next one takes the place of the oldest

    @classmethod
    def none(cls, x, memory):
        zeros = _tree.zeros(_tree.shapes_of_stack(x, memory))
        return cls(zeros, zeros, jnp.zeros(memory), jnp.zeros((), int))

    def learn(self, step, change, counts):
        """With a step and the change of the gradient along it; if it does not count, the next one takes its place."""
        if not self.rates.size:
            return self
        product = _tree.dot(step, change)
        size = jnp.sqrt(_tree.dot(step, step) * _tree.dot(change, change))
        useful = counts & (product > 1e-6 * size)
        rate = jnp.where(useful, 1 / jnp.where(useful, product, 1.0), 0.0)
        place = (self.newest + 1) % self.rates.size
        put = lambda stack, new: lax.dynamic_update_index_in_dim(stack, new, place, 0)
        steps, changes = jax.tree.map(put, self.steps, step), jax.tree.map(put, self.changes, change)
        return _Secants(steps, changes, put(self.rates, rate), jnp.where(counts, place, self.newest))

    @property
    def _ages(self):
        """How many others are newer."""
        return (self.newest - jnp.arange(self.rates.size)) % self.rates.size

    def before(self, gradient):
        """What the inverse metric is applied to, and what `after` needs."""
        if not self.rates.size:
            return gradient, ()
        products = gram(self.steps, self.changes)
        newer = self._ages[None, :] < self._ages[:, None]
        along = self.rates * gram(self.steps, _stack_of(gradient))[:, 0]
        alphas = _recurrence(self.rates[:, None] * jnp.where(newer, products, 0.0), along)
        back = mix(alphas[None], self.changes)
        return jax.tree.map(lambda g, c: g - c[0], gradient, back), (alphas, products)

    def after(self, r, given):
        """The direction, from what the inverse metric gave."""
        if not given:
            return r
        alphas, products = given
        older = self._ages[None, :] > self._ages[:, None]
        along = alphas - self.rates * gram(self.changes, _stack_of(r))[:, 0]
        factors = _recurrence(self.rates[:, None] * jnp.where(older, products.T, 0.0), along)
        return jax.tree.map(lambda r, s: r + s[0], r, mix(factors[None], self.steps))


def _stack_of(tree):
    return jax.tree.map(lambda leaf: leaf[None], tree)


def _recurrence(matrix, start):
    """x with x = start - matrix x, if every entry depends on fewer others than the last one did."""
    x = start
    for _ in range(len(start) - 1):
        x = start - jnp.sum(matrix * x, axis=1)
    return x


def _next_damping(damping, length, change, decrement):
    """More of it, in units of the prior's precision, after a step that had to be shortened; less after a good one."""
    more = jnp.maximum(damping, 1.0) * _DAMPS
    less = jnp.where(damping > 1.0, damping / _DAMPS, 0.0)
    good = (length == 1) & (-change > _GOOD * decrement)
    return jnp.where(length < _FAR_TOO_LONG, more, jnp.where(good, less, damping))
