"""Samplers: a metric and keys become deviations.

A Fisher metric comes in, deviations from a mean go out.
No sampler knows data.
"""

from mgvi.samplers.draws import Draws, affordable_pairs, is_small, number, numbers
from mgvi.samplers.mgvi import MGVI, Point, with_partners

__all__ = [
    "MGVI",
    "Draws",
    "Point",
    "affordable_pairs",
    "is_small",
    "number",
    "numbers",
    "with_partners",
]
