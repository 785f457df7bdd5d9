"""Gaussians: a mean, a chart and a curvature.

A problem and a mean come in; deviations and approximations of the posterior go out.
Nothing here knows why they are asked for.
"""

from mgvi.gaussian.approximations import (
    APPROXIMATIONS,
    Approximation,
    DenseGaussian,
    KrylovGaussian,
    StoredDraws,
)
from mgvi.gaussian.curvature import Curvature, Keys
from mgvi.gaussian.dense import DenseCurvature
from mgvi.gaussian.krylov import KrylovCurvature
from mgvi.gaussian.samplers import MGVI, Point, Sampler

__all__ = [
    "APPROXIMATIONS",
    "MGVI",
    "Approximation",
    "Curvature",
    "DenseCurvature",
    "DenseGaussian",
    "Keys",
    "KrylovCurvature",
    "KrylovGaussian",
    "Point",
    "Sampler",
    "StoredDraws",
]
