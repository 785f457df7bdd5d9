"""The paper's findings on meta-parameters, one by one, on 32 x 32 pixels."""

import pytest

from experiments import metaparameters
from experiments.metaparameters.findings import METRICS, findings, summarize

FINDINGS = [
    "9 conjugate gradient steps suffice",
    "the average significance stays consistent whatever the accuracy",
    "with too few natural-gradient steps the first rounds lag behind",
    "more natural-gradient steps reduce the scatter from round to round",
    "many natural-gradient steps over-fit few samples",
    "2 independent samples fail",
    "4 independent samples fail",
    "more pairs reduce the scatter from round to round",
]
# Whether the first two hold depends on the data (seed 1: both, 2: neither, 3: the second): with 10 independent samples
# accurate steps over-fit the samples, as the paper warns, and fewer steps are then not worse in the end. The last one
# held as long as two independent samples broke down. They do not any more, probably since steps are bounded, and on
# so few pixels one pair over-fits as much in the end: its likelihood is steady, at -0.60, for nine rounds only.
DEPENDS = [
    "too few conjugate gradient steps show in the error",
    "too few natural-gradient steps give worse results in the end",
    "one antithetic pair is far more robust than two independent samples",
]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("metaparameters")
    return metaparameters.run(size="small", seed=1, out=out, progress=False), out


@pytest.mark.slow
@pytest.mark.parametrize("claim", FINDINGS)
def test_finding_of_the_paper(done, claim):
    found = {finding["claim"]: finding for finding in done[0]["findings"]}
    assert found.keys() == {*FINDINGS, *DEPENDS}
    assert found[claim]["holds"], found[claim]["numbers"]


@pytest.mark.slow
def test_all_that_was_promised_is_written(done):
    names = {"data.npz", "findings.md", "metaparameters.png", "results.json", "table.md"}
    assert {path.name for path in done[1].iterdir()} == names


def test_a_finding_that_does_not_hold_is_said_so():
    good: dict = dict.fromkeys(METRICS, -0.5) | {
        "rms": 0.1,
        "rms_scatter": 0.01,
        "early_rms": 0.1,
        "average_significance": 0.8,
        "broke_down": False,
    }
    sweeps = {
        "cg": {3: good, 9: good},
        "newton": {1: good, 10: good},
        "samples": {2: good, 4: good},
        "pairs": {1: good},
    }
    held = {finding["claim"]: finding["holds"] for finding in findings(sweeps)}
    assert held["9 conjugate gradient steps suffice"]
    assert held["the average significance stays consistent whatever the accuracy"]
    assert sum(held.values()) == 2
    sweeps["samples"][2] = {**good, "broke_down": True}
    assert {f["claim"] for f in findings(sweeps) if f["holds"]} == {
        "9 conjugate gradient steps suffice",
        "the average significance stays consistent whatever the accuracy",
        "2 independent samples fail",
        "one antithetic pair is far more robust than two independent samples",
    }


def test_scatter_is_over_the_last_third_of_the_rounds():
    rows = [dict.fromkeys(METRICS, float(i)) | {"seconds": i, "compile_seconds": 0.0} for i in (100, 50, 30, 4, 2, 6)]
    found = summarize(rows, 9)
    assert (found["rms"], found["rms_scatter"], found["seconds"]) == (4.0, 2.0, 6)
