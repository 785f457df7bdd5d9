"""The preconditioner with a block for the sites that all others share, against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgvi import _tree
from mgvi.linalg import Preconditioner, Stop, block_preconditioner, global_sites, solve, sub_blocks

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

    return mv, {"a": jnp.diag(M)[:GLOBAL], "s": jnp.diag(M)[GLOBAL:]}


def test_block_is_that_of_the_metric_and_its_inverse_is_applied():
    mv, diagonal = parts(np.float32)
    found, block = block_preconditioner(mv, diagonal, global_sites(LIKE))
    np.testing.assert_allclose(block, metric()[:GLOBAL, :GLOBAL], rtol=1e-4)
    b = _tree.random_normal(
        jax.random.key(0), jax.tree.map(lambda s: jax.ShapeDtypeStruct((2, *s.shape), s.dtype), LIKE)
    )
    applied = found.apply(b)
    np.testing.assert_allclose(applied["a"] @ block, b["a"], rtol=0.05, atol=0.05)
    np.testing.assert_allclose(applied["s"], b["s"] / diagonal["s"], rtol=1e-6)


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
            x, _ = solve(jax.vmap(mv), rows, stop=Stop(0.0, 0.0, 6), preconditioner=preconditioner)
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
