"""Bad models and bad data, with what the message about each has to say.

`CASES` maps an id to a call that must fail and the fragments of its message: site, expected, found, advice.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan

from mgvi import from_function, from_numpyro, sample_prior
from mgvi.distributions import latent_shape, standardize

Y = np.array([1.0, 2.0, 3.0])
SEED = jax.random.key(0)

# Advice that several messages give.
PASS_DATA = "numpyro.sample(..., obs=...)"
CHOOSE = "choose a distribution whose support holds them"
ARITHMETIC = "Check the model's arithmetic there"
CONVERT = "numpy.asarray(..., dtype=float)"
ONE_EACH = "Give one datum for each entry"
GIVEN = "Check what the model is given"
WIDE = "dist.Normal(0, 100)"


def prior(make):
    """A model whose latent `x` has the prior that `make` returns."""

    def model(y):
        x = numpyro.sample("x", make())
        numpyro.sample("y", dist.Normal(jnp.sum(x), 1.0), obs=y)

    return lambda: from_numpyro(model, Y)


def likelihood(make, y):
    """A model whose data `y` have the distribution that `make` returns for a standard-normal latent."""

    def model(y):
        numpyro.sample("y", make(numpyro.sample("mu", dist.Normal(0.0, 1.0))), obs=y)

    return lambda: from_numpyro(model, y)


def in_scan(make):
    """As `prior`, in the body of a scan."""

    def body(total, y):
        total = total + numpyro.sample("x", make())
        numpyro.sample("y", dist.Normal(total, 1.0), obs=y)
        return total, None

    return lambda: from_numpyro(lambda y: scan(body, 0.0, y), Y)


def with_mu(rest):
    """A model that goes on with `rest(mu, y)` after a standard-normal latent `mu`."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        rest(mu, y)
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    return lambda: from_numpyro(model, Y)


def mixture():
    return dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.array([0.3, 0.7])), dist.Normal(jnp.array([0.0, 1.0]), 1.0)
    )


def improper():
    return dist.ImproperUniform(dist.constraints.real, (), ())


def normal(mu):
    return dist.Normal(mu, 1.0)


def normals(mu):
    return dist.Normal(mu * jnp.ones(3), 1.0)


def normal_vector(mu):
    return dist.MultivariateNormal(mu * jnp.ones(3), jnp.eye(3))


def poisson(mu):
    return dist.Poisson(jnp.exp(mu))


def indefinite(mu):
    return dist.MultivariateNormal(mu * jnp.ones(2), jnp.array([[1.0, 2.0], [2.0, 1.0]]))


def mixture_in_plate(y):
    with numpyro.plate("groups", 3):
        x = numpyro.sample("x", mixture())
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def in_plate(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 4):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def subsampled(y):
    with numpyro.plate("rows", 3, subsample_size=2):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y[:2])


def scaled(y):
    with handlers.scale(scale=0.5):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def residual(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y - mu)


def imputed_counts(y):
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    k = numpyro.sample("k", dist.Poisson(rate * jnp.ones(3)), obs=y, obs_mask=np.array([True, False, True]))
    numpyro.sample("z", dist.Normal(k, 1.0), obs=y)


def scale_below_zero(y):
    s = numpyro.sample("s", dist.Normal(-1.0, 1.0))
    numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal(0.0, s)), 1.0), obs=y)


def first_is_bad(y):
    late = numpyro.sample("late", dist.Normal(jnp.nan, 1.0))
    numpyro.sample("y", dist.Normal(numpyro.sample("after", dist.Normal(late, 1.0)), 1.0), obs=y)


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0))
    numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


def branching(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    if mu > 0:
        mu = 2 * mu
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def verbose(y):
    raise RuntimeError("too long " * 1000 + "\nthe reason")


def with_address(y):
    raise RuntimeError(f"cannot use {object()!r} here")


def bare_assertion(y):
    assert np.ndim(y) == 2


def observe(values):
    return {"y": dist.Normal(values["a"], 1.0)}


def observe_other_key(values):
    return {"y": dist.Normal(values["b"], 1.0)}


def function(observe=observe, latent=None, data=None):
    return lambda: from_function(observe, {"a": ()} if latent is None else latent, {"y": Y} if data is None else data)


class Unsampled(dist.Distribution):
    """A distribution of data that is in no table and cannot be drawn from."""

    support = dist.constraints.real
    arg_constraints = {"loc": dist.constraints.real}

    def __init__(self, loc):
        self.loc = loc
        super().__init__(jnp.shape(loc))

    def log_prob(self, value):
        return -jnp.abs(value - self.loc)


PRIORS = {
    "discrete latent": (
        prior(lambda: dist.Poisson(3.0)),
        ["'x'", "discrete", "Poisson", "continuous", "sum it out"],
    ),
    "discrete latent in a scan": (
        in_scan(lambda: dist.Poisson(3.0)),
        ["'x'", "discrete", "Poisson", "continuous", "sum it out"],
    ),
    "improper": (prior(improper), ["'x'", "improper", "ImproperUniform", "proper one", WIDE]),
    "improper in a scan": (in_scan(improper), ["'x'", "improper", "ImproperUniform", WIDE]),
    "uniform over all numbers": (
        prior(lambda: dist.Uniform(-jnp.inf, jnp.inf)),
        ["'x'", "improper", "Uniform from -inf to inf", WIDE],
    ),
    "uniform to infinity": (
        prior(lambda: dist.Uniform(jnp.zeros(2), jnp.array([1.0, jnp.inf])).to_event(1)),
        ["'x'", "improper", "Uniform from", "inf]", WIDE],
    ),
    "bounds swapped": (
        prior(lambda: dist.Uniform(2.0, 1.0)),
        ["'x'", "'low' of Uniform", "below 'high'", "found 2 and 1", "Swap"],
    ),
    "mixture": (
        prior(mixture),
        ["'x'", "MixtureSameFamily cannot be standardised", "register_standardization(MixtureSameFamily)"],
    ),
    "mixture in a plate": (
        lambda: from_numpyro(mixture_in_plate, Y),
        ["'x'", "MixtureSameFamily cannot be standardised", "register_standardization(MixtureSameFamily)"],
    ),
    "mixture in a scan": (
        in_scan(mixture),
        ["'x'", "MixtureSameFamily cannot be standardised", "register_standardization(MixtureSameFamily)"],
    ),
    "folded about the wrong point": (
        prior(lambda: dist.FoldedDistribution(dist.Normal(1.0, 1.0))),
        ["'x'", "FoldedDistribution over Normal", "symmetric about 0", "TruncatedDistribution instead"],
    ),
    "folded asymmetric": (
        prior(lambda: dist.FoldedDistribution(dist.Gumbel(0.0, 1.0))),
        ["'x'", "FoldedDistribution over Gumbel", "symmetric about 0", "TruncatedDistribution instead"],
    ),
    "negative scale": (
        prior(lambda: dist.Normal(0.0, -1.0)),
        ["'x'", "'scale' of Normal", "must be positive", "found -1", ARITHMETIC],
    ),
    "negative scale in a batch": (
        prior(lambda: dist.Normal(0.0, jnp.array([1.0, -2.0])).to_event(1)),
        ["'x'", "'scale' of Normal", "must be positive", "found -2", ARITHMETIC],
    ),
    "negative scale of a base": (
        prior(lambda: dist.TruncatedNormal(0.0, -1.0, low=0.0)),
        ["'x'", "'scale' of Normal", "must be positive", "found -1", ARITHMETIC],
    ),
    "negative scale from a latent": (
        lambda: from_numpyro(scale_below_zero, Y),
        ["'x'", "'scale' of Normal", "must be positive", "found -1", "prior median", ARITHMETIC],
    ),
    "NaN parameter": (
        prior(lambda: dist.Gamma(jnp.nan, 1.0)),
        ["'x'", "'concentration' of Gamma", "not finite (nan)", ARITHMETIC],
    ),
    "NaN parameter in a scan": (
        in_scan(lambda: dist.Normal(jnp.nan, 1.0)),
        ["'x'", "'loc' of Normal", "not finite (nan)", ARITHMETIC],
    ),
    "infinite parameter": (
        prior(lambda: dist.LogNormal(0.0, jnp.inf)),
        ["'x'", "'scale' of LogNormal", "not finite (inf)", ARITHMETIC],
    ),
    "NaN that spreads": (
        lambda: from_numpyro(first_is_bad, Y),
        ["'late'", "'loc' of Normal", "(nan)", ARITHMETIC],
    ),
    "draw that is NaN": (
        prior(lambda: dist.TransformedDistribution(dist.Normal(-1.0, 1.0), dist.transforms.ExpTransform().inv)),
        ["'x'", "not finite (nan)", "Check the parameters of its prior (TransformedDistribution)"],
    ),
    "covariance not positive definite": (
        prior(lambda: indefinite(0.0)),
        ["'x'", "'scale_tril' of MultivariateNormal", "(nan)", "positive definite", "diagonal"],
    ),
    "subsampled plate": (
        lambda: from_numpyro(subsampled, Y),
        ["'x'", "latent inside the subsampled plate 'rows'", "Drop subsample_size"],
    ),
    "scale handler": (lambda: from_numpyro(scaled, Y), ["'x'", "`scale` handler", "observed sites only"]),
}

DATA = {
    "forgotten counts": (
        likelihood(poisson, None),
        ["'y'", "discrete", "Poisson", "If it is data", PASS_DATA],
    ),
    "forgotten": (
        likelihood(normal, None),
        ["'model'", "no observed site", PASS_DATA, "mgvi.sample_prior(key, n, model, ...)"],
    ),
    "NaN": (
        likelihood(normal, np.array([1.0, np.nan, 2.0, np.nan])),
        ["'y'", "2 of 4 data are NaN", "first at 1", "obs_mask=~jnp.isnan(y)", "handlers.mask"],
    ),
    "NaN scalar": (likelihood(normal, np.nan), ["'y'", "1 of 1 data are NaN", "obs_mask"]),
    "infinite": (
        likelihood(normal, np.array([1.0, 2.0, -np.inf])),
        ["'y'", "1 of 3 data are infinite", "first at 2", "leave them out"],
    ),
    "negative count": (
        likelihood(poisson, np.array([1, -2, -3])),
        ["'y'", "2 of 3", "support of Poisson (integer nonnegative", "first is -2 at 1", CHOOSE],
    ),
    "fractional count": (
        likelihood(poisson, np.array([1, 2.5, 3])),
        ["'y'", "support of Poisson (integer nonnegative", "first is 2.5 at 1", CHOOSE],
    ),
    "Bernoulli 1.2": (
        likelihood(lambda mu: dist.Bernoulli(logits=mu), np.array([1, 0, 1.2])),
        ["'y'", "support of BernoulliLogits (boolean)", "first is 1.2 at 2", CHOOSE],
    ),
    "Beta 1.2": (
        likelihood(lambda mu: dist.Beta(jnp.exp(mu), 1.0), np.array([1.2, 0.3])),
        ["'y'", "support of Beta (unit interval", "first is 1.2 at 0", CHOOSE],
    ),
    "too many successes": (
        likelihood(lambda mu: dist.Binomial(10, logits=mu), np.array([1, 11])),
        ["'y'", "support of BinomialLogits (integer interval", "upper bound=10", "first is 11 at 1", CHOOSE],
    ),
    "category out of range": (
        likelihood(lambda mu: dist.Categorical(logits=mu * jnp.arange(3.0)), np.array([0, 1, 3])),
        ["'y'", "support of CategoricalLogits", "upper bound=2", "first is 3 at 2", CHOOSE],
    ),
    "simplex that does not sum to 1": (
        likelihood(lambda mu: dist.Dirichlet(jnp.exp(mu) * jnp.ones(3)), np.array([[0.2, 0.3, 0.6]])),
        ["'y'", "support of Dirichlet (simplex)", "first is [0.2 0.3 0.6] at 0", CHOOSE],
    ),
    "long simplex": (
        likelihood(lambda mu: dist.Dirichlet(jnp.exp(mu) * jnp.ones(900)), np.full((2, 900), 0.5)),
        ["'y'", "2 of 2", "support of Dirichlet (simplex)", "first is [0.5 0.5 0.5 ... 0.5", CHOOSE],
    ),
    "negative Gamma": (
        likelihood(lambda mu: dist.Gamma(jnp.exp(mu), 1.0), np.array([1.0, -1.5])),
        ["'y'", "support of Gamma (positive", "first is -1.5 at 1", CHOOSE],
    ),
    "negative LogNormal": (
        likelihood(lambda mu: dist.LogNormal(mu, 1.0), np.array([[1.0, 2.0], [-1.5, 0.0]])),
        ["'y'", "2 of 4", "support of LogNormal (positive", "first is -1.5 at (1, 0)", CHOOSE],
    ),
    "column": (
        likelihood(normals, np.ones((3, 1))),
        ["'y'", "data of shape (3, 1)", "Normal of shape (3,)", ONE_EACH],
    ),
    "other length": (likelihood(normals, np.ones(4)), ["'y'", "data of shape (4,)", "shape (3,)", ONE_EACH]),
    "other length than the plate": (
        lambda: from_numpyro(in_plate, Y),
        ["'y'", "data of shape (3,)", "Normal of shape (4,)", ONE_EACH],
    ),
    "no event dimension": (
        likelihood(normal_vector, np.ones(5)),
        ["'y'", "data of shape (5,)", "MultivariateNormal of shape (3,)", ONE_EACH],
    ),
    "scalar for a vector": (
        likelihood(normal_vector, 1.0),
        ["'y'", "data of shape ()", "MultivariateNormal of shape (3,)", ONE_EACH],
    ),
    "strings": (
        likelihood(normal, np.array(["a", "b"])),
        ["'y'", "must be real numbers", "found dtype <U1", CONVERT, "code categories as integers"],
    ),
    "objects": (
        likelihood(normal, np.array([1.0, None], dtype=object)),
        ["'y'", "must be real numbers", "found dtype object", CONVERT],
    ),
    "rows of different lengths": (
        likelihood(normal, [[1.0, 2.0], [3.0]]),
        ["'y'", "must be real numbers", "found dtype object", CONVERT],
    ),
    "complex": (
        likelihood(normal, np.array([1.0, 2j])),
        ["'y'", "must be real numbers", "found dtype complex128", CONVERT],
    ),
    "empty": (likelihood(normal, np.zeros(0)), ["'y'", "empty", "(0,)", "at least one datum"]),
    "depends on a latent": (
        lambda: from_numpyro(residual, Y),
        ["'y'", "observed value depends on a latent", "dist.Normal(mu, sd) with obs=y"],
    ),
    "imputed counts used later": (
        lambda: from_numpyro(imputed_counts, Y),
        ["'k'", "discrete", "obs_mask", "cannot impute", "Leave the missing entries out"],
    ),
}

PREDICTIONS = {
    "log of a negative number": (
        likelihood(lambda mu: dist.Normal(jnp.log(mu - 1.0), 1.0), Y),
        ["'y'", "'loc' of Normal", "not finite (nan)", "prior median", ARITHMETIC],
    ),
    "division by zero": (
        likelihood(lambda mu: dist.Normal(1 / mu, 1.0), Y),
        ["'y'", "'loc' of Normal", "not finite (inf)", "prior median", ARITHMETIC],
    ),
    "rate 0": (
        likelihood(lambda mu: dist.Poisson(jnp.exp(mu) * jnp.array([1.0, 0.0, 1.0])), Y),
        ["'y'", "log-likelihood of 1 data", "not finite", "-inf at 1", "zero rates"],
    ),
    "negative rate": (
        likelihood(lambda mu: dist.Poisson(mu - 1.0), Y),
        ["'y'", "'rate' of Poisson", "must be greater than or equal", "=0.0", "found -1", ARITHMETIC],
    ),
    "negative scale": (
        likelihood(lambda mu: dist.Normal(mu, mu - 1.0), Y),
        ["'y'", "'scale' of Normal", "must be positive", "found -1", ARITHMETIC],
    ),
    "negative constant scale": (
        likelihood(lambda mu: dist.Normal(mu, -1.0), Y),
        ["'y'", "'scale' of Normal", "must be positive", "found -1", ARITHMETIC],
    ),
    "probabilities that do not sum to 1": (
        likelihood(lambda mu: dist.Categorical(probs=jnp.array([0.5, 0.75])), np.array([0, 1])),
        ["'y'", "'probs' of CategoricalProbs", "must be simplex", "found [0.5 0.75]", ARITHMETIC],
    ),
    "covariance not positive definite": (
        likelihood(indefinite, np.ones((4, 2))),
        ["'y'", "'scale_tril' of MultivariateNormal", "(nan)", "positive definite", "diagonal"],
    ),
    "infinite factor": (
        with_mu(lambda mu, y: numpyro.factor("penalty", -jnp.log(0 * mu))),
        ["factor 'penalty'", "not finite (inf)", "prior median", ARITHMETIC],
    ),
    "no Fisher information": (
        likelihood(Unsampled, Y),
        ["'y'", "Fisher information of Unsampled", "register_fisher(Unsampled)"],
    ),
}

MODELS = {
    "param": (
        with_mu(lambda mu, y: numpyro.param("a", 1.0)),
        ["'a'", "numpyro.param", "no prior", "give it one with numpyro.sample"],
    ),
    "name used twice": (
        with_mu(lambda mu, y: numpyro.sample("mu", dist.Normal(0.0, 1.0))),
        ["'mu'", "appears twice in model 'model'", "must be unique", "Rename"],
    ),
    "not a function": (
        lambda: from_numpyro({"a": 1}, Y),
        ["a model is a function", "found dict", "function itself"],
    ),
    "called too early": (
        lambda: from_numpyro(None),
        ["a model is a function", "NoneType", "without calling it"],
    ),
    "prior draws of no function": (lambda: sample_prior(SEED, 2, 5), ["a model is a function", "found int"]),
    "shapes": (
        lambda: from_numpyro(regression, np.ones((3, 5)), Y),
        ["'regression' failed", 'numpyro.sample("y"', "X @ w", "TypeError", "got (5,) and (4,)", GIVEN],
    ),
    "missing argument": (
        lambda: from_numpyro(regression, Y),
        ["'regression' failed", "TypeError", "missing 1 required positional argument: 'y'", GIVEN],
    ),
    "unknown argument": (
        lambda: from_numpyro(regression, np.ones((3, 4)), Y, sigma=1.0),
        ["'regression' failed", "TypeError", "unexpected keyword argument 'sigma'", GIVEN],
    ),
    "missing argument of prior draws": (
        lambda: sample_prior(SEED, 2, regression),
        ["'regression' failed", "missing 2 required positional arguments: 'X' and 'y'", GIVEN],
    ),
    "branch on a latent": (
        lambda: from_numpyro(branching, Y),
        ["'branching' failed", "`if mu > 0:`", "TracerBoolConversionError", "use jnp.where instead of `if`"],
    ),
    "numpy on a latent": (
        with_mu(lambda mu, y: np.exp(mu)),
        ["'model' failed", "np.exp(mu)", "TracerArrayConversionError", "jax.numpy instead of numpy"],
    ),
    "key": (with_mu(lambda mu, y: {}["rate"]), ["'model' failed", '{}["rate"]', "KeyError: 'rate'", GIVEN]),
    "assertion": (
        lambda: from_numpyro(bare_assertion, Y),
        ["'bare_assertion' failed", "`assert np.ndim(y) == 2`: AssertionError", GIVEN],
    ),
    "long text": (
        lambda: from_numpyro(verbose, Y),
        ["'verbose' failed", "RuntimeError: too long", "the reason.", GIVEN],
    ),
    "address": (
        lambda: from_numpyro(with_address, Y),
        ["RuntimeError: cannot use <object object> here", GIVEN],
    ),
    "NumPyro's own validation": (
        prior(lambda: dist.Normal(0.0, -1.0, validate_args=True)),
        ["'model' failed", "validate_args=True", "ValueError", "invalid scale parameter", GIVEN],
    ),
}

FUNCTIONS = {
    "observe is no function": (function(observe=3), ["`observe` must be a function of a dict", "found int"]),
    "latent is a list": (function(latent=["a"]), ["`latent` must be a dict by name", "found list"]),
    "latent with a number as key": (
        function(latent={0: ()}),
        ["keys of `latent` must be strings", "found [0]"],
    ),
    "fractional shape": (
        function(latent={"a": (2.5,)}),
        [
            "latent 'a'",
            "a shape (a tuple of integers)",
            "found (2.5,)",
            "Write dist.Normal(0.0, 1.0) or (3,)",
        ],
    ),
    "negative shape": (
        function(latent={"a": -2}),
        ["latent 'a'", "a shape (a tuple of integers)", "found -2", "Write dist.Normal(0.0, 1.0) or (3,)"],
    ),
    "array for a shape": (
        function(latent={"a": np.zeros((500, 500))}),
        [
            "latent 'a'",
            "NumPyro distribution or a shape",
            "found array(",
            "Write dist.Normal(0.0, 1.0) or (3,)",
        ],
    ),
    "object for a shape": (
        function(latent={"a": object()}),
        ["latent 'a'", "NumPyro distribution or a shape", "found <object object>"],
    ),
    "data is an array": (function(data=Y), ["`data` must be a dict by name", "found an array"]),
    "no data": (
        function(data={}),
        ["`data` must hold an array for each distribution", "found an empty dict"],
    ),
    "data is None": (function(data={"y": None}), ["`data` must hold an array", "found None for ['y']"]),
    "other keys": (
        function(observe=lambda values: {"z": dist.Normal(values["a"], 1.0)}),
        ["dict of distributions with the keys ['y'], found ['z']", "Each distribution needs an entry of `data`"],
    ),
    "data missing": (
        function(data={"x": Y}),
        ["dict of distributions with the keys ['x'], found ['y']", "each entry a distribution"],
    ),
    "array for a distribution": (
        function(observe=lambda values: {"y": values["a"]}),
        ["'y'", "must return NumPyro distributions", "found an array", "dist.Normal(prediction, sd)"],
    ),
    "distribution for a dict": (
        function(observe=lambda values: dist.Normal(values["a"], 1.0)),
        ["must return a dict of distributions", "['y'], found Normal"],
    ),
    "no return": (
        function(observe=lambda values: None),
        ["must return a dict of distributions", "found NoneType"],
    ),
    "unknown latent": (
        function(observe=observe_other_key),
        ["'observe_other_key' failed", 'values["b"]', "KeyError: 'b'", GIVEN],
    ),
    "latent named as the data": (
        function(observe=lambda values: {"y": dist.Normal(values["y"], 1.0)}, latent={"y": ()}),
        ["'y'", "appears twice", "must be unique", "Rename"],
    ),
}

STANDARDISATION = {
    "mixture": (
        lambda: standardize(mixture(), jnp.zeros(())),
        ["MixtureSameFamily cannot be standardised", "register_standardization(MixtureSameFamily)"],
    ),
    "shape of a mixture": (
        lambda: latent_shape(mixture()),
        ["MixtureSameFamily", "register_standardization"],
    ),
    "discrete": (
        lambda: standardize(dist.Poisson(1.0), jnp.zeros(())),
        ["Poisson", "discrete", "continuous"],
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "prior": PRIORS,
        "data": DATA,
        "prediction": PREDICTIONS,
        "model": MODELS,
        "function": FUNCTIONS,
        "standardize": STANDARDISATION,
    }.items()
    for name, case in cases.items()
}
