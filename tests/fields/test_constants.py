"""Compiled programs hold no large constants: tables are arguments, or the program computes them."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi.fields import (
    Grid,
    Matern,
    PowerLaw,
    SquaredExponential,
    StationaryField,
    blur,
    convolve,
    interpolate,
    line_of_sight,
    select,
    smooth_spectrum,
)

LIMIT = 65_536  # bytes
BYTES = {"pred": 1, "c64": 8, "c128": 16}
# A table with a quarter of the entries of each grid, for modes up to sign, is above the limit.
GRIDS = {
    "1-D": Grid(40_000),
    "2-D": Grid((260, 260)),
    "3-D": Grid((64, 64, 64)),
    "padded": Grid((180, 180), periodic=False),
}
PLANE = GRIDS["2-D"]
SPECTRA = {
    "Matern": lambda grid: Matern(1.5, 5.0),
    "squared exponential": lambda grid: SquaredExponential(5.0),
    "power law": lambda grid: PowerLaw(-3.0),
    "learned": lambda grid: smooth_spectrum("p", grid, sd=(1.0, 0.5)),
    "learned length": lambda grid: Matern(1.5, numpyro.sample("length", dist.LogNormal(1.0, 0.3))),
}
GIVEN = ["Matern", "squared exponential", "power law"]


def large_constants(text):
    """Constants above the limit in the text of a compiled program."""
    found = []
    for kind, shape in re.findall(r"= (\w+)\[([\d,]*)\]\S* constant\(", text):
        size = BYTES.get(kind) or int(re.sub(r"\D", "", kind) or 32) // 8
        if size * math.prod(int(n) for n in shape.split(",") if n) > LIMIT:
            found.append(f"{kind}[{shape}]")
    return found


def check(function, *arguments):
    """Compile a function with little effort and look for constants."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    compiled = jax.jit(function).lower(*arguments).compile(compiler_options=options)
    assert large_constants(compiled.as_text()) == []


def points(count, rng):
    return rng.random((count, 2)) * (PLANE.shape[0] - 1)


def instruments():
    rng = np.random.default_rng(0)
    return {
        "select": select(PLANE, rng.random(PLANE.shape) < 0.7),
        "interpolate": interpolate(PLANE, points(20_000, rng)),
        "line of sight": line_of_sight(PLANE, points(50, rng), points(50, rng)),
        "blur": blur(PLANE, 2.0),
        "convolve": convolve(PLANE, np.ones((3, 3)) / 9),
    }


def problem_of(grid, spectrum, look=lambda field: field, seen=None):
    def model(y):
        seen_field = look(numpyro.sample("s", StationaryField(grid, SPECTRA[spectrum](grid))))
        d = dist.Normal(seen_field, 0.5)
        numpyro.sample("y", d if seen is None else d.mask(seen), obs=y)

    return mgvi.from_numpyro(model, jnp.zeros(jax.eval_shape(look, jnp.zeros(grid.full_shape)).shape))


def start(problem):
    return {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in problem.latent.items()}


def adapted(problem, xi):
    """The problem in coordinates for its learned scales, as a fit sees it."""
    logs = problem.log_scales(xi)
    return problem.in_chart({n: site.start(logs[n], False) for n, site in problem.static.scaled.items()})


def test_large_constants_are_recognised():
    table = np.random.default_rng(0).random((200, 200))
    text = jax.jit(lambda x: x * table).lower(jnp.ones((200, 200))).compile().as_text()
    assert large_constants(text) == ["f32[200,200]"]


@pytest.mark.parametrize("spectrum", GIVEN)
@pytest.mark.parametrize("operation", ["sample", "sample as argument", "log_prob", "moments"])
def test_distribution_of_a_field(operation, spectrum):
    field = StationaryField(PLANE, SPECTRA[spectrum](PLANE))
    key, value = jax.random.key(0), jnp.zeros(PLANE.full_shape)
    if operation == "sample":
        check(lambda key: field.sample(key), key)
    elif operation == "sample as argument":
        check(lambda field, key: field.sample(key, (2,)), field, key)
    elif operation == "log_prob":
        check(lambda value: field.log_prob(value), value)
    else:
        check(lambda field: (field.mean, field.variance), field)


@pytest.mark.parametrize("grid", ["1-D", "3-D", "padded", "product"])
def test_distribution_of_a_field_on_other_grids(grid):
    grid = GRIDS.get(grid, Grid((260, 130)) * Grid(2))
    spectra = (PowerLaw(-3.0), Matern(0.5, 1.0))[: len(grid.factors)]
    check(
        lambda value, key: StationaryField(grid, spectra).log_prob(value + StationaryField(grid, spectra).sample(key)),
        jnp.zeros(grid.full_shape),
        jax.random.key(0),
    )


OPERATIONS = {
    "constrain": lambda problem, xi, key: problem.constrain(xi),
    "simulate": lambda problem, xi, key: problem.simulate(key, xi),
    "log_likelihood": lambda problem, xi, key: problem.log_likelihood(xi),
    "predicted_moments": lambda problem, xi, key: problem.predicted_moments(xi),
    "sample_prior": lambda problem, xi, key: problem.sample_prior(key, 2),
    "gradient": lambda problem, xi, key: jax.grad(problem.neg_log_density)(xi),
    "metric": lambda problem, xi, key: problem.metric(xi).mv(xi),
}


@pytest.fixture(scope="module", params=["Matern", "learned"])
def problem(request):
    return problem_of(PLANE, request.param, seen=np.random.default_rng(1).random(PLANE.shape) < 0.5)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_problem_with_a_field(problem, operation):
    xi = start(problem)
    check(OPERATIONS[operation], adapted(problem, xi), xi, jax.random.key(0))


def test_problem_on_a_line():
    problem = problem_of(GRIDS["1-D"], "learned")
    xi = start(problem)
    check(OPERATIONS["gradient"], adapted(problem, xi), xi, None)


@pytest.mark.parametrize("name", instruments())
def test_instrument_in_a_problem_and_as_an_argument(name):
    look = instruments()[name]
    field = jnp.zeros(PLANE.full_shape)
    check(jax.grad(lambda field, look: jnp.sum(look(field) ** 2)), field, look)
    problem = problem_of(PLANE, "Matern", look)
    check(OPERATIONS["gradient"], problem, start(problem), None)


SCRIPT = """
import warnings
import jax
import numpyro
import mgvi
from mgvi import _compile
from tests.fields import test_constants as test

warnings.simplefilter("ignore", mgvi.MgviWarning)
_compile._OPTIONS["cpu"][:] = [_compile._OPTIONS["cpu"][0]] * 3  # the least effort
grid = test.PLANE
look = test.instruments()["select"]
field = test.StationaryField(grid, test.PowerLaw(-3.0))
mgvi.sample_prior(jax.random.key(0), 2, lambda: numpyro.deterministic("seen", look(numpyro.sample("s", field))))
problem = test.problem_of(grid, "learned", look)
posterior = mgvi.fit(problem, seed=1, progress=False, max_rounds=1, samples=2)
posterior.samples, posterior.latent_samples, posterior.predictive(1), posterior.log_likelihood()
"""


def test_every_program_of_a_fit(tmp_path):
    root = Path(__file__).parents[2]
    paths = [str(root), str(Path(mgvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    programs = {file.name: file.read_text() for file in tmp_path.glob("*after_optimizations.txt")}
    assert len(programs) > 10
    assert {name: found for name, text in programs.items() if (found := large_constants(text))} == {}
