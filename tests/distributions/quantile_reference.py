"""Reference quantile functions in 60-digit arithmetic.

Every function takes both tail probabilities, ``p = P(X <= x)`` and ``q = P(X > x)``, so that neither tail
suffers from cancellation, and every parameter may be an ``mpmath`` number, so that derivatives follow from
central differences which are exact for all practical purposes.
"""

from functools import cache

import mpmath
import numpy as np
from mpmath import mp, mpf
from scipy import special

DIGITS = 60
STEP = mpf(10) ** -16
TOLERANCE = mpf(10) ** -40


def newton(start, residual, iterations=100):
    """The root of ``residual``, which returns its value and its derivative."""
    root = mpf(float(start))
    for _ in range(iterations):
        value, slope = residual(root)
        step = value / slope
        root -= max(-1, min(1, step))
        if abs(step) < TOLERANCE * max(1, abs(root)):
            return root
    raise ArithmeticError("the reference quantile did not converge")


def normal_density(z):
    return mp.npdf(z)


@cache
def normal(p, q):
    if p == q:
        return mpf(0)
    if p > q:
        return -normal(q, p)

    def residual(z):
        tail = mp.ncdf(z)
        return mp.log(tail / p), normal_density(z) / tail

    return newton(special.ndtri_exp(float(mp.log(p))), residual)


def normal_tails(z):
    return mp.ncdf(z), mp.ncdf(-z)


def cauchy(p, q):
    return -mp.cot(mp.pi * p) if p < q else mp.cot(mp.pi * q)


def cauchy_tails(z):
    return 1 / mpf(2) + mp.atan(z) / mp.pi, 1 / mpf(2) - mp.atan(z) / mp.pi


def student_upper_tail(z, df):
    """P(T > z) for z >= 0."""
    if z * z < df:
        return (1 - mp.betainc(mpf(1) / 2, df / 2, 0, z * z / (df + z * z), regularized=True)) / 2
    return mp.betainc(df / 2, mpf(1) / 2, 0, df / (df + z * z), regularized=True) / 2


def student_tails(z, df):
    tail = student_upper_tail(abs(z), df)
    return (tail, 1 - tail) if z < 0 else (1 - tail, tail)


@cache
def student(p, q, df):
    if abs(p - q) < mpf(10) ** -50:
        return mpf(0)
    if p < q:
        return -student(q, p, df)
    log_norm = mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2) - mp.log(df * mp.pi) / 2

    def residual(u):
        z = mp.exp(u)
        tail = student_upper_tail(z, df)
        density = mp.exp(log_norm - (df + 1) / 2 * mp.log1p(z * z / df))
        if q < 0.25:
            return mp.log(tail / q), -z * density / tail
        center = 1 / mpf(2) - tail
        return mp.log(center / (1 / mpf(2) - q)), z * density / center

    if q < 0.25:
        start = -special.stdtrit(float(df), float(q))
    else:
        start = float((1 / mpf(2) - q) / mp.exp(log_norm))
    return mp.exp(newton(np.log(start), residual))


@cache
def gamma(p, q, a):
    """Quantile of the Gamma distribution of unit rate."""
    lower = p <= q

    def residual(u):
        x = mp.exp(u)
        bounds = (0, x) if lower else (x, mp.inf)
        tail = mp.gammainc(a, *bounds, regularized=True)
        slope = mp.exp(a * u - x - mp.loggamma(a)) / tail
        return mp.log(tail / (p if lower else q)), slope if lower else -slope

    inverse, tail = (special.gammaincinv, p) if lower else (special.gammainccinv, q)
    start = inverse(float(a), float(tail))
    if not start > 1e-290:
        return mp.exp(newton((mp.log(p) + mp.loggamma(a + 1)) / a, residual))
    return mp.exp(newton(np.log(start), residual))


def beta_distances(p, q, a, b):
    """Quantile of the Beta distribution, as its distances to 0 and to 1."""
    if p > q:
        return beta_distances(q, p, b, a)[::-1]
    x = beta_lower(p, a, b)
    return x, 1 - x


@cache
def beta_lower(p, a, b):
    """Quantile in the lower half of the probability."""
    log_norm = mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)

    def residual(u):
        x = 1 / (1 + mp.exp(-u))
        y = 1 / (1 + mp.exp(u))
        tail = mp.betainc(a, b, 0, x, regularized=True)
        return mp.log(tail / p), mp.exp(log_norm + a * mp.log(x) + b * mp.log(y)) / tail

    start = special.betaincinv(float(a), float(b), float(p))
    if 1e-290 < start < 1:
        start = special.logit(start)
    else:
        start = (mp.log(p) + mp.log(a) - log_norm) / a
    return 1 / (1 + mp.exp(-newton(start, residual)))


def truncated(quantile, tails, low=None, high=None):
    """The quantile function of a distribution restricted to an interval."""
    below_low, above_low = (0, 1) if low is None else tails(low)
    below_high, above_high = (1, 0) if high is None else tails(high)

    def restricted(p, q):
        return quantile(below_low * q + below_high * p, above_low * q + above_high * p)

    return restricted


def folded(quantile):
    """The quantile function of |X| for X symmetric around zero."""
    return lambda p, q: quantile((1 + p) / 2, q / 2)


def at_latent(quantile, xi, theta):
    """A quantile function of (p, q, **theta) at the standard normal latent value ``xi``."""
    return quantile(mp.ncdf(xi), mp.ncdf(-xi), **theta)


def quantiles(quantile, grid, theta):
    """High precision quantiles at latent values ``grid``, as a list of mpmath numbers."""
    with mpmath.workdps(DIGITS):
        theta = {name: mpf(value) for name, value in theta.items()}
        return [at_latent(quantile, mpf(float(xi)), theta) for xi in grid]


def derivatives(quantile, grid, theta, name=None):
    """Derivatives of the quantile in the parameter ``name``, or in the latent value, as a float array."""
    slopes = []
    with mpmath.workdps(DIGITS):
        theta = {key: mpf(value) for key, value in theta.items()}
        for xi in map(mpf, map(float, grid)):
            if name is None:
                change = at_latent(quantile, xi + STEP, theta) - at_latent(quantile, xi - STEP, theta)
            else:
                above, below = (theta | {name: theta[name] + step} for step in (STEP, -STEP))
                change = at_latent(quantile, xi, above) - at_latent(quantile, xi, below)
            slopes.append(change / (2 * STEP))
    return np.array([float(slope) for slope in slopes])
