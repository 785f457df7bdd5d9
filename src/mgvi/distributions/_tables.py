"""Tables of quantiles for shape parameters that are known while a program is being built.

Constant shape parameters and a latent come in; log or logit quantiles interpolated from float64 nodes go out.
The nodes come from scipy.special; parameters that are traced go to the numeric solver instead.
"""

from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from scipy import special

from mgvi.distributions import _quantiles

_CELLS_PER_UNIT = 32
_MAX_ROWS = 64  # more distinct constants than this go to the numeric solver


def gamma_log_quantile(shape, xi):
    """log x with P(Gamma(shape, 1) < x) = Phi(xi)."""
    return _dispatch(_gamma_rows, _quantiles.gamma_log_quantile, (shape,), xi)


def beta_logit_quantile(a, b, xi):
    """logit x with P(Beta(a, b) < x) = Phi(xi)."""
    return _dispatch(_beta_rows, _quantiles.beta_logit_quantile, (a, b), xi)


def symmetric_beta_logit_quantile(a, xi):
    """logit x with P(Beta(a, a) < x) = Phi(xi): an odd function of xi."""
    return _dispatch(lambda a: _beta_rows(a, a), _quantiles.symmetric_beta_logit_quantile, (a,), xi)


def _dispatch(rows: Callable, numeric: Callable, shapes: tuple, xi):
    if any(isinstance(s, Tracer) for s in shapes):
        return numeric(*shapes, xi)
    constants = np.stack(np.broadcast_arrays(*(np.asarray(s, np.float64) for s in shapes)))
    distinct, which = np.unique(constants.reshape(len(shapes), -1), axis=1, return_inverse=True)
    if distinct.shape[1] > _MAX_ROWS or not np.all(distinct > 0):
        return numeric(*shapes, xi)
    coefficients, slopes = zip(*(rows(*map(float, column)) for column in distinct.T), strict=True)
    return _interpolate(np.stack(coefficients), np.stack(slopes), which.reshape(constants.shape[1:]), xi)


def _interpolate(coefficients, slopes, which, xi):
    """Evaluate piecewise quintics; `which` names the row of each element."""
    xi = jnp.asarray(xi, jnp.result_type(xi, float))
    cells = coefficients.shape[1]
    half = cells / _CELLS_PER_UNIT / 2
    inside = jnp.clip(xi, -half, half)
    cell = jnp.clip(((jax.lax.stop_gradient(inside) + half) * _CELLS_PER_UNIT).astype(int), 0, cells - 1)
    s = (inside - (cell.astype(xi.dtype) / _CELLS_PER_UNIT - half)) * _CELLS_PER_UNIT  # exact, also for a tiny latent
    index = which * cells + cell if coefficients.shape[0] > 1 else cell
    c = jnp.asarray(coefficients.reshape(-1, 6), xi.dtype)[index]
    value = c[..., 0] + s * (c[..., 1] + s * (c[..., 2] + s * (c[..., 3] + s * (c[..., 4] + s * c[..., 5]))))
    ends = jnp.asarray(slopes, xi.dtype)[which]
    return value + jnp.where(xi < 0, ends[..., 0], ends[..., 1]) * (xi - inside)


def _nodes():
    half = int(_quantiles.MAX_LATENT)
    return np.linspace(-half, half, 2 * half * _CELLS_PER_UNIT + 1)


def _quintics(xi, y, log_density, log_density_slope):
    """Coefficients on each cell from values and densities at the nodes."""
    h = 1 / _CELLS_PER_UNIT
    first = np.exp(-0.5 * xi**2 - 0.5 * np.log(2 * np.pi) - log_density)
    second = first * (-xi - log_density_slope * first)
    a0, a1 = h * first[:-1], h * first[1:]
    b0, b1 = h**2 * second[:-1], h**2 * second[1:]
    rise = np.diff(y)
    coefficients = np.stack(
        [
            y[:-1],
            a0,
            b0 / 2,
            10 * rise - 6 * a0 - 4 * a1 - 1.5 * b0 + 0.5 * b1,
            -15 * rise + 8 * a0 + 7 * a1 + 1.5 * b0 - b1,
            6 * rise - 3 * a0 - 3 * a1 - 0.5 * b0 + 0.5 * b1,
        ],
        axis=-1,
    )
    return coefficients, np.array([first[0], first[-1]])


@lru_cache(maxsize=256)
def _gamma_rows(a: float):
    xi = _nodes()
    p, q = special.ndtr(xi), special.ndtr(-xi)
    with np.errstate(divide="ignore"):
        y = np.log(np.where(xi < 0, special.gammaincinv(a, p), special.gammainccinv(a, q)))
    small = (special.log_ndtr(xi) + special.gammaln(a + 1)) / a
    y = np.where(small < -600, small, y)  # x underflows there; its logarithm must not
    x = np.exp(y)
    return _quintics(xi, y, a * y - x - special.gammaln(a), a - x)


@lru_cache(maxsize=256)
def _beta_rows(a: float, b: float):
    xi = _nodes()

    def log_lower(a, b, xi):
        """log x and log(1 - x) at the nodes; accurate for the smaller of the two."""
        p, q = special.ndtr(xi), special.ndtr(-xi)
        with np.errstate(divide="ignore"):
            log_x = np.log(np.where(xi < 0, special.betaincinv(a, b, p), special.betainccinv(a, b, q)))
        small = (special.log_ndtr(xi) + np.log(a) + special.betaln(a, b)) / a
        return np.where(small < -600, small, log_x)

    y = log_lower(a, b, xi) - log_lower(b, a, -xi)
    if a == b:
        y = 0.5 * (y - y[::-1])  # exactly odd
    log_x, log_1mx = -np.logaddexp(0, -y), -np.logaddexp(0, y)
    log_density = a * log_x + b * log_1mx - special.betaln(a, b)
    return _quintics(xi, y, log_density, a * np.exp(log_1mx) - b * np.exp(log_x))
