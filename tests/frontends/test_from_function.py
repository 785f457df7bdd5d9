"""A plain function gives the same problem as the NumPyro model that says the same."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi

from . import oracle

RTOL = {"float32": 1e-5, "float64": 1e-12}


def data():
    """Fresh arrays: JAX keeps the first conversion of a NumPy array, also after a change of precision."""
    rng = np.random.default_rng(8)
    design = rng.normal(size=(15, 4))
    return design, {"y": design @ [0.5, -1.0, 0.2, 0.0] + 0.3 * rng.normal(size=15), "n": rng.poisson(4.0, size=6)}


def both():
    """The problem from a function and the one from a model."""
    design, observed = data()
    design = jnp.asarray(design)

    def observe(values):
        return {
            "y": dist.Normal(design @ values["weights"], values["sd"]),
            "n": dist.Poisson(jnp.exp(values["log_rate"]) * jnp.ones(6)).to_event(1),
        }

    def model(y, n):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([4]))
        sd = numpyro.sample("sd", dist.HalfNormal(2.0))
        log_rate = numpyro.sample("log_rate", dist.Normal(1.0, 0.5))
        numpyro.sample("y", dist.Normal(design @ weights, sd), obs=y)
        numpyro.sample("n", dist.Poisson(jnp.exp(log_rate) * jnp.ones(6)).to_event(1), obs=n)

    latent = {"weights": (4,), "sd": dist.HalfNormal(2.0), "log_rate": dist.Normal(1.0, 0.5)}
    return mgvi.from_function(observe, latent, observed), mgvi.from_numpyro(model, **observed)


def test_function_and_model_have_the_same_latent_and_data(precision):
    function, model = both()
    assert function.latent == model.latent
    assert {name: leaf.shape for name, leaf in function.latent.items()} == {"weights": (4,), "sd": (), "log_rate": ()}
    for name in ("y", "n"):
        np.testing.assert_array_equal(function.data[name], model.data[name])


def test_function_and_model_have_the_same_density_and_metric(precision):
    function, model = both()
    for seed in range(2):
        xi = oracle.random_latent(model, seed)
        np.testing.assert_allclose(function.neg_log_density(xi), model.neg_log_density(xi), rtol=RTOL[precision])
        expected = oracle.metric_matrix(model, xi)
        np.testing.assert_allclose(
            oracle.metric_matrix(function, xi), expected, rtol=RTOL[precision], atol=RTOL[precision] * expected.max()
        )


def test_metric_of_a_function_is_written_by_hand(x64):
    function, _ = both()
    design, _ = data()
    xi = {"weights": jnp.zeros(4), "sd": jnp.array(0.3), "log_rate": jnp.array(-0.5)}
    sd = float(function.constrain(xi)["sd"])
    slope = float(jax.grad(lambda x: function.constrain({**xi, "sd": x})["sd"])(xi["sd"]))
    expected = np.eye(6)  # in the order log_rate, sd, weights
    expected[0, 0] += 6 * np.exp(1.0 - 0.25) * 0.25
    expected[1, 1] += 15 * 2 * (slope / sd) ** 2
    expected[2:, 2:] += design.T @ design / sd**2
    np.testing.assert_allclose(oracle.metric_matrix(function, xi), expected, rtol=1e-9, atol=1e-9)


def test_function_and_model_have_the_same_values_and_predictions(precision):
    function, model = both()
    xi = oracle.random_latent(model, 3)
    key = jax.random.key(0)
    for call in (
        lambda p: p.constrain(xi),
        lambda p: p.log_likelihood(xi),
        lambda p: p.simulate(key, xi),
        lambda p: p.sample_prior(key, 3),
    ):
        ours, theirs = call(function), call(model)
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=10 * RTOL[precision], atol=10 * RTOL[precision])


@pytest.mark.parametrize("entry", [3, (3,), jax.ShapeDtypeStruct((3,), jnp.float32)])
def test_a_shape_stands_for_standard_normals(entry):
    observe = lambda values: {"y": dist.Normal(values["x"], 0.5)}
    problem = mgvi.from_function(observe, {"x": entry}, {"y": jnp.ones(3)})
    xi = {"x": jnp.array([0.3, -1.0, 2.0])}
    np.testing.assert_array_equal(problem.constrain(xi)["x"], xi["x"])
    np.testing.assert_allclose(oracle.metric_matrix(problem, xi), 5 * np.eye(3), rtol=1e-6)


def ok(values):
    return {"y": dist.Normal(values["x"], 1.0)}


@pytest.mark.parametrize(
    ("observe", "latent", "observed", "message"),
    [
        (ok, [("x", ())], {"y": jnp.ones(3)}, "`latent` must be a dict by name, found list"),
        (ok, {"x": ()}, jnp.ones(3), "`data` must be a dict by name, found"),
        (ok, {"x": "wide"}, {"y": jnp.ones(3)}, "latent 'x' must be a NumPyro distribution or a shape"),
        (ok, {"x": ()}, {"z": jnp.ones(3)}, r"\['z'\], found \['y'\]"),
        (lambda values: values["x"], {"x": ()}, {"y": jnp.ones(3)}, "observe must return a dict of distributions"),
        (lambda values: {"y": values["x"]}, {"x": ()}, {"y": jnp.ones(3)}, "site 'y': observe must return NumPyro"),
    ],
    ids=["latent", "data", "prior", "keys", "array", "entry"],
)
def test_what_is_not_a_model_is_told_so(observe, latent, observed, message):
    with pytest.raises(mgvi.ModelError, match=message):
        mgvi.from_function(observe, latent, observed)
