"""The Poisson experiment at its small size: files, and the paper's qualitative claims."""

import json
import os

import pytest

pytest.importorskip("matplotlib")
poisson = pytest.importorskip("experiments.poisson")

QUICK = ("mgvi", "laplace", "advi_meanfield", "nuts")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("poisson")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poisson, "TRACE_SAMPLES", 64)
        patch.setattr(poisson, "MOMENT_SAMPLES", 10_000)
        patch.setitem(poisson.SIZES["small"], "nuts", {"warmup": 300, "draws": 500})
        return out, poisson.run(size="small", out=out, methods=QUICK, progress=False)


def test_mgvi_is_closer_to_nuts_than_laplace_and_mean_field(result):
    table = {row["method"]: row for row in result[1]["table"]}
    for other in ("Laplace", "mf-ADVI"):
        assert table["MGVI"]["RMS mean"] < 0.5 * table[other]["RMS mean"]
    assert table["MGVI"]["RMS sd"] < 0.5 * table["mf-ADVI"]["RMS sd"]


def test_mean_field_is_too_certain_and_mgvi_is_not(result):
    table = {row["method"]: row for row in result[1]["table"]}
    assert table["mf-ADVI"]["AS"] > 1.2 > table["MGVI"]["AS"] > 0.5


def test_files_are_there_and_say_what_was_returned(result):
    out, returned = result
    assert json.loads((out / "results.json").read_text()) == returned
    names = {"table.md", "data.npz", "data.png", "rates.png", "correlations.png", "scatter.png", "metrics.png"}
    assert names <= set(os.listdir(out))


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown methods"):
        poisson.run(out=tmp_path, methods=["gibbs"])
