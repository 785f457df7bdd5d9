"""A small table of numbers for people.

Labels, columns and rows come in; aligned text goes out. It must not know what the numbers mean.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Table:
    """Rows of numbers with labels; prints as aligned text.

    Examples
    --------
    >>> from mgvi._table import Table
    >>> print(Table("site", ["mean", "sd"], [("mu", [4.4, 3.31])]))
    site   mean     sd
    mu      4.4   3.31
    """

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[tuple[str, Any]]):
        self.title = title
        self.columns = list(columns)
        self.rows = [(label, np.asarray(values, float)) for label, values in rows]

    def __getitem__(self, label: str) -> dict[str, float]:
        for name, values in self.rows:
            if name == label:
                return dict(zip(self.columns, map(float, values), strict=True))
        raise KeyError(f"no row {label!r}; there are {[name for name, _ in self.rows]}")

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [[self.title, *self.columns]]
        cells += [[label, *(f"{value:.4g}" for value in values)] for label, values in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = []
        for row in cells:
            first = row[0].ljust(widths[0])
            lines.append("   ".join([first, *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]))
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__
