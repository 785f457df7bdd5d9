"""Linear algebra on trees.

Products with operators, or small matrices, come in; solutions go out.
Nothing here knows a model or data.
"""

from mgvi.linalg.conjugate_gradients import Report, Stop, solve
from mgvi.linalg.dense import DenseMetric
from mgvi.linalg.preconditioner import Preconditioner, global_sites, with_coarse_space

__all__ = ["DenseMetric", "Preconditioner", "Report", "Stop", "global_sites", "solve", "with_coarse_space"]
