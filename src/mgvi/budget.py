"""How much of everything a problem is worth: pairs, samples, memory, compilation, cores.

The sizes of a problem and the backend come in; a `Budget` goes out, made once and handed down.
It must not know what any number is used for beyond its name.
"""

import math
import os
from dataclasses import dataclass, field, replace

import jax

_CACHE = 125_000  # numbers that stay in the cache of a CPU core
_WEIGHED_LATENTS = 1000  # most latents of samples whose importance weights tell anything
# Most latents of a matrix, on a CPU and on an accelerator. Rounds are then several times slower than with products, but
# the averaged Hessian is right where the Fisher metric at the mean is off by sds (`docs/dev/log.md`).
_DENSE_LATENTS, _DENSE_LATENTS_ACCELERATED = 1500, 4000
_DENSE_JACOBIAN = 10_000_000  # most entries of the Jacobian beside a matrix
_DENSE_WORK = 5e7  # numbers that an average over 32 pairs of points may take
_EVALUATED = 2_000_000  # latents and data of the samples in one call of the model
_PRODUCTS = 190_000  # latents and data of the products of a Hessian that are made together
_FEWEST_PRODUCTS = 16


@dataclass(frozen=True)
class Budget:
    """What a problem may cost. Every other room asks here how large a problem is.

    Parameters
    ----------
    dense : bool
        Whether the curvature of the problem is a matrix, or only multiplied with.
    fewest, usual, most : int
        Antithetic pairs of rounds that need not be precise, of rounds that settle the mean, and of any round.
    averaged : int
        Pairs of points that a curvature is averaged over.
    drawn : int
        Deviations that one call of a compiled program draws; their solves share a Krylov space.
    batch : int
        Pairs whose gradients are taken together.
    columns : int
        Products with a Hessian that are made together.
    weighed : bool
        Whether samples are few-dimensional enough for importance weights to tell anything.
    samples : int
        Samples of a result.
    evaluated : int
        Samples in one call of the model.
    cores : int
        Cores that may work at the same time.
    effort : dict
        How much compilation is worth, by the purpose of a program.

    Examples
    --------
    >>> from mgvi.budget import Budget
    >>> Budget.of(latents=10, data=8).dense, Budget.of(latents=1_000_000, data=500_000).most
    (True, 8)
    """

    dense: bool
    fewest: int
    usual: int
    most: int
    averaged: int
    drawn: int
    batch: int
    columns: int
    weighed: bool
    samples: int
    evaluated: int
    cores: int
    effort: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, latents: int, data: int) -> "Budget":
        """The budget of a problem with so many latents and data, on the backend in use."""
        most = _DENSE_LATENTS if jax.default_backend() == "cpu" else _DENSE_LATENTS_ACCELERATED
        dense = latents <= most and latents * data <= _DENSE_JACOBIAN
        return _dense(latents, data) if dense else _matrix_free(latents, data)

    def matrix_free(self, latents: int, data: int) -> "Budget":
        """The budget of the same problem if its curvature is only multiplied with."""
        if not self.dense:
            return self
        return replace(_matrix_free(latents, data), weighed=self.weighed, samples=self.samples)

    def with_pairs(self, fewest: int, most: int) -> "Budget":
        """The same for rounds whose numbers of pairs are given."""
        return replace(self, fewest=fewest, most=most, drawn=min(self.drawn, fewest))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _evaluated(size: int) -> int:
    return min(max(_EVALUATED // size, 1), 512)


def _dense(latents: int, data: int) -> Budget:
    size = latents + data
    usual, most = (1024, 4096) if size < 200 else (256, 1024) if size < 5_000 else (64, 256)
    work = latents * size  # of an average over one pair, in numbers
    averaged = max(8, min(32, int(_DENSE_WORK // work)), int(0.05 * _DENSE_WORK // work)) // 2 * 2
    fewest = max(8, usual // 32)
    return Budget(
        dense=True,
        fewest=fewest,
        usual=usual,
        most=most,
        averaged=min(averaged, usual),
        drawn=most,
        batch=min(fewest, 2 ** int(math.log2(max(_CACHE // size, 1)))),
        columns=min(max(_PRODUCTS // size, _FEWEST_PRODUCTS), latents + 1),
        weighed=latents <= _WEIGHED_LATENTS,
        samples=2048,
        evaluated=_evaluated(size),
        cores=_cores(),
        effort={
            "once": 0,
            "information": int(latents * data > 100_000),
            "rounds": int(usual * size > 50_000),
            "samples": 0 if data < 2_000 else 2,
        },
    )


def _matrix_free(latents: int, data: int) -> Budget:
    size = latents + data
    # Exponentials and sums over few numbers run nearly as fast when compiled with less effort.
    effort = 1 if size <= 200_000 else 2
    return Budget(
        dense=False,
        fewest=2,
        usual=8,
        most=128 if size < 100_000 else 32 if size < 300_000 else 8,
        averaged=8,
        drawn=2,
        batch=1,  # more at once are no faster, and take memory
        columns=8,
        weighed=False,
        samples=512 if latents < 2_000 else 128 if latents < 20_000 else 32 if latents < 300_000 else 16,
        evaluated=_evaluated(size),
        cores=_cores(),
        effort={"once": 0, "rounds": effort, "samples": effort},
    )
