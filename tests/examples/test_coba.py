"""Compares the COBA network with an independent simulation: a loop in plain torch, in float64."""

import math

import pytest
import torch
from example import load

pytestmark = pytest.mark.long

coba = load("coba", "network")
import spikeforge  # noqa: E402

MILLISECONDS = 120


def reference(connectivity, v, drive, steps):
    """Returns spikes per neuron and millisecond, from Euler steps of dV/dt and the exact decay of conductances."""
    n = connectivity.neurons
    excitatory = len(connectivity.excitatory)
    g_e, g_i = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    free_at = torch.zeros(n, dtype=torch.long)  # the first step after the refractory period
    fired = torch.zeros(0, dtype=torch.long)
    total = 0
    for step in range(steps):
        arriving_e, arriving_i = torch.zeros_like(g_e), torch.zeros_like(g_i)
        for source in fired.tolist():
            if source < excitatory:
                arriving_e += torch.bincount(connectivity.excitatory[source], minlength=n)
            else:
                arriving_i += torch.bincount(connectivity.inhibitory[source - excitatory], minlength=n)
        dv = ((-60 - v) + g_e * (0 - v) + g_i * (-80 - v) + drive) / 20
        free = step >= free_at
        v = torch.where(free, v + 0.1 * dv, v)
        crossed = free & (v >= -50)
        v = torch.where(crossed, -60.0, v)
        free_at = torch.where(crossed, step + 51, free_at)
        g_e = g_e * math.exp(-0.1 / 5) + 0.6 * arriving_e
        g_i = g_i * math.exp(-0.1 / 10) + 6.7 * arriving_i
        fired = crossed.nonzero().flatten()
        total += len(fired)
    return total


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_mean_rate_is_that_of_an_independent_simulation(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    connectivity = coba.random_connectivity(seed=3)
    voltage = coba.random_voltage(connectivity.neurons, seed=4)
    steps = round(MILLISECONDS / coba.DT)
    total = len(spikeforge.simulate(coba.build(connectivity, voltage, device=device)[0], steps).steps)
    expected = reference(connectivity, voltage, 20.0, steps)
    print(f"{total} spikes, {expected} expected: {total / connectivity.neurons / MILLISECONDS * 1000:.1f} Hz")
    assert expected > 10000 and total == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_larger_networks_have_a_rate_of_the_same_order(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    rates = []
    for scale in (1, 5) if device == "cpu" else (1, 10, 100):
        connectivity = coba.random_connectivity(scale)
        network, _ = coba.build(connectivity, coba.random_voltage(connectivity.neurons), device=device)
        rates.append(len(spikeforge.simulate(network, 1000).steps) / connectivity.neurons / (1000 * coba.DT) * 1000)
    print(rates)
    assert max(rates) < 1.2 * min(rates)
