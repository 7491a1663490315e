"""Imports spikeforge for the benchmarks: the package that is installed, else that of this clone."""

import os
import pathlib
import sys

try:
    import spikeforge  # noqa: F401
except ModuleNotFoundError:
    root = pathlib.Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root / "python"))
    os.environ.setdefault("SPIKEFORGE_LIBRARY", str(root / "build/release/lib/libspikeforge.so"))
    import spikeforge  # noqa: F401
