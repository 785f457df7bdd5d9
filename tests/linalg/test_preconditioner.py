"""The preconditioner with a block for the sites that all others share, against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi import _tree
from mgvi.fields import Grid, Matern, StationaryField, select
from mgvi.gaussian import Keys, KrylovCurvature
from mgvi.gaussian.krylov import preconditioned
from mgvi.linalg import (
    Preconditioner,
    Stop,
    block_preconditioner,
    global_sites,
    solve,
    some_entries,
    sub_blocks,
)

LOCAL, GLOBAL, DATA = 400, 3, 350


def metric():
    """A metric whose global latents, strongly correlated, are weakly coupled to many local ones."""
    rng = np.random.default_rng(0)
    local = np.linalg.qr(rng.normal(size=(LOCAL, LOCAL)))[0][:DATA] * np.geomspace(30.0, 0.1, LOCAL)
    tied = 20.0 * np.vander(np.linspace(0.0, 1.0, DATA), GLOBAL)
    R = np.concatenate([tied, local], axis=1)
    return np.eye(GLOBAL + LOCAL) + R.T @ R


LIKE = {"a": jax.ShapeDtypeStruct((GLOBAL,), jnp.float32), "s": jax.ShapeDtypeStruct((LOCAL,), jnp.float32)}


def parts(dtype):
    M = jnp.asarray(metric(), dtype)
    row = lambda v: jnp.concatenate([v["a"], v["s"]])

    def mv(v):
        product = jnp.matmul(M, row(v), precision="highest")
        return {"a": product[:GLOBAL], "s": product[GLOBAL:]}

    return jax.vmap(mv), {"a": jnp.diag(M)[:GLOBAL], "s": jnp.diag(M)[GLOBAL:]}


def stack(count):
    like = jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), LIKE)
    return _tree.random_normal(jax.random.key(0), like)


def test_block_is_that_of_the_metric_and_its_inverse_is_applied():
    mv, diagonal = parts(np.float32)
    names, b = global_sites(LIKE), stack(2)
    found, block = block_preconditioner(mv, diagonal, names)
    np.testing.assert_allclose(block, metric()[:GLOBAL, :GLOBAL], rtol=1e-4)
    applied = found.apply(b)
    np.testing.assert_allclose(applied["a"] @ block, b["a"], rtol=0.05, atol=0.05)
    np.testing.assert_allclose(applied["s"], b["s"] / diagonal["s"], rtol=1e-6)
    chosen = some_entries(LIKE, names, diagonal)
    same, _ = block_preconditioner(mv, diagonal, names, chosen, inside=GLOBAL)
    np.testing.assert_allclose(_tree.to_rows(same.apply(b)), _tree.to_rows(applied), rtol=1e-3, atol=1e-6)
    none, block = block_preconditioner(mv, diagonal, names, chosen, inside=0)
    np.testing.assert_allclose(block, np.diag(np.diag(block)))
    for name, leaf in none.apply(b).items():
        np.testing.assert_allclose(leaf, b[name] / diagonal[name], rtol=1e-3, atol=1e-6)


def test_largest_entries_are_in_the_block_if_it_is_thorough():
    jax.config.update("jax_enable_x64", True)
    try:
        mv, diagonal = parts(np.float64)
        names = global_sites(LIKE)
        found, block = block_preconditioner(mv, diagonal, names, some_entries(LIKE, names, diagonal))
        np.testing.assert_allclose(block, metric()[:GLOBAL, :GLOBAL], rtol=1e-12)
        chosen = np.argsort(-np.diag(metric())[GLOBAL:])[:128]
        b = jax.tree.map(lambda x: x.astype(float), stack(2))
        rows = np.asarray(_tree.to_rows(b))
        inside = np.concatenate([np.arange(GLOBAL), GLOBAL + chosen])
        expected = rows / np.diag(metric())
        expected[:, inside] = np.linalg.solve(metric()[np.ix_(inside, inside)], rows[:, inside].T).T
        np.testing.assert_allclose(_tree.to_rows(found.apply(b)), expected, rtol=1e-8)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_a_trend_and_a_field_with_gaps_need_the_largest_entries():
    grid = Grid((32, 48), periodic=False, padding=0.5)
    seen = np.ones(grid.shape, bool)
    seen[8:24, 10:30] = False

    def model(data):
        trend = numpyro.sample("trend", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        s = numpyro.sample("s", StationaryField(grid, Matern(0.5, 50.0, 3.0)))
        level = trend[0] + trend[1] * jnp.linspace(-1, 1, 48)
        numpyro.sample("data", dist.Normal(select(Grid(seen.shape), seen)(level + grid.crop(s)), 0.2), obs=data)

    jax.config.update("jax_enable_x64", True)
    try:
        problem = mgvi.from_numpyro(model, jnp.zeros(int(seen.sum())))
        mean = _tree.zeros(problem.latent)
        plain = KrylovCurvature(problem, mean, {name: jnp.ones(()) for name in mean})
        iterations = {}
        for thorough in (False, True):
            curvature, _ = preconditioned(plain, thorough=thorough)
            _, report = curvature.draw(Keys(1, 1, 4), Stop(1e-4, 0.0, 2000))
            assert int(report.status.max()) == 0
            iterations[thorough] = int(report.iterations.max())
        assert iterations[True] < 0.4 * iterations[False]
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_block_helps_with_correlated_global_sites(dtype):
    jax.config.update("jax_enable_x64", dtype is np.float64)
    try:
        mv, diagonal = parts(dtype)
        block, _ = block_preconditioner(mv, diagonal, global_sites(LIKE))
        b = np.linalg.cholesky(metric()) @ np.random.default_rng(1).normal(size=(GLOBAL + LOCAL, 4))
        exact = np.linalg.solve(metric(), b).T[:, :GLOBAL]
        sd = np.sqrt(np.diag(np.linalg.inv(metric())))[:GLOBAL]
        rows = _tree.from_rows(jnp.asarray(b.T, dtype), _tree.zeros(LIKE))
        rows = jax.tree.map(lambda x: x.astype(dtype), rows)
        error = {}
        for name, preconditioner in (("diagonal", Preconditioner(diagonal)), ("block", block)):
            x, _ = solve(mv, rows, stop=Stop(0.0, 0.0, 6), preconditioner=preconditioner)
            error[name] = np.max(np.abs(np.asarray(x["a"]) - exact) / sd)
        assert error["block"] < 0.5 * error["diagonal"]
    finally:
        jax.config.update("jax_enable_x64", False)


def test_sites_that_count_as_global():
    sizes = {"s": 10_000, "curve": 63, "noise": 1, "large": 129}
    latent = {name: jax.ShapeDtypeStruct((size,), jnp.float32) for name, size in sizes.items()}
    assert global_sites(latent) == ("curve", "noise")
    assert global_sites({"a": jax.ShapeDtypeStruct((3,), jnp.float32)}) == ()


def test_blocks_of_single_sites():
    matrix = np.arange(16.0).reshape(4, 4)
    found = sub_blocks(matrix, {"b": jax.ShapeDtypeStruct((1,), float), "a": jax.ShapeDtypeStruct((3,), float)})
    np.testing.assert_array_equal(found["a"], matrix[:3, :3])
    np.testing.assert_array_equal(found["b"], matrix[3:, 3:])


def test_damped_preconditioner_is_that_of_the_damped_diagonal():
    given = {"x": jnp.array([[6.0, 10.0]])}
    damped = Preconditioner({"x": jnp.array([2.0, 4.0])}).damped(1.0)
    np.testing.assert_allclose(damped.apply(given)["x"], [[2.0, 2.0]])
