"""Special functions of Fisher information, written without cancellation.

Shape parameters come in; the small differences of polygammas and Bessel ratios that stand in Fisher matrices go out.
Nothing here knows a distribution.
"""

from functools import partial

import jax.numpy as jnp
from jax.scipy.special import i0e, i1e, polygamma

trigamma = partial(polygamma, 1)


def _where_large(x, limit, direct, series):
    """`direct` below a limit, a series in 1/x above; both evaluated at safe arguments."""
    x = jnp.asarray(x, jnp.result_type(x, float))
    return jnp.where(x < limit, direct(jnp.minimum(x, limit)), series(1 / jnp.maximum(x, limit)))


def _limit(x):
    """Where a series takes over: early in float32, whose direct differences cancel sooner."""
    return 8.0 if jnp.result_type(x, float) == jnp.float32 else 30.0


def _horner(r, coefficients):
    total = 0.0
    for c in reversed(coefficients):
        total = total * r + c
    return total


def trigamma_minus_inverse(x):
    """trigamma(x) - 1/x, which falls as 1/(2 x^2)."""
    c = [0.5, 1 / 6, 0, -1 / 30, 0, 1 / 42, 0, -1 / 30, 0, 5 / 66]
    return _where_large(x, _limit(x), lambda v: trigamma(v) - 1 / v, lambda r: r * r * _horner(r, c))


def inverse_trigamma_rest(x):
    """1/trigamma(x) - x + 1/2, which falls as 1/(12 x)."""
    c = [1 / 12, 1 / 24, -1 / 720, -11 / 480, -113 / 12096, 527 / 24192, 79717 / 3628800]
    return _where_large(x, _limit(x), lambda v: 1 / trigamma(v) - v + 0.5, lambda r: r * _horner(r, c))


def student_t_df_information(df):
    """Fisher information of the degrees of freedom of a Student t."""

    def direct(v):
        difference = 0.25 * (trigamma(0.5 * v) - trigamma(0.5 * (v + 1)))
        return difference - (v + 5) / (2 * v * (v + 1) * (v + 3))

    return _where_large(df, 2 * _limit(df), direct, lambda r: r**4 * _horner(r, _T_SERIES))


# Of the information in 1/df from the fourth power on, by the asymptotic series of trigamma.
_T_SERIES = [3.5, -13, 39.5, -119, 363.5, -1101, 3279.5, -9763, 29523.5, -89609, 265719.5]


def bessel_ratio(kappa):
    """I1(kappa) / I0(kappa)."""
    return i1e(kappa) / i0e(kappa)


def von_mises_concentration_information(kappa):
    """1 - A/kappa - A^2 with A the Bessel ratio: falls as 1/(2 kappa^2)."""

    def direct(k):
        tiny = k < 1e-3
        safe = jnp.where(tiny, 1.0, k)
        a = bessel_ratio(safe)
        return jnp.where(tiny, 0.5 - 3 * k * k / 16, 1 - a / safe - a * a)

    return _where_large(kappa, 16.0, direct, lambda r: r * r * _horner(r, _VON_MISES_SERIES))


# A = sum a_n kappa^-n solves A' = 1 - A / kappa - A^2, which gives the a_n by recursion; these are -n a_n, exact.
_VON_MISES_SERIES = [
    *(1 / 2, 1 / 4, 3 / 8, 25 / 32, 65 / 32, 3219 / 512, 721 / 32, 375733 / 4096, 214173 / 512),
    *(276923875 / 131072, 23985071 / 2048, 74139092727 / 1048576),
]
