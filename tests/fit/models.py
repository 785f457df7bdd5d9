"""Small models with known posteriors."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import mgvi


def regression_data(n=40, k=4):
    rng = np.random.default_rng(5)
    design = rng.normal(size=(n, k))
    return design, design @ rng.normal(size=k) + 0.5 * rng.normal(size=n)


def regression(design, y):
    w = numpyro.sample("w", dist.Normal(1.0, 2.0).expand([design.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(design @ w, 0.5), obs=y)


def regression_problem():
    design, y = regression_data()
    return mgvi.from_numpyro(regression, jnp.asarray(design), jnp.asarray(y))


def exact_regression():
    """Mean and covariance of the weights, by dense linear algebra in float64."""
    design, y = regression_data()
    covariance = np.linalg.inv(design.T @ design / 0.25 + np.eye(design.shape[1]) / 4)
    return covariance @ (design.T @ y / 0.25 + 1.0 / 4), covariance


def logistic_problem():
    """A hierarchical logistic regression: not Gaussian, no closed form."""
    rng = np.random.default_rng(6)
    group, x = rng.integers(0, 5, 200), rng.normal(size=200)
    y = rng.random(200) < 1 / (1 + np.exp(-(0.5 + x + rng.normal(size=5)[group])))

    def model(group, x, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 5):
            u = numpyro.sample("u", dist.Normal(0.0, s))
        numpyro.sample("y", dist.Bernoulli(logits=a + b * x + u[group]), obs=y)

    return mgvi.from_numpyro(model, jnp.asarray(group), jnp.asarray(x), jnp.asarray(y.astype(int)))
