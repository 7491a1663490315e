"""The fly's brain: its spikes in comparison with Brian2's, its tables, and the output of its programs.

The spikes of Brian2 2.10 are in fly_brian2.json, because it needs another Python (fly_reference.py). If
SPIKEFORGE_BRIAN_PYTHON is a Python with Brian2, it also simulates a network with other input.
"""

import csv
import importlib
import json
import os
import subprocess
import sys

import pytest
import torch
from example import ROOT
from fly_reference import FILE, MILLISECONDS, connectomes, digest, fly, network, simulate

import spikeforge

FOLDER = ROOT / "examples/fly"
BRIAN = os.environ.get("SPIKEFORGE_BRIAN_PYTHON")


def spikes_of(connectome, activated, inputs, milliseconds):
    brain = fly.Fly(connectome, torch.float64)
    brain.activate(activated)
    given = {(brain.neurons, "poisson"): (*inputs, fly.F_POI * fly.W_SYN)}
    recording = spikeforge.simulate(brain.network, round(milliseconds / fly.DT), inputs=given)
    return sorted(zip(recording.steps.tolist(), recording.neurons.tolist()))


@pytest.fixture(scope="module")
def twentieth():
    return network()


@pytest.mark.long
def test_a_twentieth_of_the_brain_has_the_spikes_of_brian2(twentieth):
    connectome, activated, inputs = twentieth
    expected = json.loads(FILE.read_text())
    if digest(connectome, inputs) != expected["digest"]:
        pytest.skip("this torch draws another stand-in: python tests/examples/fly_reference.py PYTHON writes its spikes")
    expected = list(zip(expected["steps"], expected["neurons"]))
    assert len(expected) > 2000
    assert spikes_of(connectome, activated, inputs, MILLISECONDS) == expected


@pytest.mark.skipif(BRIAN is None, reason="SPIKEFORGE_BRIAN_PYTHON is not set")
def test_brian2_has_the_spikes_of_a_twentieth_of_the_brain(twentieth):
    connectome, _, _ = twentieth
    activated, rates = connectome.hubs(40)[::2], torch.zeros(len(connectome.ids))
    rates[activated] = torch.linspace(20, 400, len(activated))
    inputs = fly.draw(rates, 3000, torch.Generator().manual_seed(5))
    expected = simulate(BRIAN, connectome, activated, inputs, 300)
    assert len(expected) > 2000
    assert spikes_of(connectome, activated, inputs, 300) == expected


def test_a_step_is_the_exponential_of_the_published_equations():
    system = torch.tensor([[-1 / fly.T_MBR, 1 / fly.T_MBR], [0, -1 / fly.TAU]], dtype=torch.float64)
    exact = torch.linalg.matrix_exp(fly.DT * system)
    expected = torch.tensor([[fly.B, fly.C], [0, fly.A]], dtype=torch.float64)
    assert torch.allclose(exact, expected, rtol=0, atol=1e-11)


def small():
    """Returns neuron 100, which excites 200 and inhibits nothing, and 200, which excites 300."""
    arrays = [[100, 200, 300], [0, 1], [1, 2], [400, 400]]
    return connectomes.Connectome("small", *map(torch.tensor, arrays))


def test_a_spike_arrives_after_the_delay_and_a_refractory_period_separates_spikes():
    brain = fly.Fly(small(), torch.float64)
    brain.activate([0], rate=1000)
    recording = brain.run(1000)
    first, second = (recording.steps[recording.neurons == neuron] for neuron in (0, 1))
    assert second[0] > first[0] + 18
    assert first.diff().min() == 2  # input of the step in which it fires is lost
    assert second.diff().min() > 22


def test_trials_with_a_seed_are_equal_and_begin_at_rest():
    def spikes_of_trials(brain, seed):
        recording = brain.run(300, seed)
        trials = [recording.of(brain.neurons, copy=k) for k in range(brain.network.copies)]
        return [list(zip(steps.tolist(), neurons.tolist())) for steps, neurons in trials], brain.mean_rates(recording)

    one, three = fly.Fly(small(), torch.float64), fly.Fly(small(), torch.float64, trials=3)
    for brain in (one, three):
        brain.activate([0])
    expected = [spikes_of_trials(one, seed)[0][0] for seed in (3, 4, 5, 3)]
    spikes, rates = spikes_of_trials(three, 3)
    assert spikes == expected[:3] and expected[0] == expected[3] != expected[1]
    assert rates.shape == (3, 3) and rates[0, 0] == sum(neuron == 0 for _, neuron in spikes[0]) / 0.3


def test_a_silenced_neuron_excites_nothing():
    brain = fly.Fly(small(), torch.float64)
    brain.activate([0])
    assert brain.mean_rates(brain.run(500))[0].gt(0).tolist() == [True, True, True]
    brain.silence([1])
    assert brain.mean_rates(brain.run(500))[0].gt(0).tolist() == [True, False, False]


def test_a_stand_in_has_the_numbers_of_flywire():
    made = connectomes.stand_in(0.02)
    assert len(made.ids) == round(0.02 * 138_639) and len(made.sources) == round(0.02 * 15_091_983)
    assert 3.4 < made.synapses.abs().double().mean() < 3.8
    assert 0 <= made.sources.min() and made.targets.max() < len(made.ids)
    inhibitory = made.sources[made.synapses < 0].unique()
    assert not torch.isin(made.sources[made.synapses > 0], inhibitory).any()


# Tables


def write(path, **columns):
    """Writes a table in the format of the path's suffix."""
    arrow = pytest.importorskip("pyarrow")
    module, function = {".csv": ("csv", "write_csv"), ".feather": ("feather", "write_feather"), ".parquet": ("parquet", "write_table")}[path.suffix]
    table = arrow.table({"" if name == "index" else name.replace("_x_", " x "): values for name, values in columns.items()})
    getattr(importlib.import_module(f"pyarrow.{module}"), function)(table, path)


def write_flywire(folder, suffix):
    ids = [720575940597944841, 720575940596125868, 720575940597856265]
    write(folder / f"Completeness_783{suffix}", index=ids, Completed=[True] * 3)
    write(
        folder / f"Connectivity_783{suffix}", Presynaptic_ID=[ids[2], ids[0]], Presynaptic_Index=[2, 0], Postsynaptic_Index=[1, 2],
        Connectivity=[5, 7], Excitatory_x_Connectivity=[-5, 7],
    )  # fmt: skip
    return ids


@pytest.mark.parametrize("suffix", [".csv", ".feather", ".parquet"])
def test_tables_of_flywire_are_read_from_each_format(tmp_path, suffix):
    ids = write_flywire(tmp_path, suffix)
    read = connectomes.flywire(tmp_path)
    assert read.ids.tolist() == ids and read.neurons(ids[::-1]).tolist() == [2, 1, 0]
    assert (read.sources.tolist(), read.targets.tolist(), read.synapses.tolist()) == ([2, 0], [1, 2], [-5, 7])


@pytest.mark.parametrize("suffix", [".csv", ".feather", ".parquet"])
def test_a_stand_in_is_read_back_equal(tmp_path, suffix):
    made = connectomes.stand_in(0.001)
    write(tmp_path / f"Completeness_783{suffix}", index=made.ids.numpy())
    write(tmp_path / f"Connectivity_783{suffix}", pre=made.sources.numpy(), post=made.targets.numpy(), count=made.synapses.numpy())
    read = connectomes.flywire(tmp_path, {"source": "pre", "target": "post", "synapses": "count"})
    for name in ("ids", "sources", "targets", "synapses"):
        assert torch.equal(getattr(read, name), getattr(made, name))


def test_names_of_male_cns_may_be_categories(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    classes = arrow.array(["vnc_motor", None, "cb_sensory"]).dictionary_encode()
    write(tmp_path / "body-annotations-male-cns-v1.0.feather", bodyId=[1, 2, 3], superclass=classes)
    transmitters = arrow.array(["gaba", "gaba", "acetylcholine"]).dictionary_encode()
    write(tmp_path / "body-neurotransmitters-male-cns-v1.0.feather", body=[1, 2, 3], consensus_nt=transmitters)
    write(tmp_path / "connectome-weights-male-cns-v1.0.feather", body_pre=[1, 3], body_post=[3, 1], weight=[4, 5])
    read = connectomes.male_cns(tmp_path)
    assert read.ids.tolist() == [1, 3] and read.synapses.tolist() == [-4, 5]


@pytest.mark.parametrize("suffix", [".csv", ".feather", ".parquet"])
def test_male_cns_has_the_bodies_with_a_class_and_the_signs_of_their_transmitters(tmp_path, suffix):
    write(tmp_path / f"body-annotations-male-cns-v1.0{suffix}", bodyId=[30, 10, 99, 20], superclass=["ol_intrinsic", "vnc_motor", None, "cb_sensory"])
    write(
        tmp_path / f"body-neurotransmitters-male-cns-v1.0{suffix}", body=[10, 20, 99, 30],
        consensus_nt=["acetylcholine", "gaba", "gaba", None],
    )  # fmt: skip
    write(
        tmp_path / f"connectome-weights-male-cns-v1.0{suffix}", body_pre=[10, 20, 99, 30, 20], body_post=[20, 30, 10, 10, 99],
        weight=[3, 4, 5, 6, 7],
    )  # fmt: skip
    read = connectomes.male_cns(tmp_path)
    assert read.ids.tolist() == [10, 20, 30]
    assert (read.sources.tolist(), read.targets.tolist(), read.synapses.tolist()) == ([0, 1, 2], [1, 2, 0], [3, -4, 6])


def test_a_missing_table_or_column_and_an_unknown_id_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no table .*Completeness_783.parquet"):
        connectomes.flywire(tmp_path)
    write_flywire(tmp_path, ".csv")
    with pytest.raises(ValueError, match="Connectivity_783.csv has no column 'pre'; its columns are 'Presynaptic_ID'"):
        connectomes.flywire(tmp_path, {"source": "pre"})
    with pytest.raises(ValueError, match="columns: 'sources' is none of 'source'"):
        connectomes.flywire(tmp_path, {"sources": "pre"})
    with pytest.raises(ValueError, match="FlyWire v783 has no neuron with the id 12"):
        connectomes.flywire(tmp_path).neurons([12])
    with pytest.raises(ValueError, match="Connectivity_783.csv has the index 7, but the table of neurons has 3 rows"):
        connectomes.flywire(tmp_path, {"source": "Connectivity"})
    write(tmp_path / "Completeness_783.parquet", index=[1])
    with pytest.raises(FileNotFoundError, match="several tables Completeness_783.csv, Completeness_783.parquet; one is needed"):
        connectomes.flywire(tmp_path)


# Programs


def run(program, *options, fails=False):
    done = subprocess.run([sys.executable, FOLDER / program, *map(str, options)], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


@pytest.mark.long
def test_the_program_prints_rates_and_writes_them(tmp_path):
    pytest.importorskip("matplotlib")
    files = {kind: tmp_path / f"fly.{kind}" for kind in ("csv", "json", "png")}
    printed = run(
        "run.py", "--scale", 0.01, "--milliseconds", 200, "--trials", 2, "--activate", 3, 5, "--silence", 7, "--shown", 4, "--csv", files["csv"],
        "--json", files["json"], "--plot", files["png"],
    )  # fmt: skip
    assert "1386 neurons" in printed and "2 activated, 1 silenced" in printed and "mean of activated" in printed
    figures = json.loads(files["json"].read_text())
    assert figures["activated"] == [3, 5] and 100 < figures["rates"]["3"] < 200
    header, *rows = csv.reader(files["csv"].open())
    assert header == ["id", "mean rate (1/s)", "trial 0 (1/s)", "trial 1 (1/s)"]
    assert {row[0]: float(row[1]) for row in rows} == pytest.approx(figures["rates"], rel=1e-5)
    assert files["png"].stat().st_size > 10_000


def test_a_wrong_call_of_the_program_is_one_line(tmp_path):
    assert run("run.py", "--flywire", tmp_path, fails=True).splitlines() == [
        f"run.py: {tmp_path}: no table *Completeness_783.parquet, .feather or .csv; one is needed (examples/fly/README.md)"
    ]
    assert run("run.py", "--scale", 0.001, "--activate", 999999, fails=True).count("\n") == 1


@pytest.mark.long
def test_the_fly_walks_to_the_light():
    last = run("closed_loop.py", "--seconds", 3).splitlines()[-1].split()
    assert float(last[0]) == 3 and float(last[-1]) < 0.4 * 70.7  # mm
