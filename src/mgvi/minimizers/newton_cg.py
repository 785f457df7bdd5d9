"""Natural-gradient descent: Newton's method with a Fisher metric as curvature and inexact solves.

An objective (its gradient, solves with its curvature, its change between two points) comes in; the minimum and a
report go out.
It must not know how the objective is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi.linalg import Stop
from mgvi.status import Status

_HALVINGS = 12
_SHARE = 1e-4  # of the expected decrease that a step must deliver
_GOES_ON = -1
_DAMPS = 4.0  # times the damping after a step that was too long by far, and one over that after a good one:
_FAR_TOO_LONG = 0.5  # the part of it, of what was tried first, below which it was
_GOOD = 0.25  # of its decrement, twice the expected decrease, that it must deliver at full length
_MEMORY = 4  # steps that are remembered


class Objective(Protocol):
    """What a minimizer needs to know."""

    def gradient(self, x: Any, /) -> tuple[Any, Any]:
        """Gradient at x, and anything else that is known there."""
        ...

    def kept(self, known: Any, /) -> Any:
        """What of that is of interest at the end."""
        ...

    def nothing(self) -> Any:
        """The same in zeros."""
        ...

    def solve(self, x: Any, known: Any, b: Any, stop: Stop, damping: Any, /) -> tuple[Any, Any]:
        """(M + damping)^-1 b with a positive definite curvature M at x, and the iterations that it took.

        `known` is what `gradient` had to say at x.
        """
        ...

    def longest(self, step: Any, /) -> Any:
        """The longest part of a step that is worth a try, at most 1."""
        ...

    def change(self, x: Any, known: Any, step: Any, /) -> Callable[[jax.Array], jax.Array]:
        """From a length to the objective at x + length * step minus that at x, resolved better than either."""
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

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from mgvi.minimizers import Limits, NewtonCG
    >>> class Quadratic:
    ...     def gradient(self, x):
    ...         return 5.0 * (x - 2.0), None
    ...
    ...     def kept(self, known):
    ...         return known
    ...
    ...     def nothing(self):
    ...         return None
    ...
    ...     def solve(self, x, known, b, stop, damping):
    ...         return b / (5.0 + damping), 1
    ...
    ...     def longest(self, step):
    ...         return 1.0
    ...
    ...     def change(self, x, known, step):
    ...         return lambda length: 2.5 * jnp.sum(length * step * (length * step + 2 * (x - 2.0)))
    >>> x, _, report = NewtonCG().minimize(Quadratic(), jnp.zeros(3), Limits())
    >>> print(x, int(report.status))
    [2. 2. 2.] 0
    """

    def minimize(self, objective: Objective, x: Any, limits: Limits) -> tuple[Any, Any, NewtonReport]:
        """The minimum from x on, what `objective` kept of the last point but one, and a report."""
        zero = jnp.zeros(())

        def advance(state):
            x, _, secants, report, _ = state
            gradient, known = objective.gradient(x)
            secants = secants.learn(gradient)
            inner, alphas = secants.before(gradient)
            outer, iterations = objective.solve(x, known, inner, limits.cg, report.damping)
            step = _tree.scale(-1.0, secants.after(outer, alphas))
            decrement = -_tree.dot(gradient, step)
            changes = objective.change(x, known, step)
            longest = objective.longest(step)
            length, change, accepted = _line_search(changes, decrement, longest)
            move = accepted & jnp.isfinite(decrement)
            step = jax.tree.map(lambda s: jnp.where(move, length * s, 0.0), step)
            x = _tree.add(x, step)
            secants = secants._replace(step=step, gradient=gradient)
            steps = report.steps + 1
            code = jnp.where(steps >= limits.steps, Status.ITERATION_LIMIT, _GOES_ON)
            code = jnp.where(accepted, code, Status.NO_DESCENT)
            code = jnp.where(decrement < limits.decrement, Status.CONVERGED, code)
            code = jnp.where(jnp.isfinite(decrement), code, Status.NOT_FINITE)
            report = NewtonReport(
                steps=steps,
                cg_iterations=report.cg_iterations + iterations,
                decrement=decrement,
                shortest=jnp.where(move, jnp.minimum(report.shortest, length), report.shortest),
                decrease=report.decrease - jnp.where(move, change, 0.0),
                status=code,
                damping=_next_damping(report.damping, length / longest, change, decrement),
            )
            return x, objective.kept(known), secants, report, code == _GOES_ON

        none = jnp.zeros((), int)
        report = NewtonReport(none, none, zero, zero + 1.0, zero, none + _GOES_ON, zero + limits.damping)
        start = (x, objective.nothing(), _Secants.none(x), report, jnp.array(True))
        x, kept, _, report, _ = lax.while_loop(lambda s: s[-1], advance, start)
        return x, kept, report


class _Secants(NamedTuple):
    """What the last steps told of the curvature beyond the metric: limited-memory BFGS around its inverse."""

    steps: Any  # stacked
    changes: Any  # of the gradient along them
    rates: Any  # one over the products of both; 0 for those that tell nothing
    newest: Any  # where that is in the stacks; the next one takes the place of the oldest
    step: Any  # the last one, and the gradient before it
    gradient: Any

    @classmethod
    def none(cls, x):
        zeros = lambda *n: jax.tree.map(lambda leaf: jnp.zeros((*n, *leaf.shape), leaf.dtype), x)
        return cls(zeros(_MEMORY), zeros(_MEMORY), jnp.zeros(_MEMORY), jnp.zeros((), int), zeros(), zeros())

    def learn(self, gradient):
        """With the gradient after the last step."""
        change = _tree.subtract(gradient, self.gradient)
        product = _tree.dot(self.step, change)
        size = jnp.sqrt(_tree.dot(self.step, self.step) * _tree.dot(change, change))
        useful = product > 1e-6 * size
        rate = jnp.where(useful, 1 / jnp.where(useful, product, 1.0), 0.0)
        place = (self.newest + 1) % _MEMORY
        put = lambda stack, new: lax.dynamic_update_index_in_dim(stack, new, place, 0)
        steps, changes = jax.tree.map(put, self.steps, self.step), jax.tree.map(put, self.changes, change)
        return self._replace(steps=steps, changes=changes, rates=put(self.rates, rate), newest=place)

    def _at(self, age):
        """A step and the change along it, by how many others are newer."""
        place = (self.newest - age) % _MEMORY
        pick = lambda stack: lax.dynamic_index_in_dim(stack, place, keepdims=False)
        return jax.tree.map(pick, (self.steps, self.changes, self.rates))

    def before(self, gradient):
        """What the inverse metric is applied to."""

        def back(q, age):
            step, change, rate = self._at(age)
            alpha = rate * _tree.dot(step, q)
            return jax.tree.map(lambda a, c: a - alpha * c, q, change), alpha

        return lax.scan(back, gradient, jnp.arange(_MEMORY))

    def after(self, r, alphas):
        """The direction, from what the inverse metric gave."""

        def forth(r, given):
            age, alpha = given
            step, change, rate = self._at(age)
            factor = alpha - rate * _tree.dot(change, r)
            return jax.tree.map(lambda a, s: a + factor * s, r, step), None

        return lax.scan(forth, r, (jnp.arange(_MEMORY), alphas), reverse=True)[0]


def _next_damping(damping, length, change, decrement):
    """More of it, in units of the prior's precision, after a step that had to be shortened; less after a good one."""
    more = jnp.maximum(damping, 1.0) * _DAMPS
    less = jnp.where(damping > 1.0, damping / _DAMPS, 0.0)
    good = (length == 1) & (-change > _GOOD * decrement)
    return jnp.where(length < _FAR_TOO_LONG, more, jnp.where(good, less, damping))


def _line_search(change_at, decrement, longest):
    """Halve the length until the objective falls by a share of what is expected."""
    zero = jnp.zeros(())

    def accepted(length, change):
        return change <= -_SHARE * length * decrement

    def too_long(state):
        length, change, tries = state
        return ~accepted(length, change) & (tries < _HALVINGS)

    def halve(state):
        length, _, tries = state
        length = jnp.where(tries > 0, 0.5 * length, length)
        return length, change_at(length), tries + 1

    length, change, _ = lax.while_loop(too_long, halve, (zero + longest, zero + jnp.inf, 0))
    return length, change, accepted(length, change)
