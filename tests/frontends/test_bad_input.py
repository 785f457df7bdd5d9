"""Bad models and bad data: each kind fails at once, with its own sentence."""

import re
import traceback
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from mgvi import ModelError, from_function, from_numpyro, sample_prior
from mgvi.distributions import register_standardization

from .bad_input_cases import (
    CASES,
    SEED,
    Unsampled,
    Y,
    bare_assertion,
    function,
    likelihood,
    normal,
    normal_vector,
    normals,
    observe_other_key,
    poisson,
    prior,
    regression,
)

LONGEST = 600


@pytest.mark.parametrize("trigger, fragments", CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")
def test_bad_input_is_refused_with_a_sentence_of_its_own(trigger, fragments):
    with pytest.raises(ModelError) as caught:
        trigger()
    message = str(caught.value)
    assert [f for f in fragments if f not in message] == [], message
    assert message.endswith(".") and "\n" not in message
    assert len(message) <= LONGEST, len(message)
    assert not re.search("0x[0-9a-f]{4}|Tracer<|ArrayImpl|DynamicJaxprTracer", message), message


@pytest.fixture(scope="module")
def problem():
    return from_function(
        lambda values: {"y": dist.Normal(values["a"].sum() + values["b"], 1.0)},
        {"a": (3,), "b": ()},
        {"y": Y},
    )


# id: (latent, fragments)
LATENTS = {
    "missing key": ({"a": jnp.zeros(3)}, ["dict with the keys ['a', 'b']", "found ['a']"]),
    "further key": (
        {"a": jnp.zeros(3), "b": jnp.zeros(()), "c": 0.0},
        ["dict with the keys ['a', 'b']", "found ['a', 'b', 'c']"],
    ),
    "shape": ({"a": jnp.zeros(2), "b": jnp.zeros(())}, ["latent 'a'", "shape (3,)", "found (2,)"]),
    "no dict": (jnp.zeros(4), ["dict with the keys ['a', 'b']", "found"]),
}


@pytest.mark.parametrize("latent, fragments", LATENTS.values(), ids=LATENTS)
@pytest.mark.parametrize(
    "call",
    [
        lambda problem, xi: problem.neg_log_density(xi),
        lambda problem, xi: problem.metric(xi),
        lambda problem, xi: problem.constrain(xi),
        lambda problem, xi: problem.log_likelihood(xi),
        lambda problem, xi: problem.simulate(SEED, xi),
    ],
    ids=["neg_log_density", "metric", "constrain", "log_likelihood", "simulate"],
)
def test_a_latent_that_does_not_fit_the_problem_is_refused(problem, call, latent, fragments):
    with pytest.raises(ValueError) as caught:
        call(problem, latent)
    assert [f for f in fragments if f not in str(caught.value)] == [], str(caught.value)


# id: (call, type of the user's own error, function that raised it)
RAISED = {
    "shapes": (lambda: from_numpyro(regression, np.ones((3, 5)), Y), TypeError, "regression"),
    "assertion": (lambda: from_numpyro(bare_assertion, Y), AssertionError, "bare_assertion"),
    "function": (function(observe=observe_other_key), KeyError, "observe_other_key"),
    "prior draws": (lambda: sample_prior(SEED, 2, bare_assertion, Y), AssertionError, "bare_assertion"),
}


@pytest.mark.parametrize("trigger, kind, name", RAISED.values(), ids=RAISED)
def test_the_error_of_a_model_stays_the_cause_with_its_traceback(trigger, kind, name):
    with pytest.raises(ModelError) as caught:
        trigger()
    cause = caught.value.__cause__
    assert isinstance(cause, kind)
    assert name in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]


@pytest.mark.parametrize(
    "wrapped", [handlers.mask(regression, mask=True), partial(regression)], ids=["handler", "partial"]
)
def test_the_failing_statement_is_shown_for_wrapped_models(wrapped):
    with pytest.raises(ModelError, match=r"'regression' failed when it was run, in `numpyro.sample\(\"y\""):
        from_numpyro(wrapped, np.ones((3, 5)), Y)


def test_a_refusal_out_of_a_model_is_not_wrapped_again():
    def model(y):
        raise ModelError("site 'a': my own words.")

    with pytest.raises(ModelError) as caught:
        from_numpyro(model, Y)
    assert str(caught.value) == "site 'a': my own words."


def test_the_validation_of_numpyro_is_as_before_after_a_refusal():
    for refused in (prior(lambda: dist.Normal(0.0, -1.0)), lambda: from_numpyro(bare_assertion, Y)):
        with pytest.raises(ModelError):
            refused()
        with pytest.raises(ValueError, match="invalid scale"):
            dist.Normal(0.0, -1.0)


def test_a_model_error_is_a_value_error():
    assert issubclass(ModelError, ValueError)


def test_the_prior_of_a_model_without_data_can_be_drawn():
    def model(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        k = numpyro.sample("k", dist.Poisson(2.0))
        numpyro.deterministic("twice", 2 * mu)
        numpyro.sample("y", dist.Normal(mu + k, 1.0), obs=y)

    draws = sample_prior(SEED, 4, model)
    assert {name: value.shape for name, value in draws.items()} == dict.fromkeys(("mu", "k", "twice", "y"), (4,))
    assert set(sample_prior(SEED, 4, model, 1.0)) == {"mu", "k", "twice"}


# Near the refusals above, and fine.
ACCEPTED = {
    "masked NaN": likelihood(lambda mu: normals(mu).mask(np.array([True, False, True])), np.array([1.0, np.nan, 2.0])),
    "list": likelihood(normal, [1.0, 2.0]),
    "booleans": likelihood(lambda mu: dist.Bernoulli(logits=mu), np.array([True, False])),
    "whole numbers as floats": likelihood(poisson, np.array([1.0, 2.0])),
    "shared parameters": likelihood(normal_vector, np.ones((5, 3))),
    "truncated to infinity": prior(lambda: dist.TruncatedCauchy(0.0, 1.0, low=0.0, high=jnp.inf)),
    "folded about 0": prior(lambda: dist.FoldedDistribution(dist.Normal(0.0, 1.0))),
    "shape of NumPy integers": function(latent={"a": tuple(np.array([3]))}),
}


@pytest.mark.parametrize("build", ACCEPTED.values(), ids=ACCEPTED)
def test_good_input_near_the_refusals_is_accepted(build):
    problem = build()
    xi = {name: jnp.zeros(leaf.shape) for name, leaf in problem.latent.items()}
    assert np.isfinite(problem.neg_log_density(xi))


def test_a_registered_distribution_is_accepted_as_a_prior():
    class Registered(Unsampled):
        pass

    with pytest.raises(ModelError, match=r"register_standardization\(Registered\)"):
        prior(lambda: Registered(0.0))()
    register_standardization(Registered)(lambda d, xi: d.loc + xi)
    assert prior(lambda: Registered(0.0))().latent["x"].shape == ()
