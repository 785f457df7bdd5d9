"""Conjugate gradients for many right-hand sides of one positive definite operator.

A matrix-free product and right-hand sides, stacked along a leading axis, come in; solutions and a report go out.
It must not know what the operator is.

With `coupled=True` all right-hand sides search one common Krylov space (block conjugate gradients, with the residuals
kept orthonormal by a two-pass Cholesky-QR); otherwise each has its own. A coupled solve that loses its accuracy begins
again with the true residual, and the residuals in the report are always those of the solution itself, not of the
recursion.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgvi.linalg.block import Coupled
from mgvi.linalg.single import Separate, later
from mgvi.linalg.stacks import inner
from mgvi.status import Status

_PASSES = 4  # most passes of a coupled solve, each from the true residual of the last


class Report(NamedTuple):
    """What a solve did, for each right-hand side: iterations, relative residual of the solution, and a Status code."""

    iterations: Any
    residual: Any
    status: Any


class Stop(NamedTuple):
    """When a solve ends; plain numbers or traced ones, so that changing them does not recompile.

    Either every residual is below `residual` times its right-hand side, or the energy has decreased by less than
    `energy`, or less than `share` of the decrease so far, over the last iterations, or `iterations` have been made.
    """

    residual: Any = 1e-5
    energy: Any = 0.0
    iterations: Any = 1000
    share: Any = 0.0

    @property
    def by_energy(self):
        """Whether a small decrease of the energy is reason enough to end."""
        return jnp.any((self.energy > 0) | (self.share > 0))

    def gains(self, recent, total):
        """Whether the last iterations decreased the energy enough to go on."""
        return jnp.sum(recent, axis=0) > jnp.maximum(self.energy, self.share * total)


def solve(
    mv: Callable,
    b: Any,
    x0: Any = None,
    stop: Stop = Stop(),  # noqa: B008
    *,
    coupled: bool = False,
    preconditioner: Any = None,
    check: bool = True,
) -> tuple[Any, Report]:
    """Solve A x = b for each of the right-hand sides stacked along the leading axis.

    Parameters
    ----------
    mv : callable
        The product with A of a stack of vectors (a tree whose leaves have the leading axis).
    b : tree
        Right-hand sides.
    x0 : tree, optional
        Starting points, by default zero.
    stop : Stop
        When to end.
    coupled : bool
        Whether all right-hand sides share one Krylov space.
    preconditioner : Preconditioner, optional
        An approximation P of the inverse of A, positive definite. Residuals are then measured in the norm r^T P r, in
        which all directions count alike if P is good.
    check : bool
        Whether the report has the residual of the solution, which takes a product more, or that of the recursion. An
        unchecked solve is not `coupled` and starts at zero.

    Returns
    -------
    tuple
        Solutions and a `Report`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.linalg import solve
    >>> A = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    >>> x, report = solve(lambda v: v @ A, jnp.eye(2))
    >>> print(jnp.allclose(x @ A, jnp.eye(2), atol=1e-5), int(report.status.max()))
    True 0
    """
    precondition = (lambda v: v) if preconditioner is None else preconditioner.apply
    start = jax.tree.map(jnp.zeros_like, b) if x0 is None else x0
    z = precondition(b)
    none, scale = jnp.zeros((), int), jnp.sqrt(inner(b, z))
    if not check:
        if coupled or x0 is not None:
            raise ValueError("an unchecked solve is not coupled and starts at zero")
        begin = Separate.at_zero(start, b, z, stop, scale)
        end = _ended(mv, begin, precondition, stop, scale)
        return end.x, _report(end.size, scale, stop, end.used, ~end.is_open(stop, scale))
    kind, passes = (Coupled, _PASSES) if coupled else (Separate, 1)

    def one_pass(state):
        x, last, used, turn, satisfied = state

        def is_enough(size):
            """Whether the true residual, with which a pass begins, says that there is nothing more to be done."""
            enough = jnp.all(_is_met(size, scale, stop)) | stop.by_energy | jnp.all(size > 0.5 * last)
            return (satisfied & enough) | (turn >= passes) | (used >= stop.iterations)

        # Where the coupling has lost its accuracy, another pass begins with the true residual.
        end = _ended(mv, kind.at(x, b, scale, used), precondition, stop, scale, is_enough)
        done = is_enough(end.first)
        satisfied = jnp.where(done, satisfied, end.healthy & ~end.is_open(stop, scale))
        return end.x, end.first, end.used, jnp.where(done, passes, turn) + 1, satisfied

    state = (start, scale, none, none, jnp.array(False))
    x, size, used, _, satisfied = lax.while_loop(lambda state: state[3] <= passes, one_pass, state)
    return x, _report(size, scale, stop, used, satisfied)


def _is_met(residual, scale, stop):
    return residual <= 2 * stop.residual * scale + 10 * jnp.finfo(residual.dtype).eps * scale


def _report(residual, scale, stop, used, satisfied):
    met = _is_met(residual, scale, stop)
    missed = jnp.where(used >= stop.iterations, Status.ITERATION_LIMIT, Status.STAGNATED)
    status = jnp.where(met | (satisfied & stop.by_energy), Status.CONVERGED, missed)
    status = jnp.where(jnp.isfinite(residual), status, Status.NOT_FINITE)
    relative = residual / jnp.where(scale > 0, scale, 1.0)
    return Report(jnp.broadcast_to(used, relative.shape), relative, status)


def _ended(mv, begin, precondition, stop, scale, is_enough=lambda size: False):
    """The state after a pass.

    Its first turn is for the true residual of its starting point, the others are for conjugate gradients: so there is
    one product to compile.
    """

    def turn(state):
        new = state.advanced(mv, precondition, stop.residual * scale)
        new = new._replace(first=later(state, state.first, new.size))
        goes_on = new.healthy & (new.used < stop.iterations) & new.is_open(stop, scale)
        if state.is_fresh is None:
            return new._replace(goes_on=goes_on)
        return new._replace(is_fresh=jnp.array(False), goes_on=goes_on & ~(state.is_fresh & is_enough(new.first)))

    return lax.while_loop(lambda state: state.goes_on, turn, begin)
