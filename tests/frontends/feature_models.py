"""Small NumPyro models, one for each feature of the language, with what an oracle needs to know of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

RNG = np.random.default_rng(20)
X = RNG.normal(size=12)
Y = 0.7 * X + 0.3 * RNG.normal(size=12)
TABLE = RNG.normal(size=(3, 4))
COUNTS = RNG.poisson(6.0, size=8)
GROUP = np.array([0, 0, 1, 1, 1, 2, 2, 2])


def interval(low, high, panels=60, order=12):
    """Nodes and weights of an integral over an interval."""
    x, w = np.polynomial.legendre.leggauss(order)
    half = 0.5 * (high - low) / panels
    middle = low + half * (2 * np.arange(panels) + 1)
    return (middle[:, None] + half * x).ravel(), np.tile(half * w, panels)


def whole(n):
    """Nodes and weights of a sum over the integers 0 ... n - 1."""
    return np.arange(n), np.ones(n)


REAL = interval(-60.0, 60.0, panels=600)


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and for each univariate site of data the nodes that integrate over them."""

    model: Callable
    arrays: tuple[Any, ...]
    nodes: dict[str, Any]
    sites: set[str]  # names that `constrain` has to return
    warns: str = ""
    tolerance: float = 1e-7  # of the Fisher information
    substituted: dict[str, str] = field(default_factory=dict)  # a plate, and the site that holds its indices

    @property
    def args(self):
        """Fresh copies: JAX keeps the first conversion of a NumPy array, also after a change of precision."""
        return tuple(array.copy() for array in self.arrays)


CASES: dict[str, Case] = {}


def case(*args, wrap=None, **known):
    """Register a model, possibly inside a handler, under the model's name."""

    def decorator(model):
        wrapped = wrap(model) if wrap else model
        wrapped.__name__ = model.__name__
        CASES[model.__name__] = Case(wrapped, args, **known)
        return model

    return decorator


# --- plates, hierarchies ---


@case(Y, nodes={"y": REAL}, sites={"mu", "sd"})
def shared_scalars_without_a_plate(y):
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(mu, sd), obs=y)


@case(X, Y, nodes={"y": REAL}, sites={"slope", "sd", "line"})
def plate_with_deterministic(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    line = numpyro.deterministic("line", slope * x)
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(line, sd), obs=y)


@case(TABLE, nodes={"y": REAL}, sites={"row", "column", "sd"})
def nested_plates(y):
    sd = numpyro.sample("sd", dist.Gamma(3.0, 3.0))
    rows, columns = numpyro.plate("rows", 3, dim=-2), numpyro.plate("columns", 4, dim=-1)
    with rows:
        row = numpyro.sample("row", dist.Normal(0.0, 2.0))
    with columns:
        column = numpyro.sample("column", dist.StudentT(5.0, 0.0, 0.5))
    with rows, columns:
        numpyro.sample("y", dist.Normal(row + column, sd), obs=y)


@case(COUNTS, GROUP, nodes={"counts": whole(400)}, sites={"level", "spread", "group", "rate"})
def hierarchy(counts, member):
    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    spread = numpyro.sample("spread", dist.InverseGamma(4.0, 1.0))
    with numpyro.plate("groups", 3):
        group = numpyro.sample("group", dist.Normal(level, spread))
    rate = numpyro.deterministic("rate", jnp.exp(group)[member])
    with numpyro.plate("data", len(counts)):
        numpyro.sample("counts", dist.Poisson(rate), obs=counts)


@case(
    jnp.arange(20.0),
    nodes={"y": REAL},
    sites={"mu", "sd", "index"},
    substituted={"data": "index"},
)
def subsampled_data(y):
    mu = numpyro.sample("mu", dist.Normal(5.0, 3.0))
    sd = numpyro.sample("sd", dist.LogNormal(1.0, 0.5))
    with numpyro.plate("data", 20, subsample_size=5) as index:
        numpyro.deterministic("index", index)
        numpyro.sample("y", dist.Normal(mu, sd), obs=y[index])


@case(TABLE, nodes={"y": REAL}, sites={"mu", "sd"})
def event_of_independent_data(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0), sample_shape=(4,))
    sd = numpyro.sample("sd", dist.HalfCauchy(1.0))
    with numpyro.plate("rows", 3):
        numpyro.sample("y", dist.Normal(mu, sd).to_event(1), obs=y)


@case(X[:6], nodes={"y": REAL}, sites={"x", "sd"})
def sample_shape(y):
    x = numpyro.sample("x", dist.Normal(jnp.array([1.0, -1.0]), 0.5), sample_shape=(3,))
    sd = numpyro.sample("sd", dist.Uniform(0.2, 2.0))
    numpyro.sample("y", dist.Normal(x.reshape(-1), sd), obs=y)


@case(Y, COUNTS, np.array([0, 1, 1]), nodes={"y": REAL, "n": whole(400), "hit": whole(2)}, sites={"a", "b"})
def several_observed_sites(y, counts, hits):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Normal(a, 0.5 + b), obs=y)
    numpyro.sample("n", dist.Poisson(jnp.exp(a) + 3 * b), obs=counts)
    numpyro.sample("hit", dist.Bernoulli(logits=a - b), obs=hits)


# --- handlers ---

KEPT = np.array([True, True, False, True, False, True, True, True, True, True, True, False])


@case(X, Y, KEPT, nodes={"y": REAL}, sites={"mu", "sd"})
def mask_handler(x, y, kept):
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.5))
    with handlers.mask(mask=kept):
        numpyro.sample("y", dist.Normal(mu + x * sd, sd), obs=y)


@case(X, Y, nodes={"y": REAL}, sites={"mu", "sd"})
def scale_handler(x, y):
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.5))
    with handlers.scale(scale=2.5), numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu + x, sd), obs=y)


@case(
    wrap=lambda model: handlers.condition(model, {"y": jnp.asarray(Y)}),
    nodes={"y": REAL},
    sites={"mu", "sd"},
)
def condition_handler():
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.Exponential(1.0))
    with numpyro.plate("data", len(Y)):
        numpyro.sample("y", dist.Normal(mu, sd))


@case(
    Y,
    wrap=lambda model: handlers.substitute(model, {"sd": jnp.array(0.7)}),
    nodes={"y": REAL},
    sites={"mu", "sd"},
)
def substitute_handler(y):
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.Exponential(1.0))
    numpyro.sample("y", dist.Normal(mu, sd), obs=y)


@case(Y, wrap=lambda model: handlers.do(model, {"mu": jnp.array(0.4)}), nodes={"y": REAL}, sites={"mu", "sd"})
def do_handler(y):
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.Exponential(1.0))
    numpyro.sample("y", dist.Normal(mu, sd), obs=y)


@case(
    COUNTS,
    GROUP,
    wrap=lambda model: handlers.reparam(model, {"group": LocScaleReparam(0.3)}),
    nodes={"counts": whole(400)},
    sites={"level", "spread", "group", "group_decentered"},
)
def loc_scale_reparam(counts, member):
    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    with numpyro.plate("groups", 3):
        group = numpyro.sample("group", dist.Normal(level, spread))
    numpyro.sample("counts", dist.Poisson(jnp.exp(group)[member]), obs=counts)


@case(
    Y,
    wrap=lambda model: handlers.reparam(model, {"mu": TransformReparam()}),
    nodes={"y": REAL},
    sites={"spread", "mu", "mu_base"},
)
def transform_reparam(y):
    spread = numpyro.sample("spread", dist.Weibull(1.0, 2.0))
    to = dist.transforms.AffineTransform(0.5, spread)
    mu = numpyro.sample("mu", dist.TransformedDistribution(dist.Normal(0.0, 1.0), to))
    numpyro.sample("y", dist.Normal(mu, 0.3), obs=y)


@case(X[:6], nodes={"y": REAL}, sites={"phi", "noise", "x"})
def scan_with_latents_and_data(y):
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))

    def step(x, y):
        x = numpyro.sample("x", dist.Normal(phi * x, noise))
        numpyro.sample("y", dist.Normal(x, 0.2 + noise), obs=y)
        return x, None

    scan(step, jnp.array(0.5), y)


@case(Y, nodes={"y": REAL}, sites={"switch", "spread", "shift"})
def branches(y):
    switch = numpyro.sample("switch", dist.Normal(0.5, 1.0))
    spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.3))
    near = lambda _: numpyro.sample("shift", dist.Normal(0.0, spread))
    far = lambda _: numpyro.sample("shift", dist.Normal(1.0, 2 * spread))
    shift = cond(switch > 0, far, near, None)
    numpyro.sample("y", dist.Normal(shift, 0.3), obs=y)


# --- missing data ---


@case(
    X,
    np.where(KEPT, Y, np.nan),
    nodes={"y_observed": REAL},
    sites={"mu", "sd", "y", "y_unobserved"},
)
def missing_reals(x, y):
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(mu + x, sd), obs=y, obs_mask=~jnp.isnan(y))


@case(COUNTS, nodes={"counts_observed": whole(400)}, sites={"rate"})
def missing_counts(counts):
    rate = numpyro.sample("rate", dist.Gamma(4.0, 1.0))
    seen = jnp.array([True, True, False, True, True, True, False, True])
    numpyro.sample("counts", dist.Poisson(rate * jnp.ones(8)), obs=jnp.where(seen, counts, -1), obs_mask=seen)


# --- further densities and distributions ---


@case(Y, nodes={"y": REAL}, sites={"mu", "sd"}, warns="numpyro.factor sites \\['extra'\\]")
def factor(y):
    mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.5))
    numpyro.factor("extra", -((mu - sd) ** 2) * 3.0)
    numpyro.sample("y", dist.Normal(mu, sd), obs=y)


@case(RNG.normal(size=(5, 3)), nodes={}, sites={"corr", "scales", "loc"})
def lkj_latent(y):
    corr = numpyro.sample("corr", dist.LKJCholesky(3, 2.0))
    scales = numpyro.sample("scales", dist.HalfNormal(1.0).expand([3]).to_event(1))
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.MultivariateNormal(loc, scale_tril=scales[:, None] * corr), obs=y)


@case(np.array([0, 2, 1, 0, 0, 2]), nodes={"kind": whole(3)}, sites={"probs"})
def dirichlet_latent(kinds):
    probs = numpyro.sample("probs", dist.Dirichlet(jnp.array([2.0, 1.0, 0.7])))
    numpyro.sample("kind", dist.Categorical(probs=probs), obs=kinds)


@case(Y, nodes={"y": REAL}, sites={"fixed", "mu"})
def delta_latent(y):
    fixed = numpyro.sample("fixed", dist.Delta(1.5))
    mu = numpyro.sample("mu", dist.Normal(fixed, 2.0))
    numpyro.sample("y", dist.Normal(mu, fixed), obs=y)


@case(
    Y,
    nodes={"y": interval(-30.0, 30.0, panels=600)},
    sites={"weight", "gap", "sd"},
    warns="MixtureSameFamily is approximated by quadrature",
    tolerance=0.02,
)
def mixture_likelihood(y):
    weight = numpyro.sample("weight", dist.Beta(3.0, 3.0))
    gap = numpyro.sample("gap", dist.Normal(1.0, 0.3))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.2))
    which = dist.Categorical(jnp.stack([weight, 1 - weight]))
    numpyro.sample("y", dist.MixtureSameFamily(which, dist.Normal(jnp.stack([-gap, gap]), sd)), obs=y)


@case(
    np.abs(Y) + 0.1,
    nodes={"y": interval(0.0, 40.0, panels=600)},
    sites={"mu", "sd"},
    warns="approximated by quadrature",
    tolerance=1e-3,
)
def truncated_normal_likelihood(y):
    mu = numpyro.sample("mu", dist.Normal(0.5, 0.5))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 0.3))
    numpyro.sample("y", dist.TruncatedNormal(mu, sd, low=0.0), obs=y)


class Rayleigh(dist.Distribution):
    """A distribution that NumPyro lacks, with nothing that mgvi asks for beyond what NumPyro does."""

    arg_constraints = {"width": constraints.positive}
    support = constraints.positive

    def __init__(self, width, *, validate_args=None):
        self.width = jnp.asarray(width)
        super().__init__(batch_shape=jnp.shape(width), validate_args=validate_args)

    def log_prob(self, value):
        return jnp.log(value) - 2 * jnp.log(self.width) - 0.5 * (value / self.width) ** 2

    def icdf(self, q):
        return self.width * jnp.sqrt(-2 * jnp.log1p(-q))

    def sample(self, key, sample_shape=()):
        return self.icdf(jax.random.uniform(key, sample_shape + self.batch_shape))

    @property
    def mean(self):
        return self.width * np.sqrt(np.pi / 2)


@case(
    np.abs(Y) + 0.1,
    nodes={"y": interval(1e-12, 80.0, panels=900)},
    sites={"width"},
    warns="Rayleigh is approximated by quadrature",
    tolerance=1e-3,
)
def own_distribution(y):
    width = numpyro.sample("width", Rayleigh(1.3))
    numpyro.sample("y", Rayleigh(width), obs=y)
