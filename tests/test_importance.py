"""Smoothed importance weights against ArviZ."""

import numpy as np
import pytest

from mgvi import importance


@pytest.mark.parametrize("scale", [0.3, 0.8, 1.5, 3.0])
def test_shape_and_weights_agree_with_arviz(scale):
    arviz = pytest.importorskip("arviz")
    if not hasattr(arviz, "psislw"):
        pytest.skip("arviz 1.x")
    log_weights = scale * np.random.default_rng(1).standard_t(5, size=1000)
    weights, k = importance.smoothed(log_weights)
    expected, expected_k = arviz.psislw(log_weights[None])
    assert k == pytest.approx(float(np.ravel(expected_k)[0]), abs=0.02)
    expected = np.exp(np.ravel(expected))
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=0.02, atol=1e-6)


def test_equal_weights_are_left_alone():
    weights, k = importance.smoothed(np.zeros(500))
    np.testing.assert_array_equal(weights, 1 / 500)
    assert k < 0


def test_weights_that_differ_by_roundings_only_have_no_tail():
    log_weights = 1e-3 * np.random.default_rng(1).standard_t(1.0, 500).clip(-20, 20)
    weights, k = importance.smoothed(log_weights)
    assert k == -np.inf
    np.testing.assert_allclose(weights, 1 / 500, rtol=0.1)
