"""Stationary Gaussian fields as a NumPyro distribution.

A grid, a spectrum and a mean come in; a distribution that can be sampled, evaluated and standardised goes out.
It must not know data or inference.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints

from mgvi import _tree
from mgvi._trace import kept
from mgvi.distributions import Scale, register_scale, register_standardization
from mgvi.fields import _modes
from mgvi.fields.grid import Grid
from mgvi.fields.spectra import Spectrum


class StationaryField(dist.Distribution):
    """A Gaussian field on a grid, with a covariance that depends on distance only.

    Parameters
    ----------
    grid : Grid
        Where it lives; its event shape is that of the extended grid, of which `grid.crop` takes the domain.
    spectrum : Spectrum or sequence of Spectrum
        Its power; one for each factor of a product of grids, whose amplitudes are then multiplied.
    mean : array-like
        A number or a field.

    Examples
    --------
    >>> import jax
    >>> from mgvi.fields import Grid, SquaredExponential, StationaryField
    >>> field = StationaryField(Grid((32, 32)), SquaredExponential(4.0))
    >>> field.sample(jax.random.key(0)).shape
    (32, 32)
    """

    arg_constraints = {}
    reparametrized_params = ["mean"]
    pytree_data_fields = ("spectra", "offset", "_expanded")
    pytree_aux_fields = ("grid",)

    def __init__(self, grid: Grid, spectrum: Spectrum | Sequence[Spectrum], mean: Any = 0.0, *, validate_args=None):
        spectra = (spectrum,) if isinstance(spectrum, Spectrum) else tuple(spectrum)
        if len(spectra) != len(grid.factors):
            raise ValueError(f"{grid} has {len(grid.factors)} factors: expected as many spectra, found {len(spectra)}")
        self.grid, self.spectra, self.offset = grid, spectra, mean
        # A learned spectrum is expanded to the modes once, here. A fixed one is expanded in each program that needs it,
        # because an array made here would be a constant of all programs that close over the distribution.
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(spectra))
        self._expanded = self._amplitude() if is_traced else None
        super().__init__((), grid.full_shape, validate_args=validate_args)

    @property
    def amplitude(self) -> jax.Array:
        """Root of the power of each mode, in the shape `grid.mode_shape`, in units of a pixel."""
        return self._amplitude() if self._expanded is None else self._expanded

    def _amplitude(self):
        amplitude = jnp.ones(())
        for factor, spectrum in zip(self.grid.factors, self.spectra, strict=True):
            root = spectrum.root_power(factor) / math.sqrt(factor.pixel_volume)
            amplitude = amplitude[(..., *(None,) * root.ndim)] * root
        return kept(amplitude)

    @constraints.dependent_property(is_discrete=False)  # pyright: ignore[reportArgumentType]
    def support(self):
        return constraints.independent(constraints.real, self.grid.ndim)

    @property
    def mean(self):
        return jnp.broadcast_to(self.offset, self.event_shape)

    @property
    def variance(self):
        amplitude = self.amplitude
        count = _modes.multiplicity(self.grid.full_shape, amplitude.dtype)
        total = jnp.sum(amplitude**2 * count) / self.grid.size
        return jnp.broadcast_to(total, self.event_shape)

    def sample(self, key: Any, sample_shape=()) -> Any:
        return _sample(self, key, tuple(sample_shape))

    def log_prob(self, value):
        """Log-density, over the modes that have power."""
        grid = self.grid
        squares, count = grid.analyze(value - self.offset)
        amplitude = grid._unfold(self.amplitude)
        has_power = amplitude > 0
        variance = jnp.where(has_power, amplitude, 1.0) ** 2
        terms = squares / variance + jnp.log(2 * math.pi * variance)
        return -0.5 * jnp.sum(jnp.where(has_power, count * terms, 0.0), axis=tuple(range(-grid.ndim, 0)))


@register_standardization(StationaryField, latent_event_shape=lambda d: d.grid.latent_shape)
def _field(d, xi):
    return d.offset + d.grid.synthesize(d.amplitude, xi)


@register_scale(StationaryField)
def _scale(d):
    amplitude = d.amplitude
    has_power = amplitude > 0
    return Scale(jnp.where(has_power, jnp.log(jnp.where(has_power, amplitude, 1.0)), 0.0), d.grid._spread)


@partial(jax.jit, static_argnames="sample_shape")
def _sample(field, key, sample_shape):
    amplitude = field.amplitude
    latent: Any = _tree.random_normal(
        key, jax.ShapeDtypeStruct((*sample_shape, *field.grid.latent_shape), amplitude.dtype)
    )
    return field.offset + field.grid.synthesize(amplitude, latent)
