"""Figures of the faces, as in the paper.

A problem, posteriors and traces come in; PNG files go out.
It must not compute any figure of merit.
"""

from pathlib import Path

import numpy as np

from experiments import _common
from experiments.faces.model import SHAPE, Setup, frame_rates

_LIKELIHOOD_RANGE = 3.0  # nats a pixel between the best value and the lower end of the axis


def draw(out: Path, setup: Setup, posteriors, traces) -> None:
    """All figures."""
    draw_likelihood(out / "likelihood.png", traces)
    draw_frame(out / "frame.png", setup, posteriors)
    draw_components(out / "components.png", posteriors)


def draw_likelihood(path: Path, traces) -> None:
    """Likelihood of the held-out pixels over time: solid for samples, dotted at the latent mean."""
    with _common.figure(path, 1, 1, size=(6.5, 3.4)) as (canvas, axes):
        best = -np.inf
        for name, trace in traces.items():
            for metric, label, style in (
                ("log_likelihood", "samples", "-"),
                ("log_likelihood_at_mean", "latent mean", ":"),
            ):
                best = max(best, np.nanmax(trace[metric]))
                axes.semilogx(
                    np.maximum(trace["seconds"], 1e-3),
                    trace[metric],
                    color=_common.COLOURS[name],
                    ls=style,
                    marker=_common.MARKERS[name],
                    ms=3,
                    label=f"{_common.LABELS[name]}, {label}",
                )
        axes.set_ylim(best - _LIKELIHOOD_RANGE, best + 0.1 * _LIKELIHOOD_RANGE)
        axes.set_xlabel("time without compilation (s)")
        axes.set_ylabel("predictive log-likelihood (nats a pixel)")
        axes.legend(loc="lower right")


def draw_frame(path: Path, setup: Setup, posteriors) -> None:
    """The frame whose lower half is hidden: truth and data, mean and sd of each method."""
    truth, seen = setup.images[setup.frame], setup.seen[setup.frame]
    rates = {name: frame_rates(posterior, setup.frame) for name, posterior in posteriors.items()}
    top = max(float(rate.std(axis=0).max()) for rate in rates.values())
    brightness = {"vmin": 0, "vmax": 255, "cmap": "gray"}
    columns = 1 + len(rates)
    with _common.figure(path, 2, columns, size=(2.0 * columns + 1.2, 5.2), squeeze=False) as (canvas, axes):
        shown = _face(axes[0, 0], truth, "truth", **brightness)
        hidden = _common.plt.get_cmap("gray").with_extremes(bad="#0072B2")
        _face(axes[1, 0], np.where(seen, truth, np.nan), "data; hidden in blue", **(brightness | {"cmap": hidden}))
        for (upper, lower), (name, rate) in zip(axes.T[1:], rates.items(), strict=True):
            _face(upper, rate.mean(axis=0), f"mean, {_common.LABELS[name]}", **brightness)
            sd = _face(lower, rate.std(axis=0), f"sd, {_common.LABELS[name]}", vmin=0, vmax=top, cmap="magma")
        canvas.colorbar(shown, ax=axes[0, :], label="brightness", shrink=0.9)
        canvas.colorbar(sd, ax=axes[1, :], label="sd of the brightness", shrink=0.9)


def draw_components(path: Path, posteriors) -> None:
    """Mean of each component, the brightest on average first, each with its own scale."""
    some = next(iter(posteriors.values()))
    count = some.mean["components"].shape[0]
    with _common.figure(
        path, len(posteriors), count, size=(0.95 * count + 0.4, 1.6 * len(posteriors)), squeeze=False
    ) as (
        _,
        axes,
    ):
        for row, (name, posterior) in zip(axes, posteriors.items(), strict=True):
            parts = posterior.mean["components"]
            share = posterior.mean["mixture"].mean(axis=0) * parts.mean(axis=1)
            for panel, k in zip(row, np.argsort(-share), strict=True):
                _face(panel, parts[k], "", cmap="gray", vmin=0)
            row[0].set_ylabel(_common.LABELS[name])


def _face(axes, pixels, title, **options):
    shown = axes.imshow(np.reshape(pixels, SHAPE), **options)
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return shown
