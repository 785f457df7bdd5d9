"""Wrappers, batches, constants, registration and refusals of ``standardize``."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import special, stats

from mgvi.distributions import latent_shape, register_standardization, standardize
from mgvi.errors import ModelError

COVARIANCE = np.array([[2.0, 0.3], [0.3, 0.5]])


def latent(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


# id: (distribution of arrays, latent shape)
WRAPPED = {
    "expand": (lambda: dist.Gamma(2.5, 3.0).expand([4, 2]), (4, 2)),
    "expand-empty": (lambda: dist.Gamma(2.5, 3.0).expand([0]), (0,)),
    "to_event": (lambda: dist.Gamma(jnp.array([0.5, 2.5]), 3.0).to_event(1), (2,)),
    "expand-to_event": (lambda: dist.Beta(2.0, 5.0).expand([3, 2]).to_event(2), (3, 2)),
    "to_event-expand": (lambda: dist.StudentT(4.0, jnp.zeros(2), 1.0).to_event(1).expand([3]), (3, 2)),
    "mask": (lambda: dist.Gamma(jnp.array([0.5, 2.5]), 3.0).mask(jnp.array([True, False])), (2,)),
    "mask-to_event": (lambda: dist.Normal(jnp.zeros(2), 1.0).mask(False).to_event(1), (2,)),
    "batch": (lambda: dist.Gamma(jnp.array([[0.5], [30.0]]), jnp.array([1.0, 2.0, 3.0])), (2, 3)),
    "batch-truncated": (
        lambda: dist.TruncatedNormal(jnp.zeros(3), 1.0, low=jnp.array([[0.0], [3.0]])),
        (2, 3),
    ),
    "normal-vector-batch": (lambda: dist.MultivariateNormal(jnp.zeros((5, 2)), COVARIANCE), (5, 2)),
    "normal-vector-expand": (lambda: dist.MultivariateNormal(jnp.zeros(2), COVARIANCE).expand([5]), (5, 2)),
    "normal-vector-to_event": (
        lambda: dist.MultivariateNormal(jnp.zeros((5, 2)), COVARIANCE).to_event(1),
        (5, 2),
    ),
    "low-rank-batch": (
        lambda: dist.LowRankMultivariateNormal(jnp.zeros((5, 3)), jnp.ones((3, 2)), jnp.ones(3)),
        (5, 5),
    ),
    "student-vector-batch": (
        lambda: dist.MultivariateStudentT(jnp.array([2.0, 5.0, 9.0]), jnp.zeros(2), jnp.eye(2)),
        (3, 3),
    ),
    "dirichlet-batch": (lambda: dist.Dirichlet(jnp.array([[0.5, 1.0, 2.0], [3.0, 3.0, 0.1]])), (2, 3)),
    "dirichlet-expand": (lambda: dist.Dirichlet(jnp.ones(3)).expand([4]), (4, 3)),
    "matrix-normal-batch": (
        lambda: dist.MatrixNormal(jnp.zeros((4, 2, 3)), jnp.eye(2), jnp.eye(3)),
        (4, 2, 3),
    ),
    "random-walk-batch": (lambda: dist.GaussianRandomWalk(jnp.array([0.5, 2.0]), num_steps=4), (2, 4)),
    "lkj-batch": (lambda: dist.LKJ(3, jnp.array([0.5, 2.0])), (2, 3)),
    "lkj-cholesky-expand": (lambda: dist.LKJCholesky(4, 1.5).expand([2]), (2, 6)),
    "log-normal-vector": (
        lambda: dist.TransformedDistribution(
            dist.MultivariateNormal(jnp.zeros(2), COVARIANCE), dist.transforms.ExpTransform()
        ),
        (2,),
    ),
}


@pytest.mark.parametrize("make, shape", WRAPPED.values(), ids=WRAPPED)
def test_wrapped_and_batched_distributions_have_their_shapes(make, shape, precision):
    distribution = make()
    assert latent_shape(distribution) == shape
    x = standardize(distribution, latent(*shape))
    assert x.shape == distribution.shape()
    assert x.dtype == precision
    assert np.all(np.isfinite(x))


def test_every_batch_element_is_the_scalar_map(x64):
    concentration, rate = np.array([[0.5], [30.0]]), np.array([1.0, 2.0, 3.0])
    xi = latent(2, 3)
    expected = stats.gamma(concentration, scale=1 / rate).ppf(special.ndtr(xi))
    np.testing.assert_allclose(standardize(dist.Gamma(concentration, rate), xi), expected, rtol=1e-10)
    traced = jax.jit(lambda a, b, xi: standardize(dist.Gamma(a, b), xi))(concentration, rate, xi)
    np.testing.assert_allclose(traced, expected, rtol=1e-10)


def test_expanded_traced_parameters_give_the_scalar_map(x64):
    xi = latent(4, 2)
    x = jax.jit(lambda a, b, xi: standardize(dist.Beta(a, b).expand([4, 2]).to_event(1), xi))(2.0, 5.0, xi)
    np.testing.assert_allclose(x, stats.beta(2, 5).ppf(special.ndtr(xi)), rtol=1e-10)


def test_one_traced_and_one_concrete_parameter_give_the_scalar_map(x64):
    xi = latent(6)
    expected = stats.gamma(2.5, scale=1 / 3).ppf(special.ndtr(xi))
    with_traced_rate = jax.jit(lambda rate: standardize(dist.Gamma(2.5, rate).expand([6]), xi))(3.0)
    with_traced_shape = jax.jit(lambda a: standardize(dist.Gamma(a, 3.0).expand([6]), xi))(2.5)
    np.testing.assert_allclose(with_traced_rate, expected, rtol=1e-10)
    np.testing.assert_allclose(with_traced_shape, expected, rtol=1e-10)


def test_batched_vectors_use_their_own_latent_rows(x64):
    xi = latent(5, 2)
    batch = standardize(dist.MultivariateNormal(jnp.zeros((5, 2)), COVARIANCE), xi)
    rows = [standardize(dist.MultivariateNormal(jnp.zeros(2), COVARIANCE), row) for row in xi]
    np.testing.assert_allclose(batch, rows, rtol=1e-12)


def test_a_mask_leaves_the_draw_unchanged(x64):
    xi = latent(3)
    plain = dist.Gamma(jnp.array([0.5, 1.0, 2.0]), 1.0)
    np.testing.assert_array_equal(standardize(plain.mask(jnp.array([True, False, True])), xi), standardize(plain, xi))


@pytest.mark.parametrize("event_dim, shape", [(0, (2, 0)), (1, (0,))])
def test_delta_has_an_empty_latent_and_its_value(event_dim, shape, precision):
    value = jnp.array([1.5, -2.0])
    distribution = dist.Delta(value, event_dim=event_dim)
    assert latent_shape(distribution) == shape
    assert latent_shape(dist.Delta(1.5)) == (0,)
    x, slope = jax.jvp(
        lambda v: standardize(dist.Delta(v, event_dim=event_dim), jnp.zeros(shape)), (value,), (2 * value,)
    )
    np.testing.assert_array_equal(x, value)
    np.testing.assert_array_equal(slope, 2 * value)


def test_a_latent_array_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        standardize(dist.Normal(jnp.zeros(2), 1.0), jnp.zeros((7, 2)))


def test_a_distribution_with_a_quantile_function_needs_no_registration(x64):
    xi = jnp.linspace(-3, 3, 13)
    x = standardize(dist.SoftLaplace(1.5, 2.0).expand(xi.shape), xi)
    np.testing.assert_allclose(x, stats.hypsecant(1.5, 2.0).ppf(special.ndtr(xi)), rtol=1e-10)


class Rayleigh(dist.Distribution):
    """A distribution that the package does not know: the length of a vector of two normal components."""

    def __init__(self, scale):
        self.scale = scale
        super().__init__(batch_shape=jnp.shape(scale), event_shape=())


@pytest.fixture
def rayleigh():
    @register_standardization(Rayleigh, latent_event_shape=lambda distribution: (2,))
    def length(distribution, xi):
        return distribution.scale * jnp.hypot(xi[..., 0], xi[..., 1])

    return Rayleigh


def test_a_registered_distribution_follows_its_rule_in_every_wrapper(rayleigh, x64):
    scale = jnp.array([0.5, 2.0])
    xi = latent(4000, 2, 2)
    assert latent_shape(rayleigh(1.0)) == (2,)
    assert latent_shape(rayleigh(scale).expand([3, 2]).to_event(1)) == (3, 2, 2)
    draws = jax.vmap(lambda xi: standardize(rayleigh(scale).to_event(1), xi))(xi)
    for column, scale in zip(draws.T, [0.5, 2.0], strict=True):
        assert stats.kstest(np.asarray(column), stats.rayleigh(scale=scale).cdf).pvalue > 1e-3


def test_a_subclass_inherits_the_rule_of_its_parent():
    class MyNormal(dist.Normal):
        pass

    assert standardize(MyNormal(1.0, 2.0), jnp.array(0.5)) == 2.0


UNSUPPORTED = {
    "VonMises": lambda: dist.VonMises(0.0, 1.0),
    "Poisson": lambda: dist.Poisson(2.0),
    "Categorical": lambda: dist.Categorical(probs=jnp.array([0.3, 0.7])),
    "MixtureSameFamily": lambda: dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.array([0.3, 0.7])), dist.Normal(jnp.array([0.0, 1.0]), 1.0)
    ),
    "Wishart": lambda: dist.Wishart(5.0, scale_matrix=jnp.eye(2)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: d.expand([3, *d.batch_shape])], ids=["plain", "expanded"])
def test_an_unsupported_distribution_is_named_with_the_way_out(name, wrap):
    distribution = wrap(UNSUPPORTED[name]())
    for call in (lambda: latent_shape(distribution), lambda: standardize(distribution, jnp.zeros(3))):
        with pytest.raises(ModelError, match=name) as error:
            call()
        assert "register_standardization" in str(error.value)
