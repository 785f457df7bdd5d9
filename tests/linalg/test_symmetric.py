"""Small matrices, against what eigenvalues say."""

import numpy as np
import pytest

from mgvi.linalg import at_least, eigh, inverse_root


def random_pair(seed):
    rng = np.random.default_rng(seed)
    root, other = rng.standard_normal((2, 8, 8))
    return other @ np.diag(rng.uniform(-1, 3, 8)) @ other.T, root @ root.T + 0.1 * np.eye(8)


@pytest.mark.parametrize("seed", range(5))
def test_a_raised_matrix_is_nowhere_below_and_elsewhere_the_same(seed):
    matrix, least = random_pair(seed)
    raised = at_least(matrix, least)
    relative = lambda m: np.sort(np.linalg.eigvals(np.linalg.solve(least, m)).real)
    assert relative(matrix)[0] < 1
    np.testing.assert_allclose(relative(raised), np.maximum(relative(matrix), 1), rtol=1e-6)
    assert np.linalg.eigvalsh(raised - matrix)[0] > -1e-9 * np.abs(matrix).max()


def test_a_large_enough_matrix_stays_as_it_is():
    _, least = random_pair(0)
    matrix = 2 * least
    assert at_least(matrix, least) is matrix


@pytest.mark.parametrize("size", [1, 10, 65, 200])
def test_the_inverse_root_is_one_of_the_inverse(size):
    root = np.random.default_rng(size).standard_normal((size, 2 * size))
    matrix = root @ root.T / size + np.eye(size)
    found = inverse_root(matrix)
    np.testing.assert_allclose(found.T @ found, np.linalg.inv(matrix), rtol=1e-9, atol=1e-12)


def test_matrix_without_a_factor_has_no_root():
    assert np.all(np.isnan(inverse_root(np.diag([1.0, -1.0]))))


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_eigenvectors_are_found_where_lapack_fails_at_first(failures, monkeypatch):
    matrix, _ = random_pair(1)
    calls, found = [], np.linalg.eigh

    def fails_at_first(m):
        calls.append(m)
        if len(calls) <= failures:
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return found(m)

    monkeypatch.setattr(np.linalg, "eigh", fails_at_first)
    values, vectors = eigh(matrix)
    assert len(calls) == failures + 1
    assert np.all(np.diff(values) > 0)
    np.testing.assert_allclose((vectors * values) @ vectors.T, matrix, atol=1e-10)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(8), atol=1e-12)


def test_a_matrix_without_eigenvalues_is_refused():
    with pytest.raises(np.linalg.LinAlgError):
        eigh(np.full((3, 3), np.nan))
