"""The full election model at its small size: MGVI predicts held-out votes at least as well as mean-field ADVI."""

import os

import pytest

pytest.importorskip("matplotlib")
election_full = pytest.importorskip("experiments.election_full")
pytestmark = pytest.mark.skipif("MGVI_DATA_DIR" not in os.environ, reason="MGVI_DATA_DIR is not set")


@pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")
def test_mgvi_predicts_held_out_votes_as_well_as_mean_field(tmp_path, monkeypatch):
    monkeypatch.setattr(election_full, "TRACED", 64)
    monkeypatch.setitem(election_full.SIZES["small"], "advi_meanfield", {"max_steps": 10_000})
    monkeypatch.setitem(election_full.SIZES["small"], "mgvi", {"max_rounds": 26})
    results = election_full.run(size="small", out=tmp_path, methods=["mgvi", "advi_meanfield"], progress=False)
    table = {row["method"]: row for row in results["table"]}
    assert table["MGVI"]["predictive"] > table["mf-ADVI"]["predictive"] - election_full.REACHED
    assert {"table.md", "results.json", "groups.png", "metrics.png"} <= set(os.listdir(tmp_path))
