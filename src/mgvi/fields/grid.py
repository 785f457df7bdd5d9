"""Regular grids and their harmonic modes.

Shape and spacing come in; mode lengths, transforms and coordinates go out. It must not know spectra, data or inference.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgvi._linear import Pair, linear
from mgvi.fields import _modes


class Grid:
    """A regular grid in one, two or three dimensions.

    Transforms are periodic. For a domain that is not, `padding` extends every axis by at least that fraction of its
    length, rounded up to a size that transforms fast; a field then lives on the extended grid, and `crop` takes the
    domain out of it. Half of the domain's length is enough for correlations that have faded over that distance.

    A product of grids, ``space * frequency``, has an own isotropic spectrum for each factor.

    Parameters
    ----------
    shape : int or sequence of int
        Pixels along each axis of the domain.
    spacing : float or sequence of float
        Distance of neighbouring pixels.
    periodic : bool
        Whether the domain itself is periodic.
    padding : float, optional
        Fraction of each axis to add if the domain is not periodic, by default 0.5.

    Examples
    --------
    >>> from mgvi.fields import Grid
    >>> Grid((300, 500), periodic=False)
    Grid((300, 500), spacing=(1.0, 1.0), padded to (450, 750))
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        spacing: float | Sequence[float] = 1.0,
        periodic: bool = True,
        padding: float | None = None,
    ):
        self.shape = _sizes(shape)
        self.spacing = _spacings(spacing, len(self.shape))
        if padding is not None and periodic and padding != 0:
            raise ValueError(f"padding={padding} is for domains that are not periodic: pass periodic=False too")
        extra = 0.0 if periodic else 0.5 if padding is None else float(padding)
        if extra < 0:
            raise ValueError(f"padding must not be negative, found {padding}")
        self.full_shape = self.shape if extra == 0 else tuple(_fast(math.ceil(n * (1 + extra))) for n in self.shape)
        self.factors: tuple[Grid, ...] = (self,)

    def __mul__(self, other: "Grid") -> "Grid":
        product = object.__new__(Grid)
        product.shape = self.shape + other.shape
        product.spacing = self.spacing + other.spacing
        product.full_shape = self.full_shape + other.full_shape
        product.factors = self.factors + other.factors
        if len(product.shape) > 3:
            raise ValueError(f"a grid has at most 3 axes, this product has {len(product.shape)}")
        return product

    def __repr__(self) -> str:
        padded = "" if self.full_shape == self.shape else f", padded to {self.full_shape}"
        return f"Grid({self.shape}, spacing={self.spacing}{padded})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self):
        own = (self.shape, self.spacing, self.full_shape)
        return own if len(self.factors) == 1 else tuple(f._key() for f in self.factors)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Pixels of the extended grid."""
        return math.prod(self.full_shape)

    @property
    def pixel_volume(self) -> float:
        """Volume of a pixel."""
        return math.prod(self.spacing)

    @property
    def volume(self) -> float:
        """Volume of the extended grid."""
        return self.size * self.pixel_volume

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of a harmonic latent: real and imaginary parts of half of the modes."""
        return (2, *self.full_shape[:-1], self.full_shape[-1] // 2 + 1)

    @property
    def mode_shape(self) -> tuple[int, ...]:
        """Shape of the table of modes up to sign along each axis."""
        return tuple(n // 2 + 1 for n in self.full_shape)

    @property
    def mode_lengths(self) -> np.ndarray:
        """Length of each mode in cycles per unit of distance, in the shape `mode_shape`."""
        total = np.zeros(())
        for n, d in zip(self.full_shape, self.spacing, strict=True):
            total = total[..., None] + (np.arange(n // 2 + 1) / (n * d)) ** 2
        return np.sqrt(total)

    @property
    def multiplicity(self) -> np.ndarray:
        """How many modes of the whole grid each entry of `mode_lengths` stands for."""
        total = np.ones(())
        for n in self.full_shape:
            index = np.arange(n // 2 + 1)
            total = total[..., None] * np.where((index == 0) | (2 * index == n), 1.0, 2.0)
        return total

    def coordinates(self) -> tuple[np.ndarray, ...]:
        """Coordinates of the domain's pixels along each axis, from 0."""
        return tuple(np.arange(n) * d for n, d in zip(self.shape, self.spacing, strict=True))

    def crop(self, field: Any) -> Any:
        """The domain's part of a field on the extended grid; further leading axes are kept."""
        return field[(..., *(slice(n) for n in self.shape))]

    def synthesize(self, amplitude: Any, latent: Any) -> jax.Array:
        """The real field with independent modes: amplitude times latent, transformed.

        Parameters
        ----------
        amplitude : array
            Root of the power of each mode, in the shape `mode_shape`.
        latent : array
            Standard normal numbers in the shape `latent_shape`, with any leading axes. A few of them (signs of modes
            on two faces) have no effect.

        Returns
        -------
        array
            A field whose covariance has eigenvalues `amplitude**2`: its variance is their mean over all modes.
        """
        amplitude = amplitude * _modes.half_weights(self.full_shape, amplitude.dtype)
        return linear(_transform(self.full_shape), self._spread(amplitude) * latent)

    def analyze(self, field: Any) -> tuple[jax.Array, jax.Array]:
        """Squared modes of a field, in units in which their mean is `amplitude**2`, and how often each counts.

        The counts are a vector along the last axis; they are the same along all others.
        """
        modes = jnp.fft.rfftn(field, axes=_axes(self.ndim))
        count = _modes.face_or_pair(self.full_shape[-1], 1.0, 2.0, modes.real.dtype)
        return (modes.real**2 + modes.imag**2) / self.size, count

    def _unfold(self, modes):
        """From modes up to sign to the half of the modes that a real transform takes."""
        for axis, n in enumerate(self.full_shape[:-1]):
            mirrored = jax.lax.slice_in_dim(modes, 1, (n + 1) // 2, axis=axis)
            modes = jnp.concatenate([modes, jnp.flip(mirrored, axis)], axis=axis)
        return modes

    def _spread(self, modes):
        """From modes up to sign to the latents that they stand for."""
        return linear(_doubled(self.ndim), self._unfold(modes))


def _sizes(shape) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if not 1 <= len(sizes) <= 3 or any(int(n) != n or n < 2 for n in sizes):
        raise ValueError(f"the shape of a grid is one to three integers of at least 2, found {shape!r}")
    return tuple(int(n) for n in sizes)


def _spacings(spacing, ndim) -> tuple[float, ...]:
    values = tuple(np.ravel(np.asarray(spacing, float)).tolist())
    values = values * ndim if len(values) == 1 else values
    if len(values) != ndim or any(not d > 0 for d in values):
        raise ValueError(f"spacing must be a positive number, or one for each of {ndim} axes, found {spacing!r}")
    return values


def _fast(n: int) -> int:
    """The smallest even size of at least n without prime factors above 5."""
    while n % 2 or _without_small_factors(n) != 1:
        n += 1
    return n


def _without_small_factors(n: int) -> int:
    for prime in (2, 3, 5):
        while n % prime == 0:
            n //= prime
    return n


def _axes(ndim: int) -> tuple[int, ...]:
    return tuple(range(-ndim, 0))


@lru_cache(maxsize=4)
def _doubled(ndim: int) -> Pair:
    """The map from one number for each mode to the same number for its real and its imaginary part.

    Its transpose adds two arrays. The one that JAX derives is a sum over an axis of length 2, which takes ten times as
    long.
    """
    part = lambda parts, i: jax.lax.index_in_dim(parts, i, -1 - ndim, keepdims=False)
    return Pair(
        lambda modes: jnp.broadcast_to(
            jnp.expand_dims(modes, -1 - ndim), (*modes.shape[: modes.ndim - ndim], 2, *modes.shape[modes.ndim - ndim :])
        ),
        lambda parts: jax.lax.optimization_barrier(part(parts, 0) + part(parts, 1)),
    )


@lru_cache(maxsize=64)
def _transform(shape: tuple[int, ...]) -> Pair:
    """From real and imaginary parts of half of the modes to a real field."""
    ndim, size = len(shape), math.prod(shape)

    def forward(parts):
        real, imaginary = (jax.lax.index_in_dim(parts, i, -1 - ndim, keepdims=False) for i in (0, 1))
        return jnp.fft.irfftn(jax.lax.complex(real, imaginary), s=shape, axes=_axes(ndim))

    def backward(field):
        modes = jnp.fft.rfftn(field, axes=_axes(ndim))
        counts = _modes.face_or_pair(shape[-1], 1 / size, 2 / size, field.dtype)
        return jnp.stack([modes.real, modes.imag], axis=-1 - ndim) * counts

    return Pair(forward, backward)
