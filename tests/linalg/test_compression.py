"""Matrices from few products, against the matrices themselves."""

import numpy as np
import pytest

from mgvi.linalg import Compression


def arrow(size, heads):
    """Diagonal but for the first rows and columns."""
    pattern = np.eye(size, dtype=bool)
    pattern[:heads] = pattern[:, :heads] = True
    return pattern


def crossed(levels):
    """Effects of several factors: those of one factor share no datum, those of two do."""
    factor = np.repeat(np.arange(len(levels)), levels)
    return (factor[:, None] != factor[None, :]) | np.eye(len(factor), dtype=bool)


def band(size, width):
    return np.abs(np.subtract.outer(np.arange(size), np.arange(size))) <= width


def scattered(seed, size, share):
    return np.random.default_rng(seed).random((size, size)) < share


CASES = {
    "arrow": (arrow(60, 5), 6),
    "crossed": (crossed([1, 1, 4, 4, 16, 50]), 27),
    "band": (band(50, 2), 6),
    "diagonal": (np.eye(30, dtype=bool), 1),
    "full": (np.ones((20, 20), bool), 20),
    "single": (np.ones((1, 1), bool), 1),
    "scattered": (scattered(0, 40, 0.02), 40),
    "dense": (scattered(1, 40, 0.5), 40),
}


@pytest.mark.parametrize("name", CASES)
def test_few_products_tell_the_whole_matrix(name):
    pattern, most = CASES[name]
    values = np.random.default_rng(2).standard_normal(pattern.shape)
    matrix = np.where(pattern | pattern.T, values + values.T, 0.0) + np.eye(len(pattern))
    compression = Compression(pattern)
    assert len(compression.vectors) <= most
    np.testing.assert_allclose(compression.recover(compression.vectors @ matrix), matrix, atol=1e-12)
