"""The example of classes that differ in timing only: its data set, and which networks can classify it."""

import os
import re
import subprocess
import sys

import pytest
import torch
from example import ROOT, load

FOLDER = ROOT / "examples/timing"


def run(*options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "MPLBACKEND": "Agg"}
    command = [sys.executable, str(FOLDER / "run.py"), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=environment)
    assert done.returncode == 0, done.stderr
    return {name.strip(): float(value) for name, value in re.findall(r"^(\S.*?) {2,}([\d.]+)% +\d+ +\d+$", done.stdout, re.M)}


def test_nothing_but_timing_tells_the_classes_apart():
    data = load("timing", "data")
    samples, few = data.samples(200, seed=5), data.samples(20, seed=5)
    assert torch.equal(few.spikes, data.samples(20, seed=5).spikes)
    assert not torch.equal(few.spikes, data.samples(20, seed=6).spikes)
    assert samples.spikes.shape == (200, 250, 700)
    assert samples.lengths.min() >= 100 and samples.lengths.max() <= 250
    assert samples.labels.bincount().tolist() == [10] * 20
    orders = data.orders(0)
    assert len({tuple(order) for order in orders.tolist()}) == 20 and (orders.sort(1).values == torch.arange(10)).all()

    # The rates of channels vary between classes only as those of random spikes do.
    spikes, groups = samples.spikes.float(), data.CHANNELS // data.GROUPS
    steps = samples.lengths.double()
    counts = torch.stack([spikes[samples.labels == k].sum((0, 1)) for k in range(20)]).double()
    expected = torch.stack([steps[samples.labels == k].sum() for k in range(20)])[:, None] * counts.sum(0) / steps.sum()
    deviations = (counts - expected) / expected.sqrt()
    assert deviations.square().mean() < 1.2  # 1 for a Poisson process, less for regular volleys
    # Mean counts are the same in each step of the period: a linear readout of firing times has no information.
    volleys = spikes[:, :100].unflatten(2, (-1, groups)).sum(3)
    early = torch.stack([volleys[samples.labels == k].mean(0) for k in range(20)])
    assert (early.mean(1) - early.mean((0, 1))).abs().max() < 0.1 * early.mean()
    # The lag between two groups depends on the class.
    sample = int((samples.labels == 3).nonzero()[0])
    turn = orders[3]
    second = int((turn == (turn[0] + 1) % data.GROUPS).nonzero()[0])
    correlation = lambda lag: (volleys[sample, : 100 - lag, 0] * volleys[sample, lag:, second]).sum()
    assert max(range(50), key=correlation) in range(data.GAP - 2, data.GAP + 3)


def test_it_runs_and_draws(tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--training", 40, "--test", 20, "--width", 8, "--epochs", 1, "--online-epochs", 1, "--online-training", 4)
    found = run(*options, "--picture", tmp_path / "timing.png")
    assert len(found) >= 4 and all(0 <= value <= 100 for value in found.values())
    assert (tmp_path / "timing.png").stat().st_size > 10_000


@pytest.mark.long
def test_delays_distinguish_classes_that_no_leak_does(tmp_path):
    pytest.importorskip("matplotlib")
    found = run("--networks", "no delays", "no delays, slow", "learned delays", "--picture", tmp_path / "timing.png")
    assert found["learned delays"] >= 95
    assert found["no delays"] <= 80 and found["no delays, slow"] <= 80
