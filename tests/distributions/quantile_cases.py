"""The univariate distributions under test: how to build each, its reference, and its parameter settings.

All parameters are float32 numbers, so that one reference serves both precisions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpyro.distributions as dist
from mpmath import mp
from numpyro.distributions import transforms
from scipy import stats

from . import quantile_reference as ref


@dataclass(frozen=True)
class Family:
    """A parametric family of univariate distributions.

    ``make`` builds the NumPyro distribution from the parameters, ``quantile`` takes both tail probabilities
    and the parameters to a 60-digit quantile, ``scipy`` takes the parameters to a distribution with ``cdf``
    and ``pdf``, and ``support`` gives the two bounds in terms of the parameters. ``tabulated`` families may
    take another path where their parameters are concrete constants.
    """

    name: str
    make: Callable
    quantile: Callable
    scipy: Callable
    support: Callable
    tabulated: bool = False


@dataclass(frozen=True)
class Case:
    """A family at one setting of its parameters."""

    family: Family
    theta: tuple

    @property
    def id(self):
        return f"{self.family.name}({','.join(f'{value:.4g}' for _, value in self.theta)})"

    @property
    def parameters(self):
        return dict(self.theta)

    @property
    def support(self):
        return self.family.support(**self.parameters)

    @property
    def scipy(self):
        return self.family.scipy(**self.parameters)

    def distribution(self):
        """The distribution with its parameters as concrete constants."""
        return self.family.make(**self.parameters)


class Restricted:
    """A SciPy distribution restricted to an interval."""

    def __init__(self, base, low=-np.inf, high=np.inf):
        self.base, self.low, self.high = base, low, high
        self.mirrored = base.cdf(low) > 0.5

    def mass(self, low, high):
        if self.mirrored:
            return self.base.sf(low) - self.base.sf(high)
        return self.base.cdf(high) - self.base.cdf(low)

    def cdf(self, x):
        return self.mass(self.low, np.clip(x, self.low, self.high)) / self.mass(self.low, self.high)

    def pdf(self, x):
        inside = (self.low <= x) & (x <= self.high)
        return np.where(inside, self.base.pdf(x) / self.mass(self.low, self.high), 0.0)


class Transformed:
    """A monotone function of a SciPy variable, given by the inverse function and its derivative."""

    def __init__(self, base, inverse, slope):
        self.base, self.inverse, self.slope = base, inverse, slope

    def cdf(self, x):
        rising = np.all(self.slope(x) > 0)
        return self.base.cdf(self.inverse(x)) if rising else self.base.sf(self.inverse(x))

    def pdf(self, x):
        return self.base.pdf(self.inverse(x)) * np.abs(self.slope(x))


def real_line(**_):
    return -np.inf, np.inf


def positive(**_):
    return 0.0, np.inf


def unit_interval(**_):
    return 0.0, 1.0


def interval(low=-np.inf, high=np.inf, **_):
    return low, high


def location_scale(name, make, standard, base):
    """A family on the real line that is shifted by ``loc`` and stretched by ``scale``."""
    return Family(
        name,
        make,
        lambda p, q, loc, scale: loc + scale * standard(p, q),
        lambda loc, scale: base(loc, scale),
        real_line,
    )


def standardized(x, loc, scale):
    return (x - loc) / scale


def truncated(name, make, standard, tails, base):
    """A location-scale family restricted to an interval; ``low`` and ``high`` are optional parameters."""

    def quantile(p, q, loc, scale, low=None, high=None, **shape):
        low = None if low is None else standardized(low, loc, scale)
        high = None if high is None else standardized(high, loc, scale)
        return loc + scale * ref.truncated(
            lambda p, q: standard(p, q, **shape), lambda z: tails(z, **shape), low, high
        )(p, q)

    def scipy(loc, scale, low=-np.inf, high=np.inf, **shape):
        return Restricted(base(*shape.values(), loc, scale), low, high)

    return Family(name, make, quantile, scipy, interval)


def beta_quantile(p, q, concentration1, concentration0):
    return ref.beta_distances(p, q, concentration1, concentration0)[0]


def laplace_quantile(p, q):
    return mp.log(2 * p) if p < q else -mp.log(2 * q)


def folded_student_quantile(p, q, df, scale):
    return scale * ref.folded(lambda p, q: ref.student(p, q, df))(p, q)


def folded_student(df, scale):
    return Restricted(stats.t(df, 0.0, scale), 0.0)


def kumaraswamy(concentration1, concentration0):
    return Transformed(
        stats.beta(1, concentration0),
        lambda x: x**concentration1,
        lambda x: concentration1 * x ** (concentration1 - 1),
    )


def shifted_gamma(loc, scale, concentration):
    return dist.TransformedDistribution(dist.Gamma(concentration, 1.0), transforms.AffineTransform(loc, scale))


FAMILIES = [
    (
        location_scale("Normal", dist.Normal, ref.normal, stats.norm),
        [dict(loc=0, scale=1), dict(loc=1.5, scale=2), dict(loc=-300, scale=0.01)],
    ),
    (
        Family(
            "LogNormal",
            dist.LogNormal,
            lambda p, q, loc, scale: mp.exp(loc + scale * ref.normal(p, q)),
            lambda loc, scale: stats.lognorm(scale, scale=np.exp(loc)),
            positive,
        ),
        [dict(loc=0, scale=1), dict(loc=-1.5, scale=0.3), dict(loc=2, scale=2)],
    ),
    (
        Family(
            "HalfNormal",
            dist.HalfNormal,
            lambda p, q, scale: scale * ref.folded(ref.normal)(p, q),
            lambda scale: stats.halfnorm(scale=scale),
            positive,
        ),
        [dict(scale=1), dict(scale=0.3), dict(scale=25)],
    ),
    (
        Family(
            "Uniform",
            dist.Uniform,
            lambda p, q, low, high: low * q + high * p,
            lambda low, high: stats.uniform(low, high - low),
            interval,
        ),
        [dict(low=0, high=1), dict(low=-2, high=5), dict(low=10, high=10.5)],
    ),
    (
        Family(
            "LogUniform",
            dist.LogUniform,
            lambda p, q, low, high: mp.exp(q * mp.log(low) + p * mp.log(high)),
            lambda low, high: stats.loguniform(low, high),
            interval,
        ),
        [dict(low=0.1, high=10), dict(low=1e-4, high=2e3)],
    ),
    (
        Family(
            "Exponential",
            dist.Exponential,
            lambda p, q, rate: -mp.log(q) / rate,
            lambda rate: stats.expon(scale=1 / rate),
            positive,
        ),
        [dict(rate=1), dict(rate=0.3), dict(rate=40)],
    ),
    (
        Family(
            "Gamma",
            dist.Gamma,
            lambda p, q, concentration, rate: ref.gamma(p, q, concentration) / rate,
            lambda concentration, rate: stats.gamma(concentration, scale=1 / rate),
            positive,
            tabulated=True,
        ),
        [
            dict(concentration=0.1, rate=1),
            dict(concentration=0.5, rate=2),
            dict(concentration=1, rate=0.3),
            dict(concentration=2.5, rate=3),
            dict(concentration=30, rate=7),
            dict(concentration=1000, rate=50),
        ],
    ),
    (
        Family(
            "InverseGamma",
            dist.InverseGamma,
            lambda p, q, concentration, rate: rate / ref.gamma(q, p, concentration),
            lambda concentration, rate: stats.invgamma(concentration, scale=rate),
            positive,
            tabulated=True,
        ),
        [
            dict(concentration=0.5, rate=1),
            dict(concentration=2.5, rate=3),
            dict(concentration=30, rate=7),
            dict(concentration=300, rate=0.1),
        ],
    ),
    (
        Family(
            "Chi2",
            dist.Chi2,
            lambda p, q, df: 2 * ref.gamma(p, q, df / 2),
            lambda df: stats.chi2(df),
            positive,
            tabulated=True,
        ),
        [dict(df=1), dict(df=3), dict(df=50)],
    ),
    (
        Family(
            "Beta",
            dist.Beta,
            beta_quantile,
            lambda concentration1, concentration0: stats.beta(concentration1, concentration0),
            unit_interval,
            tabulated=True,
        ),
        [
            dict(concentration1=0.5, concentration0=0.5),
            dict(concentration1=1, concentration0=1),
            dict(concentration1=2, concentration0=5),
            dict(concentration1=5.5, concentration0=1.3),
            dict(concentration1=30, concentration0=0.3),
            dict(concentration1=0.2, concentration0=8),
            dict(concentration1=200, concentration0=300),
        ],
    ),
    (
        Family(
            "Kumaraswamy",
            dist.Kumaraswamy,
            lambda p, q, concentration1, concentration0: (1 - q ** (1 / concentration0)) ** (1 / concentration1),
            kumaraswamy,
            unit_interval,
        ),
        [
            dict(concentration1=0.5, concentration0=0.5),
            dict(concentration1=1, concentration0=1),
            dict(concentration1=2, concentration0=5),
            dict(concentration1=30, concentration0=0.3),
        ],
    ),
    (
        Family(
            "Weibull",
            dist.Weibull,
            lambda p, q, scale, concentration: scale * (-mp.log(q)) ** (1 / concentration),
            lambda scale, concentration: stats.weibull_min(concentration, scale=scale),
            positive,
        ),
        [
            dict(scale=1, concentration=0.5),
            dict(scale=2, concentration=1.5),
            dict(scale=0.5, concentration=8),
        ],
    ),
    (
        Family(
            "Pareto",
            dist.Pareto,
            lambda p, q, scale, alpha: scale * q ** (-1 / alpha),
            lambda scale, alpha: stats.pareto(alpha, scale=scale),
            lambda scale, alpha: (scale, np.inf),
        ),
        [dict(scale=1, alpha=1), dict(scale=2.5, alpha=5), dict(scale=0.1, alpha=50)],
    ),
    (
        location_scale("Gumbel", dist.Gumbel, lambda p, q: -mp.log(-mp.log(p)), stats.gumbel_r),
        [dict(loc=0, scale=1), dict(loc=-1.5, scale=2)],
    ),
    (
        location_scale("Logistic", dist.Logistic, lambda p, q: mp.log(p) - mp.log(q), stats.logistic),
        [dict(loc=0, scale=1), dict(loc=1.5, scale=0.2)],
    ),
    (
        location_scale("Laplace", dist.Laplace, laplace_quantile, stats.laplace),
        [dict(loc=0, scale=1), dict(loc=1.5, scale=2)],
    ),
    (
        location_scale("Cauchy", dist.Cauchy, ref.cauchy, stats.cauchy),
        [dict(loc=0, scale=1), dict(loc=-1.5, scale=2)],
    ),
    (
        Family(
            "HalfCauchy",
            dist.HalfCauchy,
            lambda p, q, scale: scale * ref.folded(ref.cauchy)(p, q),
            lambda scale: stats.halfcauchy(scale=scale),
            positive,
        ),
        [dict(scale=1), dict(scale=2.5)],
    ),
    (
        Family(
            "StudentT",
            dist.StudentT,
            lambda p, q, df, loc, scale: loc + scale * ref.student(p, q, df),
            lambda df, loc, scale: stats.t(df, loc, scale),
            real_line,
            tabulated=True,
        ),
        [
            dict(df=1, loc=0, scale=1),
            dict(df=2.5, loc=1.5, scale=2),
            dict(df=5, loc=0, scale=0.3),
            dict(df=100, loc=-3, scale=4),
        ],
    ),
    (
        truncated("LeftTruncatedNormal", dist.TruncatedNormal, ref.normal, ref.normal_tails, stats.norm),
        [
            dict(loc=1, scale=1, low=0),
            dict(loc=0, scale=1, low=3),
            dict(loc=-2, scale=0.5, low=3),
            dict(loc=5, scale=0.7, low=-1),
        ],
    ),
    (
        truncated("RightTruncatedNormal", dist.TruncatedNormal, ref.normal, ref.normal_tails, stats.norm),
        [
            dict(loc=-1, scale=1, high=0),
            dict(loc=0, scale=1, high=-3),
            dict(loc=2, scale=0.5, high=-3),
            dict(loc=-5, scale=0.7, high=1),
        ],
    ),
    (
        truncated("TwoSidedTruncatedNormal", dist.TruncatedNormal, ref.normal, ref.normal_tails, stats.norm),
        [
            dict(loc=0.5, scale=2, low=-3, high=4),
            dict(loc=0, scale=1, low=0.25, high=0.2578125),
            dict(loc=0, scale=1, low=-9, high=9),
            dict(loc=0, scale=1, low=3, high=7),
            dict(loc=4, scale=1, low=-3, high=1),
            dict(loc=-5, scale=0.5, low=0, high=1),
        ],
    ),
    (
        truncated("LeftTruncatedCauchy", dist.TruncatedCauchy, ref.cauchy, ref.cauchy_tails, stats.cauchy),
        [dict(loc=0, scale=1, low=0), dict(loc=-2, scale=0.5, low=3)],
    ),
    (
        truncated("TwoSidedTruncatedCauchy", dist.TruncatedCauchy, ref.cauchy, ref.cauchy_tails, stats.cauchy),
        [dict(loc=1, scale=2, low=-3, high=10), dict(loc=-5, scale=1, low=0, high=4)],
    ),
    (
        Family(
            "FoldedStudentT",
            lambda df, scale: dist.FoldedDistribution(dist.StudentT(df, 0.0, scale)),
            folded_student_quantile,
            folded_student,
            positive,
            tabulated=True,
        ),
        [dict(df=1, scale=1), dict(df=2.5, scale=2), dict(df=100, scale=0.3)],
    ),
    (
        Family(
            "HalfStudentT",
            lambda df, scale: dist.TruncatedDistribution(dist.StudentT(df, 0.0, scale), low=0.0),
            folded_student_quantile,
            folded_student,
            positive,
            tabulated=True,
        ),
        [dict(df=1, scale=1), dict(df=2.5, scale=2), dict(df=100, scale=0.3)],
    ),
    (
        truncated(
            "TwoSidedTruncatedStudentT",
            lambda df, loc, scale, low, high: dist.TruncatedDistribution(
                dist.StudentT(df, loc, scale), low=low, high=high
            ),
            ref.student,
            ref.student_tails,
            stats.t,
        ),
        [dict(df=4, loc=0.5, scale=2, low=-1, high=6)],
    ),
    (
        Family(
            "AffineGamma",
            shifted_gamma,
            lambda p, q, loc, scale, concentration: loc + scale * ref.gamma(p, q, concentration),
            lambda loc, scale, concentration: stats.gamma(concentration, loc, scale),
            lambda loc, **_: (loc, np.inf),
            tabulated=True,
        ),
        [dict(loc=0, scale=3, concentration=0.5), dict(loc=1.5, scale=2, concentration=4)],
    ),
    (
        Family(
            "MirroredGamma",
            lambda loc, scale, concentration: shifted_gamma(loc, -scale, concentration),
            lambda p, q, loc, scale, concentration: loc - scale * ref.gamma(q, p, concentration),
            lambda loc, scale, concentration: Transformed(
                stats.gamma(concentration), lambda x: (loc - x) / scale, lambda x: -np.ones_like(x) / scale
            ),
            lambda loc, **_: (-np.inf, loc),
            tabulated=True,
        ),
        [dict(loc=0, scale=3, concentration=2.5)],
    ),
    (
        Family(
            "ExpLaplace",
            lambda loc, scale: dist.TransformedDistribution(dist.Laplace(loc, scale), transforms.ExpTransform()),
            lambda p, q, loc, scale: mp.exp(loc + scale * laplace_quantile(p, q)),
            lambda loc, scale: Transformed(stats.laplace(loc, scale), np.log, lambda x: 1 / x),
            positive,
        ),
        [dict(loc=0, scale=0.5), dict(loc=-1, scale=1.5)],
    ),
]

CASES = [
    Case(family, tuple((name, float(np.float32(value))) for name, value in theta.items()))
    for family, settings in FAMILIES
    for theta in settings
]
