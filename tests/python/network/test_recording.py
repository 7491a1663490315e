"""States of every k-th step, compared with a dense loop in float64 and with the recording of every step."""

import pytest
import torch
from loops import refused

import spikeforge
from ranks import on_ranks
from spikeforge import _running
from test_simulation import dense_loop, listed, network


@pytest.mark.parametrize("rows", [1, 7, 10**6])  # most steps of a piece
def test_states_of_every_kth_step_are_rows_of_the_whole(device, rows, monkeypatch):
    made, (a, _, c) = network(device, drive=False)
    whole = spikeforge.simulate(made, 150, states=[(a, "v", range(60)), (c, "v", [14, 0])])
    assert whole.state_steps == range(150)
    _, voltages = dense_loop(network(drive=False)[0], 150)
    monkeypatch.setattr(_running, "BYTES_OF_STATES", rows * 62 * 8)
    for every in (1, 2, 7, 50, 100, 151):
        other, (a, _, c) = network(device, drive=False)
        first, second = (spikeforge.simulate(other, steps, states=[(a, "v", range(60)), (c, "v", [14, 0])], every=every) for steps in (101, 49))
        assert list(first.state_steps) == [k - 1 for k in range(every, 102, every)]
        assert list(second.state_steps) == [101 + k - 1 for k in range(every, 50, every)]
        for recording in (first, second):
            chosen = torch.tensor(list(recording.state_steps), dtype=torch.long)
            for found, kept, expected in zip(recording.states, whole.states, (voltages[:, :60], voltages[:, [99, 85]])):
                assert torch.equal(found, kept[chosen.to(device)])
                torch.testing.assert_close(found.cpu(), expected[chosen], rtol=0, atol=1e-12)
        assert listed(first) + listed(second) == listed(whole)


def records_every_third_step(rank):
    group = torch.distributed.group.WORLD
    made = spikeforge.Network(seed=1, dtype=torch.float64, group=group)
    p = made.populate("p", 10, "neuron n(x; v) { s = spike(v - 1e9, none); return s; v' = v + x }")
    made.inject(p, torch.arange(10.0))
    states = spikeforge.simulate(made, 1004, states=[(p, "v", [9, 2])], every=3)
    with pytest.raises(RuntimeError, match="all ranks must make the same calls"):
        spikeforge.simulate(made, 100, states=[(p, "v", [9, 2])], every=1 + rank)
    return states.states[0]


def test_processes_of_a_group_record_the_same_steps():
    steps = torch.arange(3, 1005, 3).double()
    for states in on_ranks(2, records_every_third_step):
        assert torch.equal(states, torch.stack([9 * steps, 2 * steps], 1))


def test_a_distance_of_recorded_steps_is_a_whole_number_of_at_least_one():
    made, _ = network()
    for every in (0, -3):
        refused(ValueError, f"simulate: every must be at least 1, but is {every}", lambda: spikeforge.simulate(made, 10, every=every))
    refused(TypeError, "simulate: every must be a whole number, but is 1.5", lambda: spikeforge.simulate(made, 10, every=1.5))
