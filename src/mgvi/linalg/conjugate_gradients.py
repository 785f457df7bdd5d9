"""Conjugate gradients for many right-hand sides of one positive definite operator.

A matrix-free product and right-hand sides, stacked along a leading axis, come in; solutions and a report go out.
It must not know what the operator is.

With `coupled=True` all right-hand sides search one common Krylov space (block conjugate gradients, with the residuals
kept orthonormal by a two-pass Cholesky-QR); otherwise each has its own. Both are one loop: without coupling the small
matrices are diagonal. A coupled solve that loses rank or accuracy hands over to an uncoupled one, and the residuals in
the report are always those of the solution itself, not of the recursion.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi.status import Status

_WINDOW = 4  # iterations over which the decrease of the energy is judged


class Report(NamedTuple):
    """What a solve did, for each right-hand side: iterations, relative residual of the solution, and a Status code."""

    iterations: Any
    residual: Any
    status: Any


class Stop(NamedTuple):
    """When a solve ends; plain numbers or traced ones, so that changing them does not recompile.

    Either every residual is below `residual` times its right-hand side, or the energy has decreased by less than
    `energy` over the last iterations, or `iterations` have been made.
    """

    residual: Any = 1e-5
    energy: Any = 0.0
    iterations: Any = 1000


class _State(NamedTuple):
    i: jax.Array
    x: Any
    q: Any  # orthonormal residual directions
    s: Any  # search directions
    c: jax.Array  # residuals in terms of q
    recent: jax.Array  # energy decreases of the last iterations
    best: jax.Array
    healthy: jax.Array


def solve(
    mv: Callable,
    b: Any,
    x0: Any = None,
    stop: Stop = Stop(),  # noqa: B008
    *,
    coupled: bool = False,
    precondition: Callable | None = None,
    residual: Any = None,
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
    precondition : callable, optional
        An approximation of the inverse of A, positive definite, on stacks.
    residual : tree, optional
        b - A x0, if it is known.

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
    precondition = precondition or (lambda v: v)
    scale = jnp.sqrt(_diagonal(b, b))
    goal = stop.residual * scale
    if x0 is None:
        x0, residual = jax.tree.map(jnp.zeros_like, b), b
    elif residual is None:
        residual = _tree.subtract(b, mv(x0))

    def unfinished(state):
        _, _, used, turn, satisfied = state
        return (turn < (2 if coupled else 1)) & ~satisfied & (used < stop.iterations)

    def one_pass(state):
        # The second pass takes over, uncoupled and from the true residual, where the coupling has lost its accuracy.
        x, r, used, turn, _ = state
        x, used, satisfied = _run(mv, x, r, stop, goal, used, coupled & (turn == 0), precondition)
        return x, _tree.subtract(b, mv(x)), used, turn + 1, satisfied

    start = (x0, residual, jnp.zeros((), int), jnp.zeros((), int), jnp.array(False))
    x, r, used, _, satisfied = lax.while_loop(unfinished, one_pass, start)
    return x, _report(r, scale, stop, used, satisfied)


def _report(r, scale, stop, used, satisfied):
    residual = jnp.sqrt(_diagonal(r, r))
    met = residual <= 2 * stop.residual * scale + 10 * jnp.finfo(residual.dtype).eps * scale
    missed = jnp.where(used >= stop.iterations, Status.ITERATION_LIMIT, Status.STAGNATED)
    by_energy = satisfied & jnp.any(stop.energy > 0)
    status = jnp.where(met | by_energy, Status.CONVERGED, missed)
    status = jnp.where(jnp.isfinite(residual), status, Status.NOT_FINITE)
    relative = residual / jnp.where(scale > 0, scale, 1.0)
    return Report(jnp.broadcast_to(used, relative.shape), relative, status)


def _run(mv, x0, r, stop, goal, used, coupled, precondition):
    """One pass of (block) conjugate gradients; returns solutions, iterations so far, and whether the goal is met."""
    count = goal.shape[0]
    eye = jnp.eye(count, dtype=goal.dtype)
    pattern = jnp.where(coupled, jnp.ones_like(eye), eye)

    def gram(u, v):
        return pattern * _gram(u, v)

    def orthonormal(w, z):
        """w = q r with q orthonormal in the preconditioned product; z = P w is carried along."""
        first = _cholesky(gram(w, z), coupled)
        inverse = _triangular_inverse(first)
        w, z = _mix(inverse, w), _mix(inverse, z)
        if count == 1:
            return w, z, first
        second = _cholesky(gram(w, z), coupled)  # again: one pass is not orthogonal to rounding
        inverse = _triangular_inverse(second)
        return _mix(inverse, w), _mix(inverse, z), (first @ second).T  # rows mix: w_old = total @ w

    q, z, c = orthonormal(r, precondition(r))
    size = jnp.sqrt(jnp.sum(c * c, axis=0))
    recent = jnp.full((_WINDOW, count), jnp.inf, goal.dtype)
    start = _State(used, x0, q, z, c, recent, size, jnp.array(True))

    def is_open(state):
        size = jnp.sqrt(jnp.sum(state.c**2, axis=0))
        return jnp.any((size > goal) & (jnp.sum(state.recent, axis=0) > stop.energy))

    def proceed(state):
        return state.healthy & (state.i < stop.iterations) & is_open(state)

    def step(state):
        a_s = mv(state.s)
        factor = _triangular_inverse(_cholesky(gram(state.s, a_s), coupled))
        inverse = factor.T @ factor
        weights = inverse @ state.c
        w = _tree.subtract(state.q, _mix(inverse, a_s))
        q, z, factor = orthonormal(w, precondition(w))
        c = factor @ state.c
        s = _tree.add(z, _mix(factor, state.s))
        decrease = jnp.sum(state.c * weights, axis=0)
        size = jnp.sqrt(jnp.sum(c * c, axis=0))
        finite = jnp.all(jnp.isfinite(c)) & jnp.all(jnp.isfinite(weights)) & jnp.all(decrease >= 0)
        # A growing residual is normal within bounds; far above the best one, the recursion has lost its accuracy.
        healthy = finite & jnp.all(size <= 1e3 * jnp.maximum(state.best, goal))
        x = _tree.add(state.x, _mix(jnp.where(finite, weights, 0.0).T, state.s))
        recent = jnp.roll(state.recent, 1, axis=0).at[0].set(decrease)
        return _State(state.i + 1, x, q, s, c, recent, jnp.minimum(state.best, size), healthy)

    end = lax.while_loop(proceed, step, start)
    return end.x, end.i, end.healthy & ~is_open(end)


def _gram(u, v):
    """Inner products of all pairs of two stacks."""
    products = jax.tree.map(
        lambda a, b: jnp.matmul(
            a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1).T, precision=lax.Precision.HIGHEST
        ),
        u,
        v,
    )
    return sum(jax.tree.leaves(products))


def _diagonal(u, v):
    return jnp.diagonal(_gram(u, v))


def _mix(matrix, stack):
    """Row i of the result is the sum of matrix[i, j] times entry j of the stack."""
    return jax.tree.map(lambda a: jnp.tensordot(matrix, a, axes=1, precision=lax.Precision.HIGHEST), stack)


def _cholesky(square, coupled):
    """Cholesky factor of a Gram matrix that may have lost rank: a shift at the level of rounding keeps it positive."""
    limits = jnp.finfo(square.dtype)
    if square.shape[0] == 1:
        return jnp.sqrt(square + limits.tiny)
    shift = jnp.where(coupled, 4 * limits.eps * jnp.trace(square), 0.0) + limits.tiny
    return jnp.linalg.cholesky(0.5 * (square + square.T) + shift * jnp.eye(square.shape[0], dtype=square.dtype))


def _triangular_inverse(factor):
    if factor.shape[0] == 1:
        return 1 / factor
    return jax.scipy.linalg.solve_triangular(factor, jnp.eye(factor.shape[0], dtype=factor.dtype), lower=True)
