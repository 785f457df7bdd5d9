"""`python -m mgvi` is the command `mgvi`.

Command-line arguments come in and go to `mgvi.cli.main`.
Nothing here knows what they mean.
"""

from mgvi.cli import main

if __name__ == "__main__":
    main()
