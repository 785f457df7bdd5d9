import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mgvi
from mgvi.cli import main
from mgvi.cli.app import app

MODEL = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

NUMBER = 3


def model(x, y=None, robust=False, scale=1.0):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    noise = dist.StudentT(4.0, slope * x, scale) if robust else dist.Normal(slope * x, scale)
    numpyro.sample("y", noise, obs=y)


def broken(x, y):
    numpyro.sample("slope", dist.Normal(0.0, 2.0))
    return x + undefined
"""


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def fails(code, sentence, *words):
    """The command must end with this status and one line that holds the sentence."""
    result = call(*words)
    assert result.exit_code == code, result.output
    *_, line = result.stderr.strip().split("\n")
    assert sentence in line
    assert result.stdout == ""
    assert "Traceback" not in result.output


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a model and data, far from any experiments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mgvi.cli.app._SOURCE", tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "lines.py").write_text(MODEL)
    x = np.linspace(0.0, 1.0, 30)
    np.savez(tmp_path / "data.npz", x=x, y=3.0 * x + 0.1 * np.cos(40 * x))
    return tmp_path


FIT = ("fit", "lines.py:model", "--data", "data.npz", "--out", "result")


def test_no_words_at_all_show_the_help():
    result = call()
    assert result.exit_code == 0
    assert "reproduce" in result.stdout
    assert call("--version").stdout == f"mgvi {mgvi.__version__}\n"


def test_fit_leaves_summaries_a_posterior_and_a_file_for_arviz(here):
    result = call(*FIT, "--json", "--set", "robust=false", "--set", "scale=0.5")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["status"] == "CONVERGED"
    assert abs(told["summary"]["slope"]["mean"] - 3.0) < 0.5
    assert "round   1" in result.stderr
    assert json.loads((here / "result" / "summary.json").read_text()) == told
    assert "slope" in (here / "result" / "summary.txt").read_text()
    assert sorted(told["files"]) == sorted(path.name for path in (here / "result").iterdir())

    raw = np.load(here / "data.npz")
    namespace = {}
    exec(MODEL, namespace)  # as a user who goes on in Python would import it
    problem = mgvi.from_numpyro(namespace["model"], raw["x"], y=raw["y"], robust=False, scale=0.5)
    assert len(mgvi.load(here / "result" / "posterior", problem)) == told["samples"]

    import arviz

    loaded = arviz.from_netcdf(str(here / "result" / "posterior.nc"))
    assert loaded["posterior"]["slope"].shape == (1, told["samples"])


def test_an_interrupted_fit_resumes_to_the_result_of_one_without_interruption(here):
    whole = json.loads(call(*FIT[:-1], "whole", "--json").stdout)
    cut = call(*FIT, "--max-rounds", 2)
    assert cut.exit_code == 3
    assert "ITERATION_LIMIT" in cut.stderr and "--resume" in cut.stderr
    fails(2, "result holds an unfinished run (ITERATION_LIMIT). Go on with --resume", *FIT)
    (here / "result" / "summary.json").unlink()  # as if it had been killed
    fails(2, "result holds an unfinished run (broken off). Go on with --resume", *FIT)
    resumed = call(*FIT, "--resume", "--json")
    assert resumed.exit_code == 0
    assert json.loads(resumed.stdout)["summary"] == whole["summary"]
    fails(2, "result holds a finished run", *FIT)
    fails(1, "other settings", *FIT, "--resume", "--seed", 2)
    assert call(*FIT, "--overwrite", "--quiet").exit_code == 0


def test_an_interruption_while_results_are_written_is_told_apart(here, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(mgvi.Posterior, "save", interrupt)
    fails(3, "The same command with --resume goes on", *FIT, "--max-rounds", 1)
    monkeypatch.setattr("mgvi.cli.info.facts", interrupt)
    assert call("info").exit_code == 130


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("expected MODEL.py:FUNCTION, found 'lines.py'", ["lines.py"]),
        ("there is no file 'nowhere.py'", ["nowhere.py:model"]),
        ("expected a Python file (.py), found 'data.npz'", ["data.npz:model"]),
        ("has no function 'modle', did you mean 'model'? It has: model, broken", ["lines.py:modle"]),
        ("'NUMBER' of lines.py is no function: found int", ["lines.py:NUMBER"]),
        ("there is no file 'nowhere.npz'", ["lines.py:model", "--data", "nowhere.npz"]),
        ("lines.py is no .npz file, or it is damaged", ["lines.py:model", "--data", "lines.py"]),
        ("single array without a name", ["lines.py:model", "--data", "one.npy"]),
        ("array of Python objects", ["lines.py:model", "--data", "objects.npz"]),
        ("the model needs 'x', but there is no --data file", ["lines.py:model"]),
        ("takes no 'z', which", ["lines.py:model", "--data", "data.npz", "--set", "z=1"]),
        ("--set robust: expected NAME=VALUE", ["lines.py:model", "--set", "robust"]),
        ("Invalid value for '--samples'", ["lines.py:model", "--samples", "0"]),
        ("exclude each other", ["lines.py:model", "--data", "data.npz", "--resume", "--overwrite"]),
    ],
)
def test_wrong_usage_is_named_in_one_line(here, sentence, words):
    np.save(here / "one.npy", np.ones(3))
    np.savez(here / "objects.npz", x=np.array([{}, None]))
    fails(2, sentence, "fit", *words, "--out", "result")
    assert not (here / "result").exists()


def test_a_folder_is_not_written_over_a_file(here):
    fails(2, "--out data.npz is a file", *FIT[:-1], "data.npz")
    (here / "coin").write_text("")


def test_errors_of_the_users_own_code_name_the_line(here):
    fails(1, "undefined", "fit", "lines.py:broken", *FIT[2:])
    (here / "typo.py").write_text("x = 1\ndef model(:\n")
    fails(1, "typo.py, line 2: ", "fit", "typo.py:model", *FIT[2:])
    (here / "needy.py").write_text("x = 1\n\nimport nowhere_to_be_found\n")
    fails(1, "needy.py, line 3: ModuleNotFoundError", "fit", "needy.py:model", *FIT[2:])


def test_bad_data_are_refused_with_the_sentence_of_the_library(here):
    np.savez(here / "nan.npz", x=np.ones(3), y=np.array([1.0, np.nan, 2.0]))
    fails(1, "1 of 3 data are NaN", "fit", "lines.py:model", "--data", "nan.npz", "--out", "result")


def test_demo_leaves_files_that_fit_accepts(here):
    result = call("demo", "--json")
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)["summary"]) >= {"level", "trend", "swing", "phase"}
    assert (here / "mgvi-demo" / "model.py").is_file()
    command = result.stderr.strip().split("and: mgvi ")[-1].split()
    (here / "mgvi-demo" / "model.py").write_text((here / "mgvi-demo" / "model.py").read_text().replace("2.0", "3.0"))
    assert call(*command, "--max-rounds", 1).exit_code == 3


def test_info_is_complete_json():
    told = json.loads(call("info", "--json").stdout)
    assert told["mgvi"] == mgvi.__version__
    assert told["devices"]
    assert "compilation cache" in call("info").stdout


@pytest.mark.parametrize("place", ["current folder", "source"])
def test_commands_of_experiments_get_all_words(place, here, monkeypatch):
    package = here / place / "experiments"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "commands.py").write_text("def main(words, program):\n    print(program, *words)\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
        monkeypatch.delitem(sys.modules, name)
    if place == "source":
        monkeypatch.setattr("mgvi.cli.app._SOURCE", package.parent)
    else:
        monkeypatch.chdir(package.parent)
    try:
        words = ("reproduce", "coin", "--size", "paper", "-q", "--methods", "advi,mgvi", "--help")
        assert call(*words).stdout == f"mgvi {' '.join(words)}\n"
        assert call("list", "--json").stdout == "mgvi list --json\n"
    finally:
        del sys.modules["experiments"], sys.modules["experiments.commands"]


def test_without_experiments_the_sentence_says_where_they_are(here):
    fails(1, "Clone the repository", "list")
    fails(1, "Clone the repository", "reproduce", "coin")


def test_a_wrong_command_is_one_line_with_a_suggestion():
    fails(2, "Did you mean 'fit'?", "fot")
    fails(2, "See mgvi fit --help", "fit", "--nonsense")


def test_without_typer_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "mgvi.cli.app")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "pip install 'mgvi[cli]'" in capsys.readouterr().err


def test_a_real_process_has_the_same_exit_status_and_pure_json(here):
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-m", "mgvi", *FIT, "--time-limit", "0", "--json", "--x64"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["status"] == "TIME_LIMIT"
    assert "the fit ended as TIME_LIMIT" in done.stderr and "Traceback" not in done.stderr
