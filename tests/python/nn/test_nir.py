"""Conversion between networks in Python and NIR graphs. tests/nir tests files that spikeforge-nir runs too."""

import copy
import os
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from conftest import library_path
from loops import composite, detached, in_pieces, output_of, refused
from torch import nn

import spikeforge
from spikeforge.nn import IF, LI, LIF, PLIF, Composite, Constant, CubaLIF, Delay, Learnable, Recurrent, Sequential, TimeDistributed

nir = pytest.importorskip("nir")
try:
    import spikeforge.nir as graphs
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

DT = 1e-3
pytestmark = pytest.mark.filterwarnings("ignore:what NIR cannot say")


def spread(net, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 2 / parameter[0].numel() ** 0.5)
    return net


class Residual(nn.Module):
    """Calls its submodules one after the other, and adds the outputs of two of them."""

    def __init__(self):
        super().__init__()
        self.conv = TimeDistributed(nn.Conv2d(2, 4, 3, padding=1))
        self.first = LIF(tau=torch.tensor([2.0, 3.0, 1.5, 4.0]), v_threshold=0.6)
        self.block = nn.Sequential(TimeDistributed(nn.Conv2d(4, 4, 3, padding=1, bias=False)), nn.Dropout(), IF(v_reset=None))
        self.pool = TimeDistributed(nn.AvgPool2d(2))
        self.head = nn.Linear(36, 5)
        self.readout = LI(tau=3.0)

    def forward(self, x):
        x = self.first(self.conv(x))
        x = self.pool(x + self.block(x))
        return self.readout(self.head(x.flatten(2)))


def looped(from_rest=False):
    net = composite(
        "in -> dense.in, dense.out -> late.in, late.out -> cell.in 2, cell.out -> back.in, cell.out -> out",
        dense=nn.Linear(6, 6), late=Delay(torch.tensor([0, 1, 2, 3, 1, 0])), back=nn.Linear(6, 6),
        cell=CubaLIF(tau_synapse=3.0, tau_membrane=Learnable(2.0), v_threshold=0.4, surrogate="atan"),
    )
    net.connect("back.out", "cell.in", delay=1, from_rest=from_rest)
    return net


NETWORKS = {
    "torch's Sequential": (lambda: nn.Sequential(
        nn.Linear(6, 8), LIF(tau=3.0, decay_input=False), nn.Identity(), nn.Sequential(nn.Linear(8, 6), PLIF(init_tau=1.7))), (6,)),
    "Sequential": (lambda: Sequential(
        nn.Flatten(), nn.Linear(6, 8), LIF(v_reset=None, v_threshold=Constant(torch.rand(8) + 0.3, dim=-1))), (2, 3)),
    "module of one's own": (Residual, (2, 6, 6)),
    "loop with delays": (looped, (6,)),
    "loop from rest": (lambda: looped(from_rest=True), (6,)),
    "Recurrent": (lambda: Recurrent(LIF(strict=True, v_threshold=0.4, surrogate=spikeforge.surrogate.ATan(3.0)), nn.Linear(6, 6)), (6,)),
    "neuron": (lambda: IF(v_threshold=Learnable(0.7)), (6,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_is_saved_is_loaded_as_the_same(name, tmp_path):
    make, shape = NETWORKS[name]
    net = spread(make()).eval()
    x = torch.randn(12, 3, *shape, generator=torch.Generator().manual_seed(1)) + 0.3
    expected = net(x)
    assert expected.abs().sum() > 5
    graphs.save(net, torch.zeros(shape), tmp_path / "a.nir", dt=DT)
    loaded = graphs.load(tmp_path / "a.nir", dt=DT)
    torch.testing.assert_close(loaded(x), expected, rtol=1e-5, atol=1e-5)
    # The same graph in memory, and loaded again, gives the same bits.
    graph = graphs.to_graph(loaded, torch.zeros(shape))
    assert torch.equal(graphs.load(graph, dt=DT)(x), loaded(x))
    nir.write(tmp_path / "b.nir", graph)
    assert torch.equal(graphs.load(tmp_path / "b.nir", dt=DT)(x), loaded(x))
    learned = {name.rsplit(".", 1)[-1]: p.shape for name, p in net.named_parameters() if p.dim() != 1}
    assert learned.items() <= {name.rsplit(".", 1)[-1]: p.shape for name, p in loaded.named_parameters()}.items()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_recurrent_layer_that_is_loaded_learns_in_pieces(steps, has_bias):
    net = spread(Recurrent(LIF(v_threshold=0.3, surrogate="atan"), nn.Linear(4, 4, bias=has_bias)).double())
    loaded = graphs.load(graphs.to_graph(net, torch.zeros(4), dt=DT), dt=DT, dtype=torch.float64)
    x = torch.rand(8, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = []
    for each in (net, loaded):
        y, _ = in_pieces(each, x.split(steps), after_piece=lambda y, state: (y.sum().backward(), detached(state))[1])
        found.append([y.detach(), *(p.grad for p in each.module.parameters())])
    assert found[0][0].any() and found[0][1].any()
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_the_nir_package_reads_saved_files_and_their_simulation_fires_the_same(tmp_path):
    net = spread(nn.Sequential(nn.Linear(6, 8), LIF(tau=3.0, strict=True), nn.Linear(8, 6), IF(v_threshold=0.5, strict=True)).double())
    graphs.save(net, torch.zeros(6), tmp_path / "a.nir", dt=DT, compression=4)
    graph = nir.read(tmp_path / "a.nir")
    x = torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    value, v = None, {}
    rows = []
    for row in x.numpy():
        value = row
        for name in ("0", "1", "2", "3"):
            node = graph.nodes[name]
            if isinstance(node, nir.Affine):
                value = node.weight @ value + node.bias
                continue
            before = v.get(name, 0.0)
            change = node.r * value if isinstance(node, nir.IF) else (node.v_leak - before + node.r * value) / node.tau
            charged = before + DT * change
            value = (charged > node.v_threshold).astype(float)
            v[name] = np.where(value, node.v_reset, charged)
        rows.append(value)
    assert np.sum(rows) > 10
    np.testing.assert_array_equal(net(x).detach().numpy(), rows)


def test_a_graph_trains_and_its_learned_parameters_are_saved(tmp_path):
    ones = np.ones(4, np.float32)
    lif = nir.LIF(ones * 2 * DT, ones, 0 * ones, ones / 2, 0 * ones)
    graph = nir.NIRGraph.from_list(nir.Affine(np.eye(4, dtype=np.float32), 0 * ones), lif)
    net = graphs.load(graph, dt=DT, learn_neurons=True, surrogate="atan", reset="subtract")
    assert "reset=subtract" in repr(net)
    optimiser = torch.optim.Adam(net.parameters(), 1e-4)
    x = torch.rand(20, 2, 4, generator=torch.Generator().manual_seed(3))
    for _ in range(3):
        optimiser.zero_grad()
        (net(x).mean() - 0.9).square().backward()
        assert all(parameter.grad.abs().sum() > 0 for name, parameter in net.named_parameters() if "v_leak" not in name)
        optimiser.step()
    graphs.save(net, torch.zeros(4), tmp_path / "a.nir")
    saved = nir.read(tmp_path / "a.nir").nodes
    np.testing.assert_array_equal(saved["lif"].tau, net.lif.tau.detach().numpy())
    assert not np.array_equal(saved["lif"].tau, ones * 2 * DT)
    again = graphs.load(tmp_path / "a.nir", dt=DT)
    assert torch.equal(again(x), net(x))  # the reset is in the metadata


def test_bounds_of_learned_constants_are_restored_and_another_dt_is_reported(tmp_path):
    net = nn.Sequential(nn.Linear(3, 3), LIF(tau=Learnable(1.5, min=1.2), v_threshold=Learnable(0.5, min=0.25, max=2.0)))
    path = tmp_path / "a.nir"
    with pytest.warns(UserWarning, match=r"threshold itself, where others fire above it \(1\)"):
        graphs.save(net, torch.zeros(3), path, dt=DT)
    lif = next(module for module in graphs.load(path, dt=DT).modules() if isinstance(module, LIF))
    assert repr(lif) == repr(net[1]) and "[1.2, inf]" in repr(lif) and "[0.25, 2" in repr(lif)
    with pytest.warns(UserWarning, match="saved with dt = 0.001, but loaded with dt = 0.0005"):
        graphs.load(path, dt=DT / 2)


def test_a_graph_prints_itself_as_a_table():
    net = nn.Sequential(nn.Linear(3, 2), LIF(tau=2.0))
    text = str(graphs.to_graph(net, torch.zeros(3), dt=0.5))
    lines = text.splitlines()
    assert lines[0] == "NIRGraph: 4 nodes, 3 edges, 18 parameters"
    (lif,) = (line for line in lines if " LIF " in line)
    assert lif.split()[:2] == ["1", "LIF"] and "tau [2] 1;" in lif and "-> output" in lif


class Branching(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


REFUSED = {
    "other layers": (nn.Sequential(nn.Linear(3, 2), nn.Tanh()), "1: NIR has no node for Tanh"),
    "neurons": (nn.Sequential(spikeforge.nn.QIF()), "0: NIR has no node for QIF"),
    "without a spike": (LIF(spiking=False), "spiking=False"),
    "products": (Branching(lambda m, x: m.a(x) * 2, a=nn.Linear(3, 3)), "NIR has no node for mul"),
    "a module twice": (Branching(lambda m, x: m.a(m.a(x)), a=nn.Linear(3, 3)), "it calls a twice"),
    "control flow": (Branching(lambda m, x: m.a(x) if x.sum() > 0 else x, a=nn.Linear(3, 3)), "its forward cannot be followed"),
    "shapes": (nn.Sequential(nn.Linear(4, 2)), "node 0, field weight: it takes [4], but the input has shape [3]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_module_that_nir_cannot_express_is_refused_by_name(case):
    net, message = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        graphs.to_graph(net, torch.zeros(3), dt=DT)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_arguments_and_hostile_files_are_refused_in_a_line(tmp_path):
    refused(ValueError, "dt is missing", lambda: graphs.save(LIF(), torch.zeros(3), tmp_path / "a.nir"))
    refused(TypeError, "example must be a tensor", lambda: graphs.save(LIF(), (3,), tmp_path / "a.nir", dt=DT))
    with pytest.raises(ValueError, match=r"reset must be one of file, zero, .*, but is hard"):
        graphs.load(nir.NIRGraph.from_list(nir.I(np.ones(3))), dt=DT, reset="hard")
    refused(ValueError, r"missing\.nir: .*[Nn]o such file", lambda: graphs.load(tmp_path / "missing.nir", dt=DT))
    nir.write(tmp_path / "large.nir", nir.NIRGraph.from_list(nir.Linear(np.zeros((1000, 1000)))))
    with pytest.raises(ValueError, match="field weight: the file needs more than 1000000 bytes of memory"):
        graphs.load(tmp_path / "large.nir", dt=DT, max_bytes=1_000_000)
    with pytest.raises(ValueError, match="a time constant must be finite"):
        graphs.load(nir.NIRGraph.from_list(nir.LI(-np.ones(3), np.ones(3), np.ones(3))), dt=DT)
    cut = (tmp_path / "large.nir").read_bytes()[:3000]
    (tmp_path / "cut.nir").write_bytes(cut)
    refused(ValueError, "is not an HDF5 file that libhdf5 reads", lambda: graphs.load(tmp_path / "cut.nir", dt=DT))


def test_soft_resets_are_warned_of(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graphs.save(LIF(v_reset=None), torch.zeros(3), tmp_path / "a.nir", dt=DT)
    assert any("soft reset" in str(one.message) and one.filename == __file__ for one in caught)


def chain_of(nodes, **options):
    return nir.NIRGraph(nodes, list(zip(nodes, list(nodes)[1:])), type_check=False, **options)


def test_nodes_of_any_name_are_loaded_and_keep_their_names(tmp_path, monkeypatch):
    # Names of all attributes of a module, including those that torch.compile adds later, and names that are illegal for modules.
    monkeypatch.setattr(torch.nn.Module, "added_later", False, raising=False)
    names = [*dir(Composite()), *vars(Composite()), "dt", "_labels", "train_", "a.b", "a_b", "a..b", "..", "a b", "µ", "class", "0"]
    nodes = {"forward": nir.Input(np.array([1]))}
    nodes |= {name: nir.Scale(np.array([1 + 2.0**-20 * i])) for i, name in enumerate(dict.fromkeys(names)) if name not in nodes}
    nodes["out.put"] = nir.Output(np.array([1]))
    net = graphs.load(chain_of(nodes), dt=DT, dtype=torch.float64)
    factors = [node.scale[0] for node in nodes.values() if isinstance(node, nir.Scale)]
    assert net(torch.ones(2, 1, dtype=torch.float64))[1].item() == pytest.approx(np.prod(factors), rel=1e-12)
    assert vars(net).keys() <= {*dir(Composite()), "dt", "_labels"}
    graphs.save(net, torch.zeros(1), tmp_path / "a.nir")
    for graph in (graphs.to_graph(copy.deepcopy(net), torch.zeros(1)), nir.read(tmp_path / "a.nir")):
        assert {name: type(node) for name, node in graph.nodes.items()} == {name: type(node) for name, node in nodes.items()}
        assert [graph.nodes[name].scale.item() for name in nodes if hasattr(nodes[name], "scale")] == factors
        assert sorted(graph.edges) == sorted(zip(nodes, list(nodes)[1:]))


METADATA = {"by": "µ", "dt": 1e-4, "n": 7, "flag": True, "list": np.arange(4), "texts": ["a", "b"], "none": [], "deep": {"a": {"b": "c"}, "none": {}}}


def metadata_in(file):
    import h5py

    found = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, value: found.update({name: np.asarray(value[()]).tolist() if isinstance(value, h5py.Dataset) else None}))
    return {name: value for name, value in found.items() if "/metadata/" in name}


@pytest.mark.parametrize("through", ["memory", "file"])
def test_metadata_of_graphs_and_nodes_come_back(through, tmp_path):
    one, noted = np.ones(3), lambda name: {"metadata": METADATA | {"name": name}}
    inner = {"x": nir.Input(np.array([3]), **noted("x")), "lif": nir.LIF(one, one, one, one, one, **noted("lif"))}
    inner["y"] = nir.Output(np.array([3]), **noted("y"))
    nodes = {"input": nir.Input(np.array([3]), **noted("input")), "fc.1": nir.Linear(np.eye(3), **noted("fc"))}
    nodes |= {"inner": chain_of(inner, **noted("inner")), "late": nir.Delay(DT * one, **noted("late"))}
    nodes |= {"output": nir.Output(np.array([3]), **noted("output"))}
    graph = chain_of(nodes, **noted("whole"))
    nir.write(tmp_path / "a.nir", graph)
    expected = metadata_in(tmp_path / "a.nir")
    assert len(expected) == 9 * (len(METADATA) + 4)
    net = graphs.load({"memory": graph, "file": tmp_path / "a.nir"}[through], dt=DT, reset="subtract")
    graphs.save(net, torch.zeros(3), tmp_path / "b.nir")
    nir.write(tmp_path / "c.nir", graphs.to_graph(net, torch.zeros(3)))
    for file in ("b.nir", "c.nir"):
        found = metadata_in(tmp_path / file)
        own = {name: found.pop(name) for name in list(found) if "/spikeforge" in name}  # the additional metadata
        assert own == {"node/nodes/inner/nodes/lif/metadata/spikeforge": None, "node/nodes/inner/nodes/lif/metadata/spikeforge/reset": b"subtract"}
        assert found == expected


CONSTANTS = {  # `c` has a shape that broadcasts to (4, 2, 3), as r and the other fields
    "I": lambda c: nir.I(c),
    "LI": lambda c: nir.LI(c * DT * 3, 1 + 0 * c, 0.1 * c),
    "IF": lambda c: nir.IF(c / DT, 0.5 + c, 0.1 * c),
    "LIF": lambda c: nir.LIF(c * DT * 3, 1 + c, 0.1 * c, 0.4 * c, 0 * c),
    "CubaLI": lambda c: nir.CubaLI(c * DT * 2, c * DT * 3, 1 + c, 0 * c, np.array(2.0)),
    "CubaLIF": lambda c: nir.CubaLIF(c * DT * 2, c * DT * 3, 1 + c, 0 * c, 0.2 * c, 0 * c, 2 + c),
    "Threshold": lambda c: nir.Threshold(0.5 * c),
    "Scale": lambda c: nir.Scale(2 * c),
    "Delay": lambda c: nir.Delay(DT * np.round(2 * c)),
}


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (2, 3), (4, 2, 3)], ids=str)
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_that_broadcast_are_saved_whole(name, shape, tmp_path):
    constants = 1 + np.arange(np.prod(shape, dtype=int)).reshape(shape) / 32
    node = CONSTANTS[name](constants)
    for field, value in vars(node).items():
        if isinstance(value, np.generic):  # NumPy returns scalars for operations on 0-dimensional arrays
            setattr(node, field, np.array(value))
    graph = chain_of({"input": nir.Input(np.array([4, 2, 3])), "n": node, "output": nir.Output(np.array([4, 2, 3]))})
    net = graphs.load(graph, dt=DT, shapes="tolerant", dtype=torch.float64)
    x = torch.rand(9, 2, 4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    graphs.save(net, torch.zeros(4, 2, 3), tmp_path / "a.nir")
    for saved in (nir.read(tmp_path / "a.nir"), graphs.to_graph(net, torch.zeros(4, 2, 3))):
        again = saved.nodes["n"]
        for field, value in vars(node).items():
            if isinstance(value, np.ndarray):
                whole = np.broadcast_to(value, (4, 2, 3))
                assert np.array_equal(getattr(again, field), whole) or (field == "w_in" and value.size == 1), field
        assert torch.equal(graphs.load(saved, dt=DT, dtype=torch.float64)(x), net(x))
    assert net(x).abs().sum() > 0


def test_constants_that_were_changed_are_saved_whole_or_refused_by_name():
    graph = chain_of({"input": nir.Input(np.array([6])), "n": nir.I(np.array(1.0)), "output": nir.Output(np.array([6]))})
    net = graphs.load(graph, dt=DT, shapes="tolerant")
    net.n.r = 2.0  # a scalar is legal
    assert graphs.to_graph(net, torch.zeros(6)).nodes["n"].r.tolist() == [2.0] * 6
    net.n.r = torch.ones(1, 4)
    with pytest.raises(ValueError, match=r"node n: its parameters have shape \[1, 4\], but the input has shape \[6\]"):
        graphs.to_graph(net, torch.zeros(6))


LOOSE = {
    "an input that leads nowhere": ({"a": nir.Threshold(-np.ones(2))}, [("a", "out")]),
    "nodes behind no input": (
        {"a": nir.Scale(np.ones(2)), "b": nir.Scale(np.ones(2)), "c": nir.Threshold(-np.ones(2))},
        [("in", "out"), ("a", "b"), ("b", "a"), ("c", "a"), ("b", "out")],
    ),
}


@pytest.mark.parametrize("case", LOOSE)
def test_parts_that_are_not_connected_are_saved(case):
    inner, edges = LOOSE[case]
    nodes = {"in": nir.Input(np.array([2])), **inner, "out": nir.Output(np.array([2]))}
    net = graphs.load(nir.NIRGraph(nodes, edges, type_check=False), dt=DT)
    graph, x = graphs.to_graph(net, torch.zeros(2)), torch.ones(4, 2)
    assert graph.nodes.keys() == nodes.keys() and sorted(graph.edges) == sorted(edges)
    assert torch.equal(graphs.load(graph, dt=DT)(x), net(x)) and (len(inner) > 1 or torch.equal(net(x), x))


def test_a_library_of_hdf5_that_is_not_there_is_an_error_of_reading(tmp_path):
    nir.write(tmp_path / "a.nir", chain_of({"in": nir.Input(np.array([1])), "n": nir.Scale(np.ones(1)), "out": nir.Output(np.array([1]))}))
    program = f"import spikeforge.nir as graphs; graphs.load({str(tmp_path / 'a.nir')!r}, dt=1.0)"
    environment = os.environ | {"SPIKEFORGE_HDF5": "/nowhere/libhdf5.so"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode != 0 and "SPIKEFORGE_HDF5=/nowhere/libhdf5.so cannot be loaded" in done.stderr, done.stderr


def test_a_connection_to_the_outside_closes_no_loop():
    net = composite("a.out -> out, in -> b.in, b.out -> a.in", a=nn.Identity(), b=nn.Identity())
    assert torch.equal(net(torch.ones(2, 3)), torch.ones(2, 3))


@pytest.mark.parametrize("name", ["Sequential", "Recurrent"])
def test_a_network_goes_to_a_gpu_and_back(name, tmp_path, cuda):
    make, shape = NETWORKS[name]
    graph = graphs.to_graph(spread(make()).eval(), torch.zeros(shape), dt=DT)
    here, there = graphs.load(graph, dt=DT), graphs.load(graph, dt=DT, device=cuda)
    tensors = [*there.parameters(), *there.buffers()]
    assert tensors and {t.device.type for t in tensors} == {"cuda"}
    x = torch.randn(12, 3, *shape, generator=torch.Generator().manual_seed(1)) + 0.3
    spikes = there(x.to(cuda))
    assert spikes.device.type == "cuda" and spikes.sum() > 5
    assert (spikes.cpu() != here(x)).float().mean() < 0.01  # rounding in a product may move a spike
    graphs.save(there, torch.zeros(shape, device=cuda), tmp_path / "a.nir", dt=DT)
    again = graphs.load(tmp_path / "a.nir", dt=DT, device=cuda)
    assert torch.equal(again(x.to(cuda)), spikes)


def read_by_spikingjelly(file):
    sj = pytest.importorskip("spikingjelly.activation_based.nir_exchange", exc_type=ImportError)
    return sj.import_from_nir(file, dt=DT, dtype=torch.float64)


def read_by_snntorch(file):
    return pytest.importorskip("snntorch.import_nir", exc_type=ImportError).import_from_nir(nir.read(file))


READERS = {  # the options of the neurons, the step of the library, the dtype
    "SpikingJelly": (read_by_spikingjelly, {}, DT, torch.float64),
    "snnTorch": (read_by_snntorch, {"strict": True}, 1e-4, torch.float32),
}


@pytest.mark.long
@pytest.mark.parametrize("library", READERS)
def test_other_libraries_read_what_was_trained_here_and_fire_the_same(library, tmp_path):
    read, options, dt, dtype = READERS[library]
    layers = nn.Linear(6, 8), LIF(tau=3.0, **options), nn.Linear(8, 6), LIF(v_threshold=0.5, **options)
    net = spread(nn.Sequential(*layers).to(dtype))
    graphs.save(net, torch.zeros(6), tmp_path / "a.nir", dt=dt)
    x = 4 * torch.randn(80, 1, 6, dtype=dtype, generator=torch.Generator().manual_seed(5))
    expected = net(x)
    assert expected.sum() > 20
    theirs = read(tmp_path / "a.nir")
    with torch.no_grad():
        fired, _ = in_pieces(lambda piece, state: theirs(piece[0], state), x.split(1))
    assert torch.equal(fired.view_as(expected), expected)


@pytest.fixture
def own_hdf5():
    """The copy of libhdf5 in h5py, which this package loads if the system has none."""
    from spikeforge import _library

    with _library.hdf5_of_h5py() as file:
        if file is None:
            pytest.skip("this h5py has no HDF5 of its own")
        yield file


def test_files_are_read_and_written_by_the_hdf5_of_h5py_beside_it(tmp_path, own_hdf5):
    net = spread(NETWORKS["Sequential"][0]()).eval()
    graphs.save(net, torch.zeros(2, 3), tmp_path / "a.nir", dt=DT, compression=4)
    program = f"""
import torch, spikeforge
from spikeforge import _library
from pathlib import Path
torch.ops.load_library({str(library_path().with_name("libspikeforge_nir_nn.so"))!r})
assert torch.ops.spikeforge_nir.load_hdf5({str(own_hdf5)!r}) == ""
import spikeforge.nir as graphs, nir, h5py
net = graphs.load({str(tmp_path / "a.nir")!r}, dt={DT})
graphs.save(net, torch.zeros(2, 3), {str(tmp_path / "b.nir")!r}, dt={DT}, compression=4)
nir.read({str(tmp_path / "b.nir")!r})
mapped = {{line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "hdf5" in line}}
assert len([name for name in mapped if "hdf5_hl" not in name and "/h5py/" not in name]) == 2, mapped
"""
    output_of(program)
    x = torch.randn(5, 2, 2, 3)
    assert torch.equal(graphs.load(tmp_path / "b.nir", dt=DT)(x), graphs.load(tmp_path / "a.nir", dt=DT)(x))


def plain(file, to):
    """Writes the same file without compression."""
    import h5py

    def copy(group, into):
        for name, value in group.items():
            if isinstance(value, h5py.Group):
                copy(value, into.create_group(name))
            else:
                into.create_dataset(name, data=value[()])

    with h5py.File(file) as given, h5py.File(to, "w") as made:
        copy(given, made)
    file.unlink()


@pytest.mark.long
@pytest.mark.parametrize("compressed", [True, False], ids=["compressed", "plain"])
def test_ten_million_parameters_are_loaded_in_at_most_1_5_of_the_time_of_nir(compressed, tmp_path):
    random = np.random.default_rng(0)
    layers = [nir.Affine(random.normal(size=(1581, 1581)).astype(np.float32), np.zeros(1581, np.float32)) for _ in range(4)]
    file = tmp_path / "a.nir" if compressed else tmp_path / "compressed.nir"
    nir.write(file, nir.NIRGraph.from_list(*layers))
    if not compressed:
        plain(file, tmp_path / "a.nir")
    times = {nir.read: [], lambda file: graphs.load(file, dt=DT): []}
    for _ in range(7 if compressed else 30):
        for read, taken in times.items():
            start = time.process_time()
            read(tmp_path / "a.nir")
            taken.append(time.process_time() - start)
    theirs, ours = map(min, times.values())
    assert ours <= 1.5 * theirs, f"{ours:.3f} s, nir.read {theirs:.3f} s"
