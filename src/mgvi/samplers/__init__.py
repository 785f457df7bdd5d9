"""Samplers: a metric and keys become deviations.

A Fisher metric comes in, deviations from a mean go out.
No sampler knows data.
"""

from mgvi.samplers.approximations import (
    APPROXIMATIONS,
    Approximation,
    DenseGaussian,
    DiagonalGaussian,
    InverseMetric,
    StoredDraws,
)
from mgvi.samplers.draws import Draws, affordable_pairs, is_small, keys_at_once, most_pairs
from mgvi.samplers.mgvi import MGVI, Point, with_partners

__all__ = [
    "APPROXIMATIONS",
    "MGVI",
    "Approximation",
    "DenseGaussian",
    "DiagonalGaussian",
    "Draws",
    "InverseMetric",
    "Point",
    "StoredDraws",
    "affordable_pairs",
    "is_small",
    "keys_at_once",
    "most_pairs",
    "with_partners",
]
