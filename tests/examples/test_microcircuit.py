"""The cortical microcircuit: its program's output and plots, and its statistics compared with NumPy's and the paper's."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from example import ROOT, load

pytestmark = pytest.mark.long

FOLDER = ROOT / "examples/microcircuit"


def test_its_numbers_are_those_of_the_paper():
    network = load("microcircuit", "network")
    assert sum(network.NEURONS) == 77169
    assert network.WEIGHT == pytest.approx(87.8, abs=0.05)
    total = sum(network.connections(t, s) for t in range(8) for s in range(8))
    assert total == pytest.approx(3.0e8, rel=0.01)
    # The postsynaptic potential of a single spike has a maximum of 0.15 mV.
    x = torch.zeros(200, 1, dtype=torch.float64)
    x[0] = network.WEIGHT
    _, (v, *_) = torch.ops.spikeforge.run(network.NEURON, [x], [], [torch.zeros(()).double()], store_states=True)
    assert v.max().item() == pytest.approx(0.15, rel=2e-3)


def test_statistics_are_those_of_plain_loops():
    activity = load("microcircuit", "activity")
    generator = np.random.default_rng(5)
    fired = generator.random((4000, 30)) < 0.02
    fired[:, 7] = fired[:, 8]  # two neurons with the same spikes
    fired[:, 3] = False
    steps, neurons = (torch.as_tensor(t) for t in fired.nonzero())
    assert np.allclose(activity.rates(neurons, 30, 400.0), fired.sum(0) / 0.4)
    expected = [np.diff(t).std() / np.diff(t).mean() for t in (fired[:, n].nonzero()[0] for n in range(30)) if len(t) > 2]
    assert np.allclose(np.sort(activity.irregularity(steps, neurons, 30)), np.sort(expected))
    counts = fired[:, [n for n in range(30) if n != 3]].reshape(200, 20, 29).sum(1)
    matrix = np.corrcoef(counts.T)
    assert np.allclose(activity.correlations(steps + 100, neurons, 30, 100, 4100, 0.1), matrix[np.triu_indices(29, 1)])
    assert activity.correlations(steps, neurons, 30, 0, 4000, 0.1).max() == pytest.approx(1)


# NEST 3.10, a tenth of the circuit with the same parameters, 1 s, one seed: rates, and irregularity of the L4E neurons.
RATES_OF_NEST = [0.543, 2.154, 3.996, 5.018, 6.528, 7.877, 0.831, 7.102]
IRREGULARITY_OF_NEST = 0.576


def run_a_tenth(folder, *options):
    command = [sys.executable, FOLDER / "run.py", "--scale", "0.1", "--warm-up", "200", "--half", *options]
    command += ["--plot", folder / "picture.png", "--json", folder / "figures.json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "7717 neurons" in printed and "real-time factor" in printed and "L23E" in printed
    assert (folder / "picture.png").stat().st_size > 20_000
    return json.loads((folder / "figures.json").read_text())["populations"]


def test_a_tenth_of_the_circuit_fires_as_in_nest(tmp_path):
    populations = run_a_tenth(tmp_path, "--milliseconds", "1000")
    for (name, of), rate in zip(populations.items(), RATES_OF_NEST):
        assert abs(of["rates"] - rate) < 0.1 * rate + 0.1, (name, of, rate)
    assert abs(populations["L4E"]["irregularity"] - IRREGULARITY_OF_NEST) < 0.08
