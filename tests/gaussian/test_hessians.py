"""Averaged Hessians and Fisher matrices of small problems against those that JAX makes entry by entry."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi import _tree
from mgvi.gaussian.hessians import averaged_hessian, information_matrix
from mgvi.linalg import Compression
from mgvi.pairs import Pairs

GROUPS = 30
PAIRS = 4


@pytest.fixture
def problem(x64):
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, GROUPS, 200), rng.normal(size=200)

    def model(y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        with numpyro.plate("groups", GROUPS):
            effect = numpyro.sample("effect", dist.Normal(mean, sd))
        numpyro.sample("y", dist.Poisson(jnp.exp(0.1 * slope * x + effect[group])), obs=y)

    return mgvi.from_numpyro(model, jnp.asarray(rng.poisson(1.0, 200)))


def adapted(problem, turned):
    """The problem in coordinates like those that a fit finds."""
    rng = np.random.default_rng(2)
    at = {"origin": np.array(-0.3), "power": rng.uniform(0, 1, GROUPS)}
    if turned:
        at["basis"] = np.linalg.qr(rng.standard_normal((GROUPS, GROUPS)))[0]
    return problem.in_chart({"effect": at})


def points(problem, pairs=PAIRS):
    rng = np.random.default_rng(3)
    mean = {name: 0.2 * rng.standard_normal(leaf.shape) for name, leaf in problem.latent.items()}
    half = {name: 0.3 * rng.standard_normal((pairs, *leaf.shape)) for name, leaf in problem.latent.items()}
    return mean, Pairs(half)


def expected(problem, mean, pairs):
    """Hessians of all points, made one by one."""
    spread = pairs.both()

    def energy(x, spread):
        xi = _tree.from_row(x, problem.latent)
        xi = {name: leaf + spread[name] for name, leaf in xi.items()}
        return problem.neg_log_density(xi)

    total = sum(
        jax.hessian(energy)(jnp.asarray(_tree.to_row(mean)), {name: d[i] for name, d in spread.items()})
        for i in range(2 * PAIRS)
    )
    return np.asarray(total) / (2 * PAIRS)


@pytest.mark.parametrize("coordinates", ["standard", "powers", "turned"])
@pytest.mark.parametrize("room", [PAIRS, 3 * PAIRS])
def test_average_is_the_mean_of_the_hessians(problem, coordinates, room):
    here = problem if coordinates == "standard" else adapted(problem, coordinates == "turned")
    mean, spread = points(problem)
    found = averaged_hessian(here, mean, 1.0, spread, PAIRS, room)
    np.testing.assert_allclose(found, expected(here, mean, spread), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("coordinates", ["standard", "powers", "turned"])
def test_information_is_that_of_the_metric(problem, coordinates):
    here = problem if coordinates == "standard" else adapted(problem, coordinates == "turned")
    mean, _ = points(problem)
    metric = here.metric(mean)
    columns = [_tree.to_row(metric.mv(_tree.from_row(e, here.latent))) for e in jnp.eye(_tree.size(here.latent))]
    found = np.eye(len(columns)) + information_matrix(here, mean)
    np.testing.assert_allclose(found, np.stack(columns), rtol=1e-8, atol=1e-9)


def test_groups_share_a_product(problem):
    mean, spread = points(problem)
    for here in (problem, adapted(problem, turned=False)):
        averaged_hessian(here, mean, 1.0, spread, PAIRS, PAIRS)
        information_matrix(here, mean)
    assert [len(found.vectors) for found in problem.static.compressions.values()] == [4] * 4


def test_zeros_that_are_none_are_noticed(problem):
    mean, spread = points(problem)
    wrong = np.eye(_tree.size(problem.latent), dtype=bool)
    averaged_hessian(problem, mean, 1.0, spread, PAIRS, PAIRS)  # looks for them
    problem.static.compressions.update(dict.fromkeys(problem.static.compressions, Compression(wrong)))
    found = averaged_hessian(problem, mean, 1.0, spread, PAIRS, PAIRS)
    np.testing.assert_allclose(found, expected(problem, mean, spread), rtol=1e-8, atol=1e-9)
