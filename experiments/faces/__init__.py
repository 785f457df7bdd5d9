"""Non-negative matrix factorisation of the Frey faces with Gamma priors and Poisson counts (section 8.3).

A size and a seed come in; tables, figures and the masks go out.
It must not know how any method works.

The paper's set-up: all 1965 frames of 28 x 20 pixels, ten components, a tenth of the pixels held out, and the lower
half of one frame. The smaller size has fewer frames and limits, so that it takes less than a minute. The frames come
from `experiments.datasets.frey_faces`; as they may not be passed on, only masks and indices are written. `mgvi` has
the automatic schedule, `mgvi_paper` that of the paper: 10 natural-gradient steps, 50 conjugate gradient steps rising to
200; it runs at the small size if asked for.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import _common
from experiments.faces import figures
from experiments.faces.model import contrast, make, metrics

METHODS = ("mgvi", "mgvi_paper", "advi_meanfield")
_LEVEL_TOLERANCE = 0.01  # nats a pixel below a level that still count as reaching it
_PAPER = {"schedule": _common.paper_schedule(cg=(50, 200), newton=10)}


class Size(NamedTuple):
    """How large the problem is, and further arguments of the methods."""

    frames: int
    components: int = 10
    options: dict[str, dict[str, Any]] = {}
    methods: tuple[str, ...] = ("mgvi", "advi_meanfield")  # by default


SIZES = {
    "small": Size(48, options={"mgvi": {"max_rounds": 8}, "mgvi_paper": _PAPER, "advi_meanfield": {"max_steps": 3000}}),
    "paper": Size(1965, options={"mgvi": {"warm": True}, "mgvi_paper": {**_PAPER, "warm": True}}, methods=METHODS),
}


def run(
    *,
    size: str | Size = "small",
    seed: int = 1,
    out: Path,
    methods: Sequence[str] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run the methods, and write table, figures and masks."""
    size = SIZES[size] if isinstance(size, str) else size
    chosen = _common.chosen(size.methods if methods is None else methods, METHODS)
    setup = make(size.frames, size.components, seed)
    posteriors, traces = {}, {}
    for name in chosen:
        options = {"seed": seed, "progress": progress, **size.options.get(name, {})}
        posteriors[name], traces[name] = _common.infer(name, setup.problem, metrics(setup.held_out), **options)
    results = {
        "experiment": "faces",
        "frames": size.frames,
        "seed": seed,
        "latents": sum(math.prod(leaf.shape) for leaf in setup.problem.latent.values()),
        "data": int(setup.seen.sum()),
        "held_out": int(setup.held_out.data["values"].size),
        "methods": {
            name: {
                **_common.outcome(posterior),
                **traces[name].rows[-1],
                "contrast": contrast(setup, posterior),
                "trace": traces[name].rows,
            }
            for name, posterior in posteriors.items()
        },
        "seconds_to_level": _common.seconds_to_levels(traces, _LEVEL_TOLERANCE),
    }
    _common.save_data(out, seen=setup.seen, frame=setup.frame)
    figures.draw(out, setup, posteriors, traces)
    return _common.write(out, results, [_row(name, results) for name in chosen])


def _row(name, results) -> dict[str, Any]:
    found = results["methods"][name]
    goals = results["seconds_to_level"]
    return {
        "method": _common.LABELS[name],
        "log-likelihood (nats a pixel)": found["log_likelihood"],
        "joint": found["log_likelihood_joint"],
        "at the mean": found["log_likelihood_at_mean"],
        "sd hidden / seen": found["contrast"],
        **{f"s to the level of {_common.LABELS[goal]}": goals[goal][name] for goal in goals},
        "s": found["seconds"],
        "s compiling": found["compile_seconds"],
        "status": found["status"],
    }
