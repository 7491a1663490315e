"""Recordings: states of every k-th step, compared with a dense loop in float64, and files in the SONATA format, read by
h5py and compared with recordings in memory."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from loops import refused

import spikeforge
from ranks import limited_memory, on_ranks
from spikeforge import _running, _sonata
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


def states_of(a, c):
    return [(a, "v", range(60)), (c, "v", [14, 0]), (a, "wait", [3, 4])]


def read_back(folder, populations, whole, dt, every=1, steps=range(150)):
    """Compares files with a recording in memory of the steps from 0 on, as far as the files have its steps."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "spikes.h5") as file:
        assert list(file["spikes"]) == [p.name for p in populations]
        for p in populations:
            group = file["spikes"][p.name]
            assert h5py.check_enum_dtype(group.attrs.get_id("sorting").dtype) == {"none": 0, "by_id": 1, "by_time": 2} and group.attrs["sorting"] == 2
            times, neurons = group["timestamps"], group["node_ids"]
            assert (times.dtype, neurons.dtype, times.attrs["units"]) == (np.float64, np.uint64, "ms")
            expected = [t.cpu().numpy() for t in whole.of(p)]
            chosen = (expected[0] >= steps.start) & (expected[0] < steps.stop)
            assert np.array_equal(times, expected[0][chosen] * dt) and np.array_equal(neurons, expected[1][chosen])
    a, _, c = populations
    for (p, state, ids), rows in zip(states_of(a, c), whole.states):
        with h5py.File(folder / f"{state}_report.h5") as file:
            report, ids = file["report"][p.name], list(ids)
            mapping, chosen = report["mapping"], range(steps.start + every - 1, steps.stop, every)
            assert list(mapping["node_ids"]) == ids and mapping["node_ids"].attrs["sorted"] == (ids == sorted(ids))
            assert list(mapping["index_pointers"]) == list(range(len(ids) + 1)) and list(mapping["element_ids"]) == [0] * len(ids)
            start, stop, step = mapping["time"]
            assert (start, step) == pytest.approx((chosen.start * dt, every * dt)) and stop == pytest.approx((chosen.start + len(chosen) * every) * dt)
            assert mapping["time"].attrs["units"] == "ms" and report["data"].dtype == np.float32
            assert np.array_equal(report["data"], rows.cpu().numpy()[list(chosen)].astype(np.float32))


@pytest.mark.parametrize("rows", [7, 10**6])  # most steps of a piece
def test_files_have_the_spikes_and_states_of_a_recording(device, rows, monkeypatch, tmp_path):
    pytest.importorskip("h5py")
    made, populations = network(device)
    whole = spikeforge.simulate(made, 150, states=states_of(populations[0], populations[2]))
    monkeypatch.setattr(_running, "BYTES_OF_STATES", rows * 64 * 8)
    other, (a, b, c) = network(device)
    files = ["spikes.h5", "v_report.h5", "wait_report.h5"]
    for steps, dt, every in ((range(101), 0.1, 1), (range(101, 150), 0.5, 3)):  # the second call replaces the files
        recording = spikeforge.simulate(other, len(steps), states=states_of(a, c), every=every, output_dir=tmp_path / "out", dt=dt)
        read_back(tmp_path / "out", populations, whole, dt, every, steps)
        assert recording.files == tuple(tmp_path / "out" / name for name in files) and recording.span == steps
        assert len(recording.steps) == len(recording.neurons) == sum(map(len, recording.states)) == 0
        refused(ValueError, "Recording: spikes and states of this call are in .*spikes.h5, ", lambda: recording.of(a))
    spikeforge.simulate(other, 0, spikes=False, output_dir=tmp_path / "none", dt=0.1)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["none", "out", *files]


@pytest.mark.parametrize("dt", ["100 us", "0.1 ms"])
def test_a_step_of_files_is_a_time(dt, tmp_path):
    h5py, pq = pytest.importorskip("h5py"), pytest.importorskip("quantities")
    made, (a, _, _) = network()
    number, unit = dt.split()
    spikeforge.simulate(made, 20, output_dir=str(tmp_path), dt=pq.Quantity(float(number), unit))
    expected = spikeforge.simulate(network()[0], 20).of(a)[0].numpy()
    with h5py.File(tmp_path / "spikes.h5") as file:
        assert len(expected) > 10 and file["spikes/a/timestamps"][:] == pytest.approx(expected * 0.1)


def test_files_of_an_interrupted_run_have_the_complete_pieces(monkeypatch, tmp_path):
    """An interrupt in the middle of the third piece: the files have the same steps as two pieces of 7 steps."""
    pytest.importorskip("h5py")
    made, populations = network()
    whole = spikeforge.simulate(made, 150, states=states_of(populations[0], populations[2]))
    monkeypatch.setattr(_running, "BYTES_OF_STATES", 7 * 64 * 8)
    appended, append = [], _sonata._append

    def interrupted(dataset, rows):
        appended.append(dataset)
        if len(appended) == 2 * 9 + 6:  # in the third piece, before the neurons of the last population
            raise KeyboardInterrupt
        append(dataset, rows)

    monkeypatch.setattr(_sonata, "_append", interrupted)
    other, (a, _, c) = network()
    with pytest.raises(KeyboardInterrupt):
        spikeforge.simulate(other, 150, states=states_of(a, c), output_dir=tmp_path, dt=0.1)
    read_back(tmp_path, populations, whole, 0.1, steps=range(14))
    assert other.state_dict()["tensors"][1].item() == 21


KILLED = """
import os, sys
import spikeforge
from spikeforge import _running, _sonata
from test_recording import states_of
from test_simulation import network
_running.BYTES_OF_STATES = 7 * 64 * 8
write = _sonata.SonataWriter.write
def killed(self, *piece, pieces=[]):
    pieces.append(piece)
    if len(pieces) == 4:
        os.kill(os.getpid(), 9)
    write(self, *piece)
_sonata.SonataWriter.write = killed
made, (a, _, c) = network()
spikeforge.simulate(made, 150, states=states_of(a, c), output_dir=sys.argv[1], dt=0.1)
"""


def test_files_of_a_killed_process_have_the_complete_pieces(tmp_path):
    pytest.importorskip("h5py")
    path = f"import sys; sys.path[:] = {sys.path!r}\n"
    assert subprocess.run([sys.executable, "-c", path + KILLED, tmp_path]).returncode == -signal.SIGKILL
    made, populations = network()
    whole = spikeforge.simulate(made, 150, states=states_of(populations[0], populations[2]))
    read_back(tmp_path, populations, whole, 0.1, steps=range(21))


def test_memory_of_a_run_with_files_is_bounded(tmp_path):
    """States of 400 MB, in a process that may use 250 MB more than after the first steps."""
    pytest.importorskip("h5py")
    (failed,) = on_ranks(1, writes_many_states, str(tmp_path))
    assert "memory" in failed and (tmp_path / "v_report.h5").stat().st_size > 400e6


def writes_many_states(rank, folder):
    made = spikeforge.Network(seed=1)
    p = made.populate("p", 20000, "neuron n(x; v) { s = spike(v - 1e9, none); return s; v' = v + x }")
    probes = [(p, "v", range(20000))]
    spikeforge.simulate(made, 2000, states=probes, output_dir=folder, dt=0.1)
    with limited_memory(250 << 20):
        spikeforge.simulate(made, 5000, states=probes, output_dir=folder, dt=0.1)
        with pytest.raises(RuntimeError) as failed:
            spikeforge.simulate(made, 5000, states=probes)
    return str(failed.value)


def grouped(rank):
    made = spikeforge.Network(group=torch.distributed.group.WORLD)
    try:
        spikeforge.simulate(made, 1, output_dir="out", dt=0.1)
    except NotImplementedError as error:
        return str(error)


def test_wrong_files_are_refused_before_the_first_step(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    made, (a, _, _) = network()
    save = lambda **options: spikeforge.simulate(made, 5, **{"output_dir": tmp_path / "out", "dt": 0.1, **options})
    refused(ValueError, "simulate: output_dir needs dt, the duration of a step, and dt needs output_dir", lambda: save(dt=None))
    refused(ValueError, "and dt needs output_dir", lambda: save(output_dir=None))
    refused(ValueError, "simulate: dt, a time or a number of milliseconds, must be positive and finite, but is -1", lambda: save(dt=-1))
    refused(ValueError, "simulate: dt, .* must be a scalar time, but is 'x'", lambda: save(dt="x"))
    refused(TypeError, "expected str, bytes or os.PathLike", lambda: save(output_dir=3))
    for states in ([(a, "v", [1]), (a, "v", [2])], [(a, "v", [1, 1])]):
        refused(ValueError, "one entry of states, with each neuron once, for v of a", lambda: save(states=states))
    refused(TypeError, "must be whole numbers", lambda: save(states=[(a, "v", torch.ones(60, dtype=torch.bool))]))
    with h5py.File(tmp_path / "spikes.h5", "w"):
        refused(OSError, r"simulate: cannot create .*spikes.h5: ", lambda: save(output_dir=tmp_path))
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(ImportError, "simulate: output_dir needs h5py: pip install h5py", save)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists() and made.state_dict()["tensors"][1] == 0
    for names in (["a", "a"], ["a/b"], [""]):
        other = spikeforge.Network()
        for name in names:
            other.populate(name, 1, "neuron n(x;) { return x }")
        refused(ValueError, f"different names without '/', .* but one is '{names[0]}'", lambda: spikeforge.simulate(other, 1, output_dir=tmp_path / "out", dt=1))
    assert "not supported for a network with a process group" in on_ranks(1, grouped)[0]
