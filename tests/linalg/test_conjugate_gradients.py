"""Conjugate gradients against dense linear algebra."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgvi.linalg import Stop, gram, mix, solve
from mgvi.status import Status


def spread_matrix(size=120, informed=30, largest=1e3, seed=0):
    """1 + low rank, as a Fisher metric is: most eigenvalues 1, some large."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    eigenvalues = np.concatenate([np.geomspace(2, largest, informed), np.ones(size - informed)])
    return (basis * eigenvalues) @ basis.T


def times(v, matrix):
    """A product in full precision, also on a GPU."""
    return jnp.matmul(v, matrix, precision="highest")


def stacked_tree(x):
    """The same vectors as a tree with two leaves."""
    return {"a": x[:, :50], "b": x[:, 50:].reshape(x.shape[0], -1, 2)}


def flat(tree):
    return jnp.concatenate([tree["a"], tree["b"].reshape(tree["a"].shape[0], -1)], axis=1)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("count", [1, 6])
def test_solution_equals_dense_solve_on_trees(precision, coupled, count):
    dense = spread_matrix()
    b = np.random.default_rng(1).normal(size=(count, 120))
    matrix = jnp.asarray(dense)
    tolerance = 1e-4 if precision == "float32" else 1e-9
    x, report = jax.jit(
        lambda tree: solve(lambda v: stacked_tree(times(flat(v), matrix)), tree, stop=Stop(tolerance), coupled=coupled)
    )(stacked_tree(jnp.asarray(b)))
    expected = np.linalg.solve(dense, b.T).T
    assert np.max(np.abs(flat(x) - expected)) < tolerance * np.max(np.abs(expected)) * 10
    assert all(Status(int(s)) is Status.CONVERGED for s in report.status)
    true_residual = np.linalg.norm(b - np.asarray(flat(x), float) @ dense, axis=1) / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(report.residual, true_residual, rtol=0.5, atol=2e-6 if precision == "float32" else 1e-14)


@pytest.mark.parametrize("count", [4, 6, 8])
def test_a_coupled_solve_in_single_precision_has_the_residual_that_was_asked_for(count):
    """The recursion of one pass does not: it said so at ten times as much."""
    matrix = jnp.asarray(spread_matrix())
    run = jax.jit(lambda b: solve(lambda v: times(v, matrix), b, stop=Stop(1e-4), coupled=True)[1])
    reports = [run(np.random.default_rng(seed).normal(size=(count, 120)).astype("f")) for seed in range(20)]
    assert max(float(report.residual.max()) for report in reports) < 2.1e-4
    assert all(int(report.status.max()) == Status.CONVERGED for report in reports)


def test_coupling_needs_fewer_iterations(x64):
    matrix = jnp.asarray(spread_matrix())
    b = jnp.asarray(np.random.default_rng(1).normal(size=(8, 120)))
    used = [int(solve(lambda v: times(v, matrix), b, coupled=c)[1].iterations[0]) for c in (False, True)]
    assert used[1] < 0.6 * used[0]


@pytest.mark.parametrize("count", [4, 5])  # factors number by number, and by a library
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_right_hand_sides_that_depend_on_each_other_are_solved_as_others_are(precision, count, seed):
    matrix = jnp.asarray(spread_matrix())
    b = np.random.default_rng(seed).normal(size=(count, 120))
    b[1], b[2] = b[0], 0.0
    b[4:] = b[0] + b[3]
    run = jax.jit(lambda b: solve(lambda v: times(v, matrix), b, stop=Stop(1e-4), coupled=True))
    x, report = run(jnp.asarray(b))
    expected = np.linalg.solve(spread_matrix(), b.T).T
    assert np.max(np.abs(x - expected)) < 1e-3
    assert int(report.status.max()) == Status.CONVERGED
    assert int(report.iterations.max()) < 60


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_products_number_by_number_are_those_of_the_library(rows, monkeypatch):
    """Which an accelerator makes in one way, a CPU in the other."""
    rng = np.random.default_rng(0)
    u, v = ({"a": jnp.asarray(rng.normal(size=(3, 7))), "b": jnp.asarray(rng.normal(size=(3, 2, 5)))} for _ in range(2))
    matrix = jnp.asarray(rng.normal(size=(rows, 3)))
    expected = gram(u, v), mix(matrix, u)
    monkeypatch.setattr("mgvi.linalg.stacks.is_written_out", lambda count: True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), (gram(u, v), mix(matrix, u)), expected)


def test_right_hand_sides_that_are_zero_take_no_iterations(precision):
    matrix = jnp.asarray(spread_matrix())
    b = np.random.default_rng(1).normal(size=(6, 120))
    b[2:] = 0.0
    # Compiled as users do: roundings of quick compilation differ more between the two runs.
    usual = partial(
        jax.jit, compiler_options={"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
    )
    run = usual(lambda b: solve(lambda v: times(v, matrix), b, stop=Stop(1e-2), coupled=True))
    (x, report), (alone, without) = run(jnp.asarray(b)), run(jnp.asarray(b[:2]))
    assert int(report.iterations[0]) <= int(without.iterations[0]) + 1
    # Rounding makes the two runs differ, by less than a converged solve may be off: twice what was asked for.
    far = np.linalg.solve(spread_matrix(), b[:2].T).T - np.asarray([x[:2], alone], float)
    residual = np.linalg.norm(far @ spread_matrix(), axis=-1) / np.linalg.norm(b[:2], axis=-1)
    assert np.all(residual < 2e-2)
    assert not np.any(x[2:]) and int(report.status.max()) == Status.CONVERGED


def test_unreachable_accuracy_in_float32_is_reported_not_claimed():
    matrix = jnp.asarray(spread_matrix(largest=1e5))
    b = jnp.asarray(np.random.default_rng(1).normal(size=(4, 120)))
    x, report = solve(lambda v: times(v, matrix), b, stop=Stop(1e-9, iterations=2000), coupled=True)
    assert np.all(np.isfinite(x))
    assert set(map(int, report.status)) <= {Status.STAGNATED, Status.ITERATION_LIMIT}


def test_iteration_limit_is_traced_and_reported():
    matrix = jnp.asarray(spread_matrix())
    b = jnp.ones((2, 120))
    traces = []

    @jax.jit
    def run(limit):
        traces.append(limit)
        return solve(lambda v: times(v, matrix), b, stop=Stop(1e-6, iterations=limit))

    for limit in (3, 5):
        _, report = run(limit)
        assert int(report.iterations[0]) == limit
        assert int(report.status[0]) == Status.ITERATION_LIMIT
    assert len(traces) == 1


def test_energy_criterion_bounds_the_error_in_the_energy_norm(x64):
    dense = spread_matrix()
    matrix = jnp.asarray(dense)
    b = jnp.asarray(np.random.default_rng(1).normal(size=(1, 120)))
    x, report = solve(lambda v: times(v, matrix), b, stop=Stop(0.0, energy=1e-3))
    error = np.asarray(x[0]) - np.linalg.solve(dense, np.asarray(b[0]))
    assert error @ dense @ error < 1e-2
    assert int(report.status[0]) == Status.CONVERGED
    assert int(report.iterations[0]) < 120


def test_preconditioner_and_warm_start_save_iterations(x64):
    dense = spread_matrix()
    matrix, inverse = jnp.asarray(dense), jnp.asarray(np.linalg.inv(dense + 0.1 * np.eye(120)))
    b = jnp.asarray(np.random.default_rng(1).normal(size=(3, 120)))
    plain, x = solve(lambda v: times(v, matrix), b)[1], solve(lambda v: times(v, matrix), b)[0]
    given = SimpleNamespace(apply=lambda v: times(v, inverse), basis=None)
    helped = solve(lambda v: times(v, matrix), b, preconditioner=given)
    warm = solve(lambda v: times(v, matrix), b, x0=x)[1]
    assert int(helped[1].iterations[0]) < 0.3 * int(plain.iterations[0])
    np.testing.assert_allclose(helped[0], x, atol=1e-4)
    assert int(warm.iterations[0]) <= 2


def test_nan_is_reported():
    _, report = solve(lambda v: v * jnp.nan, jnp.ones((2, 3)))
    assert set(map(int, report.status)) == {Status.NOT_FINITE}


def test_unchecked_solve_is_the_same_without_the_last_product(x64):
    matrix = jnp.asarray(spread_matrix())
    b = jnp.asarray(np.random.default_rng(1).normal(size=(1, 120)))
    checked, unchecked = (solve(lambda v: times(v, matrix), b, stop=Stop(1e-6), check=c) for c in (True, False))
    np.testing.assert_allclose(checked[0], unchecked[0], rtol=1e-12)
    np.testing.assert_allclose(checked[1].residual, unchecked[1].residual, rtol=1e-3)
    with pytest.raises(ValueError, match="not coupled"):
        solve(lambda v: times(v, matrix), b, coupled=True, check=False)
