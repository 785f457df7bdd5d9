import json

import numpy as np
import pytest

from experiments import classification
from experiments.classification.model import make, metrics


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("classification")
    return classification.run(size=classification.Size(16, squares=8), seed=1, out=out, progress=False), out


def test_all_that_was_promised_is_written(done):
    results, out = done
    assert {path.name for path in out.iterdir()} == {
        "data.npz",
        "maps.png",
        "metrics.png",
        "results.json",
        "spectrum.png",
        "table.md",
    }
    assert json.loads((out / "results.json").read_text()) == results
    assert np.load(out / "data.npz")["data"].shape == (16, 16)
    assert results["latents"] == 2 * 16 * 9 + 66


def test_black_squares_are_predicted_better_than_by_chance(done):
    for found in done[0]["methods"].values():
        assert found["log_likelihood"] > np.log(0.5)
        assert 0.4 < found["average_significance"] < 1.6


def test_the_uncertainty_of_mgvi_shows_the_checkerboard_more_than_that_of_mean_field(done):
    found = done[0]["methods"]
    assert found["mgvi"]["contrast"] > found["advi_meanfield"]["contrast"]
    assert found["mgvi"]["contrast"] > 1.02


def test_held_out_data_do_not_influence_the_fit():
    setup = make(16, seed=3, squares=4)
    changed = np.where(setup.board.white, setup.board.data, 1 - setup.board.data)
    zero = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in setup.problem.latent.items()}
    terms = setup.problem.log_likelihood(zero)["data"]
    assert np.all(np.asarray(terms)[~setup.board.white] == 0)
    assert np.any(changed != setup.board.data)
    assert set(metrics(setup.board)) == {"log_likelihood", "log_likelihood_at_mean", "rms", "average_significance"}
