"""White noise that is spread evenly.

A random generator comes in; rows of standard normal numbers go out.
It must not know what they are for.
"""

import numpy as np
from scipy import special

_FIRST = 32  # rows: as many as a curvature is averaged over, mostly


def stratified_normals(generator: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Rows of standard normals in which the sizes of each entry are spread evenly.

    Of the first 32 rows each entry has one size from each 32nd of the half-normal distribution; so have the next 32,
    the next 64, and so on. With their negatives they sum up any sum of functions of single entries with far less noise
    (Latin hypercube sampling). The first of many rows are the same as few.

    Examples
    --------
    >>> import numpy as np
    >>> from mgvi.gaussian.white import stratified_normals
    >>> rows = stratified_normals(np.random.default_rng(1), 64, 3)
    >>> print(np.round(np.mean(rows**2, axis=0), 1))
    [1. 1. 1.]
    """
    blocks, done = [], 0
    while done < count:
        strata = max(done, _FIRST)
        order, within = generator.random((2, strata, size))
        within = 2 * within - 1  # where in its stratum, and on which side of zero
        below = 0.5 + (np.argsort(order, axis=0) + np.abs(within)) / (2 * strata)
        half = special.ndtri(np.minimum(below, 1 - 2**-53))  # never infinite
        blocks.append(np.copysign(half, within))
        done += strata
    return np.concatenate(blocks)[:count]
