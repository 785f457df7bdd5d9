"""Hierarchical logistic regression of the 1988 polls, the full model with weak priors: held-out likelihood over time.

A size and a seed come in; predictive likelihood of held-out rows over time, a table and figures go out.
It must not know anything of `mgvi` that is not public.

logit P(Bush) = beta1 + beta2 black + beta3 female + beta5 female black + beta4 v_prev + a[age] + b[edu] + c[age_edu]
+ d[state] + e[region], every beta ~ N(0, 100) and every group ~ N(0, sigma) with its own sigma ~ U(0, 100): 90
parameters. Ten percent of the rows are held out. The small size takes every eighth row.
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
from experiments._common import LABELS
from experiments.datasets import election_polls
from mgvi.diagnostics import Trace, predictive_log_likelihood

METHODS = ("mgvi", "advi_meanfield", "map", "laplace")
GROUPS = {"a": ("age", 4), "b": ("edu", 4), "c": ("age_edu", 16), "d": ("state", 51), "e": ("region", 5)}
SIZES: dict[str, dict[str, Any]] = {
    "small": {"every": 8, "mgvi": {"max_rounds": 30}, "advi_meanfield": {"max_steps": 20_000}},
    "paper": {"every": 1, "mgvi": {"warm": True}},
}
HELD_OUT = 0.1  # share of the rows
PRIOR_WIDTH = 100.0  # sd of the coefficients' priors and upper end of the scales' uniform priors
TRACE_SAMPLES = 256  # posterior samples behind each row of a trace
LEVEL_TOLERANCE = 1e-3  # nats a datum: the sampling noise of a log-likelihood that is compared with a level


def run(
    *, size: str = "small", seed: int = 1, out: Path, methods: Sequence[str] | None = None, progress: bool = True
) -> dict:
    """Compare the methods, and write tables, figures and data to a folder."""
    options, out = SIZES[size], Path(out)
    data = polls(options["every"])
    order = np.random.default_rng(seed).permutation(len(data["bush"]))
    count = round(HELD_OUT * len(order))
    hidden, seen = np.sort(order[:count]), np.sort(order[count:])
    posteriors, traces = {}, {}
    with jax.enable_x64(True):
        problem, held_out = (problem_of(data, rows) for rows in (seen, hidden))
        metrics = {
            "predictive": lambda p: predictive_log_likelihood(p, held_out).samples,
            "predictive_at_mean": lambda p: predictive_log_likelihood(p, held_out).mean,
        }
        for name in _common.chosen(methods, METHODS):
            posteriors[name], traces[name] = _common.infer(
                name,
                problem,
                metrics,
                seed=seed,
                progress=progress,
                trace_samples=TRACE_SAMPLES,
                **options.get(name, {}),
            )
        rows, results = _results(posteriors, traces)
        _common.save_data(out, **data, held_out=hidden, seen=seen)
        panels = {
            "predictive": "held-out log-likelihood\nof samples (nats a datum)",
            "predictive_at_mean": "held-out log-likelihood\nat the mean (nats a datum)",
        }
        _common.plot_traces(out / "metrics.png", traces, panels)
        _groups(out / "groups.png", posteriors)
    settings = {"rows": len(seen), "held_out": len(hidden), "parameters": 5 + sum(n for _, n in GROUPS.values()) + 5}
    results = {"experiment": "election-full", "size": size, "seed": seed, "settings": settings, **results}
    return _common.write(out, results, rows)


def polls(every: int) -> dict[str, np.ndarray]:
    """Every `every`-th row that has an outcome, with region and earlier vote of its state; indices start at 0."""
    found = election_polls()
    if found.states is None:
        raise mgvi.FileError(
            "the full model needs election88/states.csv (region and v_prev of the states), which the original file of "
            "the polls does not have. Set MGVI_DATA_DIR to a folder that has it."
        )
    table, states = found.polls, found.states
    rows = np.flatnonzero(~np.isnan(table["y"]))[::every]
    data = {name: table[name][rows].astype(int) - 1 for name in ("age", "edu", "age_edu", "state")}
    place = {int(state): i for i, state in enumerate(states["state"])}
    index = np.array([place[s + 1] for s in data["state"]])
    data["region"] = states["region"][index].astype(int) - 1
    data |= {name: table[name][rows].astype(int) for name in ("female", "black")}
    return {**data, "v_prev": states["v_prev"][index].astype(float), "bush": table["y"][rows].astype(int)}


def problem_of(data: dict[str, np.ndarray], rows: np.ndarray) -> mgvi.Problem:
    """The posterior for a subset of the rows."""
    return mgvi.from_numpyro(model, **{name: jnp.asarray(x[rows]) for name, x in data.items()})


def model(*, female, black, v_prev, bush, **groups):
    """The full model; `groups` has the category of each row for every column in `GROUPS`."""
    beta = [numpyro.sample(f"beta{i}", dist.Normal(0.0, PRIOR_WIDTH)) for i in range(1, 6)]
    logits = beta[0] + beta[1] * black + beta[2] * female + beta[4] * female * black + beta[3] * v_prev
    for name, (column, count) in GROUPS.items():
        sigma = numpyro.sample(f"sigma_{name}", dist.Uniform(0.0, PRIOR_WIDTH))
        effect = numpyro.sample(name, dist.Normal(0.0, sigma).expand([count]).to_event(1))
        logits = logits + effect[groups[column]]
    numpyro.sample("bush", dist.Bernoulli(logits=logits), obs=bush)


def _results(posteriors, traces: dict[str, Trace]) -> tuple[list[dict], dict]:
    level = traces["advi_meanfield"]["predictive"][-1] if "advi_meanfield" in traces else np.nan
    rows = []
    for name, posterior in posteriors.items():
        trace, ended = traces[name], _common.outcome(posterior)
        reached = trace.time_to("predictive", level - LEVEL_TOLERANCE)
        rows.append(
            {
                "method": LABELS[name],
                "predictive": float(trace["predictive"][-1]),
                "predictive at mean": float(trace["predictive_at_mean"][-1]),
                "reaches mf-ADVI's last (s)": reached if np.isfinite(reached) else None,
                "total (s)": ended["seconds"],
                "compilation (s)": ended["compile_seconds"],
                "status": ended["status"],
            }
        )
    return rows, {
        "methods": {name: _common.outcome(p) for name, p in posteriors.items()},
        "traces": {name: trace.rows for name, trace in traces.items()},
    }


def _groups(path: Path, posteriors) -> None:
    """Effects of age, education and region, with their standard deviations.

    The mean over the categories is subtracted from each sample, as only its sum with the intercept matters.
    """
    shown = {"a": "age", "b": "education", "e": "region"}
    # Laplace's error bars are ten times as long as the others'.
    spread = [name for name in posteriors if name not in ("map", "laplace")]
    with _common.figure(path, 1, len(shown), size=(7, 2.8), sharey=True) as (canvas, axes):
        for axis, (site, label) in zip(axes, shown.items(), strict=True):
            for i, name in enumerate(spread):
                effect = posteriors[name].samples[site]
                effect = effect - effect.mean(axis=1, keepdims=True)
                x = np.arange(1, effect.shape[1] + 1) + 0.15 * (i - 0.5 * (len(spread) - 1))
                axis.errorbar(x, effect.mean(axis=0), effect.std(axis=0), **_common.dots(name, ms=4), lw=1, capsize=2)
            axis.axhline(0, color="#8C8C8C", lw=0.6, zorder=0)
            axis.set_xlabel(f"{label} (category)")
            axis.set_xticks(np.arange(1, GROUPS[site][1] + 1))
        axes[0].set_ylabel("effect on the logit,\nmean and sd")
        canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
