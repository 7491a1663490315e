"""The example that trains in floating point and in Loihi's fixed point."""

import os
import re
import subprocess
import sys

import pytest
from example import ROOT, prepare_digits

pytestmark = pytest.mark.long


def run(*options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, str(ROOT / "examples/python/loihi_digits.py"), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)


def test_training_in_fixed_point_is_as_good_as_in_floating_point_and_loses_nothing_when_deployed(tmp_path):
    done = run("--data", prepare_digits(tmp_path), "--epochs", 8)
    assert done.returncode == 0, done.stderr
    floating, fixed = (float(number) for number in re.findall(r"([\d.]+)%", done.stdout))
    assert fixed > 90 and fixed > floating - 2, done.stdout
    assert "has the same spike counts" in done.stdout


def test_a_file_that_is_missing_is_one_line():
    done = run("--data", "nowhere.csv")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "cannot read nowhere.csv" in done.stderr
