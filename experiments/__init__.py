"""The paper's experiments, one module each.

A size and a seed come in; tables, figures and the data that were drawn go out, to a folder.
Only public names of `mgvi` are used.

Every module has `METHODS`, the names of the methods that it can compare, and

    run(*, size="small", seed=1, out, methods=None, progress=True) -> dict

which returns what it writes to `results.json`. `python -m experiments reproduce NAME` runs one, and so
does `mgvi reproduce NAME` in a clone.
"""

EXPERIMENTS = {
    "poisson": "experiments.poisson",
    "classification": "experiments.classification",
    "metaparameters": "experiments.metaparameters",
    "faces": "experiments.faces",
    "election": "experiments.election",
    "election-full": "experiments.election_full",
}
SIZES = ("small", "paper")
