"""Finds the library that belongs to the torch imported, and loads its operators."""

import os
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


def path() -> Path:
    """The library: SPIKEFORGE_LIBRARY, else the one this package holds, else that of a build in the source tree."""
    named = os.environ.get("SPIKEFORGE_LIBRARY")
    candidates = [Path(named)] if named else [HERE / "lib" / "libspikeforge.so", HERE.parents[1] / "build/release/lib/libspikeforge.so"]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise ImportError(f"spikeforge has no library: looked for {', '.join(map(str, candidates))}")


def load() -> None:
    """Loads the operators, unless a library of this process has them already."""
    if not hasattr(torch.ops.spikeforge, "lif"):
        torch.ops.load_library(str(path()))
