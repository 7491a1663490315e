"""The recipes for data sets of events (examples/events), and of images (examples/python/transformer.py), train on
generated files of the data sets' formats, resume, and run in several processes."""

import os
import pathlib
import re
import sys

import pytest
import torch
from example import ROOT, load
from loops import printed_by

FOLDER = ROOT / "examples/events"
FOLDERS = {"shd": "events", "dvs_gesture": "events", "transformer": "python"}
sys.path.append(str(FOLDER))  # for the module that the recipes share
pytest.importorskip("h5py")

SMALL_SHD = ["--width", 64, "--batch-size", 32, "--rate", 1e-2, "--dropout", 0.1]
SMALL_GESTURE = ["--downsample", 4, "--blocks", 3, "--channels", 16, "--frames", 8]
# name: program, options, epochs before and after it resumes
RECIPES = {
    "recurrent": ("shd", SMALL_SHD, (4, 5)),
    "delays": ("shd", [*SMALL_SHD, "--delays", "--interpolation", "linear"], (4, 5)),
    "gauss": ("shd", [*SMALL_SHD, "--delays", "--amp"], (5, 6)),
    "gesture": ("dvs_gesture", SMALL_GESTURE, (5, 7)),
    "transformer": ("transformer", ["--ema", 0.9], (7, 8)),
}


@pytest.fixture
def call(monkeypatch, capsys):
    def call(program, *options):
        """Returns the exit code and the output of the program, which runs in this process."""
        module = load(FOLDERS[program], program)
        monkeypatch.setattr(sys, "argv", [f"{program}.py", "--device", "cpu", *map(str, options)])
        code = 0
        try:
            module.training.main(module.Recipe, module.parse_options)
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr()

    return call


@pytest.mark.long(but="^recurrent$")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_learns_and_resumes(recipe, call, tmp_path):
    program, options, (first, last) = RECIPES[recipe]
    data, checkpoint = tmp_path / "data", tmp_path / f"{program}.pt"
    data.mkdir()
    load(FOLDERS[program], program).Recipe(None).write_stand_in(data)
    options = [*options, "--output", tmp_path, "--data", data, "--logs", tmp_path / "logs"]
    code, printed = call(program, *options, "--epochs", first)
    assert code == 0, printed.err
    history = torch.load(checkpoint)["history"]
    code, printed = call(program, *options, "--epochs", last, "--resume")
    assert code == 0, printed.err
    assert re.findall(r"^epoch +(\d+)", printed.out, re.M) == [str(i) for i in range(first + 1, last + 1)]
    resumed = torch.load(checkpoint)["history"]
    assert len(history) == first and resumed[:first] == history and len(resumed) == last
    reached = float(re.search(r"^test accuracy: ([\d.]+)%", printed.out, re.M)[1])
    assert reached > 80 and reached == pytest.approx(100 * resumed[-1][2], abs=0.01)
    assert checkpoint.with_suffix(".png").stat().st_size > 10_000 and len(list((tmp_path / "logs").iterdir())) == 2


def test_errors_of_usage_are_one_line(call, tmp_path):
    (tmp_path / "shd_train.h5").write_bytes(b"no HDF5")
    (tmp_path / "shd.pt").write_bytes(b"no checkpoint")
    for program, options, words in (
        ("shd", ["--data", tmp_path / "nowhere"], "there is no file"),
        ("shd", ["--data", tmp_path], "shd_train.h5 is damaged"),
        ("shd", ["--resume", "--output", tmp_path / "nowhere"], "--resume: cannot read"),
        ("shd", ["--resume", "--output", tmp_path], "--resume: "),
        ("shd", ["--batch-size", 401], "--batch-size must be at least 1 and at most 400, but is 401"),
        ("shd", ["--epochs", 0], "0 is not positive"),
        ("dvs_gesture", ["--data", tmp_path], "trials_to_train.txt"),
        ("dvs_gesture", ["--blocks", 8], "--blocks: 8 are too many for 128 pixels"),
        ("transformer", ["--data", tmp_path], "contains neither cifar-10-batches-py nor train and val"),
        ("transformer", ["--model", "nothing"], "invalid choice: 'nothing'"),
    ):
        code, printed = call(program, *options)
        assert code == 2 and printed.err.count("\n") == 1 and words in printed.err, printed


def test_gestures_are_cut_out_of_recordings(tmp_path):
    module = load("events", "dvs_gesture")
    module.Recipe(None).write_stand_in(tmp_path)
    training_set, test_set = module.Recipe(None).data_sets(tmp_path)
    assert (len(training_set), len(test_set)) == (16 * 11, 4 * 11)
    written = {path: path.stat().st_mtime_ns for path in pathlib.Path(tmp_path, "gestures").iterdir()}
    for events, label in (test_set[0], test_set[10]):
        assert len(events) == 600 and 0 <= label < 11 and events["t"][-1] - events["t"][0] < 500_000
    assert sorted(label for _, label in test_set.samples[:11]) == list(range(11))
    module.Recipe(None).data_sets(tmp_path)
    assert written == {path: path.stat().st_mtime_ns for path in pathlib.Path(tmp_path, "gestures").iterdir()}


@pytest.mark.long
@pytest.mark.parametrize("program, options", [("shd", SMALL_SHD), ("dvs_gesture", SMALL_GESTURE), ("transformer", [])])
def test_a_recipe_trains_in_two_processes(program, options, tmp_path):
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
             ROOT / "examples" / FOLDERS[program] / f"{program}.py"]
    printed = printed_by(*start, *options, "--epochs", 2, "--output", tmp_path, env=environment, timeout=300)
    loss = [float(number) for number in re.findall(r"loss ([\d.]+)", printed)]
    assert len(loss) == 2 and loss[1] < loss[0] - 0.1, printed
    assert (tmp_path / f"{program}.pt").exists()
