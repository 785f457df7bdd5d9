"""Traced functions whose constants are arguments, and whose marked values can be exchanged."""

import jax
import jax.numpy as jnp
import numpy as np

from mgvi._trace import kept, mark, trace

TABLE = np.linspace(1.0, 2.0, 5000)


def function(xi):
    a = mark("a", xi["a"], jnp.exp(xi["s"]))
    b = mark("b", xi["b"] + a, 2 * a)
    return {"sum": jnp.sum(b * TABLE), "a": a, "b": b}


def traced():
    example = {"a": jnp.ones(()), "b": jnp.ones(5000), "s": jnp.zeros(())}
    return *trace(function, example), {"a": jnp.asarray(3.0), "b": jnp.arange(5000.0), "s": jnp.asarray(0.5)}


def test_a_program_does_what_its_function_does():
    program, constants, xi = traced()
    jax.tree.map(np.testing.assert_allclose, program(constants, xi), function(xi))


def test_marked_values_are_exchanged_for_all_that_comes_after_them():
    program, constants, xi = traced()
    seen = {}

    def exchange(name, value, other):
        seen[name] = other
        return value * other

    found = program(constants, xi, exchange)
    a = xi["a"] * jnp.exp(xi["s"])
    b = (xi["b"] + a) * 2 * a
    np.testing.assert_allclose(seen["a"], jnp.exp(0.5), rtol=1e-6)
    np.testing.assert_allclose(seen["b"], 2 * a, rtol=1e-6)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, {"sum": jnp.sum(b * TABLE), "a": a, "b": b}
    )


def test_what_is_exchanged_is_differentiated_too():
    program, constants, xi = traced()
    slope = jax.grad(lambda s: program(constants, {**xi, "s": s}, lambda _, value, other: value * other)["a"])(xi["s"])
    np.testing.assert_allclose(slope, 3.0 * np.exp(0.5), rtol=1e-6)


def test_a_mark_is_the_value_itself_outside_of_a_program():
    xi = {"a": jnp.ones((2,)), "b": jnp.ones((2, 5000)), "s": jnp.zeros((2,))}
    for found in (jax.vmap(function)(xi), jax.jit(jax.vmap(function))(xi)):
        np.testing.assert_allclose(found["b"], 2.0)
    assert jax.grad(lambda s: mark("a", 2.0 * s, s))(1.0) == 2.0


def test_kept_values_become_constants_unless_inputs_enter_them():
    def tables(scale):
        order = kept(jnp.argsort(jnp.cos(jax.lax.iota(jnp.float32, 5000))))
        return {"fixed": order * scale, "varying": kept(jnp.sin(scale) * jnp.ones(5000))}

    scale = jnp.asarray(0.5)
    program, constants = trace(lambda xi: tables(xi["scale"]), {"scale": scale})
    assert [array.shape for array in jax.tree.leaves(constants)] == [(5000,)]
    jax.tree.map(np.testing.assert_allclose, program(constants, {"scale": scale}), tables(scale))
    text = jax.jit(program).lower(constants, {"scale": scale}).as_text()
    assert "sort" not in text
    slope = jax.grad(lambda scale: program(constants, {"scale": scale})["varying"].sum())(scale)
    np.testing.assert_allclose(slope, 5000 * np.cos(0.5), rtol=1e-5)
