"""`python -m mgvi` is the command `mgvi`.

Words from a terminal come in; see `mgvi.cli`.
Nothing here knows what they mean.
"""

from mgvi.cli import main

if __name__ == "__main__":
    main()
