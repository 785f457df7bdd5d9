"""Gaussians: a mean, a chart and a curvature.

A problem and a mean come in; deviations and approximations of the posterior go out.
Nothing here knows why they are asked for.
"""

from mgvi.gaussian.approximations import DenseGaussian, KrylovGaussian
from mgvi.gaussian.curvature import Curvature, Keys
from mgvi.gaussian.dense import DenseCurvature
from mgvi.gaussian.draws import Approximation, StoredDraws
from mgvi.gaussian.krylov import KrylovCurvature
from mgvi.gaussian.samplers import MGVI, Point, Sampler

APPROXIMATIONS = {cls.__name__: cls for cls in (DenseGaussian, KrylovGaussian, StoredDraws)}  # by name, for files

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
