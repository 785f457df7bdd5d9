"""Likelihoods with their exact Fisher information.

The truth is E[score score^T], where the score is the gradient of NumPyro's own log_prob and the expectation
is a sum: over all data of a discrete distribution, over the nodes of a double exponential rule for a
continuous one, over the nodes of a Gauss-Hermite rule for a multivariate normal one (exact, as the squared
score is a polynomial of degree four). Where parameters are so extreme that the score itself cancels, the
truth is written down by hand. Nothing here knows how the package finds the information.
"""

import dataclasses
import functools
from collections.abc import Callable
from itertools import combinations, pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints, transforms
from scipy import special, stats

from ..compiling import quick_jit

CLOSED, NUMERIC, SAMPLED = "closed", "numeric", "sampled"
TOLERANCE = {
    # The package knows a formula; 1e-6 leaves room for special functions that lose half of the digits.
    (CLOSED, "float64"): 1e-6,
    (CLOSED, "float32"): 1e-4,
    # The package sums or integrates numerically.
    (NUMERIC, "float64"): 1e-4,
    (NUMERIC, "float32"): 2e-3,
    # The package may draw data.
    (SAMPLED, "float64"): 0.1,
    (SAMPLED, "float32"): 0.1,
}
# Differences of nearly equal trigamma or Bessel functions lose one or two of the seven digits of float32.
CANCELLING = 2e-3


# --- sums over data: theta -> points, weights with E[f] = sum(weights * density(points) * f(points)) ---


def counts(number):
    return lambda theta: (np.arange(number), np.ones(number))


def compositions(total, parts):
    """All vectors of ``parts`` non-negative integers with the given total, by stars and bars."""
    bars = np.array(list(combinations(range(total + parts - 1), parts - 1)))
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, total + parts - 1)))
    points = np.diff(edges, axis=1) - 1
    return lambda theta: (points, np.ones(len(points)))


def double_exponential(low, high, width, number=241):
    """Nodes and weights for the integral over one piece, which may be unbounded on one side."""
    t, step = np.linspace(-4.5, 4.5, number, retstep=True)
    if np.isinf(low):
        points, weights = double_exponential(-high, np.inf, width, number)
        return -points, weights
    if np.isinf(high):
        offset = width * np.exp(np.pi / 2 * np.sinh(t))
        return low + offset, step * np.pi / 2 * np.cosh(t) * offset
    near, far = special.expit(np.pi * np.sinh(t)), special.expit(-np.pi * np.sinh(t))
    points = np.where(t < 0, low + (high - low) * near, high - (high - low) * far)
    return points, step * np.pi * np.cosh(t) * (high - low) * near * far


def integral(breaks, width=lambda theta: 1.0):
    """An integral over the pieces between breaks, which stand where the density has a kink or a peak."""

    def rule(theta):
        pieces = [double_exponential(*ends, width(theta)) for ends in pairwise(breaks(theta))]
        return np.concatenate([points for points, _ in pieces]), np.concatenate([w for _, w in pieces])

    return rule


def around(*names, width="scale"):
    """The real line, with breaks at the named parameters."""
    return integral(
        lambda theta: [-np.inf, *np.sort(np.concatenate([np.ravel(theta[n]) for n in names])), np.inf],
        lambda theta: np.max(theta[width]),
    )


def positive(width=lambda theta: 1.0):
    return integral(lambda theta: [0.0, np.inf], width)


def hermite(moments):
    """The expectation over a multivariate normal distribution with moments(theta) = mean, covariance."""

    def rule(theta):
        mean, covariance = moments(theta)
        root = np.linalg.cholesky(covariance)
        nodes, weights = np.polynomial.hermite_e.hermegauss(5)
        z = np.array(list(product(nodes, repeat=len(mean))))
        gauss = np.prod(list(product(weights, repeat=len(mean))), axis=1)
        return mean + z @ root.T, gauss * np.exp(np.sum(z**2, axis=1) / 2) * np.prod(np.diag(root))

    return rule


def triangle(theta):
    """The probability simplex of three categories, by breaking a stick twice."""
    b, w = double_exponential(0.0, 1.0, 1.0, 121)
    first, second = (x.ravel() for x in np.meshgrid(b, b))
    points = np.stack([first, (1 - first) * second, (1 - first) * (1 - second)], axis=1)
    keep = np.all((points > 0) & (points < 1), axis=1)
    return points[keep], (np.outer(w, w).ravel() * (1 - first))[keep]


# --- cases ---


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    name: str
    make: Callable  # from a dict of constructor arguments to a distribution
    theta: dict
    data: Callable  # from theta to points and weights
    kind: str = CLOSED
    float32: float | None = None  # tolerance, where the one of the kind does not fit
    regular: bool = True  # the score has mean zero
    # An equal log_prob(theta, y), where NumPyro's uses jax's betaln, of which six digits are right.
    log_prob: Callable | None = None

    def at(self, step):
        """Valid arguments that differ from step to step."""
        return {name: np.asarray(value, float) * (1 + 0.1 * step) for name, value in self.theta.items()}

    def tolerance(self, precision):
        special_case = self.float32 if precision == "float32" else None
        return special_case or TOLERANCE[self.kind, precision]

    def moments(self, theta):
        """Total probability, mean score and information; in double precision, whatever the caller's."""
        points, weights = self.data(theta)
        with jax.enable_x64(True):
            log_prob, score = score_of(self)(ravel_pytree(theta)[0], jnp.asarray(points))
        probability = weights * np.exp(log_prob)
        # Far outside, the density is zero and the score may not be a number.
        keep = probability > 1e-100
        probability, score = probability[keep], np.asarray(score)[keep]
        return probability.sum(), probability @ score, (score.T * probability) @ score

    @functools.cache  # noqa: B019 -- cases live as long as the tests
    def information(self, step=0):
        return self.moments(self.at(step))[2]


@functools.lru_cache(maxsize=4)  # of the cases that the last tests were about
def score_of(case):
    """Log-density and score of a case, compiled, as a function of flat arguments and many data."""
    unravel = ravel_pytree(case.at(0))[1]
    log_prob = case.log_prob or (lambda theta, y: case.make(theta).log_prob(y))
    each = jax.value_and_grad(lambda flat, y: log_prob(unravel(flat), y))
    return quick_jit(jax.vmap(each, (None, 0)))


class Nakagami(dist.Distribution):
    """A user's distribution, of which only log_prob and sample are known."""

    arg_constraints = {"shape_parameter": constraints.positive, "spread": constraints.positive}
    support = constraints.positive

    def __init__(self, shape_parameter, spread, *, validate_args=None):
        batch_shape = jnp.broadcast_shapes(jnp.shape(shape_parameter), jnp.shape(spread))
        self.shape_parameter, self.spread = jnp.asarray(shape_parameter), jnp.asarray(spread)
        super().__init__(batch_shape, validate_args=validate_args)

    def log_prob(self, value):
        m, ratio = self.shape_parameter, self.shape_parameter / self.spread
        normalisation = jnp.log(2.0) + m * jnp.log(ratio) - jax.scipy.special.gammaln(m)
        return normalisation + (2 * m - 1) * jnp.log(value) - ratio * value**2

    def sample(self, key, sample_shape=()):
        gamma = jax.random.gamma(key, self.shape_parameter, sample_shape + self.batch_shape)
        return jnp.sqrt(gamma * self.spread / self.shape_parameter)


def softmax(logits):
    return jax.nn.softmax(logits, axis=-1)


def unpack(constructor, **fixed):
    """A make that hands theta to the constructor as keyword arguments."""
    return lambda theta: constructor(**theta, **fixed)


def mixture(component):
    def make(theta):
        components = {name: value for name, value in theta.items() if name != "logits"}
        return dist.MixtureSameFamily(dist.CategoricalLogits(theta["logits"]), component(**components))

    return make


def transformed(base, transform):
    return lambda theta: dist.TransformedDistribution(base(**theta), transform)


def negative_binomial(theta, y):
    """NumPyro's only negative binomial without betaln."""
    match theta:
        case {"mean": mean, "concentration": total_count}:
            logits = jnp.log(mean / total_count)
        case {"mean": mean}:
            total_count, logits = KNOWN_CONCENTRATION, jnp.log(mean / KNOWN_CONCENTRATION)
        case {"total_count": total_count, "probs": probs}:
            logits = jax.scipy.special.logit(probs)
        case {"concentration": total_count, "rate": rate}:
            logits = -jnp.log(rate)
    return dist.NegativeBinomialLogits(total_count, logits).log_prob(y)


def zero_inflated_negative_binomial(theta, y):
    nonzero = jnp.log1p(-theta["gate"]) + negative_binomial(theta, y)
    return jnp.where(y == 0, jnp.logaddexp(jnp.log(theta["gate"]), nonzero), nonzero)


def beta_binomial(theta, y):
    both = dist.DirichletMultinomial(jnp.stack([theta["concentration1"], theta["concentration0"]]), TRIALS)
    return both.log_prob(jnp.stack([y, TRIALS - y]))


def located_student_t(theta):
    """A distribution with parameters in its transform."""
    return dist.TransformedDistribution(dist.StudentT(4.0), transforms.AffineTransform(theta["loc"], theta["scale"]))


LOC_SCALE = {"loc": 0.4, "scale": 1.7}
LOGITS = [0.3, -0.9, 1.1, 0.2]
MEAN = [0.5, -1.0, 0.3]
COVARIANCE = [[2.0, 0.6, -0.3], [0.6, 1.5, 0.4], [-0.3, 0.4, 0.8]]
FACTOR = [[0.9, 0.2], [-0.4, 0.7], [0.3, -0.5]]
DIAGONAL = [0.7, 0.9, 1.4]
KNOWN_CONCENTRATION = 1.5
TRIALS = 12

CASES = [
    # real line
    Case("normal_known_scale", unpack(dist.Normal, scale=0.7), {"loc": 0.4}, around("loc", width="loc")),
    Case("normal", unpack(dist.Normal), LOC_SCALE, around("loc")),
    Case("student_t_small_df", unpack(dist.StudentT), {"df": 1.5, **LOC_SCALE}, around("loc")),
    Case("student_t", unpack(dist.StudentT), {"df": 5.0, **LOC_SCALE}, around("loc")),
    Case(
        "student_t_large_df",
        unpack(dist.StudentT),
        {"df": 80.0, **LOC_SCALE},
        around("loc"),
        float32=CANCELLING,
    ),
    Case("cauchy", unpack(dist.Cauchy), LOC_SCALE, around("loc")),
    Case("laplace", unpack(dist.Laplace), LOC_SCALE, around("loc")),
    Case("logistic", unpack(dist.Logistic), LOC_SCALE, around("loc")),
    Case("gumbel", unpack(dist.Gumbel), LOC_SCALE, around("loc")),
    # counts
    Case("poisson", unpack(dist.Poisson), {"rate": 3.5}, counts(80)),
    Case("poisson_small_rate", unpack(dist.Poisson), {"rate": 0.02}, counts(20)),
    Case("bernoulli_probs", unpack(dist.BernoulliProbs), {"probs": 0.3}, counts(2)),
    Case("bernoulli_logits", unpack(dist.BernoulliLogits), {"logits": -1.2}, counts(2)),
    Case("binomial_probs", unpack(dist.BinomialProbs, total_count=9), {"probs": 0.3}, counts(10)),
    Case("binomial_logits", unpack(dist.BinomialLogits, total_count=9), {"logits": -1.2}, counts(10)),
    Case("geometric_probs", unpack(dist.GeometricProbs), {"probs": 0.3}, counts(300)),
    Case("geometric_logits", unpack(dist.GeometricLogits), {"logits": -1.2}, counts(300)),
    Case(
        "negative_binomial2_known_concentration",
        unpack(dist.NegativeBinomial2, concentration=KNOWN_CONCENTRATION),
        {"mean": 4.0},
        counts(400),
        log_prob=negative_binomial,
    ),
    Case(
        "negative_binomial2",
        unpack(dist.NegativeBinomial2),
        {"mean": 4.0, "concentration": 1.5},
        counts(400),
        NUMERIC,
        log_prob=negative_binomial,
    ),
    Case(
        "negative_binomial_probs",
        unpack(dist.NegativeBinomialProbs),
        {"total_count": 2.5, "probs": 0.6},
        counts(400),
        NUMERIC,
        log_prob=negative_binomial,
    ),
    Case(
        "negative_binomial_logits",
        unpack(dist.NegativeBinomialLogits),
        {"total_count": 2.5, "logits": 0.4},
        counts(400),
        NUMERIC,
    ),
    Case(
        "gamma_poisson",
        unpack(dist.GammaPoisson),
        {"concentration": 2.5, "rate": 0.6},
        counts(400),
        NUMERIC,
        log_prob=negative_binomial,
    ),
    Case(
        "beta_binomial",
        unpack(dist.BetaBinomial, total_count=TRIALS),
        {"concentration1": 1.8, "concentration0": 3.1},
        counts(TRIALS + 1),
        NUMERIC,
        log_prob=beta_binomial,
    ),
    Case("zero_inflated_poisson", unpack(dist.ZeroInflatedPoisson), {"gate": 0.25, "rate": 2.2}, counts(80)),
    # categories
    Case(
        "categorical_probs",
        lambda theta: dist.CategoricalProbs(softmax(theta["logits"])),
        {"logits": LOGITS},
        counts(4),
    ),
    Case("categorical_logits", unpack(dist.CategoricalLogits), {"logits": LOGITS}, counts(4)),
    Case(
        "multinomial_probs",
        lambda theta: dist.MultinomialProbs(softmax(theta["logits"]), total_count=5),
        {"logits": LOGITS},
        compositions(5, 4),
    ),
    Case(
        "multinomial_logits",
        unpack(dist.MultinomialLogits, total_count=5),
        {"logits": LOGITS},
        compositions(5, 4),
    ),
    Case(
        "ordered_logistic",
        unpack(dist.OrderedLogistic),
        {"predictor": 0.4, "cutpoints": [-1.0, 0.3, 1.5]},
        counts(4),
    ),
    # positive numbers and intervals
    Case("log_normal", unpack(dist.LogNormal), {"loc": 0.4, "scale": 0.8}, positive()),
    Case("exponential", unpack(dist.Exponential), {"rate": 0.7}, positive()),
    Case("gamma", unpack(dist.Gamma), {"concentration": 2.5, "rate": 0.7}, positive(), float32=CANCELLING),
    Case(
        "inverse_gamma",
        unpack(dist.InverseGamma),
        {"concentration": 2.5, "rate": 0.7},
        positive(),
        float32=CANCELLING,
    ),
    Case("chi2", unpack(dist.Chi2), {"df": 3.5}, positive()),
    Case("weibull", unpack(dist.Weibull), {"scale": 1.3, "concentration": 1.8}, positive()),
    Case(
        "pareto",
        unpack(dist.Pareto),
        {"scale": 1.3, "alpha": 2.4},
        integral(lambda theta: [theta["scale"], np.inf]),
        regular=False,  # the support depends on the scale
    ),
    Case("half_normal", unpack(dist.HalfNormal), {"scale": 1.3}, positive()),
    Case(
        "beta",
        unpack(dist.Beta),
        {"concentration1": 1.7, "concentration0": 3.2},
        integral(lambda theta: [0.0, 1.0]),
        float32=CANCELLING,
    ),
    *[
        Case(
            f"von_mises_concentration_{concentration}",
            unpack(dist.VonMises),
            {"loc": 0.4, "concentration": concentration},
            integral(lambda theta: [-np.pi, theta["loc"], np.pi]),
            float32=CANCELLING,
        )
        for concentration in (0.5, 5.0, 100.0)
    ],
    Case(
        "truncated_normal_left",
        unpack(dist.TruncatedNormal, low=-0.5),
        LOC_SCALE,
        integral(lambda theta: [-0.5, np.inf]),
        float32=CANCELLING,
    ),
    Case(
        "truncated_normal_right",
        unpack(dist.TruncatedNormal, high=1.5),
        LOC_SCALE,
        integral(lambda theta: [-np.inf, 1.5]),
        float32=CANCELLING,
    ),
    Case(
        "truncated_normal_both",
        unpack(dist.TruncatedNormal, low=-0.5, high=3.5),
        LOC_SCALE,
        integral(lambda theta: [-0.5, 3.5]),
        float32=CANCELLING,
    ),
    # vectors
    Case("dirichlet", unpack(dist.Dirichlet), {"concentration": [1.5, 2.5, 4.0]}, triangle, float32=CANCELLING),
    Case(
        "multivariate_normal_covariance",
        unpack(dist.MultivariateNormal),
        {"loc": MEAN, "covariance_matrix": COVARIANCE},
        hermite(lambda theta: (theta["loc"], theta["covariance_matrix"])),
    ),
    Case(
        "multivariate_normal_precision",
        unpack(dist.MultivariateNormal),
        {"loc": MEAN, "precision_matrix": COVARIANCE},
        hermite(lambda theta: (theta["loc"], np.linalg.inv(theta["precision_matrix"]))),
    ),
    Case(
        "multivariate_normal_scale_tril",
        lambda theta: dist.MultivariateNormal(theta["loc"], scale_tril=jnp.tril(theta["scale_tril"])),
        {"loc": MEAN, "scale_tril": np.linalg.cholesky(COVARIANCE)},
        hermite(lambda theta: (theta["loc"], theta["scale_tril"] @ theta["scale_tril"].T)),
    ),
    Case(
        "low_rank_multivariate_normal",
        unpack(dist.LowRankMultivariateNormal),
        {"loc": MEAN, "cov_factor": FACTOR, "cov_diag": DIAGONAL},
        hermite(
            lambda theta: (
                theta["loc"],
                theta["cov_factor"] @ theta["cov_factor"].T + np.diag(theta["cov_diag"]),
            )
        ),
    ),
    # constant transforms
    Case(
        "affine_transform_of_normal",
        transformed(dist.Normal, transforms.AffineTransform(1.0, 2.0)),
        LOC_SCALE,
        integral(lambda theta: [-np.inf, 1 + 2 * theta["loc"], np.inf], lambda theta: 2 * theta["scale"]),
    ),
    Case(
        "exponential_transform_of_gamma",
        transformed(dist.Gamma, transforms.ExpTransform()),
        {"concentration": 6.5, "rate": 3.5},
        integral(lambda theta: [1.0, np.inf]),
        float32=CANCELLING,
    ),
    # no formula known
    Case("located_student_t", located_student_t, LOC_SCALE, around("loc"), NUMERIC),
    Case(
        "mixture_of_normals",
        mixture(dist.Normal),
        {"logits": [0.2, -0.6], "loc": [-0.8, 1.9], "scale": [0.7, 1.2]},
        around("loc"),
        NUMERIC,
    ),
    Case(
        "mixture_of_poissons",
        mixture(dist.Poisson),
        {"logits": [0.2, -0.6], "rate": [1.5, 7.0]},
        counts(120),
        NUMERIC,
    ),
    Case(
        "zero_inflated_negative_binomial2",
        lambda theta: dist.ZeroInflatedDistribution(
            dist.NegativeBinomial2(theta["mean"], theta["concentration"]), gate=theta["gate"]
        ),
        {"mean": 4.0, "concentration": 1.5, "gate": 0.25},
        counts(400),
        NUMERIC,
        log_prob=zero_inflated_negative_binomial,
    ),
    Case(
        "asymmetric_laplace",
        unpack(dist.AsymmetricLaplace),
        {"asymmetry": 1.4, **LOC_SCALE},
        around("loc"),
        SAMPLED,  # a rule that does not know the kink is no better than draws
    ),
    Case("soft_laplace", unpack(dist.SoftLaplace), LOC_SCALE, around("loc"), NUMERIC),
    Case(
        "dirichlet_multinomial",
        unpack(dist.DirichletMultinomial, total_count=6),
        {"concentration": [1.5, 2.5, 4.0]},
        compositions(6, 3),
        SAMPLED,
    ),
    Case("users_nakagami", unpack(Nakagami), {"shape_parameter": 1.6, "spread": 2.3}, positive(), SAMPLED),
]

BY_NAME = {case.name: case for case in CASES}


# --- one parameter over many orders of magnitude, with the truth in a form that does not cancel ---


def student_t_information(df, loc, scale):
    digammas = special.digamma((df + 1) / 2) - special.digamma(df / 2) - 1 / df
    if df > 50:  # the digits that are left of the difference
        digammas = 1 / (2 * df**2) - 1 / (4 * df**4) + 1 / (2 * df**6)
    t, weights = around("loc")({"loc": 0.0, "scale": 1.0})
    x = t**2 / df
    score = np.stack(
        [
            (digammas - np.log1p(x) + (1 + 1 / df) * x / (1 + x)) / 2,
            (1 + 1 / df) * t / (1 + x) / scale,
            ((df + 1) * x / (1 + x) - 1) / scale,
        ]
    )
    return (score * weights * stats.t.pdf(t, df)) @ score.T


def digamma_steps(x, number):
    """digamma(x + k) - digamma(x) for k up to number."""
    return np.concatenate([[0.0], np.cumsum(1 / (x + np.arange(number)))])


def negative_binomial_information(concentration):
    """At fixed mean."""
    y, total = np.arange(20_001), concentration + MEAN_COUNT
    digammas = digamma_steps(concentration, 20_000)
    score = digammas - np.log1p(MEAN_COUNT / concentration) + (MEAN_COUNT - y) / total
    return [[stats.nbinom.pmf(y, concentration, concentration / total) @ score**2]]


def beta_binomial_information(total):
    """At fixed mean."""
    y = np.arange(TRIALS + 1)
    shapes = total * PAIR
    first, second = (digamma_steps(shape, TRIALS) for shape in shapes)
    score = PAIR[0] * first + PAIR[1] * second[::-1] - digamma_steps(total, TRIALS)[-1]
    return [[stats.betabinom.pmf(y, TRIALS, *shapes) @ score**2]]


def von_mises_information(concentration, loc):
    ratio = special.i1e(concentration) / special.i0e(concentration)
    return np.diag([1 - ratio / concentration - ratio**2, concentration * ratio])


def gamma_information(concentration):
    """At fixed mean."""
    return [[special.polygamma(1, concentration) - 1 / concentration]]


def dirichlet_information(proportions):
    """At fixed mean."""
    return lambda total: [[special.polygamma(1, total * proportions) @ proportions**2 - special.polygamma(1, total)]]


PAIR, TRIPLE = np.array([0.3, 0.7]), np.array([0.2, 0.3, 0.5])
MEAN_COUNT = 3.0


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    case: Case
    grid: np.ndarray  # of the first argument
    truth: Callable  # from all arguments to the information

    @property
    def name(self):
        return self.case.name

    def thetas(self):
        swept, *_ = sorted(self.case.theta)
        return [{**self.case.at(0), swept: value} for value in self.grid]


SWEEPS = [
    Sweep(BY_NAME["student_t"], np.geomspace(0.5, 1e6, 40), student_t_information),
    Sweep(BY_NAME["von_mises_concentration_5.0"], np.geomspace(1e-3, 1e4, 40), von_mises_information),
    Sweep(
        Case(
            "negative_binomial2_at_fixed_mean",
            lambda theta: dist.NegativeBinomial2(MEAN_COUNT, **theta),
            {"concentration": 1.5},
            counts(400),
            log_prob=lambda theta, y: negative_binomial({"mean": MEAN_COUNT, **theta}, y),
        ),
        np.geomspace(1e-2, 1e6, 40),
        negative_binomial_information,
    ),
    Sweep(
        Case(
            "beta_binomial_at_fixed_mean",
            lambda theta: dist.BetaBinomial(theta["total"] * PAIR[0], theta["total"] * PAIR[1], TRIALS),
            {"total": 2.5},
            counts(TRIALS + 1),
            log_prob=lambda theta, y: beta_binomial(
                {"concentration1": theta["total"] * PAIR[0], "concentration0": theta["total"] * PAIR[1]}, y
            ),
        ),
        np.geomspace(1e-1, 1e4, 40),
        beta_binomial_information,
    ),
    Sweep(
        Case(
            "gamma_at_fixed_mean",
            lambda theta: dist.Gamma(theta["concentration"], theta["concentration"] / 2),
            {"concentration": 2.5},
            positive(),
        ),
        np.geomspace(1e-2, 1e5, 40),
        gamma_information,
    ),
    Sweep(
        Case(
            "beta_at_fixed_mean",
            lambda theta: dist.Beta(theta["total"] * PAIR[0], theta["total"] * PAIR[1]),
            {"total": 4.5},
            integral(lambda theta: [0.0, 1.0]),
        ),
        np.geomspace(1e-1, 1e4, 40),
        dirichlet_information(PAIR),
    ),
    Sweep(
        Case(
            "dirichlet_at_fixed_mean",
            lambda theta: dist.Dirichlet(jnp.stack([theta["total"] * share for share in TRIPLE], axis=-1)),
            {"total": 8.0},
            triangle,
        ),
        np.geomspace(1e-1, 1e4, 40),
        dirichlet_information(TRIPLE),
    ),
]


# --- parameters at which formulas overflow, underflow or divide by zero ---


@dataclasses.dataclass(frozen=True, eq=False)
class Extreme:
    name: str
    make: Callable
    theta: dict
    information: float | None = None  # of the only argument


EXTREMES = [
    Extreme("bernoulli_logits_-40", unpack(dist.BernoulliLogits), {"logits": -40.0}, np.exp(-40.0)),
    Extreme("bernoulli_logits_40", unpack(dist.BernoulliLogits), {"logits": 40.0}, np.exp(-40.0)),
    Extreme("bernoulli_probs_1e-12", unpack(dist.BernoulliProbs), {"probs": 1e-12}, 1e12),
    Extreme("binomial_logits_40", unpack(dist.BinomialLogits, total_count=5), {"logits": 40.0}, 5 * np.exp(-40.0)),
    Extreme("geometric_logits_40", unpack(dist.GeometricLogits), {"logits": 40.0}, np.exp(-40.0)),
    Extreme("poisson_rate_1e-10", unpack(dist.Poisson), {"rate": 1e-10}, 1e10),
    Extreme("poisson_rate_1e6", unpack(dist.Poisson), {"rate": 1e6}, 1e-6),
    Extreme("negative_binomial2_1e-2", unpack(dist.NegativeBinomial2), {"mean": 3.0, "concentration": 1e-2}),
    Extreme("negative_binomial2_1e6", unpack(dist.NegativeBinomial2), {"mean": 3.0, "concentration": 1e6}),
    Extreme("categorical_logits_50", unpack(dist.CategoricalLogits), {"logits": [50.0, -50.0, 0.0]}),
    Extreme("multinomial_logits_50", unpack(dist.MultinomialLogits, total_count=5), {"logits": [50.0, -50.0]}),
    Extreme(
        "ordered_logistic_40",
        unpack(dist.OrderedLogistic),
        {"predictor": 40.0, "cutpoints": [-1.0, 0.3, 1.5]},
    ),
    Extreme("zero_inflated_poisson_1e-6", unpack(dist.ZeroInflatedPoisson), {"gate": 1e-6, "rate": 50.0}),
    Extreme("dirichlet_1e3", unpack(dist.Dirichlet), {"concentration": [1e3, 2e3, 5e3]}),
    Extreme("truncated_normal_8_sigma_away", unpack(dist.TruncatedNormal, low=0.0), {"loc": -8.0, "scale": 1.0}),
]
