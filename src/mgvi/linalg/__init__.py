"""Matrix-free linear algebra.

Products with operators come in, solutions go out.
Nothing here knows a model or data.
"""

from mgvi.linalg.conjugate_gradients import Report, Stop, solve

__all__ = ["Report", "Stop", "solve"]
