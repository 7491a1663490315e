"""The cortical microcircuit: what its program prints and draws, its statistics beside numpy's, its numbers beside the paper's."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/microcircuit"
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]


def load(name):
    """Another example has a module of the same name."""
    os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
    spec = importlib.util.spec_from_file_location(f"microcircuit_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_numbers_are_those_of_the_paper():
    network = load("network")
    assert sum(network.NEURONS) == 77169
    assert network.WEIGHT == pytest.approx(87.8, abs=0.05)
    total = sum(network.connections(t, s) for t in range(8) for s in range(8))
    assert total == pytest.approx(3.0e8, rel=0.01)
    # A potential of a single spike, step by step, peaks at 0.15 mV.
    x = torch.zeros(200, 1, dtype=torch.float64)
    x[0] = network.WEIGHT
    _, (v, *_) = torch.ops.spikeforge.run(network.NEURON, [x], [], [torch.zeros(()).double()], store_states=True)
    assert v.max().item() == pytest.approx(0.15, rel=2e-3)


def test_statistics_are_those_of_plain_loops():
    activity = load("activity")
    generator = np.random.default_rng(5)
    fired = generator.random((4000, 30)) < 0.02
    fired[:, 7] = fired[:, 8]  # the same spikes
    fired[:, 3] = False
    steps, neurons = (torch.as_tensor(t) for t in fired.nonzero())
    assert np.allclose(activity.rates(neurons, 30, 400.0), fired.sum(0) / 0.4)
    expected = [np.diff(t).std() / np.diff(t).mean() for t in (fired[:, n].nonzero()[0] for n in range(30)) if len(t) > 2]
    assert np.allclose(np.sort(activity.irregularity(steps, neurons, 30)), np.sort(expected))
    counts = fired[:, [n for n in range(30) if n != 3]].reshape(200, 20, 29).sum(1)
    matrix = np.corrcoef(counts.T)
    assert np.allclose(activity.correlations(steps + 100, neurons, 30, 100, 4100, 0.1), matrix[np.triu_indices(29, 1)])
    assert activity.correlations(steps, neurons, 30, 0, 4000, 0.1).max() == pytest.approx(1)


@pytest.mark.parametrize("drive", ["poisson", "dc"])
def test_a_tenth_of_the_circuit_has_rates_of_the_published_order(tmp_path, drive):
    command = [sys.executable, FOLDER / "run.py", "--scale", "0.1", "--milliseconds", "300", "--warm-up", "200", "--drive", drive, "--half"]
    command += ["--plot", tmp_path / "picture.png", "--json", tmp_path / "figures.json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "7717 neurons" in printed and "real-time factor" in printed and "L23E" in printed
    assert (tmp_path / "picture.png").stat().st_size > 20_000
    figures = json.loads((tmp_path / "figures.json").read_text())
    network = load("network")
    for (name, of), published in zip(figures["populations"].items(), network.RATES):
        assert 0.4 * published - 0.3 < of["rates"] < 2.0 * published + 0.5, (name, of, published)
    assert 0.5 < figures["populations"]["L4E"]["irregularity"] < 1.1
