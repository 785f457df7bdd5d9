import json
import os

import numpy as np
import pytest

from experiments import faces
from experiments.faces.model import PIXELS, make

pytestmark = pytest.mark.skipif(not os.environ.get("MGVI_DATA_DIR"), reason="needs the folder MGVI_DATA_DIR")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("faces")
    options = {"mgvi": {"max_rounds": 5, "samples": 64}, "advi_meanfield": {"max_steps": 1500, "samples": 64}}
    with pytest.warns(UserWarning):  # so few rounds do not converge
        return faces.run(size=faces.Size(8, components=1, options=options), seed=1, out=out, progress=False), out


def test_all_that_was_promised_is_written(done):
    results, out = done
    assert {path.name for path in out.iterdir()} == {
        "components.png",
        "data.npz",
        "frame.png",
        "likelihood.png",
        "results.json",
        "table.md",
    }
    assert json.loads((out / "results.json").read_text()) == results
    assert results["latents"] == 8 + PIXELS
    assert results["data"] + results["held_out"] < 8 * PIXELS


def test_the_data_explain_hidden_pixels_and_the_hidden_half_is_more_uncertain(done):
    for found in done[0]["methods"].values():
        # A single component cannot follow the face, but it knows its average: the prior alone is at thousands.
        assert found["log_likelihood"] > -20
    assert done[0]["methods"]["mgvi"]["contrast"] > 1


def test_hidden_pixels_are_a_tenth_and_half_a_frame():
    setup = make(6, 2, seed=3)
    hidden = ~setup.seen
    assert hidden[setup.frame, PIXELS // 2 :].all()
    others = np.delete(hidden, setup.frame, axis=0)
    assert abs(others.mean() - 0.1) < 0.02
    assert setup.held_out.data["values"].size == pytest.approx(0.1 * 6 * PIXELS, rel=0.2)
    zero = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in setup.problem.latent.items()}
    assert np.all(np.asarray(setup.problem.log_likelihood(zero)["images"])[hidden] == 0)
