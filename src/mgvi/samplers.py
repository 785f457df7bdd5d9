"""Samplers that `mgvi.fit` can use: its argument `sampler`.

Nothing comes in; classes go out.
It must not hold anything but names.
"""

from mgvi.gaussian.samplers import MGVI, Point, Sampler

__all__ = ["MGVI", "Point", "Sampler"]
