"""Metrics of a posterior while it is made, over the seconds that it took.

Metrics come in; a callback for `mgvi.fit` and `mgvi.baselines` goes out, which collects them on a logarithmic grid.
It must not know which method calls it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mgvi.posterior import Posterior


class Trace:
    """A callback that evaluates metrics now and then.

    The time of callbacks is not that of the method, so metrics may be slow; the grid keeps their number small.

    Parameters
    ----------
    metrics : dict of callable
        From a Posterior to a number, by name.
    ratio : float
        Seconds of a row over those of the row before, at least.
    samples : int, optional
        Draw so many samples for each row; by default those that the method shows are used.

    Attributes
    ----------
    rows : list of dict
        `seconds` and `compile_seconds` since the start, `step` (rounds for `fit`), and the metrics.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, mgvi
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> problem = mgvi.from_numpyro(model, jnp.array([1.0, 3.0]))
    >>> trace = mgvi.diagnostics.Trace({"error": lambda p: abs(p.at_mean["mu"] - 16 / 9)})
    >>> posterior = mgvi.baselines.advi_meanfield(problem, seed=1, callbacks=[trace], progress=False)
    >>> trace.add(posterior)  # the end, which the grid may have left out
    >>> bool(trace["error"][0] > 0.1 > trace["error"][-1])
    True
    """

    def __init__(
        self, metrics: Mapping[str, Callable[[Posterior], Any]], *, ratio: float = 1.2, samples: int | None = None
    ):
        self.metrics = dict(metrics)
        self.rows: list[dict[str, float]] = []
        self._ratio = ratio
        self._samples = samples

    def __call__(self, record: dict, posterior: Posterior) -> None:
        """Add a row if the grid wants one."""
        seconds = sum(r["seconds"] for r in posterior.history)
        if not self.rows or seconds >= self._ratio * self.rows[-1]["seconds"]:
            self.add(posterior if self._samples is None else posterior.sample(self._samples, seed=0))

    def add(self, posterior: Posterior) -> None:
        """Add a row, whatever the grid; one of the same time is replaced."""
        history = posterior.history
        row: dict[str, float] = {
            "seconds": sum(r["seconds"] for r in history),
            "compile_seconds": sum(r["compile_seconds"] for r in history),
            "step": history[-1].get("step", len(history)) if history else 0,
        }
        if self.rows and self.rows[-1]["seconds"] >= row["seconds"]:
            self.rows.pop()
        self.rows.append(row | {name: float(metric(posterior)) for name, metric in self.metrics.items()})

    def __getitem__(self, name: str) -> np.ndarray:
        """A metric, or `seconds`, of all rows."""
        return np.array([row[name] for row in self.rows])

    def time_to(self, name: str, level: float) -> float:
        """Seconds from which on a metric, the higher the better, stays at a level or above; inf if it never does.

        Examples
        --------
        >>> from mgvi.diagnostics import Trace
        >>> trace = Trace({})
        >>> trace.rows = [{"seconds": t, "elbo": e} for t, e in ((1.0, 3.0), (2.0, 1.0), (4.0, 2.5), (8.0, 3.0))]
        >>> trace.time_to("elbo", 2.0)
        4.0
        """
        seconds, is_below = self["seconds"], ~(self[name] >= level)
        if is_below[-1]:
            return np.inf
        last = np.flatnonzero(is_below)
        return float(seconds[last[-1] + 1] if last.size else seconds[0])

    def settling_time(self, name: str, tolerance: float, *, smooth: bool = True) -> float:
        """Seconds from which on a metric stays within a tolerance of its last value.

        With `smooth`, every value but the first and the last is replaced by the median of itself and its neighbours, so
        that a single excursion, as few samples make them, does not count.

        Examples
        --------
        >>> from mgvi.diagnostics import Trace
        >>> trace = Trace({})
        >>> trace.rows = [{"seconds": t, "elbo": e} for t, e in ((1.0, 0.0), (2.0, 2.9), (4.0, 1.0), (8.0, 3.0))]
        >>> trace.settling_time("elbo", 0.2), trace.settling_time("elbo", 0.2, smooth=False)
        (4.0, 8.0)
        """
        seconds, values = self["seconds"], self[name]
        if smooth and len(values) > 2:
            inner = np.median([values[:-2], values[1:-1], values[2:]], axis=0)
            values = np.concatenate([values[:1], inner, values[-1:]])
        away = np.flatnonzero(~(np.abs(values - values[-1]) <= tolerance))
        return float(seconds[away[-1] + 1] if away.size else seconds[0])
