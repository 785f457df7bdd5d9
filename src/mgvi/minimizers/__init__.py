"""Minimizers: an objective with gradient and metric becomes its minimum.

An objective comes in, a point and a report go out.
No minimizer knows a sampler.
"""

from mgvi.minimizers.newton_cg import Limits, NewtonCG, NewtonReport, Objective

__all__ = ["Limits", "NewtonCG", "NewtonReport", "Objective"]
