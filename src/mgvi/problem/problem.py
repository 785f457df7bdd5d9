"""A posterior over a latent that is standard normal a priori.

Traced programs of a model and its data come in; the density, the Fisher metric and predictions go out.
It must not know how they are minimised or sampled.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi import _tree
from mgvi._compile import Compiled, program
from mgvi._trace import Program
from mgvi.budget import Budget
from mgvi.problem import density as _density
from mgvi.problem.charts import Chart, Site
from mgvi.problem.metric import FisherMetric

Latent = dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class Static:
    """What is fixed when a problem is built: the programs and what is known of the observed sites."""

    latent: dict[str, jax.ShapeDtypeStruct]
    observe: Program
    constrain: Program
    active: dict[str, frozenset[str]]  # parameters of each observed site that depend on the latent
    budget: Budget
    scales: Program | None = None  # logarithms of the scales of the sites below, and the latents that they multiply
    scaled: dict[str, Site] = field(default_factory=dict)  # sites whose scale depends on other latents
    compiled: Compiled = field(default_factory=Compiled)
    compressions: dict[Any, Any] = field(default_factory=dict)  # of curvatures, by kind, in a chart or not
    variants: dict[str, "Static"] = field(default_factory=dict)  # the same with other budgets


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
        push = jax.linearize(partial(_density.whitened, self), self._checked(xi))[1]
        return FisherMetric(push, self.static.latent)

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
        return _density.predicted_moments(self, self._checked(xi))

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

    def latent_zeros(self) -> dict[str, Any]:
        """The median of the prior, on the host."""
        return {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in self.static.latent.items()}

    @property
    def budget(self) -> Budget:
        """How much of everything the problem is worth."""
        return self.static.budget

    def with_budget(self, budget: Budget) -> "Problem":
        """The same problem, worth as much as is said."""
        known = self.static.variants
        if repr(budget) not in known:
            known[repr(budget)] = replace(self.static, budget=budget)
        return Problem(self.arrays, known[repr(budget)])

    def matrix_free(self) -> "Problem":
        """The same problem, whose curvature is only multiplied with."""
        budget = self.budget.matrix_free(_tree.size(self.latent), _tree.size(self.data))
        return self if budget is self.budget else self.with_budget(budget)

    def in_chart(self, chart: Chart) -> "Problem":
        """The same problem in other coordinates (see `mgvi.problem.charts`); an empty chart has the standard ones."""
        return Problem({**self.arrays, "chart": chart}, self.static)

    @property
    def chart(self) -> Chart:
        """The coordinates of the problem, by site; empty for standard-normal latents."""
        return self.arrays["chart"]

    def log_scales(self, xi: Latent) -> dict[str, Any]:
        """Logarithms of the scales that a standard-normal latent gives to other latents, by site."""
        return self.static.scales(self.arrays["constants"], xi)["scales"] if self.static.scales else {}

    def located(self, zeta: Latent) -> tuple[Latent, dict[str, Any]]:
        """The standard-normal latent of a point in the problem's chart, and logarithms of the scales there."""
        if self.static.scales is None:
            return zeta, {}
        found = self.static.scales(self.arrays["constants"], zeta, self._seen)
        return {**zeta, **found["latents"]}, found["scales"]

    def charted(self, xi: Latent) -> tuple[Latent, Any]:
        """The point in the problem's chart of a standard-normal latent, and the log-determinant of that map."""
        logs, sites = self.log_scales(xi) if self.chart else {}, self.static.scaled
        points = {name: sites[name].coordinate(at, logs[name], xi[name]) for name, at in self.chart.items()}
        volumes = {name: sites[name].log_volume(at, logs[name]) for name, at in self.chart.items()}
        return {**xi, **points}, _tree.total(volumes)

    def _seen(self, name, latent, log):
        """What the model sees of a latent where its scale has the logarithm `log`."""
        at = self.chart.get(name)
        return latent if at is None else self.static.scaled[name].latent(at, log, latent)

    def observed(self, xi: Latent) -> dict[str, dict[str, Any]]:
        """Distributions of the data, factors, and logarithms of scales, at a point in the problem's chart."""
        return self.static.observe(self.arrays["constants"], xi, self._seen)


# A program within one takes longer to trace: what is differentiated calls `density` itself.
_neg_log_density = jax.jit(_density.density)


@jax.jit
def _constrain(problem, xi):
    return problem.static.constrain(problem.arrays["constants"], xi, problem._seen)["values"]


@jax.jit
def _log_likelihood(problem, xi):
    data = problem.arrays["data"]
    return {name: d.log_prob(data[name]) for name, d in problem.observed(xi)["sites"].items()}


@jax.jit
def _simulate(problem, key, xi):
    sites = problem.observed(xi)["sites"]
    keys = jax.random.split(key, max(len(sites), 1))
    return {name: d.sample(k) for (name, d), k in zip(sites.items(), keys, strict=False)}


@partial(jax.jit, static_argnums=2)
def _sample_prior(problem, key, n):
    def one(key):
        xi = _tree.random_normal(key, problem.static.latent)
        return problem.static.constrain(problem.arrays["constants"], xi)["values"]

    return jax.lax.map(one, jax.random.split(key, n))


@program("once")
def located(problem: Problem, mean: Latent) -> tuple[Latent, dict[str, Any]]:
    """`Problem.located`, compiled."""
    return problem.located(mean)
