"""Linear algebra on trees.

Products with operators, or small matrices, come in; solutions go out.
Nothing here knows a model or data.
"""

from mgvi.linalg.compression import Compression
from mgvi.linalg.conjugate_gradients import Report, Stop, solve
from mgvi.linalg.preconditioner import Preconditioner, block_preconditioner, global_sites, some_entries, sub_blocks
from mgvi.linalg.stacks import gram, mix
from mgvi.linalg.symmetric import at_least, cholesky, eigh, inverse_of_triangle, inverse_root
from mgvi.linalg.threads import one_thread_for

__all__ = [
    "Compression",
    "Preconditioner",
    "Report",
    "Stop",
    "at_least",
    "block_preconditioner",
    "cholesky",
    "eigh",
    "global_sites",
    "gram",
    "inverse_of_triangle",
    "inverse_root",
    "mix",
    "one_thread_for",
    "solve",
    "some_entries",
    "sub_blocks",
]
