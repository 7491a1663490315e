"""Networks saved in Python run in a program without Python (examples/deploy), with the same bits.

Tests every format for a network of each kind: torch.jit.script and torch.jit.trace, torch.export, and a package of
AOTInductor. The program runs in a separate process, so a crash fails the test."""

import json
import shutil
import sys

import numpy
import pytest
import torch

from cases import saved_and_loaded
from conftest import REPOSITORY, library_path
from loops import printed_by

sys.path.insert(0, str(REPOSITORY / "examples" / "python"))
import digits  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

# On one line, because Inductor (torch 2.11) generates invalid GPU code for an argument with a line break.
LEAKY = (
    "neuron leaky(x; v = 0.25, trace; leak, threshold) { "
    "keep = sigmoid(leak); h = keep * v + (1 - keep) * x; s = spike(h - threshold, atan(2)); return s; "
    "v' = select(s, 0, h); trace' = 0.9 * trace + tanh(h) }"
)


class Table(torch.nn.Module):
    """Maps [rows, columns] to [rows, 15]: every column is a step, and every row drives five neurons of each kind."""

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

    example, sizes = torch.rand(4, 6), [(33, 7), (4, 100), (2, 2)]
    dynamic = {0: torch.export.Dim("rows", min=2, max=4096), 1: torch.export.Dim("columns", min=2, max=4096)}


class Recurrent(torch.nn.Module):
    """Maps [rows, 6] to [rows, 12]: a neuron written as text, with recurrent connections through a layer with a delay
    of one step, and PLIF after it."""

    def __init__(self):
        super().__init__()
        self.text = LEAKY
        self.into, self.back, self.out = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.leak = torch.nn.Parameter(torch.linspace(-1, 1, 8))
        self.threshold = torch.nn.Parameter(torch.tensor(0.5))
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        current, spikes = self.into(4 * x), torch.zeros(x.size(0), 8, device=x.device)
        v, trace = spikes + 0.25, spikes
        counts = spikes
        for step in range(8):
            outputs, states = torch.ops.spikeforge.run(
                self.text, [(current + self.back(spikes)).unsqueeze(0)], [v, trace], [self.leak, self.threshold],
                store_states=False)
            spikes, v, trace = outputs[0][0], states[0], states[1]
            counts = counts + spikes
        fired, last = torch.ops.spikeforge.plif(self.out(counts).expand(3, -1, -1), self.w)
        return torch.cat([counts, fired.sum(0)], 1)

    example, sizes = torch.rand(4, 6), [(33, 6), (5, 6), (2, 6)]
    dynamic = {0: torch.export.Dim("rows", min=2, max=4096)}


class Digits(digits.Network):
    def __init__(self):
        super().__init__("plif", 6)

    # Inductor specialises the package for the size of the example: compiled for 4 samples, it rejects 16; for 40, it rejects 15.
    example, sizes = torch.rand(40, 1, 8, 8), [(33, 1, 8, 8), (16, 1, 8, 8), (64, 1, 8, 8)]
    dynamic = {0: torch.export.Dim("rows", min=2, max=4096)}


def trained(kind):
    """Returns the network after a few training steps, so that no value is its initial one."""
    network = kind()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        result = network(2 * torch.rand_like(kind.example))
        (result - 1).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        for layer in network.modules():  # so that every layer fires
            if getattr(layer, "bias", None) is not None:
                layer.weight.mul_(2)
                layer.bias.add_(0.75)
    network.eval()
    return network.requires_grad_(False)


def save_script(network, folder):
    torch.jit.script(network).save(str(folder / "network.pt"))
    return folder / "network.pt"


def save_trace(network, folder):
    torch.jit.trace(network, network.example).save(str(folder / "network.pt"))
    return folder / "network.pt"


def exported(network):
    return torch.export.export(network, (network.example,), dynamic_shapes=(network.dynamic,))


def save_package(network, folder):
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor compiles with g++, which is not on this machine")
    path = str(folder / "network.pt2")
    # On a GPU, Inductor's code rounds a * b + c once, unless an option makes it round as eager code does.
    as_eager = {"emulate_precision_casts": True}
    return torch._inductor.aoti_compile_and_package(exported(network), package_path=path, inductor_configs=as_eager)


def program():
    path = library_path().resolve().parents[1] / "bin" / "deploy"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


def scores_in_cpp(path, samples, folder, *options):
    numpy.save(folder / "samples.npy", samples.cpu().numpy())
    command = [program(), path, folder / "samples.npy", "--batch", str(len(samples)), "--scores", folder / "scores.csv", "--json"]
    printed = printed_by(*command, *options, timeout=300)
    scores = torch.from_numpy(numpy.loadtxt(folder / "scores.csv", delimiter=",", dtype=numpy.float32, ndmin=2))
    assert json.loads(printed)["classes"] == scores.argmax(1).tolist()
    return scores


@pytest.mark.long(but="save_trace-Table")
@pytest.mark.parametrize("kind", [Table, Recurrent, Digits])
@pytest.mark.parametrize("save", [save_script, save_trace, save_package])
def test_a_saved_network_has_the_same_bits_in_cpp(save, kind, device, tmp_path):
    if device.type == "cuda" and save is save_trace:
        pytest.skip("a trace holds the device of its example, which is the CPU")
    torch.manual_seed(3)
    network = trained(kind).to(device)
    network.example = network.example.to(device)
    path = save(network, tmp_path)
    for size in kind.sizes:
        samples = 2 * torch.rand(*size, device=device) - 0.25
        expected = network(samples).cpu()
        assert expected.sum() > 0
        actual = scores_in_cpp(path, samples, tmp_path, "--device", device.type)
        if kind is Digits and save is save_package:
            # Inductor generates its own batch normalisation, with different rounding, so that a few spikes may differ.
            assert ((actual - expected).abs() > 0).float().mean() < 0.05, (actual - expected).abs().max()
        else:
            assert torch.equal(actual, expected), f"{size}: {(actual - expected).abs().max()} off"


@pytest.mark.parametrize("kind", [Table, Recurrent, Digits])
def test_an_exported_network_has_the_same_bits_at_any_size(kind, device):
    torch.manual_seed(3)
    network = trained(kind).to(device)
    network.example = network.example.to(device)
    loaded = saved_and_loaded(exported(network), torch.export).module()
    for size in kind.sizes:
        samples = 2 * torch.rand(*size, device=device) - 0.25
        assert torch.equal(loaded(samples), network(samples)), size


class Remembering(torch.nn.Module):
    """Maps [T, rows, 5] to spikes, with states that are kept between calls."""

    def __init__(self):
        super().__init__()
        self.text = LEAKY
        self.leak, self.threshold = torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(torch.tensor(0.75))
        self.register_buffer("v", torch.empty(0))
        self.register_buffer("trace", torch.empty(0))

    def forward(self, x):
        states = [self.v, self.trace] if self.v.numel() > 0 else []
        outputs, states = torch.ops.spikeforge.run(self.text, [x], states, [self.leak, self.threshold], store_states=False)
        self.v, self.trace = states[0], states[1]
        return outputs[0]


class Functional(Remembering):
    """The same for torch.export, with states as arguments and results."""

    def forward(self, x, v, trace):
        outputs, states = torch.ops.spikeforge.run(
            self.text, [x], [v, trace], [self.leak, self.threshold], store_states=False)
        return outputs[0], states[0], states[1]


def test_states_are_carried_over_calls_by_a_script_and_by_an_exported_program(device):
    network = Remembering().to(device).requires_grad_(False)
    pieces = [2 * torch.rand(steps, 3, 5, device=device) for steps in (7, 2, 11)]
    script = torch.jit.script(Remembering().to(device).requires_grad_(False))
    start = [torch.full((3, 5), value, device=device) for value in (0.25, 0.0)]
    steps = torch.export.Dim("steps", min=2, max=4096)
    with torch.no_grad():
        exported = torch.export.export(Functional().to(device), (pieces[0], *start), dynamic_shapes=({0: steps}, {}, {}))
        program = exported.module()
    states = start
    expected = torch.cat([network(piece) for piece in pieces])
    whole = Remembering().to(device)(torch.cat(pieces))
    assert torch.equal(expected, whole) and whole.sum() > 0
    assert torch.equal(torch.cat([script(piece) for piece in pieces]), expected)
    results = []
    for piece in pieces:
        spikes, *states = program(piece, *states)
        results.append(spikes)
    assert torch.equal(torch.cat(results), expected)
    assert torch.equal(states[0], network.v) and torch.equal(states[1], script.trace)
