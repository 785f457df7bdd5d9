"""Fisher information from scores, for distributions without a closed form.

Any distribution with a differentiable `log_prob` comes in; the scores at weighted nodes of the data, as a linear map,
go out. The nodes are a quadrature or an enumeration where one can be had, else draws with a fixed key.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions.distribution import Distribution

from mgvi.distributions import standardization
from mgvi.distributions.fisher import Component, FisherSqrt, fisher_rows, register_fisher
from mgvi.errors import ModelError

_TRAPEZOID = np.linspace(-8.0, 8.0, 65)  # in standardised coordinates: analytic integrands converge exponentially
_COUNTS_EXACT, _COUNTS_STRIDED = 64, 192  # nodes one by one from zero, and nodes with a stride
_COUNT_SDS = 9.0  # standard deviations below the mean, and half of those above it, that the strided nodes span
_DRAWS = 512  # Monte Carlo draws


class _Nodes(NamedTuple):
    """Data values along a leading axis, and the probability that each stands for."""

    values: jax.Array
    weights: jax.Array
    approximation: str


def score_map(d: Distribution) -> FisherSqrt:
    """The map from tangents of all float leaves of a distribution to weighted scores at nodes."""
    leaves = {f"leaf{i}": leaf for i, leaf in enumerate(jax.tree.leaves(d))}
    is_float = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    parameters = {name: jnp.asarray(leaf) for name, leaf in leaves.items() if is_float(leaf)}
    values, weights, approximation = _nodes(lax.stop_gradient(d))

    def apply(tangents):
        at = {name: parameters[name] for name in tangents}
        scores = jax.jvp(lambda given: with_leaves(d, given).log_prob(values), (at,), (dict(tangents),))[1]
        # A node of no weight may have no finite score.
        weighted = jnp.where(weights > 0, jnp.sqrt(weights) * jnp.where(weights > 0, scores, 0.0), 0.0)
        return jnp.moveaxis(weighted, 0, -1)

    return FisherSqrt(parameters, (Component(tuple(parameters), apply, event_dim=1),), approximation=approximation)


def with_leaves(d: Any, given: dict[str, Any]) -> Any:
    """A distribution with other values for some of its leaves, by the names that `score_map` gives to them."""
    leaves, treedef = jax.tree.flatten(d)
    for name, leaf in given.items():
        leaves[int(name.removeprefix("leaf"))] = leaf
    return jax.tree.unflatten(treedef, leaves)


def _nodes(d) -> _Nodes:
    discrete = d.support is not None and d.support.is_discrete
    if not d.event_shape:
        if discrete and d.has_enumerate_support:
            values = d.enumerate_support(expand=True)
            return _Nodes(values, jnp.exp(d.log_prob(values)), "enumeration")
        if discrete:
            nodes = _count_nodes(d)
        elif isinstance(d, dist.MixtureSameFamily | dist.MixtureGeneral):
            nodes = _mixture_nodes(d)
        else:
            nodes = _standardised_nodes(d) or _unconstrained_nodes(d)
        if nodes is not None:
            return nodes
    values = d.sample(jax.random.key(0), (_DRAWS,))
    shape = (_DRAWS,) + tuple(d.batch_shape)
    return _Nodes(values, jnp.full(shape, 1 / _DRAWS), f"Monte Carlo with {_DRAWS} draws")


def _rule(extra_dims: int):
    """Nodes and weights of a standard normal by the trapezoid rule, along a leading axis."""
    weights = np.exp(-0.5 * _TRAPEZOID**2)
    shape = (-1,) + (1,) * extra_dims
    as_array = lambda x: jnp.asarray(x, jnp.result_type(float)).reshape(shape)
    return as_array(_TRAPEZOID), as_array(weights / weights.sum())


def _standardised_nodes(d) -> _Nodes | None:
    """A quadrature in the standardised coordinate of the datum."""
    batch = tuple(d.batch_shape)
    x, w = _rule(len(batch))
    try:
        if standardization.latent_shape(d) != batch:
            return None
        values = standardization._apply(d, jnp.broadcast_to(x, (_TRAPEZOID.size, *batch)))
    except ModelError:
        return None
    return _Nodes(values, jnp.broadcast_to(w, (_TRAPEZOID.size, *batch)), "quadrature")


def _unconstrained_nodes(d) -> _Nodes | None:
    """A quadrature in an unconstrained coordinate, spread as some draws are."""
    batch = tuple(d.batch_shape)
    try:
        transform = dist.biject_to(d.support)
        draws = transform.inv(d.sample(jax.random.key(0), (_DRAWS,)))
        centre, spread = jnp.mean(draws, axis=0), jnp.std(draws, axis=0)
        x = jnp.broadcast_to(1.5 * _rule(len(batch))[0], (_TRAPEZOID.size, *batch))
        at = centre + spread * x
        values = transform(at)
        log_weight = d.log_prob(values) + transform.log_abs_det_jacobian(at, values)
    except NotImplementedError:
        return None
    weights = jnp.where(jnp.isfinite(log_weight), jnp.exp(log_weight), 0.0)
    return _Nodes(values, weights / jnp.sum(weights, axis=0), "quadrature")


def _mixture_nodes(d) -> _Nodes | None:
    """The nodes of every component, weighted by the mixing probabilities."""
    probs = d.mixing_distribution.probs
    if isinstance(d, dist.MixtureSameFamily):
        inner = _standardised_nodes(d.component_distribution)
        if inner is None:
            return None
        values = jnp.moveaxis(inner.values, -1, 0)
        weights = jnp.moveaxis(inner.weights * probs, -1, 0)
    else:
        parts = [_standardised_nodes(c) for c in d.component_distributions]
        if any(p is None for p in parts):
            return None
        values = jnp.stack([p.values for p in parts if p is not None])
        weights = jnp.stack([p.weights * probs[..., k] for k, p in enumerate(parts) if p is not None])
    batch = tuple(d.batch_shape)
    values = jnp.broadcast_to(values, values.shape[:2] + batch).reshape(-1, *batch)
    return _Nodes(values, jnp.broadcast_to(weights, weights.shape[:2] + batch).reshape(-1, *batch), "quadrature")


def _count_nodes(d) -> _Nodes | None:
    """Counts one by one from zero, and beyond with a stride that is 1 unless they spread widely."""
    try:
        mean, sd = d.mean, jnp.sqrt(d.variance)
    except NotImplementedError:
        return None
    batch = tuple(d.batch_shape)
    shape = (-1,) + (1,) * len(batch)
    exact = jnp.broadcast_to(jnp.arange(_COUNTS_EXACT).reshape(shape), (_COUNTS_EXACT, *batch))
    first = jnp.maximum(jnp.floor(mean - _COUNT_SDS * sd), _COUNTS_EXACT)
    last = jnp.maximum(jnp.ceil(mean + 2 * _COUNT_SDS * sd), first + _COUNTS_STRIDED)
    stride = jnp.ceil((last - first) / _COUNTS_STRIDED)
    strided = first + stride * (jnp.arange(_COUNTS_STRIDED).reshape(shape) + 0.0)
    centre = strided + jnp.floor(0.5 * (stride - 1))
    values = jnp.concatenate([exact, jnp.broadcast_to(centre, (_COUNTS_STRIDED, *batch)).astype(int)])
    stands_for = jnp.concatenate(
        [jnp.ones((_COUNTS_EXACT, *batch)), jnp.broadcast_to(stride, (_COUNTS_STRIDED, *batch))]
    )
    return _Nodes(values, jnp.exp(d.log_prob(values)) * stands_for, "enumeration")


register_fisher(Distribution)(score_map)  # for all families without a rule of their own
register_fisher(dist.Delta)(lambda d: fisher_rows({}, []))
