import json
import subprocess
import sys
from pathlib import Path

import pytest

import experiments
from experiments.commands import main

COIN = '''"""A coin is tossed.

And more.
"""

METHODS = ("mgvi", "advi")


def run(*, size="small", seed=1, out, methods=None, progress=True):
    print("chatter")
    (out / "table.md").write_text("| method | heads |\\n|---|---|\\n| mgvi | 0.5 |\\n")
    return {"size": size, "seed": seed, "methods": methods}
'''


@pytest.fixture
def coin(tmp_path, monkeypatch):
    """An empty folder, and a single experiment, whose file it returns."""
    file = tmp_path / "modules" / "coin_experiment.py"
    file.parent.mkdir()
    file.write_text(COIN)
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.commands.EXPERIMENTS", {"coin": "coin_experiment"})
    yield file
    sys.modules.pop("coin_experiment", None)


def refused(capsys, sentence, *words):
    """The command must end with status 2 and a last line that holds the sentence."""
    with pytest.raises(SystemExit) as end:
        main(words)
    shown = capsys.readouterr()
    assert end.value.code == 2 and shown.out == ""
    assert sentence in shown.err.strip().split("\n")[-1]


def test_experiments_are_listed_with_their_first_line(coin, capsys):
    main(["list", "--json"])
    listed = [{"name": "coin", "methods": ["mgvi", "advi"], "what": "A coin is tossed."}]
    assert json.loads(capsys.readouterr().out) == listed
    main(["list"], program="mgvi")
    shown = capsys.readouterr().out
    assert "A coin is tossed." in shown and "mgvi reproduce NAME" in shown


def test_an_experiment_without_its_packages_is_listed_with_what_it_needs(coin, capsys):
    coin.write_text("import nowhere_to_be_found\n")
    main(["list", "--json"])
    sentence = "needs the package nowhere_to_be_found"
    assert sentence in json.loads(capsys.readouterr().out)[0]["what"]
    with pytest.raises(ImportError, match=sentence):
        main(["reproduce", "coin"])


def test_reproduce_prints_the_table_or_pure_json(coin, capsys):
    main(["reproduce", "coin", "--out", "there"])
    shown = capsys.readouterr()
    assert shown.out == "| method | heads |\n|---|---|\n| mgvi | 0.5 |\n"
    assert "chatter" in shown.err and "written to there: table.md" in shown.err
    main(["reproduce", "coin", "--size", "paper", "--seed", "7", "--methods", "advi, mgvi", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told == {"size": "paper", "seed": 7, "methods": ["advi", "mgvi"]}
    assert (Path("out") / "coin-paper" / "table.md").is_file()


def test_reproduce_refuses_what_it_does_not_know(coin, capsys):
    refused(capsys, "invalid choice: 'coni' (choose from ", "reproduce", "coni")
    refused(capsys, "invalid choice: 'big' (choose from ", "reproduce", "coin", "--size", "big")
    refused(capsys, "expected some of mgvi, advi, found 'mgvi,nuts'", "reproduce", "coin", "--methods", "mgvi,nuts")
    Path("file").write_text("")
    refused(capsys, "--out file is a file", "reproduce", "coin", "--out", "file")


@pytest.mark.parametrize("module", experiments.EXPERIMENTS.values())
def test_every_experiment_has_what_the_commands_use(module):
    pytest.importorskip("matplotlib")
    experiment = pytest.importorskip(module)
    assert experiment.__doc__ and experiment.METHODS and callable(experiment.run)
    assert set(experiment.SIZES) == set(experiments.SIZES)


def test_missing_data_are_a_sentence_in_a_real_process(tmp_path):
    code = """if True:
        import os, runpy, sys
        os.environ["MGVI_DATA_DIR"] = sys.argv.pop()
        sys.modules["pooch"] = None
        sys.argv[1:] = ["reproduce", "faces", "--out", os.environ["MGVI_DATA_DIR"]]
        runpy.run_module("experiments", run_name="__main__")
    """
    root = Path(experiments.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, cwd=root)
    assert done.returncode == 1
    assert "error: the Frey faces cannot be had" in done.stderr and "Traceback" not in done.stderr
