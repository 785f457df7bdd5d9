"""Binary classification with a Gaussian process whose kernel is learned, on a checkerboard (section 8.2).

A size and a seed come in; tables, figures and the data go out.
It must not know how any method works.

The paper's set-up: 1024 x 1024 pixels, data on the white squares of a checkerboard, mean-field ADVI as competitor. The
smaller size has 128 x 128 pixels and a limit on the rounds of MGVI, so that it takes less than a minute. `mgvi` has
the automatic schedule, `mgvi_paper` that of the paper: 3 natural-gradient steps, 100 conjugate gradient steps rising to
400; it runs at the small size if asked for.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import _common
from experiments.classification import figures
from experiments.classification.model import contrast, make, metrics

METHODS = ("mgvi", "mgvi_paper", "advi_meanfield")
_LEVEL_TOLERANCE = 0.001  # nats a datum below a level that still count as reaching it
_PAPER = {"schedule": _common.paper_schedule(cg=(100, 400), newton=3)}


class Size(NamedTuple):
    """How large the problem is, and further arguments of the methods."""

    pixels: int
    squares: int = 16
    options: dict[str, dict[str, Any]] = {}
    methods: tuple[str, ...] = ("mgvi", "advi_meanfield")  # by default


SIZES = {
    "small": Size(128, options={"mgvi": {"max_rounds": 14}, "mgvi_paper": _PAPER}),
    "paper": Size(1024, options={"mgvi": {"warm": True}, "mgvi_paper": {**_PAPER, "warm": True}}, methods=METHODS),
}


def run(
    *,
    size: str | Size = "small",
    seed: int = 1,
    out: Path,
    methods: Sequence[str] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run the methods, and write table, figures and data."""
    size = SIZES[size] if isinstance(size, str) else size
    chosen = _common.chosen(size.methods if methods is None else methods, METHODS)
    setup = make(size.pixels, seed, size.squares)
    posteriors, traces = {}, {}
    for name in chosen:
        options = {"seed": seed, "progress": progress, **size.options.get(name, {})}
        posteriors[name], traces[name] = _common.infer(name, setup.problem, metrics(setup.board), **options)
    results = {
        "experiment": "classification",
        "pixels": size.pixels,
        "seed": seed,
        "latents": sum(math.prod(leaf.shape) for leaf in setup.problem.latent.values()),
        "data": int(setup.board.white.sum()),
        "methods": {
            name: {
                **_common.outcome(posterior),
                **traces[name].rows[-1],
                "contrast": contrast(setup.board, posterior),
                "trace": traces[name].rows,
            }
            for name, posterior in posteriors.items()
        },
        "seconds_to_level": _common.seconds_to_levels(traces, _LEVEL_TOLERANCE),
    }
    _common.save_data(out, **vars(setup.board))
    figures.draw(out, setup, posteriors, traces)
    return _common.write(out, results, [_row(name, results) for name in chosen])


def _row(name, results) -> dict[str, Any]:
    found = results["methods"][name]
    goals = results["seconds_to_level"]
    return {
        "method": _common.LABELS[name],
        "log-likelihood (nats a datum)": found["log_likelihood"],
        "at the mean": found["log_likelihood_at_mean"],
        "RMS of the rate": found["rms"],
        "AS (0.80 is calibrated)": found["average_significance"],
        "sd black / white": found["contrast"],
        **{f"s to the level of {_common.LABELS[goal]}": goals[goal][name] for goal in goals},
        "s": found["seconds"],
        "s compiling": found["compile_seconds"],
        "status": found["status"],
    }
