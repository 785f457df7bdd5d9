"""The sampled Kullback-Leibler divergence as a function of the mean.

A curvature and pairs of deviations come in; the objective that a minimiser needs goes out, and the mean that it finds.
It must not know how deviations are drawn.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgvi import _tree
from mgvi._compile import program
from mgvi.linalg import global_sites
from mgvi.newton import Limits, NewtonReport
from mgvi.pairs import Pairs
from mgvi.problem.density import neg_log_likelihood_terms, terms_and_information
from mgvi.status import Status

_SUMMED = 8  # entries of a stack up to which they are added one by one, ten times faster than a sum over an axis


class Known(NamedTuple):
    """What is known at a mean."""

    value: Any  # the KL, up to a constant
    seen: Any  # of the gradients of the pairs, for their scatter
    terms: Any  # of each datum, summed over the samples
    information: Any  # of each datum, averaged over the samples, where the curvature takes it


@dataclass(frozen=True)
class SampledKL:
    """KL of the samples mean + deviations, up to a constant, with the likelihood raised to the curvature's power.

    Pairs beyond the first `count` are ignored, so that their number may change without recompilation; they are taken
    `batch` at a time, which bounds the memory. `count` is a multiple of `batch`. With a `window` (first, all) the pairs
    that count begin at another one, and go on with the first after `all`.
    """

    curvature: Any  # as it is inside of programs
    pairs: Pairs
    count: Any = None  # None: all
    batch: int | None = None  # None: all at once
    window: Any = (0, 1 << 20)

    @property
    def _pairs_counted(self):
        return len(self.pairs) if self.count is None else self.count

    @property
    def _samples_counted(self):
        return self.pairs.each * self._pairs_counted

    def _fold(self, add, total):
        """total = add(total, pairs of a batch, where that begins), batch after batch."""
        batch = self.batch
        if batch is None:
            return add(total, self.pairs, 0)
        first, every = self.window
        one = lambda i, total: add(total, self.pairs.batch((i + first) % every, batch), i * batch)
        return lax.fori_loop(0, self._pairs_counted // batch, one, total)

    def _samples(self, mean, pairs):
        samples = [jax.tree.map(lambda m, d: m + d, mean, stack) for stack in pairs.stacks]
        return samples[0] if len(samples) == 1 else jax.tree.map(lambda *ways: jnp.concatenate(ways), *samples)

    def _one(self, x):
        inside = self.curvature
        if inside.uses_information:
            terms, told = terms_and_information(inside.problem, inside.tree(x), inside.beta)
        else:
            terms, told = neg_log_likelihood_terms(inside.problem, inside.tree(x), inside.beta), {}
        return 0.5 * _tree.dot(x, x) + _tree.total(terms), (terms, told)

    def gradient(self, mean):
        """Gradient with respect to the mean, and what is known of the samples there."""
        each = self.pairs.each

        def add(state, pairs, first):
            sums, seen = state
            of_samples = jax.vmap(jax.value_and_grad(self._one, has_aux=True))(self._samples(mean, pairs))
            (values, (terms, told)), gradients = of_samples
            count = len(pairs)
            of_pairs = gradients if each == 1 else jax.tree.map(lambda g: 0.5 * (g[:count] + g[count:]), gradients)
            of_pairs = _tree.multiply(self.curvature.free, of_pairs)
            sums = sums.plus((jnp.sum(values), *_summed((of_pairs, terms, told))))
            return sums, self.curvature.seen(seen, of_pairs, first)

        none = self.nothing()
        start = _tree.RunningSum.of((none.value, mean, none.terms, none.information))
        sums, seen = self._fold(add, (start, none.seen))
        share = 1 / self._samples_counted
        value, gradient, terms, told = sums.value
        gradient = _tree.scale(each * share, gradient)
        seen = self.curvature.all_seen(seen, gradient, self._pairs_counted)
        return gradient, Known(share * value, seen, terms, _tree.scale(share, told))

    @cached_property
    def _shapes(self):
        """Of the terms of a sample, and of the information of its data."""
        one = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape[1:], d.dtype), self.pairs.first)
        return jax.eval_shape(lambda x: self._one(x)[1], one)

    def nothing(self):
        """What is known of a mean, in zeros."""
        return Known(jnp.zeros(()), self.curvature.nothing_seen(self.pairs), *_tree.zeros(self._shapes))

    def solve(self, mean, known, b, stop, damping):
        """(M + damping)^-1 b with the curvature.

        A Fisher metric is that at the mean, with the information of the data averaged over the samples. To average
        their Jacobians too saves steps and costs more than it saves.
        """
        return self.curvature.solve(mean, known.information, b, stop, damping)

    def longest(self, mean, step):
        """The longest part of a step that is worth a try."""
        return self.curvature.longest(mean, step)

    def change(self, mean, known, step, there):
        """KL at mean + step minus KL at mean, formed datum by datum from what is known at both."""
        centre = mean
        if not self.pairs.is_centred:  # deviations that do not count are zero
            for stack in self.pairs.stacks:
                shift = jax.tree.map(lambda d: jnp.sum(d, axis=0) / self._samples_counted, stack)
                centre = _tree.add(centre, shift)
        prior = _tree.dot(step, centre) + 0.5 * _tree.dot(step, step)
        return prior + _tree.total(_tree.subtract(there.terms, known.terms)) / self._samples_counted


def _summed(stack):
    """The sum of the entries of a stack."""
    return jax.tree.map(lambda b: jnp.sum(b, axis=0) if b.shape[0] > _SUMMED else sum(b[1:], start=b[0]), stack)


class Knobs(NamedTuple):
    """Settings of a minimisation that may change without recompilation."""

    pairs: Any
    window: Any  # the first of them, and how many there are before they begin again
    newton: Limits
    lead: Any  # how far the global latents of a matrix-free problem go, in terms of how far the KL wants them to


class Moved(NamedTuple):
    """What moving the mean did."""

    kl: Any
    newton: NewtonReport
    finite: Any
    step: dict[str, Any]  # mean square of the mean's move, by site
    scatter: dict[str, Any]  # mean square, by site, of where a pair alone would move the mean, from where all do


@program("rounds", static_argnames=("minimizer", "batch"))
def minimized(curvature, pairs, knobs: Knobs, *, minimizer, batch):
    """The mean that minimises the sampled KL, and what moving it there did."""
    inside = curvature.inside()
    objective = SampledKL(inside, pairs.map(inside.pack), knobs.pairs, batch, knobs.window)
    new, known, report = minimizer.minimize(objective, inside.mean, knobs.newton)
    finite = jnp.isfinite(known.value) & (report.status != Status.NOT_FINITE)
    scatter = inside.scatter(known.seen, knobs.pairs)
    new, old = inside.outside(new), inside.outside(inside.mean)
    if inside.uses_information:
        few = global_sites(curvature.problem.static.latent)
        new = {name: old[name] + knobs.lead * (x - old[name]) if name in few else x for name, x in new.items()}
    step = {name: jnp.mean((x - old[name]) ** 2) for name, x in new.items()}
    return new, Moved(known.value, report, finite, step, scatter)
