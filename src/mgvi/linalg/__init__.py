"""Linear algebra on trees.

Products with operators, or small matrices, come in; solutions go out.
Nothing here knows a model or data.
"""

from mgvi.linalg.compression import Compression
from mgvi.linalg.conjugate_gradients import Report, Stop, gram, mix, solve
from mgvi.linalg.dense import DenseMetric, at_least, eigh
from mgvi.linalg.preconditioner import (
    Preconditioner,
    block_preconditioner,
    block_preconditioner_like,
    global_sites,
    some_entries,
    sub_blocks,
)

__all__ = [
    "Compression",
    "DenseMetric",
    "Preconditioner",
    "Report",
    "Stop",
    "at_least",
    "block_preconditioner",
    "block_preconditioner_like",
    "eigh",
    "global_sites",
    "gram",
    "mix",
    "solve",
    "some_entries",
    "sub_blocks",
]
