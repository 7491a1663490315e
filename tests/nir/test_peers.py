"""Files of other frameworks give the same spikes here, with the options that docs/nir.md states for each framework."""


import nir
import numpy as np
import pytest
import torch
from simulator import write
from test_network import LIBRARY, TOOL, neuron, random_graph, run, tool

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not TOOL.exists(), reason=f"there is no {TOOL}: built without HDF5?"),
]


def peer(name):
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def spread_weights(net, gain):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
                weight = torch.randn(module.weight.shape, generator=generator, dtype=module.weight.dtype)
                module.weight.copy_(weight * gain / weight[0].numel() ** 0.5)
                if module.bias is not None:
                    module.bias.fill_(0.1)


def test_the_convolutional_network_of_spikingjellys_tutorial(tmp_path):
    """Conv2d, IF, AvgPool2d, Flatten, Linear, LIF, exported with dt = 1e-4."""
    peer("spikingjelly")
    from spikingjelly.activation_based import functional, layer, neuron, nir_exchange

    net = torch.nn.Sequential(
        layer.Conv2d(1, 4, 3, padding=1), neuron.IFNode(), layer.AvgPool2d(2), layer.Flatten(),
        layer.Linear(4 * 7 * 7, 10), neuron.LIFNode(tau=3.0, v_threshold=0.7, decay_input=True),
        layer.Linear(10, 6), neuron.LIFNode(tau=2.0, decay_input=False), layer.Linear(6, 5), neuron.ParametricLIFNode(init_tau=1.5, v_threshold=0.4),
    ).double().eval()  # fmt: skip
    spread_weights(net, 2.5)
    x = torch.rand(12, 1, 1, 14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 1.5
    functional.set_step_mode(net, "m")
    nir_exchange.export_to_nir(net, x, tmp_path / "net.nir", dt=1e-4)
    functional.reset_net(net)
    with torch.no_grad():
        expected = net(x)[:, 0].numpy()
    assert expected.sum() > 5
    out, _, _ = run(tmp_path / "net.nir", x[:, 0].numpy(), tmp_path, dt=1e-4, comparison="ge")
    np.testing.assert_array_equal(out, expected)

    # A TorchScript module for Python, which needs the operators only.
    done = tool("convert", tmp_path / "net.nir", tmp_path / "net.pt", "--dt", 1e-4, "--comparison", "ge", "--dtype", "float64")
    assert done.returncode == 0, done.stderr
    torch.ops.load_library(str(LIBRARY))
    imported = torch.jit.load(str(tmp_path / "net.pt"))
    with torch.no_grad():
        np.testing.assert_array_equal(imported(x)[:, 0].numpy(), expected)


@pytest.mark.parametrize("reset, option", [("subtract", "subtract-delayed"), ("zero", "zero"), ("subtract", "subtract-twice")])
def test_leaky_of_snntorch(reset, option, tmp_path):
    """Tests snnTorch's resets: subtraction one step late (its default), to 0 immediately (the default of its import), and
    immediate subtraction, repeated in the next step if the membrane is still above the threshold."""
    snn = peer("snntorch")
    import snntorch.utils
    from snntorch.export_nir import export_to_nir

    leaky = lambda n, beta, threshold: snn.Leaky(beta=torch.full((n,), beta), threshold=torch.full((n,), threshold), init_hidden=True, reset_mechanism=reset, reset_delay=option == "subtract-delayed")  # noqa: E731
    net = torch.nn.Sequential(torch.nn.Linear(8, 12), leaky(12, 0.9, 1.0), torch.nn.Linear(12, 5), leaky(5, 0.8, 0.6))
    spread_weights(net, 2)
    graph = export_to_nir(net, torch.zeros(1, 8), ignore_dims=[0])
    snntorch.utils.reset(net)
    file = tmp_path / "net.nir"
    nir.write(file, graph)
    x = torch.randn(60, 1, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = torch.stack([net(row) for row in x])[:, 0].numpy()
    assert expected.sum() > 20
    out, _, _ = run(file, x[:, 0].numpy(), tmp_path, dtype="float32", dt=1e-4, reset=option)
    assert (out != expected).mean() < 0.01  # 1 - beta has few significant digits in float32
    np.testing.assert_array_equal(out[:20], expected[:20])


def test_lif_and_li_of_norse(tmp_path):
    """v_leak is 0, the initial value of Norse's membranes."""
    norse = peer("norse.torch")

    p = norse.LIFBoxParameters(tau_mem_inv=torch.full((6,), 80.0, dtype=torch.float64), v_th=torch.full((6,), 0.4, dtype=torch.float64),
                               v_leak=torch.zeros(6, dtype=torch.float64), v_reset=torch.zeros(6, dtype=torch.float64))  # fmt: skip
    li = norse.LIBoxParameters(tau_mem_inv=torch.full((3,), 50.0, dtype=torch.float64), v_leak=torch.zeros(3, dtype=torch.float64))
    net = norse.SequentialState(torch.nn.Linear(4, 6), norse.LIFBoxCell(p), torch.nn.Linear(6, 3), norse.LIBoxCell(li)).double()
    spread_weights(net, 3)
    graph = norse.to_nir(net, torch.zeros(4, dtype=torch.float64), dt=1)  # Norse multiplies time constants by dt
    nir.write(tmp_path / "net.nir", graph)
    x = torch.randn(80, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.5
    state, rows = None, []
    with torch.no_grad():
        for row in x:
            y, state = net(row, state)
            rows.append(y[0].numpy())
    assert np.ptp(rows) > 0.01
    out, _, _ = run(tmp_path / "net.nir", x[:, 0].numpy(), tmp_path, dt=1e-3)
    np.testing.assert_allclose(out, rows, rtol=1e-9, atol=1e-12)


class Lif(torch.nn.Module):
    """A LIF with nirtorch's calling convention: it takes a state and returns the next one."""

    def __init__(self, node):
        super().__init__()
        self.node = {key: torch.tensor(getattr(node, key)) for key in ("tau", "r", "v_leak", "v_threshold", "v_reset")}

    def forward(self, x, state=None):
        n = self.node
        v = torch.zeros_like(n["r"]) if state is None else state
        v = v + 1e-3 / n["tau"] * (n["v_leak"] - v + n["r"] * x)
        spikes = v > n["v_threshold"]
        return spikes.double(), torch.where(spikes, n["v_reset"], v)


class Line(torch.nn.Module):
    def __init__(self, node):
        super().__init__()
        self.weight = torch.tensor(node.weight)

    def forward(self, x):
        return torch.nn.functional.linear(x.expand(self.weight.shape[1]), self.weight)


@pytest.mark.parametrize("seed", range(12))
def test_cycles_are_cut_where_nirtorch_cuts_them(seed, tmp_path):
    nirtorch = peer("nirtorch")
    print("seed", seed)
    random = np.random.default_rng(seed)
    graph = random_graph(random, depth=0)
    for name, (kind, fields) in graph["nodes"].items():
        if kind in ("Input", "Output"):
            continue
        is_layer = random.random() < 0.5
        graph["nodes"][name] = ("Linear", {"weight": random.normal(0, 0.5, (4, 4))}) if is_layer else neuron("LIF", (4,), random)
    # nirtorch ignores repeated edges, and replaces dots in names.
    names = {name: name.replace(".", "_").replace(" ", "_").replace("é", "e") for name in graph["nodes"]}
    graph = {
        "nodes": {names[name]: node for name, node in sorted(graph["nodes"].items(), key=lambda item: names[item[0]])},
        "edges": list(dict.fromkeys((names[a], names[b]) for a, b in graph["edges"])),
    }
    leaves = set(graph["nodes"]) - {a for a, _ in graph["edges"]} - {"output"}  # nirtorch would make each an Output
    graph["edges"] += [(name, "output") for name in sorted(leaves)]
    file = write(graph, tmp_path / "graph.nir")
    loaded = nir.read(file)
    net = nirtorch.nir_to_torch(loaded, {nir.LIF: Lif, nir.Linear: Line}, dtype=torch.float64)
    x = random.normal(0.4, 1, (25, 4))
    records = [name for name, node in graph["nodes"].items() if node[0] == "LIF"]
    out, _, _ = run(file, x, tmp_path, records)
    state, rows = None, []
    for row in x:
        *terms, state = net(torch.tensor(row), state)  # nirtorch does not sum the inputs of the Output
        rows.append(sum(terms).numpy())
    np.testing.assert_allclose(out, rows, rtol=1e-9, atol=1e-9)
