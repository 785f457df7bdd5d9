"""A posterior over a latent that is standard normal a priori.

Traced programs of a model and its data come in; the density, the Fisher metric and predictions go out.
It must not know how they are minimised or sampled.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax

from mgvi import _tree
from mgvi._compile import Compiled
from mgvi._trace import Program
from mgvi.coordinates import Site, along_bases
from mgvi.distributions import fisher_sqrt
from mgvi.metric import FisherMetric

Latent = dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class Static:
    """What is fixed when a problem is built: the programs and what is known of the observed sites."""

    latent: dict[str, jax.ShapeDtypeStruct]
    observe: Program
    constrain: Any
    active: dict[str, frozenset[str]]
    scales: Program | None = None  # logarithms of the scales of the sites below, and the latents that they multiply
    scaled: dict[str, Site] = field(default_factory=dict)  # sites whose scale depends on other latents
    compiled: Compiled = field(default_factory=Compiled)
    compressions: dict[Any, Any] = field(default_factory=dict)  # of curvatures, by kind, in adapted coordinates or not


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["static"])
@dataclass(frozen=True, eq=False)
class Problem:
    """A Bayesian inference problem in standardised coordinates.

    Made by `from_numpyro` or `from_function`. It is a pytree whose leaves are the data and the arrays of the model, so
    it can be an argument of compiled functions.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> xi = {"mu": jnp.array(0.5)}
    >>> print(problem.constrain(xi)["mu"])
    1.0
    >>> print(problem.metric(xi).mv({"mu": jnp.array(1.0)})["mu"])
    9.0
    """

    arrays: dict[str, Any]
    static: Static

    @property
    def latent(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the latent, by site name."""
        return dict(self.static.latent)

    @property
    def data(self) -> dict[str, jax.Array]:
        """Observed data by site name; entries under a mask may have been replaced by valid ones."""
        return dict(self.arrays["data"])

    def __repr__(self):
        sizes = ", ".join(f"{name}{list(leaf.shape)}" for name, leaf in self.latent.items())
        data = ", ".join(f"{name}{list(leaf.shape)}" for name, leaf in self.data.items())
        return f"Problem(latent: {sizes}; data: {data})"

    def neg_log_density(self, xi: Latent) -> jax.Array:
        """Negative log-density of latent and data, up to a constant."""
        return _neg_log_density(self, self._checked(xi))

    def metric(self, xi: Latent) -> FisherMetric:
        """The Fisher metric at a latent."""
        return _metric(self, self._checked(xi))

    def constrain(self, xi: Latent) -> dict[str, jax.Array]:
        """Values of all sites in the model's own coordinates, deterministic ones included."""
        return _constrain(self, self._checked(xi))

    def log_likelihood(self, xi: Latent) -> dict[str, jax.Array]:
        """Log-likelihood of each datum, by observed site; without the weights of `scale` handlers."""
        return _log_likelihood(self, self._checked(xi))

    def simulate(self, key: jax.Array, xi: Latent) -> dict[str, jax.Array]:
        """Data drawn from the model at a latent, by observed site."""
        return _simulate(self, key, self._checked(xi))

    def predicted_moments(self, xi: Latent) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
        """Predicted mean and variance of the data at a latent, and which data count, by observed site.

        Sites whose distribution knows no mean or variance are left out.
        """
        return _predicted_moments(self, self._checked(xi))

    def sample_prior(self, key: jax.Array, n: int) -> dict[str, jax.Array]:
        """Values of all sites for `n` draws of the prior, stacked along a leading axis."""
        return _sample_prior(self, key, n)

    def _checked(self, xi):
        expected = self.static.latent
        if not isinstance(xi, dict) or set(xi) != set(expected):
            found = sorted(map(str, xi)) if isinstance(xi, dict) else f"an object of type {type(xi).__name__}"
            raise ValueError(f"a latent is a dict with the keys {sorted(expected)}, found {found}")
        for name, leaf in expected.items():
            value = xi[name] if hasattr(xi[name], "dtype") else np.asarray(xi[name])
            if not (jnp.issubdtype(value.dtype, np.floating) or jnp.issubdtype(value.dtype, np.integer)):
                raise ValueError(f"latent {name!r} must hold real numbers, found dtype {value.dtype}")
            if value.shape != leaf.shape:
                raise ValueError(f"latent {name!r} must have shape {leaf.shape}, found {value.shape}")
        return {name: jnp.asarray(xi[name], leaf.dtype) for name, leaf in expected.items()}

    def in_coordinates(self, coordinates: dict[str, dict[str, Any]]) -> "Problem":
        """The same problem in terms of other latents: see `mgvi.coordinates`. No coordinates: the standard ones."""
        return Problem({**self.arrays, "coordinates": coordinates}, self.static)

    @property
    def coordinates(self) -> dict[str, dict[str, Any]]:
        """Power, origin and basis by site; empty for standard-normal latents."""
        return self.arrays["coordinates"]

    def log_scales(self, xi: Latent) -> dict[str, Any]:
        """Logarithms of the scales that a standard-normal latent gives to other latents, by site."""
        return self.static.scales(self.arrays["constants"], xi)["scales"] if self.static.scales else {}

    def located(self, xi: Latent) -> tuple[Latent, dict[str, Any]]:
        """The standard-normal latent of a point in the problem's coordinates, and logarithms of the scales there."""
        if self.static.scales is None:
            return xi, {}
        found = self.static.scales(self.arrays["constants"], xi, self._seen)
        return {**xi, **found["latents"]}, found["scales"]

    def standard(self, xi: Latent) -> Latent:
        """The standard-normal latent of a point in the problem's coordinates."""
        return self.located(xi)[0]

    def _seen(self, name, latent, log):
        """What the model sees of a latent where its scale has the logarithm `log`."""
        at = self.coordinates.get(name)
        return latent if at is None else self.static.scaled[name].latent(at, log, latent)

    def _observe(self, xi):
        """Distributions of the data, factors, and logarithms of scales."""
        return self.static.observe(self.arrays["constants"], xi, self._seen)


def _density(problem, xi, beta=1.0):
    terms = neg_log_likelihood_terms(problem, xi, beta)
    return 0.5 * _tree.dot(xi, xi) + sum((jnp.sum(t) for t in terms.values()), start=jnp.zeros(()))


# Not for what is differentiated: a program within one takes longer to trace.
_neg_log_density = jax.jit(_density)


def neg_log_likelihood_terms(problem: Problem, xi: Latent, beta: Any = 1.0) -> dict[str, jax.Array]:
    """Negative log-likelihood of each datum and the factors of the model, by site, and what its coordinates add.

    `beta` is the power that the likelihood is raised to.
    """
    return _terms(problem, xi, beta, problem._observe(xi))


def terms_and_information(problem: Problem, xi: Latent, beta: Any) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Those terms, and the `information` of the data, from one evaluation of the model."""
    observed = problem._observe(xi)
    return _terms(problem, xi, beta, observed), _information(problem, observed)


def _terms(problem, xi, beta, observed):
    terms = {name: -factor for name, factor in observed["factors"].items()}
    for name, d in observed["sites"].items():
        weight = problem.arrays["weight"][name]
        log_prob = d.log_prob(problem.arrays["data"][name])
        terms[name] = -log_prob if weight is None else -weight * log_prob
    terms = _tree.scale(beta, terms)
    for name, at in problem.coordinates.items():
        terms[f"coordinates of {name}"] = problem.static.scaled[name].neg_log_ratio(
            at, observed["scales"][name], xi[name]
        )
    return terms


def _root(problem, name, d):
    return fisher_sqrt(d, problem.arrays["weight"][name]).restrict(problem.static.active[name])


def information(problem: Problem, xi: Latent) -> dict[str, Any]:
    """Fisher information of each datum in its parameter, for the observed sites that it may be averaged for."""
    return _information(problem, problem._observe(xi))


def _information(problem, observed):
    sites = observed["sites"].items()
    roots = {name: _root(problem, name, d) for name, d in sites if problem.static.active[name]}
    return {name: root.slope**2 for name, root in roots.items() if root.slope is not None}


def whitened(problem: Problem, xi: Latent, beta: Any = 1.0, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """A function of the latent whose Jacobian at `xi` is R; its value means nothing.

    `known` is information of data that takes the place of that at `xi`.
    """
    white: dict[str, Any] = {}
    observed = problem._observe(xi)
    for name, d in observed["sites"].items():
        if problem.static.active[name]:
            root = _root(problem, name, lax.stop_gradient(d))
            root = root.sloped(jnp.sqrt(known[name])) if known and name in known else root
            white[name] = root.apply(_root(problem, name, d).parameters)
    white = _tree.scale(jnp.sqrt(beta), white)
    for name, at in problem.coordinates.items():
        white[f"coordinates of {name}"] = problem.static.scaled[name].whitened(at, observed["scales"][name])
    return white


def _metric(problem, xi):
    return FisherMetric(jax.linearize(partial(whitened, problem), xi)[1], problem.static.latent)


def tempered_metric(problem: Problem, mean: Latent, known: dict[str, Any], beta: Any, free: Any) -> FisherMetric:
    """The metric at a mean, for directions that are free (1) and not fixed (0).

    `known` is information of data that takes the place of that at the mean; `beta` is the power that the likelihood is
    raised to.
    """
    push = jax.linearize(lambda xi: whitened(problem, xi, beta, known), mean)[1]
    return FisherMetric(lambda v: push(_tree.multiply(free, v)), problem.static.latent)


def averaged_information(problem: Problem, mean: Latent, deviations: Latent, count: Any) -> dict[str, Any]:
    """The information of data averaged over points: the mean plus the first `count` deviations, and minus them.

    The Jacobian is left at the mean: that of a sample counts the sample's noise as if it told of a field's spectrum.
    """

    def add(i, total):
        sign = 1 - 2 * (i % 2)
        point = jax.tree.map(
            lambda m, d: m + sign * lax.dynamic_index_in_dim(d, i // 2, keepdims=False), mean, deviations
        )
        return total.plus(information(problem, point))

    none = _tree.RunningSum.of(jax.eval_shape(partial(information, problem), mean))
    return _tree.scale(0.5 / count, lax.fori_loop(0, 2 * count, add, none).value)


def in_rows(problem: Problem) -> tuple[Problem, Any, Any]:
    """A small problem along the bases of its coordinates, a function from stacks of points to rows, and one back."""
    coordinates, turn = along_bases(problem.coordinates)
    rows = lambda stack: jnp.asarray(_tree.to_rows(turn(stack)))
    return problem.in_coordinates(coordinates), rows, lambda m: turn(_tree.from_rows(m, problem.latent), back=True)


def hessian_products(
    problem: Problem, mean: Latent, spread: Latent, beta: Any, count: Any, vectors: jax.Array, batches: Any
) -> jax.Array:
    """Rows of products of vectors with the Hessian of the negative log-density, averaged over points mean + spread.

    For few latents only. `vectors` is a stack of batches, of which so many count; vectors and products are along the
    bases of the coordinates. `beta` is the power that the likelihood is raised to, `count` the number of points: so
    many of the first half of the spread and of the second, its negative, in turn.
    """
    latent, (problem, rows, _) = problem.latent, in_rows(problem)
    centre, points = rows(jax.tree.map(lambda m: m[None], mean))[0], rows(spread)
    half = points.shape[0] // 2

    def add(i, total):
        slope = jax.grad(lambda x: _density(problem, _tree.from_row(x, latent), beta))
        push = jax.linearize(slope, centre + points[i // 2 + i % 2 * half])[1]
        return lax.fori_loop(0, batches, lambda j, t: t.at[j].add(jax.vmap(push)(vectors[j])), total)

    return lax.fori_loop(0, count, add, jnp.zeros_like(vectors)) / count


def information_products(problem: Problem, mean: Latent, vectors: jax.Array, batches: Any) -> jax.Array:
    """Rows of products of vectors with R^T R at a mean; vectors and products as for `hessian_products`."""
    latent, (problem, rows, _) = problem.latent, in_rows(problem)
    centre = rows(jax.tree.map(lambda m: m[None], mean))[0]
    push = jax.linearize(lambda x: whitened(problem, _tree.from_row(x, latent)), centre)[1]
    metric = FisherMetric(push, centre)
    product = jax.vmap(lambda v: metric.rmatvec(metric.matvec(v)))
    return lax.fori_loop(0, batches, lambda j, found: found.at[j].set(product(vectors[j])), jnp.zeros_like(vectors))


@jax.jit
def _constrain(problem, xi):
    return problem.static.constrain(problem.arrays["constants"], xi, problem._seen)


@jax.jit
def _log_likelihood(problem, xi):
    data = problem.arrays["data"]
    return {name: d.log_prob(data[name]) for name, d in problem._observe(xi)["sites"].items()}


@jax.jit
def _simulate(problem, key, xi):
    sites = problem._observe(xi)["sites"]
    keys = jax.random.split(key, max(len(sites), 1))
    return {name: d.sample(k) for (name, d), k in zip(sites.items(), keys, strict=False)}


@partial(jax.jit, static_argnums=2)
def _sample_prior(problem, key, n):
    def one(key):
        return problem.static.constrain(problem.arrays["constants"], _tree.random_normal(key, problem.static.latent))

    return jax.lax.map(one, jax.random.split(key, n))


def _predicted_moments(problem, xi):
    moments = {}
    for name, d in problem._observe(xi)["sites"].items():
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
