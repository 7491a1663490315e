"""The example programs train, save, reload and record; each error of usage is one line with exit code 2."""

import contextlib
import csv
import io
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest
from example import BUILD, ROOT, prepare_digits

pytestmark = pytest.mark.long

PROGRAMS = {
    "cpp": [str(BUILD / "bin/digits")],
    "python": [sys.executable, str(ROOT / "examples/python/digits.py")],
}
CHECKPOINTS = {"cpp": "network.pt", "python": "network_python.pt"}
EPOCHS = 5


class Digits:
    """The Python or the C++ program, run on real data."""

    def __init__(self, language, data, folder):
        self.language, self.data, self.folder = language, data, folder
        self.checkpoint = folder / CHECKPOINTS[language]

    def __call__(self, *options, new_process=False):
        defaults = {"--data": self.data, "--output": self.folder, "--device": "cpu"}
        arguments = [word for pair in defaults.items() if pair[0] not in options for word in pair] + list(options)
        command = PROGRAMS[self.language] + [str(argument) for argument in arguments]
        if self.language == "python" and not new_process:
            return run_here(command[1:])
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=600)


def run_here(arguments):
    """Runs a Python program in this process, because importing torch in a new one takes seconds."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(arguments[0], run_name="__main__")
    return subprocess.CompletedProcess(arguments, stop.value.code or 0, output.getvalue(), errors.getvalue())


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return prepare_digits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", params=sorted(PROGRAMS))
def digits(request, data, tmp_path_factory):
    if not pathlib.Path(PROGRAMS[request.param][-1]).exists():
        pytest.fail(f"{PROGRAMS[request.param][-1]} is not built: cmake --build --preset release --target digits")
    return Digits(request.param, data, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def trained(digits):
    """The result of one training run, shared by all tests that read it."""
    result = digits("--epochs", EPOCHS, new_process=True)
    assert result.returncode == 0, result.stderr
    return result


def accuracies(output):
    return [float(number) for number in re.findall(r"([\d.]+) ?%", output)]


def assert_one_line(result, *words):
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr
    for word in words:
        assert str(word) in result.stderr


def test_prepared_data_is_the_1797_digits_of_scikit_learn(data):
    from sklearn.datasets import load_digits

    rows = [[int(word) for word in line.split(",")] for line in data.read_text().splitlines()]
    expected = load_digits()
    assert len(rows) == 1797
    assert [row[:64] for row in rows] == expected.data.astype(int).tolist()
    assert [row[64] for row in rows] == expected.target.tolist()


def test_a_few_epochs_reach_90_percent_on_held_out_digits(trained):
    reached, read_back = accuracies(trained.stdout)[-2:]
    assert reached > 90
    assert read_back == reached
    assert trained.stdout.rstrip().endswith("the same")


def test_each_epoch_is_a_line_when_nobody_watches(trained):
    lines = [line for line in trained.stdout.splitlines() if line.startswith("epoch")]
    assert len(lines) == EPOCHS
    for word in ("loss", "accuracy", "held out", "samples/s", "left"):
        assert word in lines[0]
    assert "\r" not in trained.stdout


def test_a_loaded_checkpoint_is_as_accurate_as_the_network_that_was_saved(digits, trained):
    result = digits("--load", digits.checkpoint)
    assert result.returncode == 0, result.stderr
    assert accuracies(result.stdout)[0] == accuracies(trained.stdout)[-1]


def test_the_trained_network_in_fixed_point_reads_digits_as_well(digits, trained):
    if digits.language != "python":
        pytest.skip("the program reads the checkpoint of the Python one")
    program = [str(ROOT / "examples/python/fixed_digits.py"), "--load", str(digits.checkpoint), "--data", str(digits.data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples/python")
        result = run_here(program)
    assert result.returncode == 0, result.stderr
    floating, fixed = accuracies(result.stdout.splitlines()[-1])
    assert floating == accuracies(trained.stdout)[-1]
    assert fixed > floating - 3, result.stdout
    layers = [line for line in result.stdout.splitlines() if line.startswith("layer")]
    assert len(layers) == 4 and all(accuracies(line)[0] < 1 for line in layers), result.stdout


def test_quiet_prints_only_the_result(digits, tmp_path):
    result = digits("--epochs", 1, "--quiet", "--output", tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2


def test_the_same_seed_gives_the_same_network(digits, tmp_path):
    first, second = (digits("--epochs", 1, "--output", tmp_path / name).stdout for name in "ab")
    losses = [re.search(r"loss ([\d.]+)", output).group(1) for output in (first, second)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("neuron", ["if", "lif", "plif", "qif", "eif", "izhikevich"])
def test_every_neuron_trains(digits, neuron, tmp_path):
    if digits.language == "python" and neuron in ("qif", "eif", "izhikevich"):
        pytest.skip("the Python example keeps to three neurons")
    result = digits("--epochs", EPOCHS, "--neuron", neuron, "--output", tmp_path)
    assert result.returncode == 0, result.stderr
    assert accuracies(result.stdout)[-2] > 60


def test_help_lists_the_options_and_their_defaults(digits):
    result = digits("--help")
    assert result.returncode == 0
    for option in ("--data", "--output", "--load", "--neuron", "--steps", "--epochs", "--batch-size", "--learning-rate",
                   "--seed", "--device", "--threads", "--quiet"):
        assert option in result.stdout
    assert "build/data/digits.csv" in result.stdout


@pytest.mark.parametrize("options, word", [
    (["--epoch-count", 3], "--epoch-count"),
    (["--epochs", 0], "--epochs"),
    (["--epochs", "many"], "--epochs"),
    (["--neuron", "tanh"], "tanh"),
    (["--device", "tpu"], "tpu"),
    (["--steps", -1], "--steps"),
    (["--learning-rate", "fast"], "--learning-rate"),
    (["surplus"], "surplus"),
])
def test_a_bad_option_is_named(digits, options, word):
    assert_one_line(digits(*options), word, "--help")


@pytest.mark.skipif("CUDA_VISIBLE_DEVICES" in os.environ, reason="the test hides the GPUs itself")
def test_cuda_without_a_gpu_is_refused(digits, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert_one_line(digits("--device", "cuda", new_process=True), "--device cuda")


def test_a_cuda_graph_without_a_gpu_is_refused(digits):
    if digits.language != "python":
        pytest.skip("only the Python program has the option")
    assert_one_line(digits("--cuda-graph"), "--cuda-graph")


def test_a_cuda_graph_learns_as_well(digits, tmp_path):
    if digits.language != "python":
        pytest.skip("only the Python program has the option")
    import torch

    if not torch.cuda.is_available():
        assert os.environ.get("SPIKEFORGE_REQUIRE_CUDA") != "1", "no CUDA GPU on this machine"
        pytest.skip("no CUDA GPU on this machine")
    result = digits("--cuda-graph", "--epochs", EPOCHS, "--device", "cuda", "--output", tmp_path, new_process=True)
    assert result.returncode == 0, result.stderr
    *_, reached, read_back = accuracies(result.stdout)
    assert reached > 90 and read_back == reached
    gains = re.findall(r"([\d.]+) ms, as a CUDA graph ([\d.]+) ms", result.stdout)
    assert len(gains) == 2, "of the training step and of the evaluation"
    for alone, together in gains:
        assert 0 < float(together) < float(alone)


def test_an_error_for_missing_data_names_the_program_that_generates_it(digits, tmp_path):
    path = tmp_path / "nothing.csv"
    assert_one_line(digits("--data", path), path, "prepare_digits.py")


def spoil(lines, line, text):
    return lines[:line - 1] + [text] + lines[line:]


DAMAGES = {
    "no label": (7, lambda lines: spoil(lines, 7, lines[6][:-2])),
    "too bright": (3, lambda lines: spoil(lines, 3, "17" + lines[2][1:])),
    "negative": (3, lambda lines: spoil(lines, 3, "-1" + lines[2][1:])),
    "no commas": (3, lambda lines: spoil(lines, 3, lines[2].replace(",", ";"))),
    "a letter": (3, lambda lines: spoil(lines, 3, lines[2].replace(",", ",x", 1))),
    "one more number": (3, lambda lines: spoil(lines, 3, lines[2] + ",1")),
    "a digit 10": (1797, lambda lines: spoil(lines, 1797, lines[-1][:-1] + "10")),
    "an empty line": (20, lambda lines: spoil(lines, 20, "")),
    "cut after five": (6, lambda lines: lines[:5]),
    "nothing": (1, lambda lines: []),
}


@pytest.mark.parametrize("line, damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_data_is_refused_with_the_line(digits, data, line, damage, tmp_path):
    path = tmp_path / "digits.csv"
    path.write_text("".join(text + "\n" for text in damage(data.read_text().splitlines())))
    assert_one_line(digits("--data", path), f"{path}:{line}:", "expected")


def test_data_that_is_a_folder_is_refused(digits, tmp_path):
    assert_one_line(digits("--data", tmp_path), tmp_path)


def test_a_missing_checkpoint_is_refused(digits, tmp_path):
    path = tmp_path / "nothing.pt"
    assert_one_line(digits("--load", path), path)


@pytest.mark.parametrize("keep", [0, 1000, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused(digits, trained, keep, tmp_path):
    whole = digits.checkpoint.read_bytes()
    path = tmp_path / "short.pt"
    path.write_bytes(whole[:keep if isinstance(keep, int) else int(keep * len(whole))])
    assert_one_line(digits("--load", path), path, "damaged")


def test_a_changed_byte_in_a_checkpoint_is_noticed(digits, trained, tmp_path):
    spoilt = bytearray(digits.checkpoint.read_bytes())
    spoilt[len(spoilt) // 2] ^= 0x40
    path = tmp_path / "spoilt.pt"
    path.write_bytes(spoilt)
    assert_one_line(digits("--load", path), path, "damaged")


def test_a_file_that_is_no_checkpoint_is_refused(digits, data):
    assert_one_line(digits("--load", data), data, "damaged")


@pytest.mark.parametrize("inside", ["", "folder"])
def test_an_output_folder_that_cannot_be_made_is_refused(digits, data, inside):
    assert_one_line(digits("--output", data / inside), data)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_cannot_be_written_is_refused(digits, tmp_path):
    tmp_path.chmod(0o500)
    assert_one_line(digits("--output", tmp_path), tmp_path)


def test_python_without_the_library_prints_the_reason(data, tmp_path, monkeypatch):
    monkeypatch.setenv("SPIKEFORGE_LIBRARY", str(tmp_path / "nothing.so"))
    assert_one_line(Digits("python", data, tmp_path)(), "nothing.so", "SPIKEFORGE_LIBRARY")


# --- recordings and plots of the C++ program -------------------------------------------------------------------------


@pytest.fixture(scope="session")
def recorded(digits, trained):
    if digits.language != "cpp":
        pytest.skip("only the C++ program records")
    return digits.folder


def test_the_learning_curve_has_a_row_an_epoch(recorded, trained):
    with open(recorded / "learning_curve.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(1, EPOCHS + 1))
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    assert 100 * float(rows[-1]["test_accuracy"]) == pytest.approx(accuracies(trained.stdout)[-1], abs=0.005)
    assert set(rows[0]) == {"epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "samples_per_second"}


def test_the_raster_holds_every_layer_and_its_counts_are_the_output_spikes(recorded):
    raster = json.loads((recorded / "raster.json").read_text())
    assert [len(row) for row in raster["image"]] == [8] * 8
    assert [layer["neurons"] for layer in raster["layers"]] == [32 * 64, 64 * 16, 128, 10]
    for layer in raster["layers"]:
        assert layer["spikes"], f"{layer['name']} is silent"
        assert all(0 <= step < raster["steps"] and 0 <= neuron < layer["neurons"] for step, neuron in layer["spikes"])
    classes = [neuron for _, neuron in raster["layers"][-1]["spikes"]]
    assert raster["counts"] == [classes.count(i) for i in range(10)]


def test_the_pictures_are_drawn(recorded, tmp_path):
    for name in ("learning_curve.csv", "raster.json"):
        shutil.copy(recorded / name, tmp_path)
    subprocess.run([sys.executable, ROOT / "scripts/plot_digits.py", tmp_path], check=True, capture_output=True)
    for name in ("learning_curve.png", "raster.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / name).stat().st_size > 5000


def test_plotting_without_records_names_the_missing_files(tmp_path):
    result = subprocess.run([sys.executable, ROOT / "scripts/plot_digits.py", tmp_path], capture_output=True, text=True)
    assert_one_line(result, "learning_curve.csv")
