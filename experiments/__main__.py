"""`python -m experiments list` and `python -m experiments reproduce NAME`, from the root of a clone."""

import sys

from experiments.commands import main
from mgvi import FileError

if __name__ == "__main__":
    try:
        main()
    except (FileError, ImportError) as error:  # data or a package that are not there: the message says what to do
        sys.exit(f"python -m experiments: error: {error}")
