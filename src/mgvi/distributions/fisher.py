"""The open table of square roots of Fisher information.

A distribution of data comes in; a linear map from tangents of its parameters to a whitened data space goes out, whose
Gram matrix is the Fisher information. It must not know how parameters depend on a latent.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions.distribution import Distribution

_RULES: dict[type, Callable[[Any], "FisherSqrt"]] = {}


@dataclass(frozen=True)
class Component:
    """One whitened array: `apply` takes tangents of (some of) `names`; the last `event_dim` axes are one datum's."""

    names: tuple[str, ...]
    apply: Callable[[Mapping[str, jax.Array]], jax.Array]
    event_dim: int = 0


@dataclass(frozen=True)
class FisherSqrt:
    """A linear map whose Gram matrix is the Fisher information of a distribution of data.

    Parameters
    ----------
    parameters : dict
        Values of the parameters that tangents refer to, by name.
    components : tuple of Component
        The parts of the map.
    batch_shape : tuple of int, optional
        Shape of the independent data. A component of smaller shape stands for all data that share it.
    weight : array, optional
        Multiplies the information of each datum; broadcasts to `batch_shape`.
    approximation : str
        How the information is approximated, empty if it is exact.
    unless : tuple, optional
        Names and another map of the same parameters, which stands in as soon as one of these parameters has a tangent.
    slope : array, optional
        Root of the information of each datum, for a single parameter whose information may be averaged over several of
        its values: see `averages` of `fisher_rows`.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro.distributions as dist
    >>> from mgvi.distributions import fisher_sqrt
    >>> root = fisher_sqrt(dist.Poisson(jnp.array([4.0, 25.0])))
    >>> print(root.apply({"rate": jnp.array([1.0, 1.0])})[0])
    [0.5 0.2]
    """

    parameters: dict[str, jax.Array]
    components: tuple[Component, ...]
    batch_shape: tuple[int, ...] | None = None
    weight: Any = None
    approximation: str = ""
    unless: tuple[frozenset[str], "FisherSqrt"] | None = None
    slope: Any = None

    def apply(self, tangents: Mapping[str, jax.Array]) -> list[jax.Array]:
        """Whitened arrays for a dict of tangents; names that are missing count as zero."""
        unknown = set(tangents) - set(self.parameters)
        if unknown:
            raise ValueError(f"no parameters {sorted(unknown)}; there are {sorted(self.parameters)}")
        if self.unless is not None and self.unless[0].intersection(tangents):
            return self._other().apply(tangents)
        whitened = []
        for component in self.components:
            given = {name: tangents[name] for name in component.names if name in tangents}
            given = given or {name: jnp.zeros_like(self.parameters[name]) for name in component.names}
            value = component.apply(given)
            whitened.append(value * self._root_weight(value.shape, component.event_dim))
        return whitened

    def restrict(self, names: Iterable[str]) -> "FisherSqrt":
        """The same map for tangents of only these parameters."""
        kept = set(names)
        if self.unless is not None and self.unless[0].intersection(kept):
            return self._other().restrict(kept)
        components = tuple(
            replace(c, names=tuple(n for n in c.names if n in kept))
            for c in self.components
            if kept.intersection(c.names)
        )
        parameters = {n: v for n, v in self.parameters.items() if n in kept}
        return replace(self, parameters=parameters, components=components, unless=None)

    def sloped(self, slope: Any) -> "FisherSqrt":
        """The same map with another root of the information."""
        (name,) = self.parameters
        return replace(self, components=(_component({name: slope}),), slope=slope)

    def _other(self):
        assert self.unless is not None
        return replace(self.unless[1], batch_shape=self.batch_shape, weight=self.weight)

    def _root_weight(self, shape, event_dim):
        """sqrt of the summed weight of the data that share each entry of a component."""
        if self.batch_shape is None and self.weight is None:
            return 1.0
        full = self.batch_shape or ()
        natural = shape[: len(shape) - event_dim]
        full = jnp.broadcast_shapes(full, natural)
        if self.weight is None:
            return math.sqrt(math.prod(full) / max(math.prod(natural), 1))
        weight = jnp.broadcast_to(self.weight, full)
        lead = len(full) - len(natural)
        weight = weight.sum(axis=tuple(range(lead)))
        shared = tuple(i for i, n in enumerate(natural) if n == 1 and full[lead + i] != 1)
        weight = weight.sum(axis=shared, keepdims=True)
        return jnp.sqrt(weight).reshape(natural + (1,) * event_dim)


def _component(row: Mapping[str, Any]) -> Component:
    def apply(tangents):
        return sum((jnp.asarray(row[name] * t) for name, t in tangents.items()), start=jnp.zeros(()))

    return Component(tuple(row), apply)


def fisher_rows(
    parameters: dict[str, Any], rows: Sequence[Mapping[str, Any]], approximation: str = "", averages: bool = False
) -> FisherSqrt:
    """Build a map from rows of coefficients: each row is one whitened number a datum.

    Parameters
    ----------
    parameters : dict
        Parameter values by name.
    rows : sequence of dict
        Each row maps parameter names to coefficients; the whitened number is the sum of coefficient times tangent.
    approximation : str
        How the information is approximated, empty if it is exact.
    averages : bool
        Whether the information at several values of the parameter may be averaged, because it is the curvature of the
        log-likelihood for every datum, at least in some coordinate. Needs a single parameter and a single row.

    Returns
    -------
    FisherSqrt

    Examples
    --------
    >>> from mgvi.distributions import fisher_rows
    >>> fisher_rows({"loc": 0.0}, [{"loc": 2.0}]).apply({"loc": 3.0})
    [Array(6., dtype=float32)]
    """
    slope = None
    if averages:
        ((name,), (row,)) = parameters, rows
        slope = row[name]
    return FisherSqrt(dict(parameters), tuple(map(_component, rows)), approximation=approximation, slope=slope)


def fisher_from_information(parameters: dict[str, Any], information: Mapping[tuple[str, str], Any]) -> FisherSqrt:
    """Build a map from the entries of a small Fisher matrix a datum, by a Cholesky factor that tolerates rank loss.

    Parameters
    ----------
    parameters : dict
        Parameter values by name; their order is the order of elimination.
    information : dict
        Entries ``(name, name) -> value``; one triangle suffices, missing entries are zero.

    Returns
    -------
    FisherSqrt

    Examples
    --------
    >>> from mgvi.distributions import fisher_from_information
    >>> root = fisher_from_information({"a": 1.0, "b": 1.0}, {("a", "a"): 4.0, ("a", "b"): 2.0, ("b", "b"): 2.0})
    >>> [float(x) for x in root.apply({"a": 1.0, "b": 1.0})]
    [3.0, 1.0]
    """
    names = list(parameters)
    left = {
        (i, j): jnp.asarray(information.get((i, j), information.get((j, i), 0.0)))
        for k, i in enumerate(names)
        for j in names[: k + 1]
    }
    rows = []
    for k, pivot in enumerate(names):
        square = left[pivot, pivot]
        usable = square > 0
        root = jnp.where(usable, jnp.sqrt(jnp.where(usable, square, 1.0)), 0.0)
        row = {pivot: root}
        for name in names[k + 1 :]:
            row[name] = jnp.where(usable, left[name, pivot] / jnp.where(usable, root, 1.0), 0.0)
        for a, i in enumerate(names[k + 1 :], k + 1):
            for j in names[k + 1 : a + 1]:
                left[i, j] = left[i, j] - row[i] * row[j]
        rows.append(row)
    return fisher_rows(parameters, rows)


def register_fisher(cls: type[Distribution]):
    """Add the Fisher information of a distribution of data to the table.

    Parameters
    ----------
    cls : type
        The NumPyro distribution class; subclasses inherit the rule.

    Returns
    -------
    decorator
        For a function from the distribution to a `FisherSqrt`, built with `fisher_rows`, `fisher_from_information`
        or by hand.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro.distributions as dist
    >>> from mgvi.distributions import fisher_rows, fisher_sqrt, register_fisher
    >>> class Shot(dist.Poisson):
    ...     pass
    >>> @register_fisher(Shot)
    ... def shot(d):
    ...     return fisher_rows({"rate": d.rate}, [{"rate": 1 / jnp.sqrt(d.rate)}])
    >>> print(fisher_sqrt(Shot(4.0)).apply({"rate": 1.0})[0])
    0.5
    """

    def decorator(rule):
        _RULES[cls] = rule
        return rule

    return decorator


def fisher_sqrt(distribution: Distribution, weight: Any = None) -> FisherSqrt:
    """Square root of the Fisher information of a distribution of data.

    Parameters
    ----------
    distribution : numpyro.distributions.Distribution
        The distribution of the data given the parameters.
    weight : array, optional
        Multiplies the information of each datum (a mask, or the `scale` of a NumPyro site); broadcasts to the batch
        shape.

    Returns
    -------
    FisherSqrt
        Exact for registered distributions; otherwise built from scores at quadrature or enumeration nodes or at
        random draws, as its `approximation` says.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro.distributions as dist
    >>> from mgvi.distributions import fisher_sqrt
    >>> root = fisher_sqrt(dist.Normal(jnp.zeros(100), 2.0))
    >>> [round(float(jnp.sum(x**2)), 3) for x in root.apply({"scale": jnp.array(1.0)})]
    [0.0, 50.0]
    """
    batch_shape = tuple(distribution.batch_shape)
    d = distribution
    while isinstance(d, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        if isinstance(d, dist.MaskedDistribution):
            weight = d._mask if weight is None else d._mask * weight
        elif isinstance(d, dist.Independent):
            n = d.reinterpreted_batch_ndims
            batch_shape = batch_shape + tuple(d.base_dist.batch_shape)[len(d.base_dist.batch_shape) - n :]
            weight = None if weight is None else jnp.asarray(weight)[(...,) + (None,) * n]
        d = d.base_dist
    root = next(_RULES[cls] for cls in type(d).__mro__ if cls in _RULES)(d)  # `Distribution` itself has a rule
    if weight is not None:
        weight = jnp.asarray(weight, jnp.result_type(weight, float))
    return replace(root, batch_shape=batch_shape, weight=weight)
