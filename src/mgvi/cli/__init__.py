"""The command `mgvi`.

Command-line arguments come in; text or JSON, files and an exit status go out.
It must not know any algorithm: it uses the functions that a Python user has.
"""

import sys


def main() -> None:
    """Run the command line and end the process.

    Examples
    --------
    >>> import sys
    >>> from mgvi.cli import main
    >>> sys.argv = ["mgvi", "--version"]
    >>> try:
    ...     main()
    ... except SystemExit as end:
    ...     print("exit", end.code)
    mgvi ...
    exit 0
    """
    try:
        from mgvi.cli.app import app
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        print("mgvi: the command line needs the packages typer and rich: pip install 'mgvi[cli]'.", file=sys.stderr)
        sys.exit(1)
    app(prog_name="mgvi")
