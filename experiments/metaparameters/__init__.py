"""What the numbers of iterations, steps and samples do to MGVI, one at a time (section 8.2.3).

A size and a seed come in; a table, the paper's findings one by one, figures and the data go out.
It must not know how MGVI works.

The problem is that of the experiment `classification`, with 128 x 128 pixels at the paper's size. Everything but one
number stays at 30 conjugate gradient steps, 10 natural-gradient steps and 10 independent samples without antithetic
partners. The paper does not say for how many rounds; here it is 20, and figures are medians over the last third.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import _common
from experiments.classification.model import Setup, make, metrics
from experiments.metaparameters import figures
from experiments.metaparameters.findings import findings, summarize
from mgvi import FitError, Stage, fit
from mgvi.diagnostics import Trace
from mgvi.samplers import MGVI

METHODS = ("mgvi",)


class Setting(NamedTuple):
    """One way to run MGVI."""

    cg: int = 30
    newton: int = 10
    samples: int = 10
    antithetic: bool = False


class Size(NamedTuple):
    """How large the problem is, and which settings are compared."""

    pixels: int
    squares: int = 16
    rounds: int = 20
    cg: tuple[int, ...] = (3, 9, 30, 90)
    newton: tuple[int, ...] = (1, 3, 10, 30)
    samples: tuple[int, ...] = (2, 4, 8, 16, 32)
    pairs: tuple[int, ...] = (1, 2, 4, 8)

    def settings(self) -> dict[str, dict[int, Setting]]:
        """Settings by what is varied and its value."""
        return {
            "cg": {n: Setting(cg=n) for n in self.cg},
            "newton": {n: Setting(newton=n) for n in self.newton},
            "samples": {n: Setting(samples=n) for n in self.samples},
            "pairs": {n: Setting(samples=n, antithetic=True) for n in self.pairs},
        }


# Each number of samples needs its own compilation, most of the time at the small size: it has fewer of them.
SIZES = {"small": Size(32, squares=8, samples=(2, 4, 16), pairs=(1, 4)), "paper": Size(128)}


def run(
    *,
    size: str | Size = "small",
    seed: int = 1,
    out: Path,
    methods: Sequence[str] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run all settings, and write findings, figures and data."""
    _common.chosen(methods, METHODS)
    size = SIZES[size] if isinstance(size, str) else size
    setup = make(size.pixels, seed, size.squares)
    done: dict[Setting, dict[str, Any]] = {}
    sweeps: dict[str, dict[int, dict[str, Any]]] = {}
    for name, settings in size.settings().items():
        for value, setting in settings.items():
            if setting not in done:  # the default setting is part of several sweeps
                done[setting] = follow(setup, setting, size.rounds, seed)
                if progress:
                    print(f"{name} {value}: {done[setting]['seconds']:.1f} s", file=sys.stderr, flush=True)
            sweeps.setdefault(name, {})[value] = done[setting]
    results = {
        "experiment": "metaparameters",
        "pixels": size.pixels,
        "seed": seed,
        "rounds": size.rounds,
        "sweeps": sweeps,
        "findings": findings(sweeps),
    }
    _common.save_data(out, **vars(setup.board))
    figures.draw(out / "metaparameters.png", sweeps)
    (out / "findings.md").write_text(_common.markdown(results["findings"]) + "\n")
    return _common.write(out, results, [_row(name, n, r) for name, sweep in sweeps.items() for n, r in sweep.items()])


def follow(setup: Setup, setting: Setting, rounds: int, seed: int) -> dict[str, Any]:
    """What MGVI does with one setting: metrics after every round, and their summary over the last ones."""
    trace = Trace(metrics(setup.board), ratio=1.0)
    stage = Stage(pairs=setting.samples, cg=setting.cg, newton=setting.newton, rounds=rounds)
    # Not coupled: every sample has its own conjugate gradient solve, as in the paper.
    sampler = MGVI(antithetic=setting.antithetic, coupled=False)
    broke_down = False
    try:
        fit(setup.problem, seed=seed, schedule=[stage], sampler=sampler, samples=2, callbacks=[trace], progress=False)
    except FitError:  # with too few samples the mean may diverge
        broke_down = True
    return {**summarize(trace.rows, rounds), "broke_down": broke_down, "trace": trace.rows}


def _row(name, value, found) -> dict[str, Any]:
    return {
        "varied": figures.TITLES[name],
        "value": value,
        "log-likelihood (nats a datum)": found["log_likelihood"],
        "at the mean": found["log_likelihood_at_mean"],
        "RMS of the rate": found["rms"],
        "its scatter": found["rms_scatter"],
        "AS (0.80 is calibrated)": found["average_significance"],
        "s": found["seconds"],
        "s compiling": found["compile_seconds"],
        "broke down": "yes" if found["broke_down"] else "no",
    }
