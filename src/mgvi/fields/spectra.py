"""Power spectra of stationary fields: parametric ones, and one that is learned.

Parameters, which may be latent, come in; the power of each mode of a grid goes out. It must not know data or inference.

Convention: the covariance of a field is C(x) = integral of P(k) exp(2 pi i k x) dk, with k in cycles per unit of
distance, so the variance is the integral of P. On a grid the integral is a sum over its modes, up to the Nyquist
frequency.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from mgvi.fields import _expansion, _modes
from mgvi.fields.grid import Grid


class Spectrum:
    """Power of modes as a function of their length; the base of all spectra.

    Spectra are pytrees, those of subclasses too: attributes that are floating-point numbers, arrays or spectra are
    their leaves, all others must be hashable.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(cls, _flatten, partial(_unflatten, cls))

    def root_power(self, grid: Grid) -> Any:
        """Square root of the power of each mode, in the shape `grid.mode_shape`."""
        raise NotImplementedError

    def power(self, grid: Grid) -> Any:
        """Power of each mode, in the shape `grid.mode_shape`."""
        return self.root_power(grid) ** 2


_LEAF_TYPES = (jax.Array, np.ndarray, np.floating, float, Spectrum)


def _flatten(spectrum):
    attributes = dict(sorted(vars(spectrum).items()))
    names = attributes.pop("_leaves", None)  # what takes the place of leaves in a tree may be of any type
    if names is None:
        names = tuple(n for n, v in attributes.items() if isinstance(v, _LEAF_TYPES))
    fixed = tuple((n, v) for n, v in attributes.items() if n not in names)
    return [attributes[n] for n in names], (names, fixed)


def _unflatten(cls, auxiliary, leaves):
    names, fixed = auxiliary
    spectrum = object.__new__(cls)
    vars(spectrum).update(fixed, _leaves=names, **dict(zip(names, leaves, strict=True)))
    return spectrum


class SquaredExponential(Spectrum):
    """Of the covariance amplitude^2 exp(-x^2 / (2 length^2)).

    Parameters
    ----------
    length, amplitude : array-like
        Correlation length, and standard deviation of the field.

    Examples
    --------
    >>> from mgvi.fields import Grid, SquaredExponential
    >>> SquaredExponential(5.0, 2.0).power(Grid(64)).shape
    (33,)
    """

    def __init__(self, length: Any, amplitude: Any = 1.0):
        self.length, self.amplitude = length, amplitude

    def root_power(self, grid: Grid) -> Any:
        """Square root of the power of each mode, in the shape `grid.mode_shape`."""
        squares = _modes.squared_lengths(grid.full_shape, grid.spacing, jnp.result_type(float))
        scale = self.amplitude * (math.sqrt(2 * math.pi) * self.length) ** (0.5 * grid.ndim)
        return scale * jnp.exp(-((math.pi * self.length) ** 2) * squares)


class Matern(Spectrum):
    """Of the Matern covariance with smoothness nu; nu = 1/2 is exponential, nu to infinity squared exponential.

    Power beyond the grid's Nyquist frequency is missing from a draw, which matters for small nu and lengths of few
    pixels.

    Parameters
    ----------
    nu, length, amplitude : array-like
        Smoothness, correlation length, and standard deviation of the field.

    Examples
    --------
    >>> from mgvi.fields import Grid, Matern
    >>> Matern(1.5, length=5.0).power(Grid((32, 32))).shape
    (17, 17)
    """

    def __init__(self, nu: Any, length: Any, amplitude: Any = 1.0):
        self.nu, self.length, self.amplitude = nu, length, amplitude

    def root_power(self, grid: Grid) -> Any:
        """Square root of the power of each mode, in the shape `grid.mode_shape`."""
        squares = _modes.squared_lengths(grid.full_shape, grid.spacing, jnp.result_type(float))
        d, nu = grid.ndim, jnp.asarray(self.nu, float)
        base = 2 * nu / self.length**2
        log_scale = d * math.log(2 * math.sqrt(math.pi)) + gammaln(nu + d / 2) - gammaln(nu) + nu * jnp.log(base)
        return self.amplitude * jnp.exp(
            0.5 * log_scale - (0.5 * nu + d / 4) * jnp.log(base + (2 * math.pi) ** 2 * squares)
        )


class Tabulated(Spectrum):
    """A spectrum given by the logarithm of its power at a few mode lengths, linear in between, in logarithms.

    The constant mode has no power.

    Parameters
    ----------
    log_power : array
        At the lengths `spectrum_axis(grid, len(log_power))`, up to a constant.
    amplitude : array-like
        Standard deviation of the field over the (extended) grid.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from mgvi.fields import Grid, Tabulated
    >>> Tabulated(jnp.zeros(16), 1.0).power(Grid((8, 8))).shape
    (5, 5)
    """

    def __init__(self, log_power: Any, amplitude: Any = 1.0):
        self.log_power, self.amplitude = jnp.asarray(log_power, float), amplitude

    def root_power(self, grid: Grid) -> Any:
        """Square root of the power of each mode, in the shape `grid.mode_shape`."""
        root = jnp.exp(0.5 * self._normalized(grid)[0]).reshape(grid.mode_shape)
        return _modes.without_constant_mode(root)

    def on_axis(self, grid: Grid) -> Any:
        """Power at the lengths of `spectrum_axis`."""
        return jnp.exp(self._normalized(grid)[1])

    def _normalized(self, grid):
        scale = 2 * jnp.log(jnp.asarray(self.amplitude, float)) + math.log(grid.volume)
        return _on_modes(self._on_nodes(grid), scale, grid)

    def _on_nodes(self, grid):
        """Logarithms of the power at a few mode lengths, up to a constant."""
        return self.log_power


class PowerLaw(Tabulated):
    """Proportional to a power of the mode length, without the constant mode.

    `on_axis` gives the power at the ends of the axis, `spectrum_axis(grid, 2)`.

    Parameters
    ----------
    slope : array-like
        Exponent of the mode length, usually negative.
    amplitude : array-like
        Standard deviation of the field over the (extended) grid.

    Examples
    --------
    >>> from mgvi.fields import Grid, PowerLaw
    >>> print(PowerLaw(-3.0, 1.0).power(Grid(8))[0])
    0.0
    """

    def __init__(self, slope: Any, amplitude: Any = 1.0):
        self.slope, self.amplitude = slope, amplitude

    def _on_nodes(self, grid):
        return jnp.asarray(self.slope, float) * jnp.asarray(np.log(spectrum_axis(grid, 2)), float)


# Outside of other programs this is one program, which leaves out the tables of a derivative that nobody takes. Inside,
# it is part of the other program, which may keep those tables.
@partial(jax.jit, static_argnames="grid", inline=True)
def _on_modes(log_power, scale, grid):
    shape, spacing, dtype = grid.full_shape, grid.spacing, log_power.dtype
    count = _modes.without_constant_mode(_modes.multiplicity(shape, dtype)).ravel()
    return _normalized(log_power, scale, count, _expansion.tables(shape, spacing, log_power.shape[-1], dtype))


@jax.custom_jvp
def _normalized(log_power, scale, count, tables):
    """Logarithms of the power of all modes and on the spectrum's axis, such that the sum over modes is exp(scale).

    `count` tells how many modes of the grid each mode stands for, 0 for the constant one. It and the tables of the
    expansion are arguments, so that a traced model that is differentiated later has them among its arrays.
    """
    modes = _expansion.expand(log_power, tables)
    _, top, total = _shares(modes, log_power, count)
    offset = scale - (top + jnp.log(total))
    return modes + offset, log_power + offset


@_normalized.defjvp
def _normalized_jvp(primals, tangents):
    # The derivative of the sum is a short vector, and the weights of the nodes of each mode add up to 1: a linearised
    # model expands once, and has no other sum over the modes.
    (log_power, scale, count, tables), (change, of_scale, _, _) = primals, tangents
    of_modes = partial(_expansion.expand, tables=tables)
    modes = of_modes(log_power)
    weights, top, total = _shares(modes, log_power, count)
    gradient = jax.linear_transpose(of_modes, log_power)(weights / total)[0]
    offset = scale - (top + jnp.log(total))
    on_axis = change + (of_scale - jnp.vdot(gradient, change))
    return (modes + offset, log_power + offset), (of_modes(on_axis), on_axis)


def _shares(modes, log_power, count):
    """The power of each mode but the constant one, and its sum, both over exp(top)."""
    top = jax.lax.stop_gradient(jnp.max(log_power))
    weights = count * jnp.exp(modes - top)
    return weights, top, jnp.sum(weights)


def spectrum_axis(grid: Grid, nodes: int = 64) -> np.ndarray:
    """Mode lengths, equally spaced in their logarithm from the longest wave on a grid to the shortest.

    Examples
    --------
    >>> from mgvi.fields import Grid, spectrum_axis
    >>> print(spectrum_axis(Grid(100), 3).round(3))
    [0.01  0.071 0.5  ]
    """
    return np.geomspace(*_expansion.ends(grid.full_shape, grid.spacing), nodes)


def _integrated(steps):
    """From white noise to an integrated Wiener process that starts and ends at zero, with an rms of 1.

    The matrix has a closed form: in the middle of each interval, the velocity is the sum of the steps so far and half
    of the next one; the path is the sum of these velocities, less a straight line to its end.
    """
    nodes = steps.shape[-1] + 1
    dtype = steps.dtype
    node = jax.lax.broadcasted_iota(dtype, (nodes, nodes - 1), 0)
    step = jax.lax.broadcasted_iota(dtype, (nodes, nodes - 1), 1)
    path = jnp.maximum(node - step - 0.5, 0.0) - node / (nodes - 1) * (nodes - 1.5 - step)
    path = path / jnp.sqrt(jnp.sum(path**2) / nodes)
    return jnp.matmul(path, steps, precision=jax.lax.Precision.HIGHEST)


def smooth_spectrum(
    name: str, grid: Grid, *, sd: Any = (1.0, 1.0), slope: Any = (-3.0, 1.0), smoothness: Any = 1.0, nodes: int = 64
) -> Tabulated:
    """A learned spectrum: a power law times the exponential of a smooth curve, for use inside a NumPyro model.

    The curve is an integrated Wiener process over the logarithm of the mode length. The constant mode has no power:
    give the field a mean of its own.

    Parameters
    ----------
    name : str
        The power at `spectrum_axis(grid, nodes)` is the deterministic site of this name; the parameters are the sites
        `name_sd`, `name_slope`, `name_smoothness` and `name_curve` (steps of the curve), those that are not numbers.
    grid : Grid
        The grid of the field.
    sd : number, (mean, sd) or distribution
        Standard deviation of the field; a pair stands for a log-normal prior with that mean and sd.
    slope : number, (mean, sd) or distribution
        Average slope of the power on logarithmic axes; a pair stands for a normal prior.
    smoothness : number, (mean, sd) or distribution
        How far, in units of ln(power), the curve departs from the power law (rms); a pair stands for a log-normal
        prior. A learned one may end near zero, in a mode in which the spectrum is a power law: compare seeds.
    nodes : int
        Number of mode lengths at which the curve is free.

    Returns
    -------
    Tabulated

    Examples
    --------
    >>> import jax, numpyro, mgvi
    >>> from mgvi.fields import Grid, StationaryField, smooth_spectrum
    >>> grid = Grid(64)
    >>> def model():
    ...     spectrum = smooth_spectrum("p", grid, sd=(1.0, 0.5), slope=(-3.0, 0.5))
    ...     numpyro.sample("s", StationaryField(grid, spectrum))
    >>> draw = mgvi.sample_prior(jax.random.key(1), 1, model)
    >>> sorted(draw), draw["p"].shape
    (['p', 'p_curve', 'p_sd', 'p_slope', 's'], (1, 64))
    """
    sd = _parameter(f"{name}_sd", sd, _log_normal)
    slope = _parameter(f"{name}_slope", slope, dist.Normal)
    learned = isinstance(smoothness, tuple | dist.Distribution)
    smoothness = _parameter(f"{name}_smoothness", smoothness, _log_normal)
    curve = dist.Normal(0.0, smoothness if learned else 1.0).expand([nodes - 1]).to_event(1)
    curve = jnp.asarray(numpyro.sample(f"{name}_curve", curve)) * (1.0 if learned else smoothness)
    axis = np.log(spectrum_axis(grid, nodes))
    spectrum = Tabulated(slope * jnp.asarray(axis - axis.mean(), curve.dtype) + _integrated(curve), sd)
    numpyro.deterministic(name, spectrum.on_axis(grid))
    return spectrum


def _parameter(name: str, value: Any, family: Callable) -> Any:
    if isinstance(value, dist.Distribution):
        return numpyro.sample(name, value)
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueError(f"{name}: expected a number, a pair (mean, sd) or a distribution, found {value!r}")
        return numpyro.sample(name, family(*value))
    return jnp.asarray(value, float)


def _log_normal(mean: float, sd: float) -> dist.Distribution:
    """The log-normal distribution with a given mean and standard deviation."""
    if not (mean > 0 and sd > 0):
        raise ValueError(f"a positive parameter needs a positive mean and sd, found ({mean}, {sd})")
    variance = math.log1p((sd / mean) ** 2)
    return dist.LogNormal(math.log(mean) - 0.5 * variance, math.sqrt(variance))
