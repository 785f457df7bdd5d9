"""Figures of the Poisson experiment.

The case, posteriors and traces come in; PNG files go out.
It must not compute a result.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments import _common
from experiments._common import COLOURS, LABELS

_SAMPLES = 12  # samples in a panel


def draw(out: Path, case: Any, posteriors: dict[str, Any], traces: dict[str, Any]) -> None:
    """All figures."""
    spread = {name: p for name, p in posteriors.items() if name != "map"}
    _data(out / "data.png", case)
    _rates(out / "rates.png", case, posteriors)
    _correlations(out / "correlations.png", spread)
    if "nuts" in posteriors and len(spread) > 1:
        _scatter(out / "scatter.png", case, spread)
        _against_nuts(out / "against_nuts.png", posteriors)
    panels = {
        "predictive": "predictive log-likelihood\n(nats a datum)",
        "rms": "RMS error of the log-rate",
        "significance": "average significance (sd)",
    }
    marks = {"significance": {"0.80: calibrated": _common.CALIBRATED, "1: the paper's mark": 1.0}}
    _common.plot_traces(out / "metrics.png", traces, panels, marks, logarithmic=("rms", "significance"))


def _position(case):
    return (np.arange(case.grid.size) + 0.5) / case.grid.size


def _data(path, case):
    with _common.figure(path, size=(6.5, 2.8)) as (canvas, axes):
        x = _position(case)
        axes.plot(x, np.exp(case.truth), color=COLOURS["truth"], label="true rate")
        axes.plot(x[case.seen], case.counts[case.seen], "k.", ms=5, clip_on=False, label="data")
        held = {"marker": "o", "mfc": "white", "mec": "k", "ls": "", "ms": 5}
        axes.plot(x[case.hidden], case.counts[case.hidden], **held, clip_on=False, label="held out")
        axes.set(xlabel="position", ylabel="counts per pixel", xlim=(0, 1))
        axes.set_yscale("symlog", linthresh=2)
        axes.set_ylim(bottom=0)
        canvas.legend(loc="outside upper center", ncols=3)


def _rates(path, case, posteriors):
    rows = -(-len(posteriors) // 2)
    with _common.figure(path, rows, 2, size=(7, 1.75 * rows + 0.5), sharex=True, sharey=True) as (canvas, axes):
        x = _position(case)
        for axis, (name, posterior) in zip(axes.flat, posteriors.items(), strict=False):
            rates = np.exp(posterior.samples["log_rate"])
            some = rates[np.linspace(0, len(rates) - 1, min(_SAMPLES, len(rates))).astype(int)]
            if name != "map":
                axis.plot(x, some.T, color=COLOURS[name], alpha=0.35, lw=0.6)
            axis.plot(x, rates.mean(axis=0), color=COLOURS[name], lw=1.8, label="mean")
            axis.plot(x, np.exp(case.truth), color=COLOURS["truth"], lw=1, ls="--", label="truth")
            axis.plot(x[case.seen], case.counts[case.seen], "k.", ms=2, label="data")
            axis.set_title(LABELS[name])
            axis.set_yscale("log")
            axis.set_ylim(0.5 * np.exp(case.truth).min(), 3 * np.exp(case.truth).max())
        for axis in axes.flat[len(posteriors) :]:
            axis.set_axis_off()
        canvas.supxlabel("position", fontsize=9)
        canvas.supylabel("rate (counts per pixel)", fontsize=9)
        canvas.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)


def _correlations(path, posteriors):
    columns = min(4, len(posteriors))
    rows = -(-len(posteriors) // columns)
    size = (1.9 * columns + 0.6, 2.0 * rows)
    with _common.figure(path, rows, columns, size=size, squeeze=False) as (canvas, axes):
        for axis, (name, posterior) in zip(axes.flat, posteriors.items(), strict=False):
            matrix = np.corrcoef(np.exp(posterior.samples["log_rate"]).T)
            image = axis.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, extent=(0, 1, 1, 0))
            axis.set_title(LABELS[name])
            axis.set(xticks=[0, 1], yticks=[0, 1])
        for axis in axes.flat[len(posteriors) :]:
            axis.set_axis_off()
        canvas.supxlabel("position", fontsize=9)
        canvas.supylabel("position", fontsize=9)
        canvas.colorbar(image, ax=axes, label="correlation of the rate", shrink=0.8)


def _scatter(path, case, posteriors):
    """Two neighbouring pixels where the true rate is lowest."""
    lowest = int(np.argmin(case.truth))
    pair = [lowest, (lowest + 3) % case.grid.size]
    others = [name for name in posteriors if name != "nuts"]
    columns = min(3, len(others))
    rows = -(-len(others) // columns)
    size = (2.3 * columns, 2.3 * rows)
    with _common.figure(path, rows, columns, size=size, sharex=True, sharey=True, squeeze=False) as (canvas, axes):
        for axis, name in zip(axes.flat, others, strict=False):
            for method in ("nuts", name):
                x, y = posteriors[method].samples["log_rate"][:, pair].T
                step = max(1, len(x) // 800)
                points = {"ls": "", "marker": ".", "ms": 2.5, "alpha": 0.5, "mec": "none"}
                axis.plot(x[::step], y[::step], color=COLOURS[method], label=LABELS[method], **points)
            axis.plot(*case.truth[pair], marker="*", ms=9, color=COLOURS["truth"], mec="white", ls="", label="truth")
            axis.set_title(LABELS[name])
        for axis in axes.flat[len(others) :]:
            axis.set_axis_off()
        canvas.supxlabel(f"log-rate at pixel {pair[0]}   (black: NUTS, star: truth)", fontsize=9)
        canvas.supylabel(f"log-rate at pixel {pair[1]}", fontsize=9)


def _against_nuts(path, posteriors):
    """Means as differences, which their range would hide; standard deviations as they are."""
    with _common.figure(path, 1, 2, size=(7, 3.5)) as (canvas, axes):
        mean, sd = (getattr(posteriors["nuts"], moment)["log_rate"] for moment in ("mean", "sd"))
        for name, posterior in posteriors.items():
            if name == "nuts":
                continue
            style = _common.dots(name, ms=3, alpha=0.7, mfc="none")
            axes[0].plot(mean, posterior.mean["log_rate"] - mean, **style)
            if name != "map":
                axes[1].plot(sd, posterior.sd["log_rate"], **style)
        axes[0].axhline(0, color="k", lw=0.6, zorder=0)
        axes[1].plot([sd.min(), sd.max()], [sd.min(), sd.max()], color="k", lw=0.6, zorder=0)
        axes[0].set(xlabel="mean of the log-rate, NUTS", ylabel="mean of the log-rate minus NUTS")
        axes[1].set(xlabel="sd of the log-rate, NUTS", ylabel="sd of the log-rate")
        handles, labels = axes[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper center", ncols=4)
