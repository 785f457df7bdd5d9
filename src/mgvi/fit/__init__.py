"""Fits: rounds, schedules, convergence, checkpoints.

A problem comes in, a Posterior goes out.
Nothing here knows an inner product.
"""

from mgvi.fit.entry import fit
from mgvi.fit.schedule import Stage

__all__ = ["Stage", "fit"]
