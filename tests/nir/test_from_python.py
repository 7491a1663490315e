"""The digits network, trained in Python and exported as in docs/nir.md, gives the same spikes in NIR as in Python."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from test_network import LIBRARY, REPOSITORY, TOOL, check_python

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"there is no {TOOL}: built without HDF5?")

PAGE = (REPOSITORY / "docs" / "nir.md").read_text()
STEPS = 8


def code(name):
    (block,) = re.findall(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return block


def commands():
    return code("commands of the NIR export").replace("\\\n", " ").strip().splitlines()


def run(line, folder, *more):
    """Runs a command of the documentation with more options, in a folder with the repository's files."""
    words = [*line.split("#")[0].split(), *more]
    words = [{"python": sys.executable, "spikeforge-nir": str(TOOL)}.get(word, word) for word in words]
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_documented_helpers_are_those_of_the_program():
    program = (REPOSITORY / "examples" / "python" / "digits_to_nir.py").read_text()
    assert code("helpers of the NIR export") in program


@pytest.mark.long
@pytest.mark.parametrize("kind", ["if", "plif"])
def test_the_network_trained_in_python_gives_its_spikes(kind, tmp_path, monkeypatch):
    for name in ("examples", "scripts"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    monkeypatch.setenv("SPIKEFORGE_LIBRARY", str(LIBRARY))
    data = tmp_path / "build/data/digits.csv"
    subprocess.run([sys.executable, "scripts/prepare_digits.py", "--output", data], cwd=tmp_path, check=True, capture_output=True)
    train, export, simulate = commands()
    run(train, tmp_path, "--neuron", kind, "--epochs", 3, "--steps", STEPS, "--device", "cpu")
    run(export, tmp_path)

    sys.path.insert(0, str(REPOSITORY / "examples" / "python"))
    try:
        import digits
    finally:
        sys.path.pop(0)
    torch.ops.load_library(str(LIBRARY))
    network = digits.load(tmp_path / "build/digits/network_python.pt", "cpu").eval().double()
    assert kind != "plif" or network.rest[0].w.item() != 0  # training has changed tau
    layers = [module for module in network.modules() if isinstance(module, digits.Neuron)]
    names = [("if" if kind == "if" else "lif") + (f"_{i}" if i else "") for i in range(len(layers))]
    expected = {}
    for name, layer in zip(names, layers, strict=True):
        layer.register_forward_hook(lambda _, __, spikes, name=name: expected.update({name: spikes[:, 0].numpy()}))
    images, _ = digits.read_digits(data)
    count = dict.fromkeys(names, 0)
    for image in images[:4].double():
        np.save(tmp_path / "x.npy", image.expand(STEPS, -1, -1, -1).numpy())
        run(simulate, tmp_path, "--dtype", "float64", *[word for name in names for word in ("--record", f"{name}={name}.npy")])
        with torch.no_grad():
            network(image[None])
        for name in names:
            np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected[name], err_msg=name)
            count[name] += expected[name].sum()
        np.testing.assert_array_equal(np.load(tmp_path / "spikes.npy"), expected[names[-1]])
        options = {"dt": 1e-3, "comparison": "ge"}  # as in the documentation
        check_python(tmp_path / "digits.nir", np.load(tmp_path / "x.npy"), [expected[names[-1]]], "float64", options)
    assert all(count[name] > 0 for name in names[:-1]), count
