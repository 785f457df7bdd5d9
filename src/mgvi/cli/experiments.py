"""The experiments of the paper, which live outside the package.

A name and options come in; the experiment is found, run, and its table shown.
It must not know what any experiment does.
"""

import difflib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mgvi
from mgvi.cli import console
from mgvi.cli.console import CommandError, usage

SIZES = ("small", "paper")


def show_list(*, as_json: bool) -> None:
    """Print the names of all experiments with what they show."""
    registry = _registry()
    rows = [_describe(name, module) for name, module in registry.items()]
    if as_json:
        console.print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for row in rows:
        table.add_row(row["name"], row["what"])
        if row["methods"]:
            table.add_row("", f"[dim]methods: {', '.join(row['methods'])}[/dim]")
    Console(highlight=False).print(table)
    print("\nRun one with: mgvi reproduce NAME [--size paper]")


def reproduce(
    name: str,
    *,
    size: str,
    seed: int,
    out: Path | None,
    methods: str | None,
    progress: bool,
    as_json: bool,
) -> None:
    """Run one experiment and show its table."""
    registry = _registry()
    if name not in registry:
        raise usage(f"there is no experiment {name!r}{_close(name, registry)}; there are {', '.join(registry)}.")
    if size not in SIZES:
        raise usage(f"--size must be small or paper, found {size!r}.")
    module = _load(registry[name])
    chosen = _chosen(name, module, methods)
    out = Path("out") / f"{name}-{size}" if out is None else out
    if out.exists() and not out.is_dir():
        raise usage(f"--out {out} is a file; give a folder.")
    out.mkdir(parents=True, exist_ok=True)
    with console.only_results_on_stdout():
        results = module.run(size=size, seed=seed, out=out, methods=chosen, progress=progress)
    if as_json:
        console.print_json(results)
        return
    table = out / "table.md"
    if table.is_file():
        print(table.read_text().rstrip())
    console.say(f"\nwritten to {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")


def _registry() -> dict[str, str]:
    """Names and modules of the experiments of the nearest folder that has any."""
    folders = (Path.cwd(), Path(mgvi.__file__).resolve().parents[2])
    for folder in folders:
        if not (folder / "experiments" / "__init__.py").is_file():
            continue
        package = _import_from(folder)
        if isinstance(getattr(package, "EXPERIMENTS", None), dict):
            return package.EXPERIMENTS
    raise CommandError(
        "the experiments are not here: they are not part of the installed package. Clone the repository, and run this "
        "command in its folder, which has a folder named experiments."
    )


def _import_from(folder: Path) -> ModuleType:
    """The package `experiments` of a folder, also if one of another folder was imported before."""
    known = sys.modules.get("experiments")
    if known is not None and Path(known.__file__ or "").parent != folder / "experiments":
        for name in [n for n in sys.modules if n.partition(".")[0] == "experiments"]:
            del sys.modules[name]
    if sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return _load("experiments")


def _load(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "mgvi", "experiments"):
            raise CommandError(f"{module} cannot be imported: {console.one_line(error)}.") from error
        raise CommandError(f"{module} needs the package {name}, which is not installed: pip install {name}.") from error


def _describe(name: str, module: str) -> dict[str, Any]:
    try:
        loaded = _load(module)
    except CommandError as error:
        return {"name": name, "methods": [], "what": str(error)}
    return {"name": name, "methods": list(loaded.METHODS), "what": (loaded.__doc__ or "").strip().partition("\n")[0]}


def _chosen(name: str, module: ModuleType, methods: str | None) -> tuple[str, ...] | None:
    if methods is None:
        return None
    chosen = tuple(word.strip() for word in methods.split(",") if word.strip())
    unknown = [word for word in chosen if word not in module.METHODS]
    if unknown or not chosen:
        found = ", ".join(unknown) or "nothing"
        raise usage(f"--methods of {name}: expected some of {', '.join(module.METHODS)}, found {found}.")
    return chosen


def _close(name: str, known) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
