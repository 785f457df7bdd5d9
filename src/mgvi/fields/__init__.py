"""Gaussian-process fields on regular grids.

Grids and spectra come in; NumPyro distributions of fields, and functions that observe fields, go out.
Nothing here knows data or inference.
"""

from mgvi.fields.grid import Grid
from mgvi.fields.observe import blur, convolve, interpolate, line_of_sight, select
from mgvi.fields.spectra import (
    Matern,
    PowerLaw,
    Spectrum,
    SquaredExponential,
    Tabulated,
    smooth_spectrum,
    spectrum_axis,
)
from mgvi.fields.stationary import StationaryField

__all__ = [
    "Grid",
    "Matern",
    "PowerLaw",
    "Spectrum",
    "SquaredExponential",
    "StationaryField",
    "Tabulated",
    "blur",
    "convolve",
    "interpolate",
    "line_of_sight",
    "select",
    "smooth_spectrum",
    "spectrum_axis",
]
