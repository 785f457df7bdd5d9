"""The figure of the meta-parameters, as in the paper: a row a parameter, a column a metric.

Traces of every setting come in; a PNG file goes out.
It must not compute any figure of merit.
"""

from pathlib import Path

import numpy as np

from experiments import _common

TITLES = {
    "cg": "conjugate gradient steps",
    "newton": "natural-gradient steps",
    "samples": "independent samples",
    "pairs": "antithetic pairs",
}
_COLUMNS = {
    "log_likelihood": "log-likelihood\n(nats a datum)",
    "rms": "RMS error of the rate",
    "average_significance": "average significance",
}
_LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1)))


def draw(path: Path, sweeps) -> None:
    """Metrics over seconds for all settings."""
    with _common.figure(path, len(sweeps), 3, size=(9.5, 2.1 * len(sweeps)), sharex="row") as (_, axes):
        for row, (name, sweep) in zip(axes, sweeps.items(), strict=True):
            for panel, (metric, label) in zip(row, _COLUMNS.items(), strict=True):
                _panel(panel, metric, sweep)
                panel.set_ylabel(label)
            row[1].set_xlabel("time without compilation (s)")
            row[2].legend(title=TITLES[name].replace(" ", "\n", 1), loc="center left", bbox_to_anchor=(1.02, 0.5))
        for column, metric in enumerate(_COLUMNS):
            _limit([row[column] for row in axes], metric, sweeps)


def _panel(panel, metric, sweep) -> None:
    shades = _common.plt.get_cmap("viridis")(np.linspace(0.0, 0.85, len(sweep)))
    for (value, run), shade, style in zip(sweep.items(), shades, _LINES, strict=False):
        seconds = [max(r["seconds"], 1e-3) for r in run["trace"]]
        values = [r[metric] if np.isfinite(r[metric]) else np.nan for r in run["trace"]]
        panel.semilogx(seconds, values, color=shade, ls=style, lw=1.3, label=str(value))
    panel.xaxis.set_minor_formatter("")  # less than a decade would have labels between, one over the other
    if metric == "average_significance":
        for level in (_common.CALIBRATED, 1.0):
            panel.axhline(level, color="#8C8C8C", lw=0.8, zorder=0)


def _limit(panels, metric, sweeps) -> None:
    """The same range in all rows, so that they can be compared; what fails badly may leave it."""
    ends = np.array([run[metric] for sweep in sweeps.values() for run in sweep.values()])
    best = np.max(ends) if metric == "log_likelihood" else np.min(ends)
    reach = 3 * max(float(np.median(np.abs(ends - best))), 0.01)
    ranges = {
        "log_likelihood": (best - 3 * reach, best + 0.5 * reach),
        "rms": (best - 0.5 * reach, best + 3 * reach),
        "average_significance": (0.0, 2.5),
    }
    for panel in panels:
        panel.set_ylim(*ranges[metric])
