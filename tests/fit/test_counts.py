"""What a fit of a field costs, as counts that do not depend on the machine: a guard against slow regressions."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi.fields import Grid, StationaryField, smooth_spectrum
from mgvi.problem.density import neg_log_likelihood_terms

SHAPE = (40, 48)
LIMITS = (480, 135, 540)  # half as many again as were seen: products in draws and in Newton steps, gradients


def model(grid, data):
    spectrum = smooth_spectrum("power", grid, sd=(1.0, 0.5), slope=(-3.0, 0.5))
    field = numpyro.sample("field", StationaryField(grid, spectrum))
    numpyro.sample("data", dist.Bernoulli(logits=field), obs=data)


@pytest.fixture(scope="module")
def problem():
    grid = Grid(SHAPE)
    truth = mgvi.sample_prior(jax.random.key(3), 1, model, grid, None)
    return mgvi.from_numpyro(model, grid, jnp.asarray(truth["data"][0]))


@pytest.fixture(scope="module")
def fitted(problem):
    compiled = []

    def note(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(note)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mgvi.MgviWarning)
        posterior = mgvi.fit(problem, seed=1, progress=False)
    jax.monitoring.unregister_event_duration_listener(note)
    return posterior, compiled


def test_product_with_the_metric_has_one_transform_each_way(problem):
    point = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in problem.latent.items()}
    product = jax.jit(lambda problem, xi, v: problem.metric(xi).mv(v))
    text = product.lower(problem, point, point).compile().as_text()
    kinds = re.findall(r"fft_type=(\w+)", text)
    # Linearising takes a transform of its own; the product has one forth and one back.
    assert sorted(kinds) == ["IRFFT", "IRFFT", "RFFT"]


def test_adapted_coordinates_do_not_expand_the_spectrum_again(problem):
    point = {name: jnp.full(leaf.shape, 0.1, leaf.dtype) for name, leaf in problem.latent.items()}
    scaled, logs = problem.static.scaled, problem.log_scales(point)
    adapted = problem.in_chart({name: site.start(np.asarray(logs[name]), False) for name, site in scaled.items()})
    terms = jax.jit(lambda problem, xi: neg_log_likelihood_terms(problem, xi))
    gathers = [len(re.findall(r" gather\(", terms.lower(p, point).compile().as_text())) for p in (problem, adapted)]
    assert gathers[0] == gathers[1] > 0


def test_fit_of_a_field_compiles_few_programs_and_no_more_when_pairs_are_added(fitted):
    posterior, compiled = fitted
    large = [seconds for seconds in compiled if seconds > 0.02 * sum(compiled)]  # 0.2 s, on a machine that is not busy
    print(f"{len(large)} of {len(compiled)} compilations took a fiftieth or more of {sum(compiled):.1f} s")
    assert len(large) <= 10
    rounds = posterior.history
    grown = next((i for i in range(1, len(rounds)) if rounds[i]["pairs"] > rounds[i - 1]["pairs"]), None)
    if grown is not None:  # a few slices and joins, no program of the model
        assert rounds[grown]["compile_seconds"] < 0.15 * rounds[0]["compile_seconds"]


def test_programs_of_a_round_have_no_transform_twice(problem, fitted):
    """Drawing: noise back, a product. Moving the mean: a gradient, a product; no line search of its own."""
    texts = problem.static.compiled.texts()
    kinds = {
        name: [sorted(re.findall(r"fft_type=(\w+)", text)) for text in texts[name]] for name in ("_draw", "minimized")
    }
    assert kinds == {"_draw": [["IRFFT", "RFFT", "RFFT"]], "minimized": [["IRFFT", "IRFFT", "RFFT", "RFFT"]]}


def test_fit_of_a_field_converges_with_few_products(fitted):
    posterior, _ = fitted
    rounds = posterior.history
    assert posterior.status.ok and len(rounds) <= 30
    draws = sum(r["pairs"] * r["draw_cg"] for r in rounds)
    steps = sum(2 * r["pairs"] * r["newton_steps"] for r in rounds)
    inner = sum(r["newton_cg"] for r in rounds)
    print(f"{len(rounds)} rounds, {draws} products in draws, {inner} in Newton steps, {steps} gradients")
    counts = np.array([draws, inner, steps])
    assert np.all(counts <= LIMITS), counts
