"""How far importance weights can be trusted: the shape of the tail of their distribution.

Log-weights come in; the estimated shape k of a generalised Pareto tail, smoothed weights and a verdict go out.
It must not know what is weighted.
"""

from typing import NamedTuple

import numpy as np

TRUSTED = 0.7  # largest Pareto k of reliable weights
_EQUAL = 0.05  # relative excess of the largest weight over those outside of the tail, below which all count as equal


class Check(NamedTuple):
    """What importance weights say of a Gaussian approximation."""

    pareto_k: float  # of the weights' tail; below 0.7 they can be trusted
    shift: dict[str, float]  # by site: largest move of a mean under the weights, in standard deviations
    ratio: dict[str, float]  # by site: standard deviation under the weights over that without, where farthest from 1

    @classmethod
    def of(cls, samples: dict[str, np.ndarray], weights: np.ndarray, k: float) -> "Check":
        """What weights do to the means and sds of samples."""
        shift, ratio = {}, {}
        for name, x in samples.items():
            flat = x.reshape(len(x), -1).astype(np.float64)
            sd, mean = flat.std(axis=0), weights @ flat
            moves = sd > 1e-12 * np.abs(flat).max(axis=0)
            if not moves.any():
                continue
            weighted = np.sqrt(np.maximum(weights @ flat**2 - mean**2, 0.0))[moves] / sd[moves]
            shift[name] = float(np.max(np.abs(mean - flat.mean(axis=0))[moves] / sd[moves]))
            ratio[name] = float(weighted[np.argmax(np.abs(np.log(np.maximum(weighted, 1e-12))))])
        return cls(k, shift, ratio)

    @property
    def ok(self) -> bool:
        """Whether the weights can be trusted and change next to nothing."""
        return self.pareto_k < TRUSTED and not self.sites

    @property
    def sites(self) -> list[str]:
        """Sites whose mean moves by more than 0.15 sd or whose sd changes by more than 15 %."""
        return [
            name for name, move in self.shift.items() if move > 0.15 or abs(np.log(self.ratio[name])) > np.log(1.15)
        ]

    def __str__(self) -> str:
        k = f"Pareto k {self.pareto_k:.2f}" if np.isfinite(self.pareto_k) else "all are equal"
        if self.ok:
            return f"importance weights agree with the Gaussian ({k})"
        if self.pareto_k >= TRUSTED:
            return (
                f"the posterior is not Gaussian in the latent space ({k}, above 0.7): a funnel, a curved ridge or a "
                "heavy tail. Sds of scale parameters are often too small, other means mostly good; check against NUTS."
            )
        sites, worst = self.sites, max(self.sites, key=lambda n: self.shift[n] + abs(np.log(self.ratio[n])))
        return (
            f"importance weights ({k}) correct {', '.join(map(repr, sites))}; most {worst!r}, whose mean moves by "
            f"{self.shift[worst]:.2f} sd and whose sd changes by a factor of {self.ratio[worst]:.2f}. "
            "`posterior.corrected(seed=1)` applies them."
        )


def smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Normalised weights with the largest replaced by quantiles of a fitted Pareto tail, and the shape k of that tail.

    Importance sampling is reliable for k < 0.7 (Vehtari, Simpson, Gelman, Yao and Gabry, 2024).
    """
    log_weights = np.asarray(log_weights, np.float64)
    log_weights = log_weights - np.max(log_weights)
    count = len(log_weights)
    tail = int(min(0.2 * count, 3 * np.sqrt(count)))
    order = np.argsort(log_weights)
    k = np.inf
    if tail >= 5:
        cut = np.exp(log_weights[order[-tail - 1]])
        excess = np.exp(log_weights[order[-tail:]]) - cut
        if excess[-1] <= _EQUAL * cut:  # a tail of roundings would have a shape too
            return np.exp(log_weights) / np.exp(log_weights).sum(), -np.inf
        k, scale = _fit(np.maximum(excess, 1e-300))
        if np.isfinite(k):
            p = (np.arange(tail) + 0.5) / tail
            quantile = -scale * np.log1p(-p) if abs(k) < 1e-12 else scale * np.expm1(-k * np.log1p(-p)) / k
            log_weights = log_weights.copy()
            log_weights[order[-tail:]] = np.minimum(np.log(cut + quantile), 0.0)
    weights = np.exp(log_weights - np.max(log_weights))
    return weights / weights.sum(), float(k)


def _fit(x: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution from sorted excesses (Zhang and Stephens, 2009)."""
    n = len(x)
    m = 30 + int(np.sqrt(n))
    b = (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * x[int(n / 4 + 0.5) - 1]) + 1 / x[-1]
    k = np.mean(np.log1p(-b[:, None] * x), axis=1)
    profile = n * (np.log(-b / k) - k - 1)
    weight = 1 / np.sum(np.exp(profile - profile[:, None]), axis=1)
    keep = weight >= 10 * np.finfo(float).eps
    weight, b = weight[keep] / weight[keep].sum(), b[keep]
    best = np.sum(b * weight)
    k = np.mean(np.log1p(-best * x))
    scale = -k / best
    return float((n * k + 5) / (n + 10)), float(scale)  # a weak prior on the shape, for short tails
