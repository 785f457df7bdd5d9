"""The preconditioner with a coarse space, against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgvi import _tree
from mgvi.linalg import Preconditioner, Stop, global_sites, solve, with_coarse_space

LOCAL, GLOBAL, DATA = 400, 3, 350


def hierarchy(dtype):
    """R of data that see local latents times an amplitude, with the amplitude's parameters among the latents."""
    rng = np.random.default_rng(0)
    amplitude = np.geomspace(100.0, 0.1, LOCAL)
    mixing = np.linalg.qr(rng.normal(size=(LOCAL, LOCAL)))[0][:DATA]  # some directions are not seen
    shapes = np.stack([np.ones(LOCAL), np.linspace(-1, 1, LOCAL), np.linspace(-1, 1, LOCAL) ** 2], axis=1)
    local = mixing * amplitude
    return np.concatenate([local @ (shapes * rng.normal(size=(LOCAL, 1))), local], axis=1).astype(dtype)


def parts(dtype):
    R = jnp.asarray(hierarchy(dtype))
    like = {"a": jnp.zeros(GLOBAL, dtype), "s": jnp.zeros(LOCAL, dtype)}
    row = lambda v: jnp.concatenate([v["a"], v["s"]])
    push = lambda v: jnp.matmul(R, row(v), precision="highest")
    pull = lambda w: {"a": jnp.matmul(w, R, precision="highest")[:GLOBAL], "s": jnp.matmul(w, R)[GLOBAL:]}
    diagonal = 1 + jnp.sum(R * R, axis=0)
    return push, pull, {"a": diagonal[:GLOBAL], "s": diagonal[GLOBAL:]}, like


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coarse_space_finds_what_global_sites_do_long_before_a_diagonal(dtype):
    jax.config.update("jax_enable_x64", dtype is np.float64)
    try:
        push, pull, diagonal, like = parts(dtype)
        coarse = with_coarse_space(push, pull, diagonal, global_sites(like))
        mv = jax.vmap(lambda v: _tree.add(v, pull(push(v))))
        R = hierarchy(np.float64)
        metric = np.eye(GLOBAL + LOCAL) + R.T @ R
        b = np.linalg.cholesky(metric) @ np.random.default_rng(1).normal(size=(GLOBAL + LOCAL, 4))
        exact = np.linalg.solve(metric, b).T[:, :GLOBAL]
        sd = np.sqrt(np.diag(np.linalg.inv(metric)))[:GLOBAL]
        error = {}
        for name, preconditioner in (("diagonal", Preconditioner(diagonal)), ("coarse", coarse)):
            rows = _tree.from_rows(jnp.asarray(b.T, dtype), like)
            x, _ = solve(mv, rows, stop=Stop(0.0, 0.0, 20), preconditioner=preconditioner)
            error[name] = np.max(np.abs(np.asarray(x["a"]) - exact) / sd)
        assert error["coarse"] < 0.1
        assert error["coarse"] < 0.1 * error["diagonal"]
    finally:
        jax.config.update("jax_enable_x64", False)


def test_correction_is_the_best_within_the_coarse_space():
    push, pull, diagonal, like = parts(np.float32)
    coarse = with_coarse_space(push, pull, diagonal, global_sites(like))
    residual = _tree.random_normal(jax.random.key(0), like)
    stack = jax.tree.map(lambda leaf: leaf[None], residual)
    step = jax.tree.map(lambda leaf: leaf[0], coarse.correct(stack))
    left = _tree.subtract(residual, _tree.add(step, pull(push(step))))
    again = coarse.correct(jax.tree.map(lambda leaf: leaf[None], left))
    assert float(_tree.dot(again, again)) < 1e-3 * float(_tree.dot(step, step))


def test_sites_are_global_only_beside_larger_ones():
    leaf = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    assert global_sites({"s": leaf(50, 50), "a": leaf(), "b": leaf(63)}) == ("a", "b")
    assert global_sites({"s": leaf(50, 50), "t": leaf(50, 60)}) == ()
    assert global_sites({"a": leaf(), "b": leaf(5)}) == ()
