#!/usr/bin/env python3
"""Writes scikit-learn's 1,797 handwritten digits (8 x 8 pixels) as CSV: 64 pixels (0 to 16) and the label in a line."""

import argparse
import os
import pathlib
import sys

DEFAULT = pathlib.Path(__file__).resolve().parent.parent / "build/data/digits.csv"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=DEFAULT, help="default: build/data/digits.csv")
    path = parser.parse_args().output
    try:
        import numpy
        from sklearn.datasets import load_digits
    except ImportError as error:
        sys.exit(f"prepare_digits.py: {error} (scripts/setup installs it)")

    digits = load_digits()
    rows = numpy.column_stack([digits.data, digits.target]).astype(int)
    unfinished = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        numpy.savetxt(unfinished, rows, fmt="%d", delimiter=",")
        os.replace(unfinished, path)
    except OSError as error:
        print(f"prepare_digits.py: cannot write {path}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    print(f"{len(rows)} digits in {path}")


if __name__ == "__main__":
    main()
