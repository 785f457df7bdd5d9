"""The commands and their options.

Command-line arguments come in; calls of the functions that do the work go out, and each error as one line.
It must not know how any command works.
"""

import importlib
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mgvi._version import __version__
from mgvi.cli import console, demo, fitting, info
from mgvi.cli.console import CommandError, Exit
from mgvi.errors import FileError, FitError, ModelError

_INTERRUPTED = 130  # exit status of shells and typer after Ctrl-C
_SOURCE = Path(__file__).resolve().parents[3]  # the clone, if this is an editable install


class _Group(TyperGroup):
    """Commands whose errors end the process with one line on standard error and an exit status."""

    def main(self, args=None, prog_name=None, complete_var=None, standalone_mode=True, **extra) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            with console.short_warnings():
                code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as error:
            if "--traceback" in words:
                traceback.print_exc()
            code = _report(error)
        if code == _INTERRUPTED:
            console.say("mgvi: interrupted.")
        sys.exit(code if isinstance(code, int) else Exit.FINE)


def _report(error: Exception) -> int:
    """Print an error as one line and return the exit status for it."""
    if isinstance(error, CommandError):
        message, code = str(error), error.code
    elif hasattr(error, "format_message"):  # a usage error of typer or of the click it builds on
        command = getattr(getattr(error, "ctx", None), "command_path", "mgvi")
        message = f"{error.format_message()} See {command} --help."  # pyright: ignore[reportAttributeAccessIssue]
        code = getattr(error, "exit_code", Exit.USAGE)
    elif isinstance(error, ModelError | FitError | FileError | ValueError | OSError | ImportError):
        message, code = str(error), Exit.FAILED
    elif type(error).__name__ == "Abort":
        message, code = "interrupted.", Exit.FAILED
    else:
        message, code = f"{type(error).__name__}: {error}. mgvi --traceback ... shows where.", Exit.FAILED
    console.say(f"mgvi: error: {console.one_line(message)}")
    return int(code)


app = typer.Typer(
    name="mgvi",
    cls=_Group,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")]
_Seed = Annotated[int, typer.Option(help="Same seed, same result.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error came from.")
    ] = False,
):
    """Metric Gaussian Variational Inference: posteriors of NumPyro models, with full correlations.

    New here? mgvi demo fits a small model in a few seconds and shows how to fit your own.

    Exit status: 0 fine, 1 the work failed, 2 wrong usage, 3 a fit ended before it converged.
    """
    if version:
        print(f"mgvi {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command("demo")
def _demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's model, data and result.")] = Path("mgvi-demo"),
    seed: _Seed = 1,
    as_json: _Json = False,
):
    """Fit a small model to simulated counts, and leave its model and data as files to start from."""
    raise typer.Exit(demo.demo(out, seed=seed, as_json=as_json))


@app.command("fit")
def _fit(
    model: Annotated[str, typer.Argument(metavar="MODEL.py:FUNCTION", help="A NumPyro model in a Python file.")],
    out: Annotated[Path, typer.Option(help="Folder for the result; made if needed.")],
    data: Annotated[
        Path | None, typer.Option(help="A .npz file; its arrays are the model's arguments of the same names.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="One more argument of the model: a number, true, false, text."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from OUT/checkpoint, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew and replace what is in OUT.")] = False,
    seed: _Seed = 1,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples in the result.")] = None,
    max_rounds: Annotated[int, typer.Option(min=1, help="End after so many rounds.")] = 60,
    time_limit: Annotated[float | None, typer.Option(min=0, help="End after so many seconds.")] = None,
    x64: Annotated[bool, typer.Option("--x64", help="Compute in double precision.")] = False,
    quiet: _Quiet = False,
    as_json: _Json = False,
):
    """Fit your own NumPyro model to your own data.

    OUT gets summary.txt and summary.json, the posterior (mgvi.load reads it), posterior.nc for ArviZ if that is
    installed, and a checkpoint after every round.
    """
    request = fitting.Request(
        model=model,
        data=data,
        settings=setting or [],
        out=out,
        resume=resume,
        overwrite=overwrite,
        options={
            "seed": seed,
            "samples": samples,
            "max_rounds": max_rounds,
            "time_limit": float("inf") if time_limit is None else time_limit,
            "progress": not quiet,
        },
        x64=x64,
    )
    raise typer.Exit(fitting.run(request, as_json=as_json))


def _forward(context: typer.Context):
    """Pass all words on to the package `experiments` of a clone, which has these commands and is not in the wheel."""
    for folder in (Path.cwd(), _SOURCE):
        if (folder / "experiments" / "commands.py").is_file():
            sys.path.insert(0, str(folder))
            commands = importlib.import_module("experiments.commands")
            return commands.main([context.info_name, *context.args], program="mgvi")
    raise CommandError(
        "the experiments are not here: they are not part of the installed package. Clone the repository, and run this "
        "command in its folder, which has a folder named experiments."
    )


for _name, _help in (
    ("list", "List the experiments of the paper, in a clone of the repository."),
    ("reproduce", "Run one experiment of the paper, in a clone of the repository: tables and figures."),
):
    _any_words = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(_name, help=_help, context_settings=_any_words)(_forward)


@app.command("info")
def _info(as_json: _Json = False):
    """Show versions, devices and the compilation cache."""
    info.show(as_json=as_json)
