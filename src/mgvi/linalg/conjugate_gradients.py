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

from mgvi import _tree
from mgvi.status import Status

_DEPENDS = 32  # roundings: so little of a right-hand side, squared, that is not a sum of others is rounding itself
_FEW = 4  # right-hand sides whose factors, and on accelerators products, are made number by number
_PASSES = 4  # of a coupled solve, at most
_WINDOW = 4  # iterations over which the decrease of the energy is judged


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


class _State(NamedTuple):
    i: jax.Array
    x: Any
    q: Any  # orthonormal residual directions
    s: Any  # search directions
    c: jax.Array  # residuals in terms of q
    recent: jax.Array  # energy decreases of the last iterations
    total: jax.Array  # energy decrease so far
    best: jax.Array
    healthy: jax.Array


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
    z = precondition(b)
    scale = jnp.sqrt(_diagonal(b, z))
    goal = stop.residual * scale
    none = jnp.zeros((), int)
    start = jax.tree.map(jnp.zeros_like, b) if x0 is None else x0
    if not check:
        if coupled or x0 is not None:
            raise ValueError("an unchecked solve is not coupled and starts at zero")
        x, used, satisfied, size = _run_separate(mv, start, b, z, stop, goal, none, precondition)
        return x, _report(size, scale, stop, used, satisfied)
    # Where the coupling has lost its accuracy, another pass begins with the true residual.
    run = _run_coupled if coupled else lambda *given: _run_separate(*given)[:3]
    passes = _PASSES if coupled else 1

    def one_pass(state):
        # Whatever comes after a pass begins with the true residual: the product is compiled once for all of them.
        x, last, used, turn, satisfied = state
        r = _tree.subtract(b, mv(x))
        z = precondition(r)
        size = jnp.sqrt(_diagonal(r, z))
        enough = jnp.all(_is_met(size, scale, stop)) | stop.by_energy | jnp.all(size > 0.5 * last)
        done = satisfied & enough
        turn = jnp.where(done | (used >= stop.iterations), passes, turn)
        go_on = lambda: run(mv, x, r, z, stop, goal, used, precondition)
        x, used, satisfied = lax.cond(turn < passes, go_on, lambda: (x, used, satisfied))
        return x, size, used, turn + 1, satisfied

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


def _run_separate(mv, x, r, z, stop, goal, used, precondition):
    """Conjugate gradients, uncoupled: solutions, iterations so far, whether the goal is met, and residuals."""

    def is_open(state):
        _, _, _, _, gamma, recent, total, _ = state
        return jnp.any((jnp.sqrt(gamma) > goal) & stop.gains(recent, total))

    def proceed(state):
        return state[-1] & (state[0] < stop.iterations) & is_open(state)

    def step(state):
        i, x, r, s, gamma, recent, total, _ = state
        a_s = mv(s)
        curvature = _diagonal(s, a_s)
        length = jnp.where(curvature > 0, gamma / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        x, r = _tree.add(x, _scaled(length, s)), _tree.subtract(r, _scaled(length, a_s))
        z = precondition(r)
        new = _diagonal(r, z)
        s = _tree.add(z, _scaled(jnp.where(gamma > 0, new / jnp.where(gamma > 0, gamma, 1.0), 0.0), s))
        decrease = length * gamma
        recent = jnp.roll(recent, 1, axis=0).at[0].set(decrease)
        return i + 1, x, r, s, new, recent, total + decrease, jnp.all(jnp.isfinite(new))

    recent = jnp.full((_WINDOW, goal.shape[0]), jnp.inf, goal.dtype)
    start = (used, x, r, z, _diagonal(r, z), recent, jnp.zeros_like(goal), jnp.array(True))
    end = lax.while_loop(proceed, step, start)
    return end[1], end[0], end[-1] & ~is_open(end), jnp.sqrt(end[4])


def _run_coupled(mv, x0, r, z, stop, goal, used, precondition):
    """Block conjugate gradients; returns solutions, iterations so far, and whether the goal is met."""
    count = goal.shape[0]

    def orthonormal(w, z):
        """w = q r with q orthonormal in the preconditioned product; z = P w is carried along."""
        first, inverse = _factors(gram(w, z))
        w, z = mix(inverse, w), mix(inverse, z)
        second, inverse = _factors(gram(w, z))  # again: one pass is not orthogonal to rounding
        return mix(inverse, w), mix(inverse, z), (first @ second).T  # rows mix: w_old = total @ w

    live = _diagonal(r, z) > 0  # nothing to do for the others, but rounding would have them go on
    q, z, c = orthonormal(r, z)
    size = jnp.sqrt(jnp.sum(c * c, axis=0))
    recent = jnp.full((_WINDOW, count), jnp.inf, goal.dtype)
    start = _State(used, x0, q, z, c, recent, jnp.zeros_like(goal), size, jnp.array(True))

    def is_open(state):
        size = jnp.sqrt(jnp.sum(state.c**2, axis=0))
        return jnp.any(live & (size > goal) & stop.gains(state.recent, state.total))

    def proceed(state):
        return state.healthy & (state.i < stop.iterations) & is_open(state)

    def step(state):
        a_s = mv(state.s)
        _, factor = _factors(gram(state.s, a_s))
        inverse = factor.T @ factor
        weights = inverse @ state.c
        w = _tree.subtract(state.q, mix(inverse, a_s))
        q, z, factor = orthonormal(w, precondition(w))
        c = factor @ state.c
        s = _tree.add(z, mix(factor, state.s))
        decrease = jnp.sum(state.c * weights, axis=0)
        size = jnp.sqrt(jnp.sum(c * c, axis=0))
        finite = jnp.all(jnp.isfinite(c)) & jnp.all(jnp.isfinite(weights)) & jnp.all(decrease >= 0)
        # A growing residual is normal within bounds; far above the best one, the recursion has lost its accuracy.
        healthy = finite & jnp.all(size <= 1e3 * jnp.maximum(state.best, goal))
        x = _tree.add(state.x, mix(jnp.where(finite, weights, 0.0).T, state.s))
        recent = jnp.roll(state.recent, 1, axis=0).at[0].set(decrease)
        return _State(state.i + 1, x, q, s, c, recent, state.total + decrease, jnp.minimum(state.best, size), healthy)

    end = lax.while_loop(proceed, step, start)
    return end.x, end.i, end.healthy & ~is_open(end)


def gram(u, v) -> jax.Array:
    """Inner products of all pairs of two stacks."""
    if _is_written_out(jax.tree.leaves(u)[0].shape[0]):
        product = lambda a, b: _matrix([[jnp.sum(one * other) for other in b] for one in a])
        return sum(jax.tree.leaves(jax.tree.map(product, u, v)), start=jnp.zeros(()))
    products = jax.tree.map(
        lambda a, b: jnp.matmul(
            a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1).T, precision=lax.Precision.HIGHEST
        ),
        u,
        v,
    )
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def _diagonal(u, v):
    """Inner products of the pairs at the same place."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b, axis=tuple(range(1, a.ndim))), u, v)
    return sum(jax.tree.leaves(products))


def _scaled(factors, stack):
    """Each entry of a stack times its own number."""
    return jax.tree.map(lambda a: factors.reshape(-1, *(1,) * (a.ndim - 1)) * a, stack)


def mix(matrix: jax.Array, stack):
    """Row i of the result is the sum of matrix[i, j] times entry j of the stack."""
    count = matrix.shape[0]
    if not _is_written_out(count):
        return jax.tree.map(lambda a: jnp.tensordot(matrix, a, axes=1, precision=lax.Precision.HIGHEST), stack)
    row = lambda i, a: sum((matrix[i, j] * a[j] for j in range(1, count)), start=matrix[i, 0] * a[0])
    return jax.tree.map(lambda a: jnp.stack([row(i, a) for i in range(count)]), stack)


def _factors(square):
    """F with F F^T the Gram matrix, and an inverse of F that is zero along what depends on other rows to rounding.

    Rounding, made as long as all else, would otherwise go on as a direction of its own.
    """
    count, least = square.shape[0], _DEPENDS * jnp.finfo(square.dtype).eps
    square = 0.5 * (square + square.T)
    if count > _FEW:
        scale = jnp.sqrt(jnp.maximum(jnp.diag(square), 0.0))
        unit = jnp.where(scale > 0, 1 / jnp.where(scale > 0, scale, 1.0), 0.0)
        values, vectors = jnp.linalg.eigh(unit[:, None] * square * unit)
        root = jnp.sqrt(jnp.where(values > least, values, 0.0))
        over = jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1.0), 0.0)
        return scale[:, None] * vectors * root, (vectors * over).T * unit
    zero = jnp.zeros((), square.dtype)
    factor: list[list[Any]] = [[zero] * count for _ in range(count)]
    inverse: list[list[Any]] = [[zero] * count for _ in range(count)]
    for j in range(count):  # Cholesky's factor, and its inverse row by row
        rest = square[j, j] - sum(factor[j][m] ** 2 for m in range(j))
        is_new = rest > least * square[j, j]
        factor[j][j] = jnp.where(is_new, jnp.sqrt(jnp.where(is_new, rest, 1.0)), 0.0)
        inverse[j][j] = jnp.where(is_new, 1 / jnp.where(is_new, factor[j][j], 1.0), 0.0)
        for i in range(j + 1, count):
            factor[i][j] = (square[i, j] - sum(factor[i][m] * factor[j][m] for m in range(j))) * inverse[j][j]
        for m in range(j):
            inverse[j][m] = -inverse[j][j] * sum(factor[j][n] * inverse[n][m] for n in range(m, j))
    return _matrix(factor), _matrix(inverse)


def _is_written_out(count):
    """Whether products of so many right-hand sides are made number by number.

    On an accelerator a call of a library for each of them takes several times as long as they do.
    """
    return count <= _FEW and jax.default_backend() != "cpu"


def _matrix(rows):
    return jnp.stack([jnp.stack(row) for row in rows])
