"""Modules of the examples, for their tests."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))


def load(example, name):
    """Registers the module under a unique name, because another example has a module of the same name."""
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", ROOT / "examples" / example / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
