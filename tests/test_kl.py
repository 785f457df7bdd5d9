"""The sampled KL: deviations in batches and filled up, and information averaged over samples."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi.gaussian import KrylovCurvature
from mgvi.kl import SampledKL
from mgvi.linalg import Preconditioner
from mgvi.newton import Limits, NewtonCG
from mgvi.pairs import Pairs
from mgvi.problem.density import averaged_information, tempered_metric
from mgvi.status import Status

X = np.random.default_rng(0).normal(size=(40, 3))


def logistic(y, family="logits"):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    eta = jnp.asarray(X) @ w
    numpyro.sample(
        "y", dist.Bernoulli(logits=eta) if family == "logits" else dist.Bernoulli(jax.nn.sigmoid(eta)), obs=y
    )


def problem(family="logits"):
    return mgvi.from_numpyro(logistic, jnp.asarray(X[:, 0] > 0.3, int), family)


MEAN = {"w": np.array([0.7, -0.2, 0.4])}
DEVIATIONS = {"w": np.random.default_rng(1).normal(size=(6, 3))}
FREE = {"w": np.ones(())}


def both_ways(count):
    return np.concatenate([DEVIATIONS["w"][:count], -DEVIATIONS["w"][:count]])


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_of_filled_up_deviations_give_the_same_objective(x64, antithetic, batch):
    rest = jnp.zeros((6, 3))
    filled = {"w": jnp.concatenate([DEVIATIONS["w"], rest])}
    curvature = KrylovCurvature(problem(), MEAN, FREE, 0.5)
    whole = SampledKL(curvature, Pairs(DEVIATIONS, mirrored=antithetic))
    parts = SampledKL(curvature, Pairs(filled, mirrored=antithetic), jnp.asarray(6), batch)
    found = []
    for objective in (whole, parts):
        gradient, known = objective.gradient(MEAN)
        step = {"w": jnp.array([0.3, 0.1, -0.2])}
        change = objective.change(MEAN, known, step, objective.gradient({"w": MEAN["w"] + step["w"]})[1])
        found.append((gradient["w"], known.value, known.seen["w"], known.terms["y"], known.information["y"], change))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("antithetic", [False, True])
def test_scatter_is_that_of_the_preconditioned_gradients_of_the_pairs(x64, antithetic):
    here, diagonal = problem(), np.array([2.0, 3.0, 5.0])
    curvature = KrylovCurvature(here, MEAN, FREE, 0.5, {}, Preconditioner({"w": diagonal}))
    known = SampledKL(curvature, Pairs(DEVIATIONS, mirrored=antithetic), jnp.asarray(6), 2).gradient(MEAN)[1]
    scatter = curvature.scatter(known.seen, 6)
    density = lambda w: 0.5 * w @ w - 0.5 * jnp.sum(here.log_likelihood({"w": w})["y"])
    each = jax.vmap(jax.grad(density))(MEAN["w"] + (both_ways(6) if antithetic else DEVIATIONS["w"]))
    pairs = each.reshape(-1, 6, 3).mean(axis=0)
    steps = (pairs - pairs.mean(axis=0)) / diagonal
    np.testing.assert_allclose(scatter["w"], np.mean(steps**2), rtol=1e-10)


def test_change_is_the_difference_and_the_gradient_its_derivative(x64):
    objective = SampledKL(KrylovCurvature(problem(), MEAN, FREE), Pairs(DEVIATIONS))
    step = jnp.array([0.3, 0.1, -0.2])
    gradient, known = objective.gradient(MEAN)

    def change(length):
        there = objective.gradient({"w": MEAN["w"] + length * step})[1]
        return objective.change(MEAN, known, {"w": length * step}, there), there.value - known.value

    np.testing.assert_allclose(*change(1.0), rtol=1e-10)
    np.testing.assert_allclose((change(1e-5)[0] - change(-1e-5)[0]) / 2e-5, gradient["w"] @ step, rtol=1e-6)


def test_averaged_information_is_that_of_the_samples_with_the_jacobian_at_the_mean(x64):
    here = problem()
    known = averaged_information(here, MEAN, Pairs(DEVIATIONS), 4)  # the first four of six
    points = 2.0 * (MEAN["w"] + both_ways(4)) @ X.T
    expected = np.mean(jax.nn.sigmoid(points) * jax.nn.sigmoid(-points), axis=0)
    np.testing.assert_allclose(known["y"], expected, rtol=1e-12)
    metric = tempered_metric(here, MEAN, known, 1.0, FREE)
    dense = np.eye(3) + 4.0 * X.T @ (expected[:, None] * X)
    found = jax.vmap(lambda v: metric.mv({"w": v})["w"])(jnp.eye(3))
    np.testing.assert_allclose(found, dense, rtol=1e-12)


def test_averaged_information_of_logits_is_the_averaged_hessian(x64):
    """What the best Gaussian has as its precision, so that saturated data do not run away."""
    here = problem()
    hessian = jax.vmap(lambda d: jax.hessian(lambda w: here.neg_log_density({"w": w}))(MEAN["w"] + d))(both_ways(6))
    metric = tempered_metric(here, MEAN, averaged_information(here, MEAN, Pairs(DEVIATIONS), 6), 1.0, FREE)
    found = jax.vmap(lambda v: metric.mv({"w": v})["w"])(jnp.eye(3))
    np.testing.assert_allclose(found, np.mean(hessian, axis=0), rtol=1e-10)


def test_information_in_other_parameters_stays_that_at_the_mean(x64):
    assert averaged_information(problem("probs"), MEAN, Pairs(DEVIATIONS), 6) == {}


def test_steps_of_a_large_problem_take_global_latents_a_few_prior_sds_at_most():
    observe = lambda values: {"y": dist.Normal(values["scale"] * values["field"], 1.0)}
    problem = mgvi.from_function(observe, {"field": (200,), "scale": ()}, {"y": jnp.zeros(200)})
    curvature = KrylovCurvature(problem, problem.latent_zeros(), {})
    at = lambda scale, field: {"scale": jnp.array(scale), "field": jnp.full(200, field)}
    longest = lambda scale, field, so_far=0.0: float(curvature.longest(at(so_far, 0.0), at(scale, field)))
    assert longest(0.5, 100.0) == 1.0
    assert longest(20.0, 0.0) * 20.0 == pytest.approx(2.0)
    assert longest(20.0, 0.0, 1.5) * 20.0 == pytest.approx(0.5)
    assert longest(-20.0, 0.0, 1.5) * 20.0 == pytest.approx(3.5)


class Stretched:
    """A quadratic whose curvature is taken for 1 in all directions."""

    curvature = np.array([1.0, 12.0, 0.3, 40.0, 5.0])

    def gradient(self, x):
        return self.curvature * (x - 1.0), None

    def nothing(self):
        return None

    def solve(self, x, known, b, stop, damping):
        return b, 1

    def longest(self, x, step):
        return 1.0

    def change(self, x, known, step, there):
        return jnp.sum(self.curvature * step * (0.5 * step + x - 1.0))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_steps_learn_the_curvature_that_the_metric_lacks(backend, x64, monkeypatch):
    """Without learning, steps are shorter than 1/20, and the flattest direction is at half its way after 40 of them."""
    # Inner products are made in another way on an accelerator.
    monkeypatch.setattr("mgvi.linalg.stacks.is_written_out", lambda count: backend == "gpu")
    x, _, _ = NewtonCG().minimize(Stretched(), jnp.zeros(5), Limits(steps=40, decrement=0.0))
    np.testing.assert_allclose(x, 1.0, atol=1e-3)


class Bent:
    """A valley along one direction; along the others the curvature that is told says nothing of the walls ahead."""

    steepness = np.linspace(1.0, 8.0, 30)

    def __init__(self, listens):
        self.listens = listens

    def value(self, x):
        walls = jnp.sum(jnp.exp(self.steepness * x[1:]) - 20 * x[1:])
        return 50 * (x[0] - 1) ** 2 + walls + 0.5 * jnp.sum(x * x)

    def gradient(self, x):
        return jax.grad(self.value)(x), None

    def nothing(self):
        return None

    def solve(self, x, known, b, stop, damping):
        metric = jnp.ones(31).at[0].set(101.0)
        return b / (metric + damping if self.listens else metric), 1

    def longest(self, x, step):
        return 1.0

    def change(self, x, known, step, there):
        return self.value(x + step) - self.value(x)


def test_damping_spares_the_good_directions_of_steps_that_are_too_long(x64):
    """Without it no step is short enough for the walls after a few of them, and the valley is still far."""
    found = {}
    for listens in (True, False):
        start = jnp.zeros(31).at[0].set(-30.0)
        x, _, report = NewtonCG().minimize(Bent(listens), start, Limits(steps=30, decrement=1e-6))
        found[listens] = abs(float(x[0]) - 100 / 101), int(report.status)
    assert found[True][0] < 0.01
    assert found[False][0] > 20 and found[False][1] == Status.NO_DESCENT


class Honest(Stretched):
    """The same with its true curvature."""

    def solve(self, x, known, b, stop, damping):
        return b / (self.curvature + damping), 1


def test_damping_ends_where_steps_deliver(x64):
    x, _, report = NewtonCG().minimize(Honest(), jnp.zeros(5), Limits(steps=9, decrement=0.0, damping=64.0))
    assert report.damping == 0 and report.shortest == 1
    np.testing.assert_allclose(x, 1.0, atol=1e-3)
