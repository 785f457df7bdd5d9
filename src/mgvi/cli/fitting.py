"""The command `fit`: a user's model and data, fitted, with all results in one folder.

A request comes in; a folder with summary, posterior, ArviZ file and checkpoints, and an exit status, go out.
It must not know where the request came from.
"""

import importlib.util
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from mgvi._version import __version__
from mgvi.cli import console, user_model
from mgvi.cli.console import CommandError, Exit, usage
from mgvi.fit import fit
from mgvi.frontends import from_numpyro
from mgvi.posterior import Posterior

# Names in the output folder.
_CHECKPOINT = "checkpoint"
_SUMMARY = "summary.json"
_TEXT = "summary.txt"
_POSTERIOR = "posterior"
_ARVIZ = "posterior.nc"


@dataclass
class Request:
    """What to fit, and the folder for the results."""

    model: str  # FILE.py:FUNCTION
    data: Path | None  # a .npz file
    out: Path  # the folder
    settings: list[str] = field(default_factory=list)  # further arguments of the model, as NAME=VALUE
    resume: bool = False  # if the folder is not empty
    overwrite: bool = False  # likewise
    options: dict[str, Any] = field(default_factory=dict)  # arguments of `mgvi.fit`
    x64: bool = False  # whether to compute in double precision


def run(request: Request, *, as_json: bool) -> int:
    """Fit, write and print the results; return the exit status, which tells whether the fit converged."""
    if importlib.util.find_spec("safetensors") is None:
        raise CommandError("saving needs the package safetensors: pip install 'mgvi[files]'.")
    if request.x64:
        jax.config.update("jax_enable_x64", True)
    with console.only_results_on_stdout():
        model = user_model.load_model(request.model)
        arguments = {**user_model.load_data(request.data), **user_model.load_settings(request.settings)}
        user_model.check_arguments(model, arguments, request.data)
        _prepare(request)
        problem = from_numpyro(model, **arguments)
        console.say(str(problem))
        try:
            posterior = fit(problem, checkpoint=request.out / _CHECKPOINT, **request.options)
            result = _result(request, posterior)
            text = _write(request.out, posterior, result)
        except KeyboardInterrupt:
            # `fit` handles an interruption of its rounds: this one came while samples were drawn or files written.
            message = "interrupted before all was written. The same command with --resume goes on after the last round."
            raise CommandError(message, Exit.NOT_CONVERGED) from None
    if as_json:
        console.print_json(result)
    else:
        print(text)
        console.say(f"\nwritten to {request.out}: {', '.join(result['files'])}")
    if posterior.status.ok:
        return Exit.FINE
    console.say(f"mgvi: the fit ended as {posterior.status.name}. {posterior.status.advice}{_resume_hint(posterior)}")
    return Exit.NOT_CONVERGED


def _resume_hint(posterior: Posterior) -> str:
    stopped_early = posterior.status.name in ("TIME_LIMIT", "INTERRUPTED", "ITERATION_LIMIT")
    return " The same command with --resume goes on from there." if stopped_early else ""


def _prepare(request: Request) -> None:
    """Create the folder; refuse one that holds results, unless the request says what to do with them."""
    out = request.out
    if out.exists() and not out.is_dir():
        raise usage(f"--out {out} is a file; give a folder.")
    if request.resume and request.overwrite:
        raise usage("--resume and --overwrite exclude each other.")
    started = any((out / _CHECKPOINT).glob("round-*"))
    status = _last_status(out)
    if not request.resume and not request.overwrite and (started or status):
        what = "a finished run" if status == "CONVERGED" else f"an unfinished run ({status or 'broken off'})"
        raise usage(f"{out} holds {what}. Go on with --resume, start anew with --overwrite, or give another folder.")
    if request.overwrite:
        shutil.rmtree(out / _CHECKPOINT, ignore_errors=True)
    # If this run breaks off, files of an earlier run would be mistaken for its results.
    for name in (_SUMMARY, _TEXT, _ARVIZ):
        (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)


def _last_status(out: Path) -> str | None:
    try:
        return json.loads((out / _SUMMARY).read_text())["status"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _result(request: Request, posterior: Posterior) -> dict[str, Any]:
    table, check = posterior.summary(), posterior.check
    return {
        "status": posterior.status.name,
        "advice": posterior.status.advice,
        "model": request.model,
        "data": None if request.data is None else str(request.data),
        "set": request.settings,
        "seed": request.options.get("seed"),
        "mgvi": __version__,
        "samples": len(posterior),
        "rounds": len(posterior.history),
        "seconds": sum(record["seconds"] for record in posterior.history),
        "compile_seconds": sum(record["compile_seconds"] for record in posterior.history),
        "summary": {label: table[label] for label, _ in table.rows},
        "data_chi2": posterior.data_chi2(),
        "latent_chi2": posterior.latent_chi2(),
        "check": None if check is None else {"ok": check.ok, "text": str(check)},
        "files": [],
    }


def _write(out: Path, posterior: Posterior, result: dict[str, Any]) -> str:
    """Write all files; return the text for the terminal."""
    posterior.save(out / _POSTERIOR)
    files = [_POSTERIOR, *_write_arviz(out / _ARVIZ, posterior), _TEXT, _SUMMARY, _CHECKPOINT]
    result["files"] = files
    cost = f"{result['rounds']} rounds in {result['seconds']:.1f} s, {result['compile_seconds']:.1f} s compiling apart"
    text = f"{posterior.summary()}\n\n{posterior.report()}\n{cost}"
    (out / _TEXT).write_text(text + "\n")
    (out / _SUMMARY).write_text(console.to_json(result) + "\n")  # written last, as it marks the run as complete
    return text


def _write_arviz(path: Path, posterior: Posterior) -> list[str]:
    if importlib.util.find_spec("arviz") is None:
        console.say("no file for ArviZ, which is not installed: pip install 'mgvi[arviz]'")
        return []
    try:
        posterior.to_arviz().to_netcdf(str(path))
    except (ImportError, ValueError) as error:  # no netCDF library, or a site name that netCDF does not allow
        console.say(f"mgvi: warning: no file for ArviZ: {console.one_line(error)}")
        return []
    return [path.name]
