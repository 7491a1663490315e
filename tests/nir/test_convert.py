"""NIR files as TorchScript: in Python, with the operator library only, they give the bits of spikeforge-nir run."""

import itertools
import os

import numpy as np
import pytest
import torch
from simulator import write
from test_network import (
    COMPARISONS,
    CURRENTS,
    DT,
    LIBRARY,
    RESETS,
    SCALINGS,
    SPIKING,
    STARTS,
    TOOL,
    WITH_MEMBRANE,
    check_python,
    convolutions_over_one_dimension,
    layers,
    neuron,
    random_graph,
    tool,
)

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"there is no {TOOL}: built without HDF5?")


def flags(options):
    return [flag for key, value in {"dt": DT, **options}.items() for flag in ("--" + key.replace("_", "-"), value)]


def convert(graph, folder, **options):
    return tool("convert", write(graph, folder / "graph.nir"), folder / "net.pt", *flags(options))


def load(file):
    torch.ops.load_library(str(LIBRARY))
    return torch.jit.load(str(file))


def run(file, x, folder, names, **options):
    np.save(folder / "x.npy", x)
    records = [flag for i, name in enumerate(names) for flag in ("--record", f"{name}={folder / str(i)}.npy")]
    done = tool("run", file, "--input", folder / "x.npy", *records, *flags(options))
    assert done.returncode == 0, done.stderr
    outputs = [np.load(folder / f"{i}.npy") for i in range(len(names))]
    others = {key: value for key, value in options.items() if key != "dtype"}
    check_python(file, x, outputs, options.get("dtype", "float32"), {"dt": DT, **others})
    return outputs


def check(graph, x, folder, names=("output",), dtype="float64", **options):
    """Compares the outputs of the network (these nodes): in one call, in pieces, in a batch, and after reset()."""
    done = convert(graph, folder, dtype=dtype, **options)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    expected = run(folder / "graph.nir", x, folder, names, dtype=dtype, **options)
    net = load(folder / "net.pt")
    x = torch.from_numpy(x).to(getattr(torch, dtype))

    def call(value):
        with torch.no_grad():
            y = net(value)
        return [y] if isinstance(y, torch.Tensor) else list(y)

    def check_same(actual, values=expected):
        assert len(actual) == len(values)
        for name, y, e in zip(names, actual, values, strict=True):
            np.testing.assert_array_equal(y.numpy(), e, err_msg=name)

    check_same(call(x))
    after = call(x)
    for _ in range(2):  # the interpreter optimises the script in its first calls
        net.reset()
        pieces = [call(piece) for piece in x.split([1, 2, len(x) - 3])]
        check_same([torch.cat(rows) for rows in zip(*pieces, strict=True)])
        check_same(call(x), after)
    net.reset()
    for y, e in zip(call(torch.stack([x.flip(0), x], 1)), expected, strict=True):  # layers round a batch differently
        np.testing.assert_allclose(y[:, 1].numpy(), e, rtol=1e-9 if dtype == "float64" else 1e-4, atol=1e-9)
    return expected


@pytest.mark.long(but=r"^0$")
@pytest.mark.parametrize("seed", range(6))
def test_a_random_graph_gives_its_bits(seed, tmp_path):
    print("seed", seed)
    random = np.random.default_rng(100 + seed)
    choices = list(itertools.product(RESETS, SCALINGS, COMPARISONS, CURRENTS))
    reset, scaling, comparison, current = choices[int(random.integers(len(choices)))]
    check(random_graph(random), random.normal(0.3, 1, (25, 4)), tmp_path, reset=reset, if_scaling=scaling,
          comparison=comparison, cuba_current=current, recurrent_start=STARTS[seed % 2])  # fmt: skip


@pytest.mark.long(but="float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_neuron_gives_its_bits(dtype, tmp_path):
    random = np.random.default_rng(7)
    nodes = {kind: neuron(kind, (2, 3), random) for kind in WITH_MEMBRANE}
    nodes |= {kind + " of old files": neuron(kind, (2, 3), random, reset=False) for kind in WITH_MEMBRANE}
    nodes |= {
        "Threshold": ("Threshold", {"threshold": random.normal(size=(2, 3))}),
        "Scale": ("Scale", {"scale": random.normal(size=(2, 3))}),
        "Delay of each": ("Delay", {"delay": random.integers(0, 5, (2, 3)) * DT}),
        "Delay of all": ("Delay", {"delay": np.full((2, 3), 2 * DT)}),
        "Delay of none": ("Delay", {"delay": np.zeros((2, 3))}),
    }
    names = sorted(nodes)
    graph = {"nodes": {"input": ("Input", {"shape": [2, 3]}), **nodes}, "edges": [("input", name) for name in nodes]}
    results = check(graph, random.normal(0.6, 1, (40, 2, 3)), tmp_path, names, dtype)
    assert all(y.sum() > 5 for name, y in zip(names, results, strict=True) if name.split()[0] in SPIKING)


@pytest.mark.parametrize("graph_of, shape", [(layers, (4, 9, 8)), (convolutions_over_one_dimension, (3, 20))])
def test_every_layer_gives_its_bits(graph_of, shape, tmp_path):
    random = np.random.default_rng(11)
    graph = graph_of(random)
    for name, (kind, _) in list(graph["nodes"].items()):  # without an Output, nodes without a successor are outputs
        if kind == "Output":
            del graph["nodes"][name]
    graph["edges"] = [(a, b) for a, b in graph["edges"] if b in graph["nodes"]]
    sources = {a for a, _ in graph["edges"]}
    check(graph, random.normal(0.2, 1, (5, *shape)), tmp_path, sorted(n for n in graph["nodes"] if n not in sources))


@pytest.mark.parametrize("start", STARTS)
def test_cycles_start_as_they_do_in_the_network(start, tmp_path):
    """Tests cycles with biases and a nested graph, repeated edges, and a node without input."""
    random = np.random.default_rng(13)
    affine = lambda: ("Affine", {"weight": random.normal(size=(3, 3)), "bias": random.normal(0.5, 0.5, 3)})  # noqa: E731
    ports = {"in": ("Input", {"shape": [3]}), "out": ("Output", {"shape": [3]})}
    inner = {
        "nodes": {**ports, "w": affine(), "late": ("Delay", {"delay": np.array([0, 1, 2]) * DT}), "lif": neuron("LIF", (3,), random)},
        "edges": [("in", "w"), ("w", "late"), ("late", "out"), ("late", "lif"), ("lif", "w"), ("lif", "out")],
    }
    graph = {
        "nodes": {"input": ports["in"], "output": ports["out"], "a b": neuron("LIF", (3,), random), "a_b": neuron("CubaLIF", (3,), random),
                  "w": affine(), "inner.graph": ("NIRGraph", inner), "alone": affine()},
        "edges": [("input", "a b"), ("a b", "w"), ("w", "a b"), ("w", "a b"), ("a b", "inner.graph"), ("inner.graph", "a_b"),
                  ("a_b", "w"), ("a_b", "a b"), ("a_b", "a_b"), ("input", "a_b"), ("alone", "a_b"), ("a_b", "output"), ("a_b", "output")],
    }  # fmt: skip
    (y,) = check(graph, random.normal(0, 1, (30, 3)), tmp_path, recurrent_start=start)
    assert 5 < (y > 0).sum() < y.size - 5


def test_the_states_are_those_of_the_neurons(tmp_path):
    random = np.random.default_rng(5)
    graph = {
        "nodes": {"input": ("Input", {"shape": [3]}), "lif": neuron("LIF", (3,), random), "output": ("Output", {"shape": [3]})},
        "edges": [("input", "lif"), ("lif", "output")],
    }
    assert convert(graph, tmp_path).returncode == 0
    net = load(tmp_path / "net.pt")
    assert not net.training and net.lif.v_state.value is None and torch.equal(net.lif.tau, torch.tensor(graph["nodes"]["lif"][1]["tau"]).float())
    net(torch.ones(2, 3))
    assert net.lif.v_state.value.shape == (3,)
    with pytest.raises(RuntimeError, match="v"):
        net(torch.ones(2, 5))
    net.reset()
    assert net.lif.v_state.value.shape == (0,)


def test_a_refusal_is_one_line_and_leaves_the_old_file(tmp_path):
    random = np.random.default_rng(5)
    lif = neuron("LIF", (3,), random)
    ports = {"input": ("Input", {"shape": [3]}), "output": ("Output", {"shape": [3]})}
    good = {"nodes": {**ports, "lif": lif}, "edges": [("input", "lif"), ("lif", "output")]}
    circle = {"nodes": {"a": lif, "b": lif}, "edges": [("a", "b"), ("b", "a")]}
    odd = {"nodes": {**ports, "late": ("Delay", {"delay": np.full(3, 1.5 * DT)})}, "edges": [("input", "late"), ("late", "output")]}
    (tmp_path / "net.pt").write_text("old")

    def refusal(*command, status=1):
        before = sorted(os.listdir(tmp_path))
        done = tool("convert", *command)
        assert done.returncode == status and done.stdout == "" and done.stderr.count("\n") == 1, done
        assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "net.pt").read_text() == "old"
        return done.stderr

    for graph, words in [(circle, ["graph.nir", "Input"]), (odd, ["graph.nir", "late", "delay"])]:
        line = refusal(write(graph, tmp_path / "graph.nir"), tmp_path / "net.pt", "--dt", DT)
        assert all(word in line for word in words), line
    file = write(good, tmp_path / "graph.nir")
    assert "--dt" in refusal(file, tmp_path / "net.pt", status=2)
    assert "dt" in refusal(file, tmp_path / "net.pt", "--dt", "-1")
    assert "net.txt" in refusal(file, tmp_path / "net.txt")
    assert "net.pt" in refusal(tmp_path / "net.pt", tmp_path / "back.nir")
    assert "nowhere" in refusal(file, tmp_path / "nowhere" / "net.pt", "--dt", DT)
    assert "graph.nir" in refusal(tmp_path / "no graph.nir", tmp_path / "net.pt", "--dt", DT)
    assert tool("convert", file, tmp_path / "net.pt", "--dt", DT).returncode == 0
    load(tmp_path / "net.pt")
