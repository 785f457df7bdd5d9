"""Run one measurement and print its table: `python -m benchmarks NAME [--json FILE]`."""

import argparse
import importlib
import json
from pathlib import Path

NAMES = {
    "reference": "means and sds of everyday models against long runs (a few minutes)",
    "solver": "what preconditioner and coupling bring to the draws (a minute)",
    "spectrum": "whether bands of learned spectra hold the truth, over 20 data sets (minutes)",
    "product": "one metric product of a field against its floor, an FFT pair (minutes)",
    "scaling": "fits of a binary field with learned spectrum, 128^2 to 2048^2 (for a GPU; long on a CPU)",
    "memory": "peak memory of a 1024^2 fit in arrays of the latent's size (a minute, on a GPU)",
    "peers": "fits against NIFTy, mean-field SVI and NUTS on the same data (half an hour; `--problems 128` for one)",
    "cache": "first posteriors in fresh processes with and without compiled programs on disk (a few minutes)",
    "cold": "seconds from nothing to a summary, in fresh processes, against NUTS (a few minutes)",
}


def text(value) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    listed = "\n".join(f"  {name:10}{line}" for name, line in NAMES.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks", epilog=f"names:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=NAMES, metavar="NAME", help="what to measure; without it, a list")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument(
        "--problems", nargs="+", metavar="NAME", help="for peers and cache: poisson, logistic, 128, 512, ..."
    )
    chosen = parser.parse_args()
    if chosen.name is None:
        print(listed)
        return
    rows = []
    # A benchmark yields dicts with the same keys, its columns; each is printed as soon as it is there.
    options = {} if chosen.problems is None else {"problems": chosen.problems}
    for row in importlib.import_module(f"benchmarks.{chosen.name}").run(**options):
        if not rows:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(map(text, row.values()))} |", flush=True)
        rows.append(row)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
