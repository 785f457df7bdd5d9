"""How fits of small problems begin, and begin anew."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi.status import Status

pytestmark = pytest.mark.filterwarnings("ignore::mgvi.MgviWarning")  # scales are skew

GROUPS, TIMES = 30, 4


def groups(y, largest):
    scale = numpyro.sample("scale", dist.Uniform(0.0, largest))
    effects = numpyro.sample("effects", dist.Normal(0.0, scale).expand([GROUPS]))
    numpyro.sample("y", dist.Normal(effects[:, None], 1.0), obs=y)


@pytest.fixture(scope="module")
def seen():
    rng = np.random.default_rng(4)
    return 0.7 * rng.standard_normal((GROUPS, 1)) + rng.standard_normal((GROUPS, TIMES))


def moments(values, log_density):
    weights = np.exp(log_density - log_density.max())
    mean = np.average(values, weights=weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, weights=weights))


@pytest.mark.parametrize("largest", [4.0, 100.0, 1e4])
def test_scale_is_found_in_a_few_rounds_however_weak_its_prior(seen, largest):
    scales = np.linspace(1e-3, 4.0, 20_000)
    variance = scales**2 + 1 / TIMES  # of a group's average
    log_density = -0.5 * np.sum(seen.mean(axis=1)[:, None] ** 2 / variance + np.log(variance), axis=0)
    mean, sd = moments(scales, log_density)
    problem = mgvi.from_numpyro(groups, jnp.asarray(seen, jnp.float32), largest)
    posterior = mgvi.fit(problem, seed=1, progress=False)
    assert posterior.status is Status.CONVERGED and len(posterior.history) <= 8
    assert [record["start"] for record in posterior.history if record["start"]] == ["modest"]
    assert posterior.mean["scale"] == pytest.approx(mean, abs=0.1 * sd)
    assert posterior.sd["scale"] == pytest.approx(sd, rel=0.15)


def test_metric_that_is_not_finite_at_first_is_followed_by_a_gentle_beginning(tmp_path):
    data = np.array([0.8, 0.82, 0.79], np.float32)

    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.cbrt(x), 0.1), obs=y)  # infinitely steep at 0

    shown = []
    posterior = mgvi.fit(
        mgvi.from_numpyro(model, data),
        seed=1,
        progress=False,
        checkpoint=tmp_path,
        callbacks=[lambda record, now: shown.append((record["finite"], np.all(np.isfinite(now.mean["x"]))))],
    )
    assert [record["start"] for record in posterior.history][:2] == ["modest", "prior"]
    assert shown[0] == (False, True) and all(finite for finite, _ in shown[1:])
    x = np.linspace(1e-4, 3, 20_000)
    mean, sd = moments(x, -0.5 * x**2 - 0.5 * np.sum((data[:, None] - np.cbrt(x)) ** 2, axis=0) / 0.1**2)
    assert posterior.mean["x"] == pytest.approx(mean, abs=0.2 * sd)
    assert posterior.sd["x"] == pytest.approx(sd, rel=0.2)
