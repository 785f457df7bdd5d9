"""The full election model at its small size: MGVI predicts held-out votes at least as well as mean-field ADVI."""

import os

import jax
import numpy as np
import pytest

import mgvi

pytest.importorskip("matplotlib")
election_full = pytest.importorskip("experiments.election_full")
pytestmark = pytest.mark.skipif("MGVI_DATA_DIR" not in os.environ, reason="MGVI_DATA_DIR is not set")


@pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")
@pytest.mark.slow
def test_mgvi_predicts_held_out_votes_as_well_as_mean_field(tmp_path, monkeypatch):
    monkeypatch.setattr(election_full, "TRACE_SAMPLES", 64)
    monkeypatch.setitem(election_full.SIZES["small"], "advi_meanfield", {"max_steps": 10_000})
    monkeypatch.setitem(election_full.SIZES["small"], "mgvi", {"max_rounds": 26})
    results = election_full.run(size="small", out=tmp_path, methods=["mgvi", "advi_meanfield"], progress=False)
    table = {row["method"]: row for row in results["table"]}
    assert table["MGVI"]["predictive"] > table["mf-ADVI"]["predictive"] - election_full.LEVEL_TOLERANCE
    assert {"table.md", "results.json", "groups.png", "metrics.png"} <= set(os.listdir(tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")
def test_medians_are_those_of_nuts_although_priors_of_scales_are_weak():
    """Scales uniform to 100 whose posteriors are below 1, with heavy tails: their sds are another matter."""
    data = election_full.polls(8)
    with jax.enable_x64(True):
        problem = election_full.problem_of(data, np.arange(len(data["bush"])))
        chains = mgvi.baselines.nuts(
            problem, seed=1, draws=2000, tuning=mgvi.baselines.Tuning(target=0.95), progress=False
        )
        assert chains.history[-1]["r_hat"] < 1.01
        for seed in (1, 2):
            posterior = mgvi.fit(problem, seed=seed, progress=False)
            for name, x in chains.samples.items():
                error = np.abs(np.median(posterior.samples[name], axis=0) - np.median(x, axis=0)) / x.std(axis=0)
                assert np.max(error) < 0.35, (seed, name)
