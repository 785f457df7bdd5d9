"""Stationary fields against closed forms and dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special

import mgvi
from mgvi.fields import (
    Grid,
    Matern,
    PowerLaw,
    SquaredExponential,
    StationaryField,
    Tabulated,
    blur,
    convolve,
    interpolate,
    line_of_sight,
    select,
    smooth_spectrum,
    spectrum_axis,
)
from mgvi.fields._sparse import SparseMap

GRIDS = [
    Grid(16),
    Grid(15, 0.3),
    Grid((8, 6)),
    Grid((7, 8), (0.5, 2.0)),
    Grid((6, 5), 2.0),
    Grid((5, 7)),
    Grid((4, 5, 6)),
    Grid((3, 4, 5)),
    Grid(10, periodic=False, padding=0.3),
]


def covariance(field):
    """Exact covariance of a field: J J^T of its standardisation."""
    jacobian = jax.jacfwd(lambda xi: mgvi.distributions.standardize(field, xi))(jnp.zeros(field.grid.latent_shape))
    size = field.grid.size
    return np.asarray(jacobian.reshape(size, -1) @ jacobian.reshape(size, -1).T)


def separations(grid, wrap=0):
    """Distance of every pixel from the first, through `wrap` periods to each side."""
    offsets = []
    for n, d in zip(grid.full_shape, grid.spacing, strict=True):
        offsets.append(d * (np.arange(n)[:, None] + n * np.arange(-wrap, wrap + 1)))
    square = np.zeros((1, 1))
    for axis in offsets:
        square = (square[:, None, :, None] + axis[None, :, None, :] ** 2).reshape(
            square.shape[0] * axis.shape[0], square.shape[1] * axis.shape[1]
        )
    return np.sqrt(square)


@pytest.mark.parametrize("grid", GRIDS, ids=repr)
def test_covariance_of_draws_is_the_sum_over_modes(grid, x64):
    spectrum = Matern(1.3, length=2.0, amplitude=1.7)
    field = StationaryField(grid, spectrum)
    k = np.meshgrid(*(np.fft.fftfreq(n, d) for n, d in zip(grid.full_shape, grid.spacing, strict=True)), indexing="ij")
    length, nu, d = 2.0, 1.3, grid.ndim
    power = 2**d * np.pi ** (d / 2) * special.gamma(nu + d / 2) * (2 * nu / length**2) ** nu / special.gamma(nu)
    power = 1.7**2 * power * (2 * nu / length**2 + 4 * np.pi**2 * sum(x**2 for x in k)) ** -(nu + d / 2)
    first_row = np.fft.ifftn(power).real / grid.pixel_volume
    found = covariance(field)
    np.testing.assert_allclose(found[0].reshape(grid.full_shape), first_row, atol=1e-10 * first_row.max())
    np.testing.assert_allclose(np.diag(found), first_row.flat[0], rtol=1e-10)
    np.testing.assert_allclose(field.variance, first_row.flat[0], rtol=1e-10)


@pytest.mark.parametrize(
    "grid", [Grid(64), Grid(63, 0.5), Grid((24, 21)), Grid((20, 24), (1.0, 0.7)), Grid((12, 14, 11))], ids=repr
)
def test_squared_exponential_has_its_covariance_in_real_space(grid, x64):
    length = 1.8 * max(grid.spacing)
    found = covariance(StationaryField(grid, SquaredExponential(length, 1.5)))[0]
    expected = 1.5**2 * np.exp(-0.5 * (separations(grid, wrap=2) / length) ** 2).sum(axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-3 * expected.max())  # exp(-2 (pi l k)^2) is 1e-7 at Nyquist


@pytest.mark.parametrize("nu", [1.5, 2.5])
@pytest.mark.parametrize("grid", [Grid(256), Grid((48, 54))], ids=repr)
def test_matern_has_its_covariance_in_real_space(grid, nu, x64):
    length = 6.0
    found = covariance(StationaryField(grid, Matern(nu, length, 0.8)))[0]
    x = np.sqrt(2 * nu) * separations(grid, wrap=3) / length
    x = np.where(x > 0, x, 1e-9)
    expected = (0.8**2 * 2 ** (1 - nu) / special.gamma(nu) * x**nu * special.kv(nu, x)).sum(axis=1)
    np.testing.assert_allclose(found, expected, atol=5e-3 * expected.max())  # power above Nyquist is missing


@pytest.mark.parametrize("grid", GRIDS, ids=repr)
def test_log_density_is_that_of_the_dense_normal(grid, x64):
    field = StationaryField(grid, SquaredExponential(0.6 * max(grid.spacing), 1.3), mean=0.4)
    value = field.sample(jax.random.key(1), (2,))
    dense = covariance(field)
    residual = np.asarray(value - 0.4).reshape(2, -1)
    expected = -0.5 * np.einsum("ij,ij->i", residual, np.linalg.solve(dense, residual.T).T)
    expected -= 0.5 * np.linalg.slogdet(2 * np.pi * dense)[1]
    np.testing.assert_allclose(field.log_prob(value), expected, rtol=1e-8)


def test_tables_of_a_learned_spectrum_are_arguments_of_its_derivatives():
    """As constants they would be in each program once more, as large as a field, and their products be made twice."""
    grid = Grid((40, 40))

    def model(y):
        spectrum = smooth_spectrum("p", grid, sd=(1.0, 0.5))
        numpyro.sample("y", dist.Normal(numpyro.sample("s", StationaryField(grid, spectrum)), 1.0), obs=y)

    problem = mgvi.from_numpyro(model, jnp.zeros((40, 40)))
    slope = jax.jit(lambda problem, xi: jax.grad(problem.neg_log_density)(xi))
    text = slope.lower(problem, {name: jnp.zeros(x.shape) for name, x in problem.latent.items()}).as_text()
    assert len(text) < 60_000


@pytest.mark.parametrize("grid", GRIDS, ids=repr)
def test_transposes_are_adjoint_and_batches_agree(grid, x64):
    spectrum = Tabulated(jnp.linspace(0.0, -4.0, 9), 1.2)
    rng = np.random.default_rng(0)

    def field(log_power, xi):
        return StationaryField(grid, Tabulated(log_power, 1.2)).grid.synthesize(
            Tabulated(log_power, 1.2).root_power(grid), xi
        )

    at = (spectrum.log_power, jnp.asarray(rng.normal(size=grid.latent_shape)))
    push = jax.linearize(field, *at)[1]
    pull = jax.linear_transpose(push, *at)
    v = (jnp.asarray(rng.normal(size=9)), jnp.asarray(rng.normal(size=grid.latent_shape)))
    u = jnp.asarray(rng.normal(size=grid.full_shape))
    np.testing.assert_allclose(
        jnp.vdot(u, push(*v)), sum(jnp.vdot(a, b) for a, b in zip(pull(u), v, strict=True)), rtol=1e-10
    )
    # Central differences of the field itself: the hand-written transposes belong to the right map.
    there, back = (field(*(a + h * b for a, b in zip(at, v, strict=True))) for h in (1e-6, -1e-6))
    difference = (there - back) / 2e-6
    np.testing.assert_allclose(push(*v), difference, atol=1e-6 * float(jnp.abs(difference).max()))
    stack = jnp.stack([v[1], 2 * v[1], at[1]])
    many = jax.vmap(field, in_axes=(None, 0))(at[0], stack)
    np.testing.assert_allclose(many[2], field(*at), rtol=1e-10, atol=1e-12)


def test_power_law_and_learned_spectrum_have_the_given_standard_deviation(x64):
    for grid in (Grid(40, 0.3), Grid((12, 15))):
        for spectrum in (PowerLaw(-2.5, 1.4), Tabulated(jnp.array([1.0, 3.0, -2.0, -5.0]), 1.4)):
            field = StationaryField(grid, spectrum)
            np.testing.assert_allclose(field.variance, 1.4**2, rtol=1e-10)
            draw = field.sample(jax.random.key(0), (3,))
            np.testing.assert_allclose(draw.mean(axis=tuple(range(1, 1 + grid.ndim))), 0.0, atol=1e-12)
        power = PowerLaw(-2.5, 1.4).power(grid)
        k = grid.mode_lengths
        ratio = np.asarray(power)[k > 0] / k[k > 0] ** -2.5
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-8)


def test_spectrum_on_its_axis_is_the_power_of_the_modes(x64):
    grid = Grid(200, 0.5)
    spectrum = Tabulated(jnp.sin(jnp.arange(64.0)), 2.0)
    k = grid.mode_lengths[1:]
    expected = np.exp(np.interp(np.log(k), np.log(spectrum_axis(grid)), np.log(spectrum.on_axis(grid))))
    np.testing.assert_allclose(spectrum.power(grid)[1:], expected, rtol=1e-9)


def test_product_of_grids_has_the_product_covariance(x64):
    space, frequency = Grid((4, 5)), Grid(6, 0.5)
    a, b = SquaredExponential(1.1, 1.3), Matern(1.5, 0.9, 0.7)
    joint = covariance(StationaryField(space * frequency, (a, b)))
    expected = np.kron(covariance(StationaryField(space, a)), covariance(StationaryField(frequency, b)))
    np.testing.assert_allclose(joint, expected, atol=1e-10)
    with pytest.raises(ValueError, match="2 factors.*found 1"):
        StationaryField(space * frequency, a)


def test_sparse_map_is_its_matrix_from_both_sides(x64):
    rng = np.random.default_rng(2)
    rows = np.concatenate([rng.integers(0, 7, 300), np.full(100, 3)])
    columns, values = rng.integers(0, 50, 400), rng.normal(size=400)
    dense = np.zeros((7, 50))
    np.add.at(dense, (rows, columns), values)
    sparse = SparseMap(rows, columns, values, (7, 50))
    x, y = rng.normal(size=(2, 3, 50)), rng.normal(size=(2, 3, 7))
    np.testing.assert_allclose(sparse(jnp.asarray(x)), x @ dense.T, rtol=1e-9)
    (pulled,) = jax.linear_transpose(sparse, jax.ShapeDtypeStruct(x.shape, jnp.float64))(jnp.asarray(y))
    np.testing.assert_allclose(pulled, y @ dense, rtol=1e-9)
    text = jax.jit(jax.grad(lambda x: sparse(x).sum())).lower(jnp.asarray(x)).as_text()
    assert "scatter" not in text


def test_observation_helpers_do_what_they_say(x64):
    grid = Grid((9, 8), (0.5, 2.0), periodic=False, padding=0.4)
    field = np.random.default_rng(1).normal(size=grid.full_shape)
    inside = field[:9, :8]
    mask = np.random.default_rng(2).random((9, 8)) < 0.4
    np.testing.assert_allclose(select(grid, mask)(jnp.asarray(field)), inside[mask])
    np.testing.assert_allclose(select(grid, [[8, 7], [0, 1], [0, 1]])(jnp.asarray(field)), inside[[8, 0, 0], [7, 1, 1]])
    x, y = np.meshgrid(*grid.coordinates(), indexing="ij")
    plane = np.zeros(grid.full_shape)
    plane[:9, :8] = 1 + 2 * x - 3 * y
    points = np.array([[0.3, 5.1], [4.0, 14.0], [1.75, 0.0]])
    np.testing.assert_allclose(interpolate(grid, points)(jnp.asarray(plane)), 1 + 2 * points[:, 0] - 3 * points[:, 1])
    starts, ends = np.array([[0.0, 0.0], [4.0, 2.0]]), np.array([[4.0, 14.0], [1.0, 2.0]])
    middle, length = 0.5 * (starts + ends), np.linalg.norm(ends - starts, axis=1)
    exact = length * (1 + 2 * middle[:, 0] - 3 * middle[:, 1])
    np.testing.assert_allclose(line_of_sight(grid, starts, ends)(jnp.asarray(plane)), exact, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="domain"):
        interpolate(grid, [[0.0, 14.1]])
    with pytest.raises(ValueError, match="shape"):
        select(grid, np.ones(grid.full_shape, bool))


def test_blur_and_convolution_agree_with_direct_sums(x64):
    grid = Grid((12, 9))
    field = np.random.default_rng(0).normal(size=(12, 9))
    kernel = np.random.default_rng(1).random((3, 3))
    direct = sum(kernel[i, j] * np.roll(field, (i - 1, j - 1), axis=(0, 1)) for i in range(3) for j in range(3))
    np.testing.assert_allclose(convolve(grid, kernel)(jnp.asarray(field)), direct, atol=1e-12)
    point = np.zeros((12, 9))
    point[6, 4] = 1.0
    seen = np.asarray(blur(grid, 1.2)(jnp.asarray(point)))
    x, y = np.indices((12, 9))
    expected = np.exp(-0.5 * ((x - 6) ** 2 + (y - 4) ** 2) / 1.2**2) / (2 * np.pi * 1.2**2)
    np.testing.assert_allclose(seen, expected, atol=3e-3)


@pytest.mark.parametrize(
    "arguments", [(0,), ((2, 2, 2, 2),), ((4, 4), 0.0), ((4, 4), (1.0, 2.0, 3.0)), (4, 1.0, True, 0.5)]
)
def test_bad_grids_are_refused(arguments):
    with pytest.raises(ValueError, match="grid|spacing|padding"):
        Grid(*arguments)


@pytest.mark.parametrize(
    "grid",
    [
        pytest.param(Grid((32, 32)), id="periodic"),
        pytest.param(Grid((24, 20), periodic=False), id="padded", marks=pytest.mark.slow),
    ],
)
def test_gaussian_field_with_gaps_agrees_with_the_dense_wiener_filter(grid, x64):
    rng = np.random.default_rng(4)
    mask = rng.random(grid.shape) < 0.4
    mask[5:15, 6:14] = False
    noise = 0.3
    spectrum = SquaredExponential(3.0, 1.5)
    look = select(grid, mask)
    truth = StationaryField(grid, spectrum).sample(jax.random.key(3))
    y = look(truth) + noise * rng.normal(size=mask.sum())

    def model(y):
        s = numpyro.sample("s", StationaryField(grid, spectrum))
        numpyro.deterministic("inside", grid.crop(s))
        numpyro.sample("y", dist.Normal(look(s), noise), obs=y)

    posterior = mgvi.fit(mgvi.from_numpyro(model, jnp.asarray(y)), seed=1, progress=False, samples=64)
    dense = covariance(StationaryField(grid, spectrum))
    rows = np.asarray(jax.jacfwd(look)(jnp.zeros(grid.full_shape))).reshape(mask.sum(), -1)
    gain = dense @ rows.T @ np.linalg.inv(rows @ dense @ rows.T + noise**2 * np.eye(mask.sum()))
    mean = (gain @ y).reshape(grid.full_shape)
    sd = np.sqrt(np.diag(dense - gain @ rows @ dense)).reshape(grid.full_shape)
    inside = tuple(slice(n) for n in grid.shape)
    assert posterior.status.ok
    assert np.max(np.abs(posterior.at_mean["inside"] - mean[inside]) / sd[inside]) < 0.02
    # 32 independent pairs: the squared sd of a pixel has a relative error of sqrt(2 / 32) = 0.25; over all, far less.
    ratio = posterior.samples["inside"].std(axis=0) / sd[inside]
    assert abs(np.sqrt(np.mean(ratio**2)) - 1) < 0.1
    z = (posterior.samples["inside"][:32] - mean[inside]) / sd[inside]
    assert abs(np.std(z) - 1) < 0.1


def test_field_works_in_nuts_and_in_the_problem_alike(x64):
    grid = Grid(6)

    def model(y):
        s = numpyro.sample("s", StationaryField(grid, SquaredExponential(1.0, 1.2)))
        numpyro.sample("y", dist.Normal(s, 0.5), obs=y)

    y = jnp.asarray(np.random.default_rng(0).normal(size=6))
    value = jnp.asarray(np.random.default_rng(1).normal(size=6))
    density, _ = numpyro.infer.util.log_density(model, (y,), {}, {"s": value})
    field = StationaryField(grid, SquaredExponential(1.0, 1.2))
    np.testing.assert_allclose(density, field.log_prob(value) + dist.Normal(value, 0.5).log_prob(y).sum(), rtol=1e-10)
    kernel = numpyro.infer.NUTS(model)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=300, num_samples=600, progress_bar=False)
    mcmc.run(jax.random.key(0), y)
    posterior = mgvi.fit(mgvi.from_numpyro(model, y), seed=1, progress=False)
    sd = posterior.sd["s"]
    assert np.max(np.abs(np.asarray(mcmc.get_samples()["s"]).mean(axis=0) - posterior.mean["s"]) / sd) < 0.3


def test_learned_spectrum_takes_numbers_pairs_and_distributions():
    grid = Grid((8, 8))

    def model():
        spectrum = smooth_spectrum("p", grid, sd=2.0, slope=dist.Uniform(-5.0, -1.0), smoothness=(0.5, 0.2), nodes=10)
        numpyro.sample("s", StationaryField(grid, spectrum))

    draw = mgvi.sample_prior(jax.random.key(0), 200, model)
    assert draw["p"].shape == (200, 10)
    assert "p_sd" not in draw
    np.testing.assert_allclose(np.mean(np.square(draw["s"])), 4.0, rtol=0.2)
    np.testing.assert_allclose(np.mean(draw["p_smoothness"]), 0.5, rtol=0.15)
    with pytest.raises(ValueError, match="p_sd.*pair"):
        numpyro.handlers.seed(lambda: smooth_spectrum("p", grid, sd=(1.0, 2.0, 3.0)), 0)()
