"""Hierarchical logistic regression of the 1988 polls, the simple model, against a long run of NUTS.

A size and a seed come in; RMS of all parameters' means and sds against NUTS, traces and figures go out.
It must not know anything of `mgvi` that is not public.

logit P(Bush) = b0 + b_gender female + b_ethnicity black + b_state[state], with standard normal priors on the first
three, b_state ~ N(0, sigma_state) and sigma_state ~ U(0, 1): 55 parameters. The polls have 11 566 rows with an outcome;
the small size takes every eighth.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi
from experiments import _common
from experiments._common import COLOURS, LABELS
from experiments.datasets import election_polls
from mgvi.diagnostics import compare, rms

METHODS = ("mgvi", "map", "laplace", "advi_meanfield", "advi_fullrank", "linear_response", "nuts")
STATES = 51
TRACE_SAMPLES = 2048  # posterior samples behind each row of a trace; a result has as many
MOMENT_SAMPLES = 40_000  # for means and sds: enough that the sampling error does not show in the RMS
SIZES: dict[str, dict[str, Any]] = {
    "small": {"every": 8, "advi_fullrank": {"max_steps": 20_000}, "nuts": {"warmup": 500, "draws": 1000}},
    "paper": {"every": 1, "mgvi": {"warm": True}, "nuts": {"warmup": 1000, "draws": 4000}},
}
# RMS of mean and sd against HMC, from the paper.
PUBLISHED = {
    "mgvi": (0.0047, 0.0051),
    "advi_fullrank": (0.015, 0.0067),
    "advi_meanfield": (0.035, 0.014),
    "laplace": (0.13, 0.14),
}
PLOTTED_PAIRS = (("b0", "b_gender"), ("b0", "b_ethnicity"), ("b_state", "sigma_state"))  # in scatter plots
DISTRICT_OF_COLUMBIA = 8  # index of the state with the largest effect


def run(
    *, size: str = "small", seed: int = 1, out: Path, methods: Sequence[str] | None = None, progress: bool = True
) -> dict:
    """Compare the methods, and write tables, figures and data to a folder."""
    options, out = SIZES[size], Path(out)
    data = polls(options["every"])
    posteriors, traces = {}, {}
    with jax.enable_x64(True):
        problem = mgvi.from_numpyro(model, **{name: jnp.asarray(x) for name, x in data.items()})
        names = _common.chosen(methods, METHODS)
        for name in sorted(names, key=lambda name: name != "nuts"):  # NUTS first: the metrics of the others need it
            posteriors[name], traces[name] = _common.infer(
                name,
                problem,
                _metrics(posteriors.get("nuts")),
                seed=seed,
                progress=progress,
                trace_samples=TRACE_SAMPLES,
                **options.get(name, {}),
            )
        posteriors = {name: posteriors[name] for name in names}
        rows, results = _results(posteriors, seed)
        _common.save_data(out, **data)
        _figures(out, posteriors, traces)
    settings = {"rows": len(data["bush"]), "parameters": STATES + 4}
    results = {"experiment": "election", "size": size, "seed": seed, "settings": settings, **results}
    results["traces"] = {name: trace.rows for name, trace in traces.items()}
    return _common.write(out, results, rows)


def polls(every: int) -> dict[str, np.ndarray]:
    """Every `every`-th row that has an outcome."""
    table = election_polls().polls
    rows = np.flatnonzero(~np.isnan(table["y"]))[::every]
    data = {name: table[name][rows].astype(int) for name in ("female", "black", "state")}
    return {**data, "state": data["state"] - 1, "bush": table["y"][rows].astype(int)}


def model(female, black, state, bush):
    """The simple model: effects of sex, ethnicity and state."""
    b0 = numpyro.sample("b0", dist.Normal(0.0, 1.0))
    gender = numpyro.sample("b_gender", dist.Normal(0.0, 1.0))
    ethnicity = numpyro.sample("b_ethnicity", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma_state", dist.Uniform(0.0, 1.0))
    with numpyro.plate("states", STATES):
        effect = numpyro.sample("b_state", dist.Normal(0.0, sigma))
    numpyro.sample("bush", dist.Bernoulli(logits=b0 + gender * female + ethnicity * black + effect[state]), obs=bush)


def _flat(by_site) -> np.ndarray:
    return np.concatenate(
        [np.ravel(by_site[name]) for name in ("b0", "b_gender", "b_ethnicity", "sigma_state", "b_state")]
    )


def _metrics(reference) -> dict[str, Any]:
    """Traced metrics: RMS against NUTS; none for NUTS itself."""
    if reference is None:
        return {}
    return {
        "rms_mean": lambda p: rms(_flat(p.mean), _flat(reference.mean)),
        "rms_sd": lambda p: rms(_flat(p.sd), _flat(reference.sd)),
    }


def _results(posteriors, seed) -> tuple[list[dict], dict]:
    compared = {}
    for name, posterior in posteriors.items():
        compared[name] = posterior if name in ("nuts", "map") else posterior.sample(MOMENT_SAMPLES, seed + 1)
        if name == "mgvi":
            try:
                compared["mgvi_weighted"] = posterior.corrected(seed + 2, MOMENT_SAMPLES // 4)
            except ValueError:
                pass  # unreliable weights: no such row in the table
    table = compare(compared, posteriors["nuts"]) if "nuts" in posteriors else None
    rows = []
    for name, posterior in compared.items():
        base = name.removesuffix("_weighted")
        rms_of = table[name] if table is not None and name != "nuts" else {"mean": None, "sd": None}
        published = PUBLISHED.get(name, (None, None))
        label = LABELS[base] + (", weighted" if base != name else "")
        row = {"method": label, "RMS mean": rms_of["mean"], "RMS sd": rms_of["sd"]}
        row |= {"published mean": published[0], "published sd": published[1]}
        row |= {f"sigma_state {m}": float(getattr(posterior, m)["sigma_state"]) for m in ("mean", "sd")}
        ended = _common.outcome(posteriors[base])
        row |= {"total (s)": ended["seconds"], "compilation (s)": ended["compile_seconds"], "status": ended["status"]}
        rows.append(row)
    results: dict[str, Any] = {"methods": {name: _common.outcome(p) for name, p in posteriors.items()}}
    if "mgvi" in posteriors and posteriors["mgvi"].check is not None:
        results["pareto_k"] = posteriors["mgvi"].check.pareto_k
    if "nuts" in posteriors:
        last = posteriors["nuts"].history[-1]
        results["nuts"] = {key: last[key] for key in ("r_hat", "ess", "divergences") if key in last}
    return rows, results


def _figures(out: Path, posteriors, traces) -> None:
    if "nuts" not in posteriors or len(posteriors) < 2:
        return
    spread = {name: p for name, p in posteriors.items() if name not in ("map", "nuts")}
    _scatter(out / "scatter.png", spread, posteriors["nuts"])
    _against_nuts(out / "against_nuts.png", spread, posteriors["nuts"])
    panels = {"rms_mean": "RMS of means\nagainst NUTS", "rms_sd": "RMS of sds\nagainst NUTS"}
    traced = {name: trace for name, trace in traces.items() if name != "nuts"}
    _common.plot_traces(out / "metrics.png", traced, panels, logarithmic=tuple(panels))


def _scatter(path, posteriors, reference) -> None:
    shape = (len(posteriors), len(PLOTTED_PAIRS))
    with _common.figure(path, *shape, size=(7, 1.9 * shape[0]), sharex="col", sharey="col", squeeze=False) as (_, axes):
        for row, (name, posterior) in zip(axes, posteriors.items(), strict=True):
            for axis, pair in zip(row, PLOTTED_PAIRS, strict=True):
                for colour, shown in (("#000000", reference), (COLOURS[name], posterior)):
                    x, y = (_column(shown.samples[site]) for site in pair)
                    step = max(1, len(x) // 800)
                    axis.plot(x[::step], y[::step], ".", ms=2.5, alpha=0.5, mec="none", color=colour)
                axis.set_ylabel(pair[1])
            row[1].set_title(f"{LABELS[name]} (black: NUTS)")
        for axis, pair in zip(axes[-1], PLOTTED_PAIRS, strict=True):
            axis.set_xlabel("b_state of D.C." if pair[0] == "b_state" else pair[0])


def _column(samples: np.ndarray) -> np.ndarray:
    return samples if samples.ndim == 1 else samples[:, DISTRICT_OF_COLUMBIA]


def _against_nuts(path, posteriors, reference) -> None:
    with _common.figure(path, 1, 2, size=(7, 3.6)) as (canvas, axes):
        for axis, moment in zip(axes, ("mean", "sd"), strict=True):
            x = _flat(getattr(reference, moment))
            for name, posterior in posteriors.items():
                axis.plot(x, _flat(getattr(posterior, moment)), **_common.dots(name, ms=3.5, mfc="none", alpha=0.8))
            axis.plot([x.min(), x.max()], [x.min(), x.max()], color="k", lw=0.6, zorder=0)
            axis.set(xlabel=f"{moment} of a parameter, NUTS", ylabel=f"{moment} of a parameter")
        handles, labels = axes[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside upper center", ncols=5)
