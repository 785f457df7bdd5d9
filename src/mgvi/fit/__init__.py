"""Fits: rounds, schedules, convergence, checkpoints.

A problem comes in, a Posterior goes out.
Nothing here knows an inner product.
"""

from mgvi.fit.entry import fit
from mgvi.fit.plan import Plan
from mgvi.fit.records import Record, RoundSettings
from mgvi.fit.stages import Stage

__all__ = ["Plan", "Record", "RoundSettings", "Stage", "fit"]
