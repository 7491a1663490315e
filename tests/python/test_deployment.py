"""What Python saved runs in a program without Python (examples/traced_digits/evaluate.cpp), and gives the same bits."""

import shutil
import subprocess
import warnings

import numpy
import pytest
import torch

from conftest import library_path

LEAKY = """
neuron leaky(x; v = 0.25, trace; leak, threshold) {
  keep = sigmoid(leak)
  h = keep * v + (1 - keep) * x
  s = spike(h - threshold, atan(2))
  return s
  v' = select(s, 0, h)
  trace' = 0.9 * trace + tanh(h)
}
"""


class Network(torch.nn.Module):
    """[rows, columns] -> [rows, 15]: every column is a step, and every row drives five neurons of each kind."""

    def __init__(self):
        super().__init__()
        self.text = LEAKY
        self.weight = torch.nn.Parameter(torch.tensor([0.5, 1.0, 1.5, 2.0, 4.0]))
        self.leak = torch.nn.Parameter(torch.linspace(-1, 1, 5))
        self.threshold = torch.nn.Parameter(torch.tensor(0.75))

    def forward(self, table):
        currents = table.t().unsqueeze(-1) * self.weight
        spikes, v = torch.ops.spikeforge.lif(currents, tau=2.0)
        outputs, states = torch.ops.spikeforge.run(
            self.text, [currents + v], [], [self.leak, self.threshold], store_states=False)
        return torch.cat([spikes.sum(0) + outputs[0].sum(0), states[0], states[1]], 1)


def save_torchscript(network, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(network).save(str(folder / "network.pt"))
    return folder / "network.pt"


def save_package(network, folder):
    """Of any number of rows and of columns, which are the steps."""
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor compiles with g++, which is not on this machine")
    rows, columns = torch.export.Dim("rows", min=2, max=4096), torch.export.Dim("columns", min=2, max=4096)
    program = torch.export.export(network, (torch.rand(4, 6),), dynamic_shapes=({0: rows, 1: columns},))
    return torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "network.pt2"))


@pytest.mark.parametrize("save", [save_torchscript, save_package])
def test_a_saved_network_has_the_same_bits_in_cpp(save, tmp_path):
    program = library_path().resolve().parents[1] / "bin" / "evaluate"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    network = Network().eval()
    with torch.no_grad():
        path = save(network, tmp_path)
        for rows, columns in ((33, 7), (4, 100), (2, 2)):
            table = 2 * torch.rand(rows, columns) - 0.25
            expected = network(table)
            assert expected[:, :5].sum() > 0 or columns == 2
            numpy.savetxt(tmp_path / "table.csv", torch.cat([table, torch.zeros(rows, 1)], 1), fmt="%.9g", delimiter=",")
            command = [program, path, tmp_path / "table.csv", tmp_path / "scores.csv"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            scores = numpy.loadtxt(tmp_path / "scores.csv", delimiter=",", dtype=numpy.float32, ndmin=2)
            assert torch.equal(torch.from_numpy(scores), expected), f"{rows} rows, {columns} columns"
