"""White noise that is spread evenly."""

import numpy as np
import pytest
from scipy import stats

from mgvi.gaussian.white import stratified_normals


def rows(seed, count, size=3):
    return stratified_normals(np.random.default_rng(seed), count, size)


@pytest.mark.parametrize(("first", "last"), [(0, 32), (32, 64), (64, 128), (128, 256)])
def test_each_stratum_of_sizes_occurs_once_in_a_block(first, last):
    size = 2 * stats.norm.cdf(np.abs(rows(1, 256)[first:last])) - 1
    strata = np.floor(size * (last - first)).astype(int)
    assert np.array_equal(np.sort(strata, axis=0), np.tile(np.arange(last - first)[:, None], 3))


def test_entries_are_standard_normal_and_independent():
    drawn = np.concatenate([rows(seed, 40, 2) for seed in range(2000)])
    assert stats.kstest(drawn[:, 0], "norm").pvalue > 1e-3
    one, other = drawn.T
    assert abs(np.mean(one * other)) < 4 / np.sqrt(len(drawn))
    assert abs(np.mean((one**2 - 1) * (other**2 - 1))) < 8 / np.sqrt(len(drawn))


@pytest.mark.parametrize("count", [1, 8, 32, 33, 100])
def test_first_of_many_rows_are_the_same_as_few(count):
    assert np.array_equal(rows(3, count), rows(3, 300)[:count])


def test_sums_of_functions_of_single_entries_have_less_than_half_the_noise():
    def scatter(draw):
        return np.std([np.mean(np.cosh(0.7 * draw(seed)).sum(axis=1)) for seed in range(200)])

    assert scatter(lambda seed: rows(seed, 64, 5)) < 0.5 * scatter(
        lambda seed: np.random.default_rng(seed).standard_normal((64, 5))
    )
