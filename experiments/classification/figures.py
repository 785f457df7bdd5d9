"""Figures of the classification experiment, as in the paper.

A problem, posteriors and traces come in; PNG files go out.
It must not compute any figure of merit.
"""

from pathlib import Path

import numpy as np

from experiments import _common
from experiments.classification.model import Setup, wave_numbers

_SAMPLES = 12  # samples of the spectrum in a panel
_PANELS = {
    "log_likelihood": "log-likelihood of samples\n(nats a datum)",
    "log_likelihood_at_mean": "log-likelihood at mean\n(nats a datum)",
    "rms": "RMS error of the rate",
    "average_significance": "average significance",
}


def draw(out: Path, setup: Setup, posteriors, traces) -> None:
    """All figures."""
    draw_maps(out / "maps.png", setup, posteriors)
    draw_spectrum(out / "spectrum.png", setup, posteriors)
    marks = {"average_significance": {"0.80, calibrated": _common.CALIBRATED, "1, the paper's mark": 1.0}}
    _common.plot_traces(out / "metrics.png", traces, _PANELS, marks)


def draw_maps(path: Path, setup: Setup, posteriors) -> None:
    """Data and truth above, mean and sd of each method below."""
    board, names = setup.board, list(posteriors)
    top = max(float(posterior.sd["rate"].max()) for posterior in posteriors.values())
    rows = 1 + len(names)
    with _common.figure(path, rows, 2, size=(6.4, 2.35 * rows)) as (canvas, axes):
        seen = np.where(board.white, board.data, np.nan)
        shown = _map(axes[0, 0], seen, "data; black squares are held out", vmin=0, vmax=1)
        axes[0, 0].set_facecolor("#555555")
        truth = _map(axes[0, 1], board.rate, "true rate", vmin=0, vmax=1)
        canvas.colorbar(shown, ax=axes[0, 0], label="datum")
        canvas.colorbar(truth, ax=axes[0, 1], label="rate")
        for name, (left, right) in zip(names, axes[1:], strict=True):
            label = _common.LABELS[name]
            mean = _map(left, posteriors[name].mean["rate"], f"mean of the rate, {label}", vmin=0, vmax=1)
            sd = _map(right, posteriors[name].sd["rate"], f"sd of the rate, {label}", vmin=0, vmax=top, cmap="magma")
            canvas.colorbar(mean, ax=left, label="rate")
            canvas.colorbar(sd, ax=right, label="sd of the rate")


def _map(axes, image, title, **options):
    shown = axes.imshow(image, origin="lower", extent=(0, 1, 0, 1), **options)
    axes.set_title(title)
    axes.set_xticks([0, 0.5, 1])
    axes.set_yticks([0, 0.5, 1])
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    return shown


def draw_spectrum(path: Path, setup: Setup, posteriors) -> None:
    """The learned spectrum: samples and mean of each method, and the truth."""
    wave, board = wave_numbers(setup.grid), setup.board
    with _common.figure(path, 1, len(posteriors), size=(3.6 * len(posteriors), 3.2), sharey=True, squeeze=False) as (
        canvas,
        axes,
    ):
        for axis, (name, posterior) in zip(axes[0], posteriors.items(), strict=True):
            power, colour = posterior.samples["power"], _common.COLOURS[name]
            axis.loglog(wave, power[:_SAMPLES].T, color=colour, lw=0.6, alpha=0.5)
            mean = np.exp(np.log(power).mean(axis=0))
            axis.loglog(wave, mean, color=colour, lw=2, label=f"{_common.LABELS[name]}, mean and {_SAMPLES} samples")
            axis.loglog(board.wave, board.power, color=_common.COLOURS["truth"], lw=1.6, ls="--", label="truth")
            axis.set_xlabel("wave number (cycles per side)")
            axis.set_xlim(wave[0], wave[-1])
            axis.legend(loc="lower left")
        axes[0, 0].set_ylabel("power")
