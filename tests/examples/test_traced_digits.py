"""A network of neurons written as text trains, is saved, and runs in a C++ program that reads only the file."""

import re
import subprocess
import sys

import pytest
from example import ROOT, deploy, prepare_digits

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a network trained for 3 epochs, and its accuracy in Python."""
    folder = tmp_path_factory.mktemp("traced_digits")
    data = prepare_digits(folder)
    command = [sys.executable, ROOT / "examples/traced_digits/train.py", "--epochs", "3", "--data", data, "--output", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder, re.search(r"^accuracy ([\d.]+)%", done.stdout, re.MULTILINE)[1]


def test_three_epochs_reach_80_percent(trained):
    assert float(trained[1]) > 80


def test_the_saved_network_is_as_accurate_in_cpp(trained):
    folder, accuracy = trained
    result = deploy(folder / "network.pt", folder / "held_out.csv", "--classes-last", "--batch", "64", timeout=300)
    assert re.search(rf"^accuracy +{accuracy}% of 359$", result.stdout, re.MULTILINE), result.stdout + result.stderr


def test_the_saved_network_holds_the_neurons_text(trained):
    assert b"neuron tiring(x; v, tired; leak, strength)" in (trained[0] / "network.pt").read_bytes()
