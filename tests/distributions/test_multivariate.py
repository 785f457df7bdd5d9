"""Contract of ``standardize`` for vectors and matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import transforms
from scipy import stats

from mgvi.distributions import latent_shape, standardize

from ..compiling import quick_jit

LOC = np.array([1.0, -2.0, 0.5])
TRIL = np.array([[1.5, 0, 0], [-0.7, 0.4, 0], [0.3, 2.0, 0.8]])
COVARIANCE = TRIL @ TRIL.T
FACTOR = np.array([[1.0, 0.2], [-0.5, 2.0], [0.3, 0.1]])
DIAGONAL = np.array([0.3, 1.2, 0.05])
ROW = np.array([[0.9, 0], [-1.1, 0.6]])
MATRIX_LOC = np.arange(6.0).reshape(2, 3)
STEPS = 5


def without_mean(size):
    """The projector onto vectors that sum to zero."""
    return np.eye(size) - 1 / size


# id: (theta -> distribution, theta, latent shape, mean, covariance of the flattened draw)
GAUSSIAN = {
    "MultivariateNormal-covariance": (
        lambda loc, matrix: dist.MultivariateNormal(loc, covariance_matrix=matrix),
        dict(loc=LOC, matrix=COVARIANCE),
        (3,),
        LOC,
        COVARIANCE,
    ),
    "MultivariateNormal-precision": (
        lambda loc, matrix: dist.MultivariateNormal(loc, precision_matrix=matrix),
        dict(loc=LOC, matrix=np.linalg.inv(COVARIANCE)),
        (3,),
        LOC,
        COVARIANCE,
    ),
    "MultivariateNormal-scale_tril": (
        lambda loc, matrix: dist.MultivariateNormal(loc, scale_tril=matrix),
        dict(loc=LOC, matrix=TRIL),
        (3,),
        LOC,
        COVARIANCE,
    ),
    "LowRankMultivariateNormal": (
        dist.LowRankMultivariateNormal,
        dict(loc=LOC, cov_factor=FACTOR, cov_diag=DIAGONAL),
        (5,),
        LOC,
        FACTOR @ FACTOR.T + np.diag(DIAGONAL),
    ),
    "MatrixNormal": (
        dist.MatrixNormal,
        dict(loc=MATRIX_LOC, scale_tril_row=ROW, scale_tril_column=TRIL),
        (2, 3),
        MATRIX_LOC,
        np.kron(ROW @ ROW.T, COVARIANCE),
    ),
    "GaussianRandomWalk": (
        lambda scale: dist.GaussianRandomWalk(scale, num_steps=STEPS),
        dict(scale=0.7),
        (STEPS,),
        np.zeros(STEPS),
        0.7**2 * np.minimum.outer(np.arange(1, STEPS + 1), np.arange(1, STEPS + 1)),
    ),
    "ZeroSumNormal-vector": (
        lambda scale: dist.ZeroSumNormal(scale, event_shape=(4,)),
        dict(scale=2.5),
        (3,),
        np.zeros(4),
        2.5**2 * without_mean(4),
    ),
    "ZeroSumNormal-matrix": (
        lambda scale: dist.ZeroSumNormal(scale, event_shape=(3, 4)),
        dict(scale=0.4),
        (2, 3),
        np.zeros((3, 4)),
        0.4**2 * np.kron(without_mean(3), without_mean(4)),
    ),
    "Normal-to_event": (
        lambda loc, scale: dist.Normal(loc, scale).to_event(1),
        dict(loc=LOC, scale=DIAGONAL),
        (3,),
        LOC,
        np.diag(DIAGONAL**2),
    ),
    "AffineMultivariateNormal": (
        lambda loc, matrix: dist.TransformedDistribution(
            dist.MultivariateNormal(loc, scale_tril=matrix), transforms.AffineTransform(1.0, -3.0)
        ),
        dict(loc=LOC, matrix=TRIL),
        (3,),
        1 - 3 * LOC,
        9 * COVARIANCE,
    ),
}

NON_GAUSSIAN = {
    "Dirichlet": (dist.Dirichlet, dict(concentration=np.array([0.4, 1.0, 3.5, 20.0])), (4,)),
    "MultivariateStudentT": (dist.MultivariateStudentT, dict(df=3.5, loc=LOC, scale_tril=TRIL), (4,)),
    "LKJCholesky": (lambda concentration: dist.LKJCholesky(4, concentration), dict(concentration=1.7), (6,)),
    "LKJCholesky-pair": (
        lambda concentration: dist.LKJCholesky(2, concentration),
        dict(concentration=0.5),
        (1,),
    ),
    "StickBreaking": (
        lambda loc: dist.TransformedDistribution(
            dist.Normal(loc, 1.0).to_event(1), transforms.StickBreakingTransform()
        ),
        dict(loc=LOC),
        (3,),
    ),
}
EVERY = {name: entry[:3] for name, entry in GAUSSIAN.items()} | NON_GAUSSIAN

every_gaussian = pytest.mark.parametrize("entry", GAUSSIAN.values(), ids=GAUSSIAN)
every_distribution = pytest.mark.parametrize("entry", EVERY.values(), ids=EVERY)
every_lkj_size = pytest.mark.parametrize("size, concentration", [(2, 0.5), (2, 3.0), (3, 1.0), (5, 2.5)])


def as_arrays(theta):
    return {name: jnp.asarray(value, float) for name, value in theta.items()}


def latent(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def draw(distribution, count, seed=0):
    """Many standardised prior draws, as a NumPy array with a leading axis."""
    xi = latent((count, *latent_shape(distribution)), seed)
    return np.asarray(quick_jit(jax.vmap(lambda xi: standardize(distribution, xi)))(xi))


def assert_distributed(samples, distribution):
    assert stats.kstest(samples, distribution.cdf).pvalue > 1e-3


@every_distribution
def test_shapes_are_those_of_the_distribution(entry, precision):
    make, theta, shape = entry
    distribution = make(**as_arrays(theta))
    assert latent_shape(distribution) == shape
    x = standardize(distribution, latent(shape))
    assert x.shape == distribution.shape()
    assert x.dtype == precision


@every_distribution
def test_draws_lie_in_the_support(entry, precision):
    make, theta, shape = entry
    distribution = make(**as_arrays(theta))
    x = quick_jit(jax.vmap(lambda xi: standardize(distribution, xi)))(latent((50, *shape)))
    assert np.all(distribution.support(x))


@every_distribution
def test_transformations_of_jax_agree(entry, precision):
    make, theta, shape = entry
    theta, xi = as_arrays(theta), latent(shape)
    parameters, restore = ravel_pytree(theta)
    primals = (parameters, xi)
    tangents = (0.1 * jnp.abs(parameters), latent(shape, 2))
    eager = standardize(make(**theta), xi)
    cotangent = latent(eager.shape, 3)

    def transform(parameters, xi):
        return standardize(make(**restore(parameters)), xi)

    @quick_jit
    def compiled(*primals):
        value, tangent = jax.jvp(transform, primals, tangents)
        pulled = jax.vjp(transform, *primals)[1](cotangent)
        return value, jnp.vdot(cotangent, tangent), sum(map(jnp.vdot, pulled, tangents)), tangent

    rtol = {"float32": 1e-4, "float64": 1e-9}[precision]
    value, forward, reverse, tangent = compiled(*primals)
    np.testing.assert_allclose(value, eager, rtol=rtol, atol=rtol * np.max(np.abs(eager)))
    size = np.linalg.norm(cotangent) * np.linalg.norm(tangent)
    np.testing.assert_allclose(forward, reverse, rtol=0, atol=rtol * size)

    if precision == "float64":
        steps = 1e-5 * np.array([1, -1])
        above, below = quick_jit(
            jax.vmap(
                lambda step: transform(
                    *jax.tree.map(lambda primal, tangent: primal + step * tangent, primals, tangents)
                )
            )
        )(steps)
        difference = (above - below) / 2e-5
        np.testing.assert_allclose(tangent, difference, rtol=1e-6, atol=1e-7 * np.max(np.abs(difference)))


@every_distribution
def test_extreme_latent_values_give_no_nan(entry, precision):
    make, theta, shape = entry
    theta = as_arrays(theta)
    signs = np.sign(np.random.default_rng(4).standard_normal((6, *shape)))
    signs[0], signs[1] = 1, -1

    @quick_jit
    @jax.vmap
    def value_and_derivatives(xi):
        value, pull = jax.vjp(lambda theta, xi: standardize(make(**theta), xi), theta, xi)
        return {"value": value, "derivatives": pull(jnp.ones_like(value))}

    latents = np.concatenate([size * signs for size in (8.0, 12.0, 30.0)])
    found = jax.tree.leaves_with_path(value_and_derivatives(jnp.asarray(latents)))
    for path, array in found:
        bad = np.isnan(array).reshape(len(latents), -1).any(axis=1)
        assert not bad.any(), f"{jax.tree_util.keystr(path)} is NaN at xi={latents[bad]}"


@every_gaussian
def test_gaussian_maps_are_affine_with_the_exact_covariance(entry, x64):
    make, theta, shape, mean, covariance = entry
    distribution = make(**theta)
    xi = latent(shape)
    center = standardize(distribution, jnp.zeros(shape))
    jacobian = jax.jacfwd(lambda xi: standardize(distribution, xi).ravel())(xi)
    jacobian = np.asarray(jacobian).reshape(mean.size, xi.size)
    scale = np.max(np.abs(covariance))
    np.testing.assert_allclose(center, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(jacobian @ jacobian.T, covariance, rtol=1e-10, atol=1e-10 * scale)
    image = np.ravel(center) + jacobian @ np.ravel(xi)
    np.testing.assert_allclose(np.ravel(standardize(distribution, xi)), image, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_zero_sum_normal_sums_to_zero_along_every_axis(shape, x64):
    x = draw(dist.ZeroSumNormal(2.5, event_shape=shape), 10)
    for axis in range(1, x.ndim):
        np.testing.assert_allclose(x.sum(axis), 0, atol=1e-12)


@pytest.mark.parametrize("concentration", [[0.4, 1.0, 3.5, 20.0], [0.1, 0.1, 0.1], [300.0, 200.0]], ids=str)
def test_dirichlet_marginals_and_ratios_are_beta(concentration, x64):
    concentration = np.array(concentration)
    x = draw(dist.Dirichlet(concentration), 5000)
    np.testing.assert_allclose(x.sum(-1), 1, rtol=1e-12)
    total = concentration.sum()
    for component, weight in zip(x.T, concentration, strict=True):
        assert_distributed(component, stats.beta(weight, total - weight))
    pair = x[:, 0] + x[:, 1]
    assert_distributed((x[:, 0] / pair)[pair > 0], stats.beta(*concentration[:2]))


def test_dirichlet_ratio_is_independent_of_the_remainder(x64):
    x = draw(dist.Dirichlet(np.array([1.0, 2.0, 0.5, 3.0])), 5000)
    pair = x[:, 0] + x[:, 1]
    assert stats.spearmanr(x[:, 0] / pair, pair).pvalue > 1e-3


def test_sparse_dirichlet_stays_on_the_simplex_when_all_components_underflow(precision):
    distribution = dist.Dirichlet(jnp.full(5, 0.05))
    for size in (-8.0, -3.0, 5.0):
        x, tangent = jax.jvp(lambda xi: standardize(distribution, xi), (jnp.full(5, size),), (latent(5),))
        np.testing.assert_allclose(x, 0.2, rtol=1e-3)
        assert np.all(np.isfinite(tangent))


def test_multivariate_student_marginals_and_radius_follow_their_distributions(x64):
    df = 3.5
    x = draw(dist.MultivariateStudentT(df, LOC, TRIL), 5000)
    for component, loc, scale in zip(x.T, LOC, np.sqrt(np.diag(COVARIANCE)), strict=True):
        assert_distributed(component, stats.t(df, loc, scale))
    whitened = np.linalg.solve(TRIL, (x - LOC).T)
    assert_distributed(np.sum(whitened**2, axis=0) / 3, stats.f(3, df))
    projection = np.array([0.3, -1.0, 2.0])
    assert_distributed(x @ projection, stats.t(df, LOC @ projection, np.sqrt(projection @ COVARIANCE @ projection)))


@every_lkj_size
def test_lkj_correlations_are_beta_on_the_interval_from_minus_one_to_one(size, concentration, x64):
    x = draw(dist.LKJ(size, concentration), 3000)
    np.testing.assert_allclose(np.diagonal(x, axis1=-2, axis2=-1), 1, rtol=1e-12)
    np.testing.assert_allclose(x, np.swapaxes(x, -1, -2), atol=1e-14)
    shape = concentration + (size - 2) / 2
    for row, column in zip(*np.tril_indices(size, -1), strict=True):
        assert_distributed(x[:, row, column], stats.beta(shape, shape, -1, 2))


@every_lkj_size
def test_lkj_cholesky_factors_have_unit_rows_and_beta_diagonals(size, concentration, x64):
    x = draw(dist.LKJCholesky(size, concentration), 3000)
    np.testing.assert_allclose(np.sum(x**2, -1), 1, rtol=1e-12)
    np.testing.assert_array_equal(np.triu(x, 1), 0)
    assert np.all(np.diagonal(x, axis1=-2, axis2=-1) > 0)
    for row in range(1, size):
        assert_distributed(x[:, row, row] ** 2, stats.beta(concentration + (size - 1 - row) / 2, row / 2))


@every_lkj_size
def test_lkj_is_the_product_of_the_cholesky_factor_with_itself(size, concentration, x64):
    factor = dist.LKJCholesky(size, concentration)
    xi = latent(latent_shape(factor))
    factor = np.asarray(standardize(factor, xi))
    np.testing.assert_allclose(standardize(dist.LKJ(size, concentration), xi), factor @ factor.T, atol=1e-12)


@every_lkj_size
@pytest.mark.parametrize("make", [dist.LKJ, dist.LKJCholesky])
def test_lkj_maps_push_the_normal_density_to_their_own(make, size, concentration, x64):
    distribution = make(size, concentration)
    lower = np.tril_indices(size, -1)
    transform = quick_jit(lambda xi: standardize(distribution, xi))
    jacobian_at = quick_jit(jax.jacfwd(lambda xi: standardize(distribution, xi)[lower]))
    for seed in range(5):
        xi = latent(latent_shape(distribution), seed)
        jacobian = jacobian_at(xi)
        expected = stats.norm.logpdf(xi).sum() - np.linalg.slogdet(jacobian)[1]
        np.testing.assert_allclose(distribution.log_prob(transform(xi)), expected, atol=1e-8)
