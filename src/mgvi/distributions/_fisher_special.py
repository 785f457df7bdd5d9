"""Special functions of Fisher information, written without cancellation.

Shape parameters come in; the small differences of polygammas and Bessel ratios that stand in Fisher matrices go out.
Nothing here knows a distribution.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import i0e, i1e, polygamma


def trigamma(x):
    """Second derivative of log Gamma."""
    return polygamma(1, x)


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


def _student_t_series(terms: int) -> list[float]:
    """Coefficients of the information in 1/df, from the asymptotic series of trigamma."""
    # trigamma(x) ~ sum B_k+ x^-(k+1); x = df/2 and (df+1)/2 expanded in r = 1/df
    bernoulli = [1, 1 / 2, 1 / 6, 0, -1 / 30, 0, 1 / 42, 0, -1 / 30, 0, 5 / 66, 0, -691 / 2730, 0, 7 / 6]
    total = np.zeros(terms + 4)
    for k, b in enumerate(bernoulli):
        power = k + 1
        if power >= total.size:
            break
        total[power] += 0.25 * b * 2**power
        # (2 r)^power (1 + r)^-power
        coefficient = 1.0
        for j in range(total.size - power):
            total[power + j] -= 0.25 * b * 2**power * coefficient
            coefficient *= -(power + j) / (j + 1)
    # (1 + 5 r) r^2 / (2 (1 + r)(1 + 3 r))
    geometric = np.array([sum((-1) ** i * (-3) ** (n - i) for i in range(n + 1)) for n in range(total.size)], float)
    for n in range(total.size - 2):
        total[n + 2] -= 0.5 * geometric[n]
        if n + 3 < total.size:
            total[n + 3] -= 2.5 * geometric[n]
    return list(total[4:])


_T_SERIES = _student_t_series(11)


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


def _von_mises_series(terms: int) -> list[float]:
    """Coefficients of the derivative of the Bessel ratio in 1/kappa, times kappa^2."""
    # A = sum a_n r^n solves A' = 1 - A r - A^2, so the a_n follow by recursion
    a = np.zeros(terms + 3)
    a[0] = 1.0
    for n in range(1, a.size):
        # coefficient of r^n: -(n-1) a_{n-1} = -a_{n-1} - sum_{i+j=n} a_i a_j
        known = sum(a[i] * a[n - i] for i in range(1, n))
        a[n] = ((n - 1) * a[n - 1] - a[n - 1] - known) / 2
    # A' = -sum n a_n r^(n+1)
    return [-n * a[n] for n in range(1, terms + 1)]


_VON_MISES_SERIES = _von_mises_series(12)
