"""A Problem is data for compiled functions: nothing large is baked into them, and bad latents are refused."""

import re
import subprocess
import sys

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

import mgvi
from mgvi._compile import multiplies_matrices

ROWS, COLUMNS = 200, 300
LARGE = 5000
RNG = np.random.default_rng(0)
DESIGN = RNG.normal(size=(ROWS, COLUMNS)).astype(np.float32)
COUNTS = RNG.poisson(3.0, size=(40, ROWS))


def closed_over(counts):
    weights = numpyro.sample("weights", dist.Normal(0.0, 0.1).expand([COLUMNS]))
    numpyro.sample("counts", dist.Poisson(jnp.exp(DESIGN @ weights)), obs=counts)


def passed(design, counts):
    weights = numpyro.sample("weights", dist.Normal(0.0, 0.1).expand([COLUMNS]))
    numpyro.sample("counts", dist.Poisson(jnp.exp(design @ weights)), obs=counts)


def with_exposure(exposure, counts):
    """A large parameter of the data that depends on no latent."""
    level = numpyro.sample("level", dist.Normal(1.0, 0.1))
    numpyro.sample("counts", dist.NegativeBinomial2(jnp.exp(level), exposure), obs=counts)


MODELS = {
    "closed_over": lambda: (mgvi.from_numpyro(closed_over, COUNTS), {"weights": jnp.zeros(COLUMNS)}),
    "passed": lambda: (mgvi.from_numpyro(passed, DESIGN, COUNTS), {"weights": jnp.zeros(COLUMNS)}),
    "with_exposure": lambda: (
        mgvi.from_numpyro(with_exposure, 1.0 + RNG.uniform(size=(40, ROWS)), COUNTS),
        {"level": jnp.zeros(())},
    ),
}
FUNCTIONS = {
    "neg_log_density": lambda p, xi: p.neg_log_density(xi),
    "gradient": lambda p, xi: jax.grad(p.neg_log_density)(xi),
    "metric": lambda p, xi: p.metric(xi).mv(xi),
    "constrain": lambda p, xi: p.constrain(xi),
}


def small():
    """A problem with two latents."""

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(mu, sd), obs=y)

    return mgvi.from_numpyro(model, jnp.array([0.3, 1.1, -0.2]))


# --- constants of compiled programs ---


def constants_of_jaxpr(closed):
    """Sizes of the constants of a jaxpr and of all jaxprs inside it, and of its literals."""
    sizes = [np.size(c) for c in closed.consts]
    stack = [closed.jaxpr]
    while stack:
        for equation in stack.pop().eqns:
            sizes += [np.size(v.val) for v in equation.invars if isinstance(v, jex.Literal)]
            for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: isinstance(x, jex.ClosedJaxpr)):
                if isinstance(parameter, jex.ClosedJaxpr):
                    sizes += [np.size(c) for c in parameter.consts]
                    stack.append(parameter.jaxpr)
                elif isinstance(parameter, jex.Jaxpr):
                    stack.append(parameter)
    return sizes


def constants_of_stablehlo(text):
    """Sizes of constants; one number that fills a tensor (`dense<0.0>`) is stored once."""
    found = re.findall(r"stablehlo\.constant\s+dense(?:_resource)?<(.{0,3})[^\n]*?:\s*tensor<([0-9x]*)", text)
    splat = re.compile(r"stablehlo\.constant\s+dense<[^\[\"]")
    lines = [line for line in text.splitlines() if "stablehlo.constant" in line]
    assert len(lines) == len(found)
    return [_product(s.split("x")) for line, (_, s) in zip(lines, found, strict=True) if not splat.search(line)]


def constants_of_hlo(text):
    """Sizes of constants of a compiled program: `f32[200,300]{1,0} constant({...})`."""
    return [_product(s.split(",")) for s in re.findall(r"\[([0-9,]*)\](?:\{[^}]*\})? constant\(", text)]


def _product(sizes):
    return int(np.prod([int(s) for s in sizes if s], dtype=np.int64))


def largest_constant(function, *args):
    """Size of the largest constant in any form of a program, and of the largest argument."""
    jitted = jax.jit(function)
    lowered = jitted.lower(*args)
    sizes = constants_of_jaxpr(jax.make_jaxpr(function)(*args))
    sizes += constants_of_stablehlo(lowered.as_text()) + constants_of_hlo(lowered.compile().as_text())
    return max(sizes, default=0)


def test_a_constant_that_is_baked_in_is_found():
    design = jnp.asarray(DESIGN)
    assert largest_constant(lambda x: jnp.sin(design @ x), jnp.zeros(COLUMNS)) == ROWS * COLUMNS
    inner = jax.jit(lambda x: jnp.sin(design @ x))
    assert largest_constant(lambda x: jax.lax.map(inner, x), jnp.zeros((2, COLUMNS))) == ROWS * COLUMNS


def test_each_reader_of_constants_finds_its_own_form():
    stored = "%cst = stablehlo.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>"
    packed = '%cst = stablehlo.constant dense<"0x00FF"> : tensor<200x300xf32>'
    filled = "%cst = stablehlo.constant dense<0.000000e+00> : tensor<200x300xf32>"
    assert constants_of_stablehlo("\n".join([stored, packed, filled])) == [4, 60000]
    assert constants_of_hlo("%c = f32[200,300]{1,0} constant({...})\n%d = s32[] constant(3)") == [60000, 1]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_arrays_of_the_model_and_data_are_arguments_of_compiled_programs(model, function):
    problem, xi = MODELS[model]()
    assert max(leaf.size for leaf in jax.tree.leaves(problem)) > LARGE
    assert largest_constant(FUNCTIONS[function], problem, xi) <= LARGE


# --- a pytree ---


def test_problem_is_an_argument_of_compiled_functions(precision):
    problem = small()
    xi = {"mu": jnp.array(0.5), "sd": jnp.array(-0.3)}
    compiled = jax.jit(lambda p, xi: (p.neg_log_density(xi), p.metric(xi).mv(xi), p.constrain(xi)))
    expected = problem.neg_log_density(xi), problem.metric(xi).mv(xi), problem.constrain(xi)
    actual = compiled(problem, xi)
    np.testing.assert_allclose(ravel_pytree(actual)[0], ravel_pytree(expected)[0], rtol=1e-5)


def test_problem_survives_flattening():
    problem = small()
    leaves, treedef = jax.tree.flatten(problem)
    again = jax.tree.unflatten(treedef, leaves)
    xi = {"mu": jnp.array(0.5), "sd": jnp.array(-0.3)}
    assert all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
    assert again.neg_log_density(xi) == problem.neg_log_density(xi)
    assert again.latent == problem.latent


def test_new_data_in_the_same_problem_are_used_without_compiling_again():
    problem = small()
    xi = {"mu": jnp.array(0.5), "sd": jnp.array(-0.3)}
    traces = []

    @jax.jit
    def density(problem, xi):
        traces.append(None)
        return problem.neg_log_density(xi)

    before = density(problem, xi)
    moved = jax.tree.map(lambda leaf: leaf + 1.0 if jnp.shape(leaf) == (3,) else leaf, problem)
    np.testing.assert_array_equal(moved.data["y"], problem.data["y"] + 1.0)
    after = density(moved, xi)
    assert len(traces) == 1
    sd, y = float(problem.constrain(xi)["sd"]), np.array([0.3, 1.1, -0.2])
    expected = np.sum((y + 1 - 1.0) ** 2 - (y - 1.0) ** 2) / (2 * sd**2)
    np.testing.assert_allclose(after - before, expected, rtol=1e-4)


def test_problems_of_one_model_with_other_data_have_other_densities():
    xi = {"weights": jnp.zeros(COLUMNS)}
    first = mgvi.from_numpyro(closed_over, COUNTS[:2])
    second = mgvi.from_numpyro(closed_over, COUNTS[2:4])
    again = mgvi.from_numpyro(closed_over, COUNTS[:2])
    densities = [float(p.neg_log_density(xi)) for p in (first, second, again)]
    assert densities[0] == densities[2]
    log_factorial = [float(jax.scipy.special.gammaln(COUNTS[i : i + 2] + 1.0).sum()) for i in (0, 2)]
    np.testing.assert_allclose(densities[1] - densities[0], log_factorial[1] - log_factorial[0], rtol=1e-3)
    assert abs(densities[1] - densities[0]) > 1


def test_representation_names_latent_and_data():
    assert repr(small()) == "Problem(latent: mu[], sd[]; data: y[3])"


# --- latents that do not fit ---


@pytest.mark.parametrize("method", ["neg_log_density", "metric", "constrain", "log_likelihood"])
@pytest.mark.parametrize(
    ("xi", "message"),
    [
        ({"mu": 0.0}, r"a latent is a dict with the keys \['mu', 'sd'\], found \['mu'\]"),
        ({"mu": 0.0, "sd": 0.0, "x": 0.0}, r"keys \['mu', 'sd'\], found \['mu', 'sd', 'x'\]"),
        (np.zeros(2), r"a latent is a dict with the keys \['mu', 'sd'\], found an object of type ndarray"),
        ({"mu": np.zeros(1), "sd": 0.0}, r"latent 'mu' must have shape \(\), found \(1,\)"),
        ({"mu": 0.0, "sd": np.zeros((2, 3))}, r"latent 'sd' must have shape \(\), found \(2, 3\)"),
    ],
    ids=["missing", "unknown", "array", "vector", "matrix"],
)
def test_a_latent_that_does_not_fit_is_told_what_was_expected(method, xi, message):
    with pytest.raises(ValueError, match=message):
        getattr(small(), method)(xi)


def test_python_numbers_are_a_latent():
    problem = small()
    assert problem.neg_log_density({"mu": 1, "sd": 0}) == problem.neg_log_density(
        {"mu": jnp.array(1.0), "sd": jnp.array(0.0)}
    )


# --- import ---


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def import_seconds(module, repeats=3):
    """Processor time of an import in a fresh interpreter, best of several."""
    code = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    return min(float(run_python(code)) for _ in range(repeats))


def test_import_takes_less_than_one_and_a_half_times_that_of_numpyro():
    for _ in range(2):  # other processes may disturb one of the two
        ratio = import_seconds("mgvi") / import_seconds("numpyro")
        if ratio < 1.5:
            break
    assert ratio < 1.5


def test_import_loads_no_library_for_plots():
    loaded = run_python("import sys, mgvi; print([m for m in ('matplotlib', 'arviz', 'pandas') if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_products_of_matrices_are_told_from_those_with_vectors():
    matrix, large, vector = (
        np.ones((100, 10)),
        jax.ShapeDtypeStruct((10, 200), float),
        jax.ShapeDtypeStruct((10,), float),
    )
    assert multiplies_matrices(lambda v: matrix @ v, large)
    assert multiplies_matrices(jax.jit(lambda v: jax.lax.map(lambda _: matrix @ v, jnp.arange(3))), large)
    assert not multiplies_matrices(lambda v: matrix @ v, vector)
    assert not multiplies_matrices(lambda v: matrix * v.sum(), large)


def test_stacked_products_of_a_metric_with_matrices_in_it_are_those_with_single_vectors(x64):
    """Which are made one by one on a CPU."""

    def model(data):
        left = numpyro.sample("left", dist.Normal(0, 1).expand([120, 4]).to_event(2))
        right = numpyro.sample("right", dist.Normal(0, 1).expand([4, 100]).to_event(2))
        numpyro.sample("data", dist.Poisson(jnp.exp(0.1 * left @ right)), obs=data)

    problem = mgvi.from_numpyro(model, jnp.ones((120, 100), int))
    draw = lambda key, *n: {
        name: jax.random.normal(jax.random.fold_in(jax.random.key(key), i), (*n, *leaf.shape))
        for i, (name, leaf) in enumerate(problem.latent.items())
    }
    metric, stack = problem.metric(draw(1)), draw(2, 3)
    assert multiplies_matrices(metric.matvec, problem.latent)
    stacked = metric.mv_stack(stack)
    for i in range(3):
        single = metric.mv({name: v[i] for name, v in stack.items()})
        for name, value in single.items():
            np.testing.assert_allclose(stacked[name][i], value, rtol=1e-10)
