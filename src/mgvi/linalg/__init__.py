"""Linear algebra on trees.

Products with operators, or small matrices, come in; solutions go out.
Nothing here knows a model or data.
"""

from mgvi.linalg.conjugate_gradients import Report, Stop, solve
from mgvi.linalg.dense import DenseMetric

__all__ = ["DenseMetric", "Report", "Stop", "solve"]
