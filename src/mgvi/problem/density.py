"""Density and metric of a problem, term by term, in whatever chart it is in.

A problem and a point come in; terms of the density, information of the data, and products with metric and Hessian go
out. It must not know how they are minimised or sampled.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax

from mgvi import _tree
from mgvi.distributions import fisher_sqrt
from mgvi.pairs import Pairs
from mgvi.problem.charts import along_bases
from mgvi.problem.metric import FisherMetric

if TYPE_CHECKING:
    from mgvi.problem.problem import Problem

Latent = dict[str, Any]


def density(problem: "Problem", xi: Latent, beta: Any = 1.0) -> jax.Array:
    """Negative log-density of latent and data, up to a constant."""
    return 0.5 * _tree.dot(xi, xi) + _tree.total(neg_log_likelihood_terms(problem, xi, beta))


def neg_log_likelihood_terms(problem: "Problem", xi: Latent, beta: Any = 1.0) -> dict[str, jax.Array]:
    """Negative log-likelihood of each datum and the factors of the model, by site, and what the chart adds.

    `beta` is the power that the likelihood is raised to.
    """
    return _terms(problem, xi, beta, problem.observed(xi))


def terms_and_information(problem: "Problem", xi: Latent, beta: Any) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Those terms, and the `information` of the data, from one evaluation of the model."""
    observed = problem.observed(xi)
    return _terms(problem, xi, beta, observed), _information(problem, observed)


def _terms(problem, xi, beta, observed):
    terms = {name: -factor for name, factor in observed["factors"].items()}
    for name, d in observed["sites"].items():
        weight = problem.arrays["weight"][name]
        log_prob = d.log_prob(problem.arrays["data"][name])
        terms[name] = -log_prob if weight is None else -weight * log_prob
    terms = _tree.scale(beta, terms)
    for name, at in problem.chart.items():
        terms[f"chart of {name}"] = problem.static.scaled[name].neg_log_ratio(at, observed["scales"][name], xi[name])
    return terms


def _root(problem, name, d):
    return fisher_sqrt(d, problem.arrays["weight"][name]).restrict(problem.static.active[name])


def information(problem: "Problem", xi: Latent) -> dict[str, Any]:
    """Fisher information of each datum in its parameter, for the observed sites that it may be averaged for."""
    return _information(problem, problem.observed(xi))


def _information(problem, observed):
    sites = observed["sites"].items()
    roots = {name: _root(problem, name, d) for name, d in sites if problem.static.active[name]}
    return {name: root.slope**2 for name, root in roots.items() if root.slope is not None}


def whitened(problem: "Problem", xi: Latent, beta: Any = 1.0, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """A function of the latent whose Jacobian at `xi` is R; its value means nothing.

    `given` is information of data that takes the place of that at `xi`.
    """
    white: dict[str, Any] = {}
    observed = problem.observed(xi)
    for name, d in observed["sites"].items():
        if problem.static.active[name]:
            root = _root(problem, name, lax.stop_gradient(d))
            root = root.sloped(jnp.sqrt(given[name])) if given and name in given else root
            white[name] = root.apply(_root(problem, name, d).parameters)
    white = _tree.scale(jnp.sqrt(beta), white)
    for name, at in problem.chart.items():
        white[f"chart of {name}"] = problem.static.scaled[name].whitened(at, observed["scales"][name])
    return white


def tempered_metric(problem: "Problem", mean: Latent, given: dict[str, Any], beta: Any, free: Any) -> FisherMetric:
    """The metric at a mean, for the sites that are free (1) and not fixed (0).

    `given` is information of data that takes the place of that at the mean; `beta` is the power that the likelihood is
    raised to.
    """
    push = jax.linearize(lambda xi: whitened(problem, xi, beta, given), mean)[1]
    return FisherMetric(lambda v: push(_tree.multiply(free, v)), problem.static.latent)


def averaged_information(problem: "Problem", mean: Latent, pairs: Pairs, count: Any) -> dict[str, Any]:
    """The information of data averaged over the points of the first `count` pairs around a mean.

    The Jacobian of the metric is left at the mean: that of a sample counts the sample's noise as if it told of a
    field's spectrum.
    """
    add = lambda i, total: total.plus(information(problem, _tree.add(mean, pairs.deviation(i))))
    none = _tree.RunningSum.of(jax.eval_shape(partial(information, problem), mean))
    return _tree.scale(1 / (pairs.each * count), lax.fori_loop(0, pairs.each * count, add, none).value)


def in_rows(problem: "Problem") -> tuple["Problem", Callable, Callable]:
    """A problem along the bases of its chart, a function from stacks of points to rows, and one back.

    Vectors make for smaller programs than trees with many leaves.
    """
    chart, turn = along_bases(problem.chart)
    rows = lambda stack: jnp.asarray(_tree.to_rows(turn(stack)))
    return problem.in_chart(chart), rows, lambda m: turn(_tree.from_rows(m, problem.latent), back=True)


def hessian_products(
    problem: "Problem", mean: Latent, points: Latent, beta: Any, count: Any, vectors: jax.Array, batches: Any
) -> jax.Array:
    """Rows of products of vectors with the Hessian of the negative log-density, averaged over mean + points.

    `points` is a stack of which the first `count` count. `vectors` is a stack of batches, of which so many count.
    Vectors and products are along the bases of the chart. `beta` is the power that the likelihood is raised to.
    """
    latent, (problem, rows, _) = problem.latent, in_rows(problem)
    centre, points = rows(_tree.stacked(mean))[0], rows(points)

    def add(i, total):
        slope = jax.grad(lambda x: density(problem, _tree.from_row(x, latent), beta))
        push = jax.linearize(slope, centre + points[i])[1]
        return lax.fori_loop(0, batches, lambda j, t: t.at[j].add(jax.vmap(push)(vectors[j])), total)

    return lax.fori_loop(0, count, add, jnp.zeros_like(vectors)) / count


def information_products(problem: "Problem", mean: Latent, vectors: jax.Array, batches: Any) -> jax.Array:
    """Rows of products of vectors with R^T R at a mean; vectors and products as for `hessian_products`."""
    latent, (problem, rows, _) = problem.latent, in_rows(problem)
    centre = rows(_tree.stacked(mean))[0]
    push = jax.linearize(lambda x: whitened(problem, _tree.from_row(x, latent)), centre)[1]
    metric = FisherMetric(push, centre)
    product = jax.vmap(lambda v: metric.rmatvec(metric.matvec(v)))
    return lax.fori_loop(0, batches, lambda j, found: found.at[j].set(product(vectors[j])), jnp.zeros_like(vectors))


def predicted_moments(problem: "Problem", xi: Latent) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
    """Predicted mean and variance of the data at a latent, and which data count, by observed site."""
    moments = {}
    for name, d in problem.observed(xi)["sites"].items():
        counts = jnp.ones(d.batch_shape, bool)
        inner = d
        while isinstance(inner, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
            if isinstance(inner, dist.MaskedDistribution) and inner.batch_shape == d.batch_shape:
                counts = counts & inner._mask
            inner = inner.base_dist
        try:
            centre, variance = d.mean, d.variance
        except NotImplementedError:
            continue
        if jnp.shape(centre) == d.shape() == jnp.shape(variance):
            moments[name] = (centre, variance, counts.reshape(counts.shape + (1,) * d.event_dim))
    return moments
