"""Run one experiment: `python -m experiments NAME [--size small|paper] [--seed 1] [--out DIR] [--methods A B]`."""

import argparse
import importlib
from pathlib import Path

from experiments import EXPERIMENTS, SIZES


def main() -> None:
    parser = argparse.ArgumentParser("python -m experiments")
    parser.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the results; by default out/NAME-SIZE")
    parser.add_argument("--methods", nargs="+", help="only these; by default all of the experiment's")
    parser.add_argument("--quiet", action="store_true", help="no lines of progress")
    chosen = parser.parse_args()
    out = chosen.out or Path("out") / f"{chosen.name}-{chosen.size}"
    module = importlib.import_module(EXPERIMENTS[chosen.name])
    module.run(size=chosen.size, seed=chosen.seed, out=out, methods=chosen.methods, progress=not chosen.quiet)
    print((out / "table.md").read_text())
    print(f"results: {out}")


if __name__ == "__main__":
    main()
