"""Spike trains for neo and Elephant."""

import sys

import pytest
import torch
from loops import refused

import spikeforge
from test_parts import one_population


def recorded():
    """Returns a recording of steps 5 to 24, with given spikes, and the population."""
    made, a = one_population()
    spikes = torch.rand(20, 40, generator=torch.Generator().manual_seed(1)) < 0.2
    spikes[:, 7] = False
    made.step(5)
    return spikeforge.simulate(made, 20, inputs={a: spikes.double()}), a, spikes


def test_spike_trains_are_those_of_neo():
    neo, pq = pytest.importorskip("neo"), pytest.importorskip("quantities")
    recording, a, spikes = recorded()
    for dt, unit, step in ((0.1, "ms", 0.1), (0.5 * pq.ms, "ms", 0.5), (200 * pq.us, "us", 200.0), (pq.Quantity(1e-4, "s"), "s", 1e-4)):
        for part, chosen in ((a, range(40)), (a[[9, 7, 3]], [9, 7, 3])):
            trains = recording.spike_trains(part, dt)
            assert len(trains) == len(chosen) and all(type(train) is neo.SpikeTrain for train in trains)
            for i, (train, neuron) in enumerate(zip(trains, chosen)):
                assert train.units.dimensionality.string == unit and train.name == f"{part.name}[{i}]"
                expected = [(5 + t) * step for t in spikes[:, neuron].nonzero().flatten().tolist()]
                assert train.magnitude.tolist() == pytest.approx(expected, rel=1e-12) and len(trains[1]) == len(recording.of(part[1] if part is a else a[7])[0])
                assert float(train.t_start) == pytest.approx(5 * step) and float(train.t_stop) == pytest.approx(25 * step)
    for wrong in ("x", None, 1 * pq.mV, [1.0, 2.0] * pq.ms):
        refused(ValueError, "Recording.spike_trains: dt, .* must be a scalar time, but is", lambda: recording.spike_trains(a, wrong))
    refused(ValueError, "must be positive and finite, but is 0", lambda: recording.spike_trains(a, 0))


def test_elephant_takes_the_trains():
    statistics = pytest.importorskip("elephant.statistics")
    recording, a, spikes = recorded()
    rates = [float(statistics.mean_firing_rate(train).rescale("1/s")) for train in recording.spike_trains(a, 0.5)]
    assert rates == pytest.approx((spikes.sum(0) / 0.01).tolist())


def test_trains_need_neo(monkeypatch):
    recording, a, _ = recorded()
    monkeypatch.setitem(sys.modules, "neo", None)
    refused(ImportError, "Recording.spike_trains needs neo: pip install neo", lambda: recording.spike_trains(a, 0.1))
