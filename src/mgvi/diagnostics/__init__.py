"""How good a posterior is: against a truth, a reference, or data that were held out.

Posteriors come in; numbers, tables and traces over time go out.
Nothing but the leaves of the package imports this room.
"""

from mgvi.diagnostics.metrics import Predictive, average_significance, compare, predictive_log_likelihood, rms
from mgvi.diagnostics.trace import Trace

__all__ = ["Predictive", "Trace", "average_significance", "compare", "predictive_log_likelihood", "rms"]
