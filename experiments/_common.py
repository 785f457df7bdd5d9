"""What all experiments share: methods by name, result files, and one style of figures.

Problems, metrics and results come in; posteriors with traces, files and figures go out.
It must not know any single experiment.
"""

import gc
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import mgvi
from mgvi import baselines
from mgvi.diagnostics import Trace

INFER: dict[str, Callable[..., mgvi.Posterior]] = {
    "mgvi": mgvi.fit,
    "mgvi_paper": mgvi.fit,  # with the schedule of the paper, or one like it
    "map": baselines.map_estimate,
    "laplace": baselines.laplace,
    "advi_meanfield": baselines.advi_meanfield,
    "advi_fullrank": baselines.advi_fullrank,
    "linear_response": baselines.linear_response,
    "nuts": baselines.nuts,
}
LABELS = {
    "mgvi": "MGVI",
    "mgvi_paper": "MGVI, paper's schedule",
    "map": "MAP",
    "laplace": "Laplace",
    "advi_meanfield": "mf-ADVI",
    "advi_fullrank": "fc-ADVI",
    "linear_response": "linear response",
    "nuts": "NUTS",
}
# Okabe and Ito's palette, told apart by colour-blind readers; lines differ in style and points in shape as well.
COLOURS = {
    "mgvi": "#0072B2",
    "mgvi_paper": "#56B4E9",
    "map": "#8C8C8C",
    "laplace": "#E69F00",
    "advi_meanfield": "#009E73",
    "advi_fullrank": "#CC79A7",
    "linear_response": "#A6761D",
    "nuts": "#000000",
    "truth": "#D55E00",
}
LINES = {
    "mgvi": "-",
    "mgvi_paper": (0, (6, 1)),
    "map": ":",
    "laplace": (0, (3, 1, 1, 1)),
    "advi_meanfield": "--",
    "advi_fullrank": "-.",
    "linear_response": (0, (4, 1, 1, 1, 1, 1)),
    "nuts": (0, (1, 1)),
}
MARKERS = {
    "mgvi": "o",
    "mgvi_paper": "h",
    "map": "x",
    "laplace": "^",
    "advi_meanfield": "s",
    "advi_fullrank": "D",
    "linear_response": "v",
    "nuts": "+",
}
STYLE = {
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "image.cmap": "cividis",
    "image.interpolation": "nearest",
}
CALIBRATED = float(np.sqrt(2 / np.pi))  # average significance of a Gaussian whose mean and sd are right


def chosen(methods: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """The methods to run, in the experiment's order; a name that it does not know is refused."""
    if methods is None:
        return tuple(known)
    unknown = [name for name in methods if name not in known]
    if unknown:
        raise ValueError(f"unknown methods {unknown}; this experiment has {list(known)}")
    return tuple(name for name in known if name in methods)


def paper_schedule(cg: tuple[int, int], newton: int) -> tuple[mgvi.Stage, ...]:
    """One pair for 20 rounds, one more pair and step a round up to round 30; CG rises from `cg[0]` to `cg[1]`."""
    first, last = cg
    later = (mgvi.Stage(1 + k, first + (last - first) * k // 10, newton + k, 1) for k in range(1, 11))
    return (mgvi.Stage(1, first, newton, 20), *later)


def infer(
    name: str,
    problem: mgvi.Problem,
    metrics: Mapping[str, Callable[[mgvi.Posterior], Any]],
    *,
    seed: int,
    progress: bool = True,
    trace_samples: int | None = None,
    warm: bool = False,
    **options: Any,
) -> tuple[mgvi.Posterior, Trace]:
    """Run a method, and trace metrics while it runs; the last row is that of the result.

    If `warm`, it is run once before, from which only the seconds of compilation are kept: `mgvi.fit` compiles while its
    rounds run, which slows them down where cores are few.
    """
    compiling = 0.0
    if warm:
        before = INFER[name](problem, seed=seed, progress=progress, **options)
        compiling = sum(r["compile_seconds"] for r in before.history)
    # Every round of MGVI is judged, as there are few; of the many steps of other methods only some are.
    trace = Trace(metrics, samples=trace_samples, **({"ratio": 1.0} if INFER[name] is mgvi.fit else {}))
    gc.freeze()  # the collector ignores existing objects while the method is timed
    try:
        posterior = INFER[name](problem, seed=seed, progress=progress, callbacks=[trace], **options)
    finally:
        gc.unfreeze()
    posterior.history[0]["compile_seconds"] += compiling
    for row in trace.rows:
        row["compile_seconds"] += compiling
    trace.add(posterior)
    return posterior, trace


def outcome(posterior: mgvi.Posterior) -> dict[str, Any]:
    """How a method ended, and its seconds with compilation apart."""
    return {
        "status": posterior.status.name,
        "seconds": sum(r["seconds"] for r in posterior.history),
        "compile_seconds": sum(r["compile_seconds"] for r in posterior.history),
        "samples": len(posterior),
    }


def seconds_to_levels(traces: Mapping[str, Trace], near: float) -> dict[str, dict[str, float]]:
    """Seconds after which each method stays as near as that to each method's final log-likelihood."""
    levels = {name: trace["log_likelihood"][-1] - near for name, trace in traces.items()}
    return {
        goal: {name: trace.time_to("log_likelihood", level) for name, trace in traces.items()}
        for goal, level in levels.items()
    }


def environment() -> dict[str, str]:
    """Versions and machine that a result was made with."""
    device = jax.devices()[0]
    return {
        "mgvi": mgvi.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
        "precision": str(jax.numpy.result_type(float)),
    }


def write(out: Path, results: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write `results.json`, every figure of the table in it, and `table.md`; return the former's contents."""
    out.mkdir(parents=True, exist_ok=True)
    results = _plain({**results, "table": list(rows), "environment": environment()})
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "table.md").write_text(markdown(rows) + "\n")
    return results


def save_data(out: Path, **arrays: Any) -> None:
    """Write the data that an experiment drew to `data.npz`."""
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "data.npz", allow_pickle=False, **{name: np.asarray(x) for name, x in arrays.items()})


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as a Markdown table; numbers with three digits, nothing for None."""
    columns = list(rows[0])
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(row[column]) for column in columns)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Values that JSON knows; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    if isinstance(value, np.ndarray | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


@contextmanager
def figure(path: Path, *shape: int, size: tuple[float, float], **options: Any) -> Iterator[tuple[Any, Any]]:
    """A figure in the common style with its axes (as from `plt.subplots`), saved when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        canvas, axes = plt.subplots(*shape, figsize=size, **options)
        yield canvas, axes
        canvas.savefig(path)
        plt.close(canvas)


def line(name: str) -> dict[str, Any]:
    """Colour, style and label of a method's line."""
    return {"color": COLOURS[name], "ls": LINES[name], "label": LABELS[name]}


def dots(name: str, **options: Any) -> dict[str, Any]:
    """Colour, shape and label of a method's points."""
    return {"color": COLOURS[name], "marker": MARKERS[name], "ls": "", "label": LABELS[name], **options}


def plot_traces(
    path: Path,
    traces: Mapping[str, Trace],
    panels: Mapping[str, str],
    marks: Mapping[str, Mapping[str, float]] | None = None,
    logarithmic: Sequence[str] = (),
) -> None:
    """Metrics over seconds without compilation, one panel a metric.

    Parameters
    ----------
    path : Path
        Of the PNG file.
    traces : dict of Trace
        By method.
    panels : dict of str
        Label of the axis, by metric.
    marks : dict of dict, optional
        Horizontal lines: by metric, a level by label.
    logarithmic : sequence of str
        Metrics whose axis is logarithmic.
    """
    with figure(path, len(panels), 1, size=(6.5, 2.2 * len(panels) + 0.4), sharex=True, squeeze=False) as (
        canvas,
        axes,
    ):
        for axis, (metric, label) in zip(axes[:, 0], panels.items(), strict=True):
            for name, trace in traces.items():
                values = trace[metric]
                if np.any(np.isfinite(values)):
                    axis.plot(np.maximum(trace["seconds"], 1e-4), values, **line(name), marker=".", ms=3)
            _mark(axis, (marks or {}).get(metric, {}))
            if metric in logarithmic:
                axis.set_yscale("log")
            else:
                _limit(axis, [trace[metric] for trace in traces.values()])
            for level in (marks or {}).get(metric, {}).values():
                low, high = axis.get_ylim()
                axis.set_ylim(min(low, level - 0.05 * abs(level)), max(high, level + 0.05 * abs(level)))
            axis.set_ylabel(label)
            axis.set_xscale("log")
        axes[-1, 0].set_xlabel("time without compilation (s)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4))


def _mark(axis: Any, levels: Mapping[str, float]) -> None:
    """Lines with their labels on the left; the highest label stands above its line, the others below."""
    for label, level in levels.items():
        axis.axhline(level, color="#8C8C8C", lw=0.8, zorder=0)
        side = "bottom" if level == max(levels.values()) else "top"
        axis.annotate(label, (0.0, level), xycoords=("axes fraction", "data"), ha="left", va=side, fontsize=7)


def _limit(axis: Any, all_values: Sequence[np.ndarray]) -> None:
    """Show where traces end in detail: values far off, as at the start, may leave the panel."""
    finite = np.concatenate([v[np.isfinite(v)] for v in all_values])
    ends = np.array([v[np.isfinite(v)][-1] for v in all_values if np.any(np.isfinite(v))])
    if finite.size < 2:
        return
    span = max(np.ptp(ends), 0.02 * (np.quantile(finite, 0.9) - np.quantile(finite, 0.1)), 1e-9)
    low, high = max(finite.min(), ends.min() - 6 * span), min(finite.max(), ends.max() + 6 * span)
    margin = 0.06 * (high - low)
    axis.set_ylim(low - margin, high + margin)
