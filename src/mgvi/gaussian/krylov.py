"""The curvature of a large problem, which is only multiplied with.

A problem, a mean in its chart and information of the data come in; products, preconditioned solves and draws go out.
It must not know why it is asked for.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi._compile import number, numbers, program
from mgvi.gaussian.curvature import Keys
from mgvi.linalg import (
    Preconditioner,
    Report,
    Stop,
    block_preconditioner,
    global_sites,
    solve,
    some_entries,
    sub_blocks,
)
from mgvi.pairs import Pairs
from mgvi.problem import Problem
from mgvi.problem.density import averaged_information, tempered_metric

_FILLING = 2**31 - 1  # tells keys that only fill a batch from all others
_PROBES = 32  # for the diagonal of the metric
_REACH = 2.0  # prior sds that a round may take a global latent
_LEAST_REACH = 0.1  # prior sds that a step may take it at any rate


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["problem", "mean", "free", "beta", "information", "preconditioner"],
    meta_fields=[],
)
@dataclass(frozen=True)
class KrylovCurvature:
    """The Fisher metric at a mean, by products.

    Parameters
    ----------
    problem : Problem
        In the chart of the mean.
    mean : dict
        Where the curvature is.
    free : dict
        1 for each site that varies, 0 for each that does not.
    beta : float
        Power of the likelihood.
    information : dict
        Information of the data that takes the place of that at the mean, by observed site.
    preconditioner : Preconditioner, optional
        An approximate inverse.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> from mgvi.gaussian import KrylovCurvature, Keys
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> curvature = KrylovCurvature(problem, {"mu": jnp.array(0.0)}, {"mu": jnp.array(1.0)})
    >>> deviations, report = curvature.draw(Keys(seed=1, stream=0, count=64))
    >>> round(float(deviations["mu"].std()), 1), int(report.status.max())  # exactly 1/3
    (0.3, 0)
    """

    problem: Problem
    mean: Any
    free: dict[str, Any]
    beta: Any = field(default_factory=lambda: number(1.0))
    information: dict[str, Any] = field(default_factory=dict)
    preconditioner: Preconditioner | None = None
    uses_information: ClassVar[bool] = True

    @property
    def metric(self):
        """The metric, for directions that are free."""
        return tempered_metric(self.problem, self.mean, self.information, self.beta, self.free)

    def draw(self, keys: Keys, stop: Stop = Stop(), coupled: bool = True) -> tuple[Any, Report]:  # noqa: B008
        """Deviations, one for each key, and a report of the solves."""
        room = empty_room(self.problem, keys.count)
        deviations, reports, _ = drawn_into(self, room, keys, Drawing(0, keys.count, stop), coupled=coupled)
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: keys.count], *reports)
        return jax.tree.map(lambda d: d[: keys.count], deviations), joined

    def block(self) -> dict[str, Any]:
        """The blocks of the single global sites: the inverse of what the preconditioner has for them."""
        names = global_sites(self.problem.latent)
        few = {name: self.problem.latent[name] for name in names}
        if self.preconditioner is None or self.preconditioner.inverse is None or not few:
            return {}
        size = _tree.size(few)
        return sub_blocks(jnp.linalg.inv(self.preconditioner.inverse[:size, :size]), few)

    def inside(self) -> "KrylovCurvature":
        """It is what programs work with."""
        return self

    def solve(self, at, information, b, stop, damping):
        """(M + damping)^-1 b at a point, by conjugate gradients."""
        metric = replace(self, mean=at, information=information).metric
        mv = lambda stack: jax.tree.map(lambda a, v: a + damping * v, metric.mv_stack(stack), stack)
        inverse = None if self.preconditioner is None else self.preconditioner.damped(damping)
        step, report = solve(mv, _tree.stacked(b), stop=stop, preconditioner=inverse, check=False)
        return _tree.unstacked(step), report.iterations[0]

    def nothing_seen(self, pairs):
        """No squares yet."""
        return {name: jnp.zeros((), d.dtype) for name, d in pairs.first.items()}

    def seen(self, so_far, gradients, first):
        """Sums, by site, of the mean squares of the steps that gradients ask for."""
        return _tree.add(so_far, self._squares(gradients))

    def all_seen(self, seen, gradient, count):
        """Mean squares of those steps, from the step that all pairs ask for."""
        average = self._squares(_tree.stacked(gradient))
        return {name: jnp.maximum(x / count - average[name], 0.0) for name, x in seen.items()}

    def scatter(self, seen, count):
        """By site; solves are replaced by the preconditioner, which is near enough."""
        return seen

    def _squares(self, gradients):
        steps = gradients if self.preconditioner is None else self.preconditioner.apply(gradients)
        return {name: jnp.sum(step * step) / step[0].size for name, step in steps.items()}

    def longest(self, at, step):
        """No farther from where the samples come from than a few sds of the prior for the few global latents.

        All others depend on these, and farther away the samples tell nothing.
        """
        few = [name for name in global_sites(self.problem.latent) if name not in self.problem.chart]
        if not few:
            return 1.0
        left = [jnp.ravel(_REACH - jnp.sign(step[n]) * (at[n] - self.mean[n])) for n in few]
        share = jnp.concatenate(left).clip(_LEAST_REACH) / jnp.abs(_tree.to_row({n: step[n] for n in few})).clip(1e-9)
        return jnp.minimum(1.0, jnp.min(share))

    def tree(self, x):
        """Points are trees."""
        return x

    def pack(self, stack):
        """Points are trees."""
        return stack

    def outside(self, x):
        """Points are trees."""
        return x


@dataclass(frozen=True)
class Drawing:
    """What is drawn: the first `count` keys; the first `given` of these start at the deviations that are there."""

    given: int
    count: int
    stop: Stop


@program("once", static_argnames="room")
def _make_keys(seed, stream, count, *, room):
    """Keys of so many deviations, filled up with others: two equal right-hand sides would make a block singular.

    They are not split: the first of many keys are the same as those of few, so that a fit goes on smoothly when pairs
    are added.
    """
    made = jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(seed), stream)))(jnp.arange(room))
    others = jax.vmap(lambda key: jax.random.fold_in(key, _FILLING))(made)
    return jnp.where(jnp.arange(room) < count, made, others)


@program(static_argnames="coupled")
def _draw(curvature, keys, start, given, count, stop, *, coupled):
    """A deviation for each of the first `count` keys, the first `given` of them from a start; then zeros.

    M d = R^T n + eta is solved, with white noise n and eta, from the prior draw eta unless a start is given.
    """
    metric = curvature.metric

    def add(i, stacks):
        noise, eta = metric.noise(keys[i])
        both = _tree.add(metric.rmatvec(noise), eta), eta
        return jax.tree.map(lambda stack, x: stack.at[i].set(x), stacks, both)

    none = _tree.zeros(_tree.shapes_of_stack(metric.latent, keys.shape[0]))
    # One by one: random numbers for all of them would take the most memory.
    b, eta = lax.fori_loop(0, jnp.minimum(count, keys.shape[0]), add, (none, none))
    begin = _tree.where_first(given, start, eta)
    begin = _tree.where_first(count, begin, none)
    coupled = coupled and keys.shape[0] > 1
    solution, report = solve(metric.mv_stack, b, begin, stop, coupled=coupled, preconditioner=curvature.preconditioner)
    return _tree.multiply(curvature.free, solution), report


@program(static_argnames="count")
def _room(like, *, count):
    return _tree.zeros(_tree.shapes_of_stack(like, count))


@program(static_argnames="size")
def _taken(stack, first, *, size):
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, first, size), stack)


@program(donate_argnums=0)
def _put(room, old, new, first, count):
    """Deviations in place of old ones; also, by site, sums over the first `count` of mean squares, and of changes."""
    counts = jnp.arange(jax.tree.leaves(new)[0].shape[0]) < count

    def squares(stack):
        means = {name: jnp.mean(d * d, axis=tuple(range(1, d.ndim))) for name, d in stack.items()}
        return {name: jnp.sum(jnp.where(counts, x, 0.0)) for name, x in means.items()}

    room = jax.tree.map(lambda all, some: lax.dynamic_update_slice_in_dim(all, some, first, 0), room, new)
    return room, (squares(new), squares(_tree.subtract(new, old)))


def empty_room(problem: Problem, count: int) -> Any:
    """Zeros in the place of so many deviations, in whole batches."""
    size = min(problem.budget.drawn, count)
    return problem.static.compiled.call(_room, problem.latent_zeros(), count=-(-count // size) * size)


def drawn_into(
    curvature: KrylovCurvature, room: Any, keys: Keys, what: Drawing, *, coupled: bool
) -> tuple[Any, list[Report], list[Any]]:
    """Deviations in the place of those that are in a room, which is used up.

    Also a report for each batch of keys, and the sums over it, by site, of the mean squares of its deviations and of
    their changes.
    """
    compiled = curvature.problem.static.compiled
    size = min(curvature.problem.budget.drawn, keys.count)
    whole = -(-keys.count // size) * size
    made = compiled.call(_make_keys, number(keys.seed), number(keys.stream), number(keys.count), room=whole)
    reports, squares = [], []
    for first in range(0, what.count, size):
        some, old = compiled.call(_taken, (made, room), number(first), size=size)
        counts = number(max(what.given - first, 0)), number(what.count - first)
        new, report = compiled.call(_draw, curvature, some, old, *counts, numbers(what.stop), coupled=coupled)
        room, both = compiled.call(_put, room, old, new, number(first), counts[1])
        reports.append(report)
        squares.append(both)
    return room, reports, squares


averaged = program()(averaged_information)


@program()
def _diagonal(curvature, seed, probes):
    return curvature.metric.diagonal(jax.random.key(seed), probes)


def estimated_diagonal(curvature: KrylovCurvature, probes: int = _PROBES) -> Any:
    """An estimate of the diagonal of the metric."""
    return curvature.problem.static.compiled.call(_diagonal, curvature, number(0), number(probes))


@program()
def _preconditioner(curvature, diagonal, chosen, inside):
    names = global_sites(curvature.problem.static.latent)
    return block_preconditioner(curvature.metric.mv_stack, diagonal, names, chosen, inside)


def preconditioned(
    curvature: KrylovCurvature, diagonal: Any = None, thorough: bool = False
) -> tuple[KrylovCurvature, Any]:
    """The curvature with an approximate inverse, and the metric's block of the global sites.

    `diagonal` is the metric's, if it is known. If `thorough`, the latents with the largest diagonal are in the block
    too; if not, and while the likelihood comes in, a block would cost more than it saves.
    """
    diagonal = estimated_diagonal(curvature) if diagonal is None else diagonal
    latent = curvature.problem.latent
    names = global_sites(latent)
    if thorough:
        chosen = some_entries(latent, names, diagonal)
    else:  # room for them on a CPU; on an accelerator it is compilation that takes long
        chosen = some_entries(latent, names) if jax.default_backend() == "cpu" else {}
    few = _tree.size({name: latent[name] for name in names})
    inside = few + _tree.size(chosen) if thorough else few if curvature.beta == 1 else 0
    made, block = curvature.problem.static.compiled.call(_preconditioner, curvature, diagonal, chosen, number(inside))
    return replace(curvature, preconditioner=made), block


def with_information(curvature: KrylovCurvature, pairs: Pairs, count: int) -> dict[str, Any]:
    """The information of data averaged over the points of the first pairs around the mean."""
    compiled = curvature.problem.static.compiled
    return compiled.call(averaged, curvature.problem, curvature.mean, pairs, number(count))
