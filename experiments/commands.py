"""The commands `list` and `reproduce`.

The words of a command line come in; text or JSON on standard output and an experiment's folder of results go out.
It must not know what any experiment does.
"""

import argparse
import contextlib
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments import EXPERIMENTS, SIZES


def main(words: Sequence[str] | None = None, program: str = "python -m experiments") -> None:
    """Run the command that the words name, by default those of the process; wrong usage ends with exit status 2."""
    parser = argparse.ArgumentParser(program, description="The experiments of the paper.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the experiments that can be reproduced")
    listing.set_defaults(run=show_list)
    single = commands.add_parser("reproduce", help="run one experiment: tables and figures")
    single.set_defaults(run=reproduce)
    single.add_argument("name", metavar="NAME", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    single.add_argument("--size", choices=SIZES, default="small", help="small: about a minute; paper: as published")
    single.add_argument("--seed", type=int, default=1, help="same seed, same result")
    single.add_argument("--out", type=Path, metavar="DIR", help="folder of the results; out/NAME-SIZE by default")
    single.add_argument("--methods", metavar="M1,M2", help="some of the experiment's methods; all by default")
    single.add_argument("-q", "--quiet", action="store_true", help="no progress")
    for command in (listing, single):
        command.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else")
    request = parser.parse_args(words)
    request.run(request, single if request.run is reproduce else listing)


def show_list(request: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Print the names of all experiments with their methods and what they show."""
    rows = [_describe(name, module) for name, module in EXPERIMENTS.items()]
    if request.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['name']:16}{row['what']}")
        if row["methods"]:
            print(f"{'':16}methods: {', '.join(row['methods'])}")
    print(f"\nRun one with: {parser.prog.removesuffix('list')}reproduce NAME [--size paper]")


def reproduce(request: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Run one experiment and print its table; what it prints itself goes to standard error."""
    module = _load(EXPERIMENTS[request.name])
    methods = None if request.methods is None else [word.strip() for word in request.methods.split(",")]
    if not set(methods or ()) <= set(module.METHODS):
        parser.error(f"--methods: expected some of {', '.join(module.METHODS)}, found {request.methods!r}")
    out = request.out or Path("out") / f"{request.name}-{request.size}"
    if out.exists() and not out.is_dir():
        parser.error(f"--out {out} is a file; give a folder")
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(sys.stderr):
        results = module.run(size=request.size, seed=request.seed, out=out, methods=methods, progress=not request.quiet)
    print(json.dumps(results, indent=1) if request.json else (out / "table.md").read_text().rstrip())
    print(f"\nwritten to {out}: {', '.join(sorted(path.name for path in out.iterdir()))}", file=sys.stderr)


def _describe(name: str, module: str) -> dict[str, Any]:
    try:
        loaded = _load(module)
    except ImportError as error:
        return {"name": name, "methods": [], "what": str(error)}
    return {"name": name, "methods": list(loaded.METHODS), "what": (loaded.__doc__ or "").partition("\n")[0]}


def _load(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("mgvi", "experiments"):
            raise
        needs = f"{module} needs the package {package}, which is not installed: pip install {package}."
        raise ImportError(needs) from error
