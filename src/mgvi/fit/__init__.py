"""Fits: a problem becomes a posterior, round by round."""

from mgvi.fit.loop import fit
from mgvi.fit.schedule import Stage

__all__ = ["Stage", "fit"]
