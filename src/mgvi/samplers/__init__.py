"""Samplers: a metric and keys become deviations.

A Fisher metric comes in, deviations from a mean go out.
No sampler knows data.
"""

from mgvi.samplers.draws import Draws, number, numbers
from mgvi.samplers.mgvi import MGVI, Point, with_partners

__all__ = ["MGVI", "Draws", "Point", "number", "numbers", "with_partners"]
