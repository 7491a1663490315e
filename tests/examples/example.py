"""Modules, programs and data of the examples, for their tests."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SPIKEFORGE_BUILD_DIR", ROOT / "build/release"))
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(BUILD / "lib/libspikeforge.so"))


def load(example, name):
    """Registers the module under a unique name, because another example has a module of the same name."""
    spec = importlib.util.spec_from_file_location(f"{example}_{name}", ROOT / "examples" / example / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare_digits(folder):
    path = folder / "digits.csv"
    subprocess.run([sys.executable, ROOT / "scripts/prepare_digits.py", "--output", path], check=True, capture_output=True)
    return path


def deploy(*arguments, timeout=120, **environment):
    program = BUILD / "bin/deploy"
    if not program.exists():
        pytest.fail(f"{program} is not built: cmake --build --preset release --target deploy")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, timeout=timeout,
                          env=dict(os.environ, **environment), text=True, errors="replace")
