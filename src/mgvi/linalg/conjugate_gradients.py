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
    none, scale = jnp.zeros((), int), jnp.sqrt(_diagonal(b, z))
    if not check:
        if coupled or x0 is not None:
            raise ValueError("an unchecked solve is not coupled and starts at zero")
        begin = _Separate.at_zero(start, b, z, stop, scale)
        end = _ended(mv, begin, precondition, stop, scale)
        return end.x, _report(end.size, scale, stop, end.used, ~end.is_open(stop, scale))
    kind, passes = (_Coupled, _PASSES) if coupled else (_Separate, 1)

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
        new = new._replace(first=_later(state, state.first, new.size))
        goes_on = new.healthy & (new.used < stop.iterations) & new.is_open(stop, scale)
        if state.is_fresh is None:
            return new._replace(goes_on=goes_on)
        return new._replace(is_fresh=jnp.array(False), goes_on=goes_on & ~(state.is_fresh & is_enough(new.first)))

    return lax.while_loop(lambda state: state.goes_on, turn, begin)


class _Separate(NamedTuple):
    """Conjugate gradients, uncoupled."""

    x: Any
    r: Any
    s: Any  # search directions; before the first turn x, the residual of which is not known then
    gamma: jax.Array  # squared residuals
    used: jax.Array
    recent: jax.Array  # energy decreases of the last iterations
    total: jax.Array  # energy decrease so far
    first: jax.Array  # residuals of the starting point
    healthy: jax.Array
    goes_on: jax.Array
    is_fresh: Any  # whether this is before the first turn; None: there is no such turn

    @classmethod
    def at(cls, x, b, scale, used):
        """At a point whose residual is not known."""
        return cls(x, b, x, jnp.zeros_like(scale), used, *_start(scale), jnp.array(True))

    @classmethod
    def at_zero(cls, x, b, z, stop, scale):
        """At zero, given b and what the preconditioner makes of it."""
        state = cls(x, b, z, scale**2, jnp.zeros((), int), *_start(scale), None)
        return state._replace(goes_on=(stop.iterations > 0) & state.is_open(stop, scale))

    @property
    def size(self):
        """Residuals, by the recursion."""
        return jnp.sqrt(self.gamma)

    def is_open(self, stop, scale):
        """Whether something is left to be done."""
        return jnp.any((self.size > stop.residual * scale) & stop.gains(self.recent, self.total))

    def advanced(self, mv, precondition, goal) -> "_Separate":
        """One turn later."""
        a_s = mv(self.s)
        curvature = _diagonal(self.s, a_s)
        length = jnp.where(curvature > 0, self.gamma / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        # The first turn subtracts the product from b, and leaves x where it is.
        x = _tree.add(self.x, _scaled(_later(self, length, 0.0), self.s))
        r = _tree.subtract(self.r, _scaled(_later(self, length, 1.0), a_s))
        z = precondition(r)
        new = _diagonal(r, z)
        kept = jnp.where(self.gamma > 0, new / jnp.where(self.gamma > 0, self.gamma, 1.0), 0.0)
        s = _tree.add(z, _scaled(_later(self, kept, 0.0), self.s))
        state = self._replace(x=x, r=r, s=s, gamma=new, healthy=jnp.all(jnp.isfinite(new)))
        return _counted(state, length * self.gamma)


class _Coupled(NamedTuple):
    """Block conjugate gradients."""

    x: Any
    q: Any  # orthonormal residual directions; before the first turn b
    s: Any  # search directions; before the first turn x
    c: jax.Array  # residuals in terms of q
    used: jax.Array
    recent: jax.Array
    total: jax.Array
    first: jax.Array
    healthy: jax.Array
    goes_on: jax.Array
    is_fresh: Any
    best: jax.Array  # smallest residuals

    @classmethod
    def at(cls, x, b, scale, used):
        """At a point whose residual is not known."""
        best = jnp.full_like(scale, jnp.inf)
        return cls(x, b, x, jnp.eye(scale.size, dtype=scale.dtype), used, *_start(scale), jnp.array(True), best)

    @property
    def size(self):
        """Residuals, by the recursion."""
        return jnp.sqrt(jnp.sum(self.c**2, axis=0))

    def is_open(self, stop, scale):
        """Whether something is left to be done; not for zeros, but rounding would have them go on."""
        is_left = (self.size > stop.residual * scale) & stop.gains(self.recent, self.total)
        return jnp.any((self.first > 0) & is_left)

    def advanced(self, mv, precondition, goal) -> "_Coupled":
        """One turn later."""
        a_s = mv(self.s)
        _, factor = _factors(gram(self.s, a_s))
        # The first turn subtracts the product from b, and leaves x where it is.
        inverse = _later(self, factor.T @ factor, jnp.eye(len(factor), dtype=factor.dtype))
        weights = _later(self, inverse @ self.c, 0.0)
        q, z, factor = _orthonormal(_tree.subtract(self.q, mix(inverse, a_s)), precondition)
        c = factor @ self.c
        s = _tree.add(z, mix(_later(self, factor, 0.0), self.s))
        decrease, size = jnp.sum(self.c * weights, axis=0), jnp.sqrt(jnp.sum(c * c, axis=0))
        finite = jnp.all(jnp.isfinite(c)) & jnp.all(jnp.isfinite(weights)) & jnp.all(decrease >= 0)
        x = _tree.add(self.x, mix(jnp.where(finite, weights, 0.0).T, self.s))
        # A growing residual is normal within bounds; far above the best one, the recursion has lost its accuracy.
        healthy = finite & jnp.all(size <= 1e3 * jnp.maximum(self.best, goal))
        state = self._replace(x=x, q=q, s=s, c=c, healthy=healthy, best=jnp.minimum(self.best, size))
        return _counted(state, decrease)


def _start(scale):
    """What both kinds of state have in common."""
    recent = jnp.full((_WINDOW, scale.size), jnp.inf, scale.dtype)
    return recent, jnp.zeros_like(scale), jnp.full_like(scale, jnp.inf), jnp.array(True), jnp.array(True)


def _later(state, value, at_first):
    """A value for all turns but the first, and one for that."""
    return value if state.is_fresh is None else jnp.where(state.is_fresh, at_first, value)


def _counted(state, decrease):
    """A state that remembers one decrease of the energy more, unless that was the first turn."""
    recent = jnp.roll(state.recent, 1, axis=0).at[0].set(decrease)
    return state._replace(
        used=_later(state, state.used + 1, state.used),
        recent=_later(state, recent, state.recent),
        total=_later(state, state.total + decrease, state.total),
    )


def _orthonormal(w, precondition):
    """w = q r with q orthonormal in the preconditioned product; also z = P q, and r's transpose: rows mix."""
    z = precondition(w)
    first, inverse = _factors(gram(w, z))
    w, z = mix(inverse, w), mix(inverse, z)
    second, inverse = _factors(gram(w, z))  # again: one pass is not orthogonal to rounding
    return mix(inverse, w), mix(inverse, z), (first @ second).T


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
    count, terms = matrix.shape
    if not _is_written_out(terms):
        return jax.tree.map(lambda a: jnp.tensordot(matrix, a, axes=1, precision=lax.Precision.HIGHEST), stack)
    row = lambda i, a: sum((matrix[i, j] * a[j] for j in range(1, terms)), start=matrix[i, 0] * a[0])
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
