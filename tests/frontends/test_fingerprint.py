"""The fingerprint that ties a saved result to its problem."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mgvi
from mgvi import _files
from mgvi.checkpoint import Checkpoint
from mgvi.fields import Grid, Matern, SquaredExponential, StationaryField
from tests.frontends.feature_models import CASES

Y = np.array([0.3, 0.9, 1.4])


def fingerprint(model, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mgvi.MgviWarning)
        return _files.fingerprint(mgvi.from_numpyro(model, *args))


def fingerprints_of_features():
    """Of the model of each case, by name."""
    return {name: fingerprint(case.model, *case.args) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def features():
    return fingerprints_of_features()


def test_models_of_all_features_have_different_fingerprints(features):
    assert len({found["model"] for found in features.values()}) == len(CASES)


@pytest.mark.parametrize("name", ["hierarchy", "scan_with_latents_and_data", "branches", "lkj_latent"])
def test_a_model_that_is_built_again_has_the_same_fingerprint(name, features):
    assert fingerprint(CASES[name].model, *CASES[name].args) == features[name]


def test_fingerprints_are_the_same_in_a_process_with_another_hash_seed(features):
    root = Path(__file__).parents[2]
    paths = [str(root), str(Path(mgvi.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "7"}
    script = "import json; from tests.frontends import test_fingerprint as t; print(json.dumps(t.{}()))"
    script = script.format(fingerprints_of_features.__name__)
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, check=True).stdout
    assert json.loads(found.splitlines()[-1]) == features


def normal(y, mean=lambda x: x, sd=1.0, prior=None, observed=dist.Normal, events=0, **options):
    x = numpyro.sample("x", prior or dist.Normal(0.0, 2.0))
    d = observed(mean(x) * jnp.ones(len(y)), sd, **options)
    numpyro.sample("y", d.to_event(events), obs=y)


def field(y, shape=(16, 16), spacing=1.0, table=None, spectrum=None):
    length = numpyro.sample("length", dist.LogNormal(1.0, 0.5))
    spectrum = spectrum(length) if spectrum else SquaredExponential(length)
    s = numpyro.sample("s", StationaryField(Grid(shape, spacing=spacing), spectrum))
    seen = s.reshape(-1) if table is None else s.reshape(-1) * table
    numpyro.sample("y", dist.Normal(seen[: len(y)], 1.0), obs=y)


def with_factor(y):
    x = numpyro.sample("x", dist.Normal(0.0, 2.0))
    numpyro.factor("more", -(x**2))
    numpyro.sample("y", dist.Normal(x * jnp.ones(len(y)), 1.0), obs=y)


def changed(base, **options):
    return lambda y: base(y, **options)


LONG = np.linspace(1.0, 2.0, 5000)  # longer than what is kept as an output of its own

CHANGES = {
    "none": normal,
    "function": changed(normal, mean=lambda x: jnp.exp(3 * x)),
    "another function of the same operations": changed(normal, mean=lambda x: 3 * jnp.exp(x)),
    "constant": changed(normal, sd=1.5),
    "array of constants": changed(normal, sd=np.array([1.0, 1.0, 2.0])),
    "the same array in another order": changed(normal, sd=np.array([1.0, 2.0, 1.0])),
    "distribution": changed(normal, observed=dist.Cauchy),
    "static argument": changed(normal, validate_args=True),
    "event dimensions": changed(normal, events=1),
    "prior": changed(normal, prior=dist.Normal(0.0, 3.0)),
    "family of the prior": changed(normal, prior=dist.Cauchy(0.0, 2.0)),
    "factor": with_factor,
    "branch": changed(normal, mean=lambda x: jax.lax.cond(x > 0, jnp.exp, jnp.sin, x)),
    "other branch": changed(normal, mean=lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.exp, x)),
    "loop": changed(normal, mean=lambda x: jax.lax.fori_loop(0, 3, lambda i, z: z * x, x)),
    "length of a loop": changed(normal, mean=lambda x: jax.lax.fori_loop(0, 4, lambda i, z: z * x, x)),
    "order of what a loop carries": changed(
        normal, mean=lambda x: jax.lax.fori_loop(0, 4, lambda i, z: (z[1], z[0] * x), (x, x))[0]
    ),
    "callback": changed(normal, mean=lambda x: x + callback(lambda v: np.sin(v))),
    "other callback": changed(normal, mean=lambda x: x + callback(lambda v: np.cos(v))),
    "field": field,
    "spacing of the grid": changed(field, spacing=2.0),
    "shape of the grid": changed(field, shape=(8, 32)),
    "spectrum": changed(field, spectrum=lambda length: Matern(1.5, length)),
    "parameter of the spectrum": changed(field, spectrum=lambda length: Matern(2.5, length)),
    "instrument": changed(field, shape=(50, 100), table=LONG),
    "other instrument": changed(field, shape=(50, 100), table=LONG**2),
}


def callback(function):
    return jax.pure_callback(function, jax.ShapeDtypeStruct((), jnp.result_type(float)), 0.5)


def test_every_change_of_a_model_changes_its_fingerprint():
    found = {name: fingerprint(model, Y) for name, model in CHANGES.items()}
    assert len({f["data"] for name, f in found.items() if name in ("none", "prior", "factor", "distribution")}) == 1
    names: dict[str, list[str]] = {}
    for name, f in found.items():
        names.setdefault(f["model"], []).append(name)
    assert [same for same in names.values() if len(same) > 1] == []


def test_single_and_double_precision_have_different_fingerprints():
    found = []
    for is_double in (False, True):
        with jax.enable_x64(is_double):
            found.append(fingerprint(normal, Y.copy()))
    assert found[0]["model"] != found[1]["model"] and found[0]["data"] != found[1]["data"]


def test_code_of_a_users_distribution_is_part_of_its_model():
    def rayleigh(power):
        class Own(dist.Normal):
            if power == 1:

                def log_prob(self, value):
                    return super().log_prob(value)
            else:

                def log_prob(self, value):
                    return 2 * super().log_prob(value)

        return Own

    one, same, other = (fingerprint(changed(normal, observed=rayleigh(power)), Y) for power in (1, 1, 2))
    assert one == same != other


def test_fingerprint_follows_the_arrays_of_a_problem():
    problem = mgvi.from_numpyro(changed(field, shape=(50, 100), table=LONG), Y)
    before = _files.fingerprint(problem)
    arrays = {
        **problem.arrays,
        "constants": [2 * x if x.shape == LONG.shape else x for x in problem.arrays["constants"]],
    }
    assert _files.fingerprint(mgvi.Problem(arrays, problem.static))["model"] != before["model"]
    assert _files.fingerprint(problem) == before


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    problem = mgvi.from_numpyro(normal, Y)
    mgvi.fit(problem, seed=1, progress=False, checkpoint=folder / "checkpoint").save(folder / "posterior")
    return folder


@pytest.mark.parametrize("name", ["function", "distribution", "prior"])
def test_posterior_and_checkpoint_of_a_changed_model_are_refused(name, saved):
    problem = mgvi.from_numpyro(CHANGES[name], Y)
    with pytest.raises(mgvi.FileError, match="another problem: its model, data or latent differ"):
        mgvi.load(saved / "posterior", problem)
    with pytest.raises(mgvi.FileError, match="another problem: its model, data or latent differ"):
        mgvi.fit(problem, seed=1, progress=False, checkpoint=saved / "checkpoint")
    assert Checkpoint(saved / "checkpoint", mgvi.from_numpyro(normal, Y), {})._rounds()
    mgvi.load(saved / "posterior", mgvi.from_numpyro(normal, Y))


def test_other_versions_turn_a_refusal_of_the_model_into_a_warning(saved, monkeypatch):
    now = _files._made_with()
    monkeypatch.setattr(_files, "_made_with", lambda: {**now, "jax": "99.0"})
    other = mgvi.from_numpyro(CHANGES["function"], Y)
    with pytest.warns(mgvi.MgviWarning, match=f"was written with jax {now['jax']}, and this is jax 99.0"):
        mgvi.load(saved / "posterior", other)
    with pytest.raises(mgvi.FileError, match="another problem"):
        mgvi.load(saved / "posterior", mgvi.from_numpyro(CHANGES["function"], Y + 1))
