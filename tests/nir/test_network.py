"""Compares NIR files run by spikeforge-nir with a simulator in NumPy, written from the equations of the nodes."""

import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from simulator import Simulator, order_of, write

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("SPIKEFORGE_LIBRARY", REPOSITORY / "build" / "release" / "lib" / "libspikeforge.so"))
TOOL = LIBRARY.resolve().parents[1] / "bin" / "spikeforge-nir"
DT = 1e-3

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"there is no {TOOL}: built without HDF5?")


def tool(*arguments, **options):
    return subprocess.run([str(a) for a in (TOOL, *arguments)], capture_output=True, text=True, timeout=120, **options)


def run(file, x, folder, records=(), membranes=(), dtype="float64", inputs=None, **options):
    """Returns the output of every recorded node, and the membranes, [T, *shape] each."""
    np.save(folder / "x.npy", x)
    command = ["run", file, "--input", folder / "x.npy", "--dtype", dtype]
    options = {"dt": DT, **options}
    for key, value in options.items():
        command += ["--" + key.replace("_", "-"), value]
    files = {}
    for i, (option, name) in enumerate([("--record", n) for n in records] + [("--record-v", n) for n in membranes]):
        files[option, name] = folder / f"{i}.npy"
        command += [option, f"{name}={files[option, name]}"]
    done = tool(*command, "--output", folder / "out.npy")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout == ""
    loaded = {key: np.load(path) for key, path in files.items()}
    assert all(value.dtype == dtype for value in loaded.values())
    check_python(file, x, [np.load(folder / "out.npy")], dtype, options)
    return np.load(folder / "out.npy"), {n: loaded["--record", n] for n in records}, {n: loaded["--record-v", n] for n in membranes}


def check_python(file, x, expected, dtype, options):
    """Checks that Python modules give the same bits for every output."""
    import torch

    os.environ.setdefault("SPIKEFORGE_LIBRARY", str(LIBRARY))
    sys.path[:0] = [folder for folder in [str(REPOSITORY / "python")] if folder not in sys.path]
    import spikeforge.nir

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = spikeforge.nir.load(file, dtype=getattr(torch, dtype), **{name.replace("-", "_"): value for name, value in options.items()})
    with torch.no_grad():
        given = net(torch.from_numpy(x).to(getattr(torch, dtype)))
    outputs = [given] if isinstance(given, torch.Tensor) else list(given.values() if isinstance(given, dict) else given)
    for output, same in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output.numpy(), same)


SPIKING = ("IF", "LIF", "CubaLIF", "Threshold")
WITH_MEMBRANE = ("I", "LI", "IF", "LIF", "CubaLI", "CubaLIF")


def all_nodes(graph, prefix=""):
    for name, (kind, fields) in graph["nodes"].items():
        if kind == "NIRGraph":
            yield from all_nodes(fields, prefix + name + "/")
        elif not (prefix and kind in ("Input", "Output")):
            yield prefix + name, kind


def check(graph, x, folder, **options):
    """Compares every node of the graph in every step. Returns the number of spikes."""
    file = write(graph, folder / "graph.nir")
    kinds = dict(all_nodes(graph))
    membranes = [name for name, kind in kinds.items() if kind in WITH_MEMBRANE]
    out, records, v = run(file, x, folder, list(kinds), membranes, **options)
    simulator = Simulator(graph, **{"dt": DT, **{k: o for k, o in options.items() if k not in ("shapes", "delays")}})
    spikes = 0
    for t, row in enumerate(x):
        values = simulator.step(row)
        for name, kind in kinds.items():
            assert records[name][t].shape == np.shape(values[name]), name
            if kind in SPIKING:
                np.testing.assert_array_equal(records[name][t], values[name], err_msg=f"{name} in step {t}")
                spikes += values[name].sum()
            else:
                np.testing.assert_allclose(records[name][t], values[name], rtol=1e-9, atol=1e-9, err_msg=f"{name} in step {t}")
        for name in membranes:
            expected = np.broadcast_to(simulator.membrane(name), v[name][t].shape)
            np.testing.assert_allclose(v[name][t], expected, rtol=1e-9, atol=1e-9, err_msg=f"{name}, step {t}")
        np.testing.assert_array_equal(out[t], records[next(n for n, k in kinds.items() if k == "Output")][t])
    return spikes


def neuron(kind, shape, random, reset=True):
    """Returns a neuron with different parameters per neuron, v_leak other than 0, and any r and w_in."""
    between = lambda low, high: random.uniform(low, high, shape)  # noqa: E731
    fields = {"r": between(0.5, 3)}
    if kind in ("LI", "LIF"):
        fields |= {"tau": between(2 * DT, 20 * DT), "v_leak": between(-0.3, 0.3)}
    if kind.startswith("Cuba"):
        fields |= {"tau_syn": between(2 * DT, 9 * DT), "tau_mem": between(2 * DT, 9 * DT), "v_leak": between(-0.3, 0.3)}
        if random.random() < 0.7:
            fields["w_in"] = between(0.5, 2) if random.random() < 0.7 else np.array(1.5)
    if kind in ("IF", "LIF", "CubaLIF"):
        fields["v_threshold"] = between(0.2, 0.8)
        if reset:
            fields["v_reset"] = between(-0.2, 0.1)
    if kind in ("IF", "I"):
        fields["r"] = fields["r"] / (8 * DT)
    return kind, fields


def random_graph(random, depth=1):
    """Returns a graph with branches, merges, cycles over one and several nodes, and a nested graph."""
    n = 4
    size = int(random.integers(3, 8))
    nodes = {"input": ("Input", {"shape": [n]}), "output": ("Output", {"shape": [n]})}
    names = []
    for i in range(size):
        name = random.choice(["a", "k", "z"]) + str(i) + random.choice(["", ".lif", " é"])
        kind = random.choice(["IF", "LIF", "CubaLIF", "LI", "CubaLI", "I", "Threshold", "Scale", "Delay", "Linear", "Affine", "NIRGraph"])
        if kind in WITH_MEMBRANE:
            node = neuron(kind, (n,), random, reset=random.random() < 0.7)
        elif kind == "NIRGraph" and depth:
            node = (kind, random_graph(random, depth - 1))
        elif kind == "Threshold":
            node = (kind, {"threshold": random.uniform(-0.5, 0.5, n)})
        elif kind == "Scale":
            node = (kind, {"scale": random.uniform(-1.5, 1.5, n)})
        elif kind == "Delay":
            node = (kind, {"delay": random.integers(0, 4, n) * DT})
        else:
            node = ("Affine", {"weight": random.normal(0, 0.7, (n, n)), "bias": random.normal(0, 0.3, n)})
        nodes[name] = node
        names.append(name)
    edges = []
    for i, name in enumerate(names):  # from an earlier node, so that every node is reached
        for from_ in random.choice(["input", *names[:i]], size=int(random.integers(1, 3))):
            edges.append((str(from_), name))
    edges.append((names[-1], "output"))
    for _ in range(int(random.integers(0, 4))):  # between any two nodes: backward, forward, or from a node to itself
        edges.append((str(random.choice(names)), str(random.choice(names))))
    random.shuffle(edges)
    return {"nodes": nodes, "edges": [tuple(map(str, edge)) for edge in edges]}


RESETS, SCALINGS, COMPARISONS = ("file", "zero", "subtract", "subtract-delayed", "subtract-twice"), ("ode", "per-step"), ("gt", "ge")
CURRENTS, STARTS = ("new", "old"), ("zero", "apply")


@pytest.mark.long(but=r"^[01]$")
@pytest.mark.parametrize("seed", range(8))
def test_a_random_graph_gives_the_spikes_of_the_simulator(seed, tmp_path):
    print("seed", seed)
    random = np.random.default_rng(seed)
    choices = list(itertools.product(RESETS, SCALINGS, COMPARISONS, CURRENTS, STARTS))
    reset, scaling, comparison, current, start = choices[int(random.integers(len(choices)))]
    graph = random_graph(random)
    check(graph, random.normal(0.3, 1, (25, 4)), tmp_path, reset=reset, if_scaling=scaling, comparison=comparison,
          cuba_current=current, recurrent_start=start)  # fmt: skip


@pytest.mark.long(but=r"^(file|subtract)-gt|-ge-new$")
@pytest.mark.parametrize("reset, comparison, current", [*itertools.product(RESETS, COMPARISONS, ("new",)), ("file", "gt", "old")])
def test_every_neuron_under_every_option(reset, comparison, current, tmp_path):
    random = np.random.default_rng(7)
    nodes = {"input": ("Input", {"shape": [2, 3]}), "output": ("Output", {"shape": [2, 3]})}
    for kind in WITH_MEMBRANE:
        nodes[kind] = neuron(kind, (2, 3), random)
        nodes[kind + " of old files"] = neuron(kind, (2, 3), random, reset=False)
    edges = [edge for name in list(nodes)[2:] for edge in (("input", name), (name, "output"))]
    spikes = check({"nodes": nodes, "edges": edges}, random.normal(0.6, 1, (40, 2, 3)), tmp_path, reset=reset,
                   comparison=comparison, cuba_current=current)  # fmt: skip
    assert spikes > 100


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("reset", ["file", "subtract-delayed", "subtract-twice"])
def test_a_membrane_exactly_at_its_threshold_fires_by_the_comparison(reset, comparison, tmp_path):
    """All values are small integers, so that sums are exact and often equal to the threshold."""
    random = np.random.default_rng(3)
    dt = 2.0**-10
    nodes = {
        "input": ("Input", {"shape": [6]}),
        "if": ("IF", {"r": np.full(6, 1 / dt), "v_threshold": np.array([1.0, 2, 3, 1, 2, 3]), "v_reset": np.zeros(6)}),
        "lif": ("LIF", {"tau": np.full(6, 2 * dt), "r": np.full(6, 2.0), "v_leak": np.zeros(6), "v_threshold": np.full(6, 1.5)}),
        "threshold": ("Threshold", {"threshold": np.arange(6.0) - 2}),
        "output": ("Output", {"shape": [6]}),
    }
    edges = [e for name in ("if", "lif", "threshold") for e in (("input", name), (name, "output"))]
    graph = {"nodes": nodes, "edges": edges}
    x = random.integers(-1, 4, (60, 6)).astype(float)
    assert check(graph, x, tmp_path, dt=dt, reset=reset, comparison=comparison) > 50


def layers(random):
    """Returns a graph of all nodes that are not neurons, over [4, 9, 8], each followed by a LIF."""
    conv = lambda w, **f: ("Conv2d", {"input_shape": (9, 8), "weight": random.normal(size=w), "stride": (1, 1), "padding": (0, 0),  # noqa: E731
                                      "dilation": (1, 1), "groups": 1, "bias": random.normal(size=w[0]), **f})  # fmt: skip
    cases = {
        "plain": (conv((3, 4, 3, 5), stride=(2, 1), padding=(1, 2)), (3, 5, 8)),
        "grouped": (conv((6, 2, 3, 3), groups=2, dilation=(2, 1)), (6, 5, 6)),
        "depthwise": (conv((4, 1, 2, 2), groups=4, padding="same"), (4, 9, 8)),
        "same with stride": (conv((2, 4, 4, 3), stride=(2, 3), padding="same"), (2, 5, 3)),
        "valid": (conv((2, 4, 2, 3), padding="valid"), (2, 8, 6)),
        "sums": (("SumPool2d", {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 1)}), (4, 5, 8)),
        "means": (("AvgPool2d", {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0)}), (4, 9, 4)),
        "widely padded": (("SumPool2d", {"kernel_size": (2, 2), "stride": (2, 2), "padding": (2, 0)}), (4, 6, 4)),
        "flat": (("Flatten", {"start_dim": 1, "end_dim": -1, "input_type": [4, 9, 8]}), (4, 72)),
        "flat in front": (("Flatten", {"start_dim": 0, "end_dim": 1, "input_type": [4, 9, 8]}), (36, 8)),
        "stacked": (("Affine", {"weight": random.normal(size=(4, 9, 2, 8)), "bias": random.normal(size=(4, 9, 2))}), (4, 9, 2)),
        "stacked, no bias": (("Linear", {"weight": random.normal(size=(4, 9, 3, 8)).astype(np.float32)}), (4, 9, 3)),
    }  # fmt: skip
    nodes = {"input": ("Input", {"shape": [4, 9, 8]}), "end": ("Output", {"shape": [4, 9, 8]})}
    edges = [("input", "end")]
    for name, (node, shape) in cases.items():
        nodes[name] = node
        nodes["lif of " + name] = neuron("LIF", shape, random)
        edges += [("input", name), (name, "lif of " + name)]
    return {"nodes": nodes, "edges": edges}


def test_layers_convolutions_pools_and_flatten(tmp_path):
    random = np.random.default_rng(11)
    check(layers(random), random.normal(0.2, 1, (4, 4, 9, 8)), tmp_path)


def convolutions_over_one_dimension(random):
    nodes = {"input": ("Input", {"shape": [3, 20]}), "output": ("Output", {"shape": [3, 20]})}
    edges = [("input", "output")]
    for i, (padding, stride, dilation) in enumerate([(2, 3, 1), ("same", 1, 2), ("same", 3, 2), ("valid", 2, 1)]):
        nodes[f"conv{i}"] = ("Conv1d", {"input_shape": 20, "weight": random.normal(size=(2, 3, 4)), "stride": stride, "padding": padding,
                                        "dilation": dilation, "groups": 1, "bias": random.normal(size=2)})  # fmt: skip
        edges.append(("input", f"conv{i}"))
    return {"nodes": nodes, "edges": edges}


def test_convolution_over_one_dimension(tmp_path):
    random = np.random.default_rng(12)
    check(convolutions_over_one_dimension(random), random.normal(size=(5, 3, 20)), tmp_path)


def test_an_edge_counts_as_often_as_it_is_there(tmp_path):
    random = np.random.default_rng(13)
    weight = ("Affine", {"weight": random.normal(size=(3, 3)), "bias": random.normal(size=3)})
    graph = {
        "nodes": {"input": ("Input", {"shape": [3]}), "w": weight, "lif": neuron("LIF", (3,), random), "output": ("Output", {"shape": [3]})},
        "edges": [("input", "lif"), ("lif", "w"), ("w", "lif"), ("lif", "w"), ("w", "lif"), ("input", "lif"), ("lif", "lif"),
                  ("lif", "output"), ("lif", "output")],
    }  # fmt: skip
    for start in STARTS:
        check(graph, random.normal(0, 1, (20, 3)), tmp_path, recurrent_start=start)


def test_a_bias_in_a_cycle_acts_in_the_first_step_if_asked_for(tmp_path):
    graph = {
        "nodes": {
            "input": ("Input", {"shape": [1]}),
            "lif": ("LIF", {"tau": [DT], "r": [1.0], "v_leak": [0.0], "v_threshold": [0.5], "v_reset": [0.0]}),
            "w": ("Affine", {"weight": np.array([[0.0]]), "bias": np.array([1.0])}),
            "output": ("Output", {"shape": [1]}),
        },
        "edges": [("input", "lif"), ("lif", "w"), ("w", "lif"), ("lif", "output")],
    }
    file = write(graph, tmp_path / "a.nir")
    x = np.zeros((3, 1))
    assert run(file, x, tmp_path)[0].ravel().tolist() == [0, 1, 1]
    assert run(file, x, tmp_path, recurrent_start="apply")[0].ravel().tolist() == [1, 1, 1]


def test_cycles_are_cut_where_nirtorch_cuts_them():
    """A cycle is cut at its first node, by name, that has an input from outside the cycle."""
    loop = lambda *names: ({n: ("Input" if n == "in" else "Scale", {}) for n in ("in", *names)})  # noqa: E731
    order, cut = order_of(loop("lif", "w"), [("in", "lif"), ("lif", "w"), ("w", "lif")])
    assert cut == {("w", "lif")} and order == ["in", "lif", "w"]
    assert order_of(loop("a", "b", "c"), [("in", "c"), ("c", "b"), ("b", "a"), ("a", "c")])[1] == {("a", "c")}
    assert order_of(loop("a", "b"), [("in", "a"), ("in", "b"), ("a", "b"), ("b", "a")])[1] == {("b", "a")}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float32_gives_the_spikes_of_float32(dtype, tmp_path):
    random = np.random.default_rng(17)
    kind, fields = neuron("LIF", (5,), random)
    fields = {key: value.astype(dtype) for key, value in fields.items()}
    graph = {
        "nodes": {"input": ("Input", {"shape": [5]}), "lif": (kind, fields), "output": ("Output", {"shape": [5]})},
        "edges": [("input", "lif"), ("lif", "output")],
    }
    x = random.normal(0.4, 1, (200, 5)).astype(dtype)
    out, _, v = run(write(graph, tmp_path / "a.nir"), x, tmp_path, membranes=["lif"], dtype=dtype)
    membrane = np.zeros(5, dtype)
    for t in range(len(x)):
        membrane = membrane + np.dtype(dtype).type(DT) / fields["tau"] * (fields["v_leak"] - membrane + fields["r"] * x[t])
        spikes = membrane > fields["v_threshold"]
        membrane = np.where(spikes, fields["v_reset"], membrane)
        assert membrane.dtype == dtype
        np.testing.assert_array_equal(out[t], spikes)
        np.testing.assert_array_equal(v["lif"][t], membrane)  # bit for bit


def test_a_batch_from_given_states_with_recorded_currents(tmp_path):
    """Each sample equals a run of the simulator from the initial states of the sample."""
    random = np.random.default_rng(23)
    kind, fields = neuron("CubaLIF", (3,), random)
    graph = {
        "nodes": {"input": ("Input", {"shape": [3]}), "cell": (kind, fields), "output": ("Output", {"shape": [3]})},
        "edges": [("input", "cell"), ("cell", "output")],
    }
    file = write(graph, tmp_path / "a.nir")
    x, v, i = (random.normal(0.5, 1, shape) for shape in ((12, 4, 3), (4, 3), (3,)))
    for name, value in (("x", x), ("v", v), ("i", i)):
        np.save(tmp_path / f"{name}.npy", value)
    command = ["run", file, "--input", tmp_path / "x.npy", "--dt", DT, "--dtype", "float64", "--output", tmp_path / "out.npy"]
    records = ["--record-i", f"cell={tmp_path / 'currents.npy'}", "--record-v", f"cell={tmp_path / 'membranes.npy'}"]
    starts = ["--start-v", f"cell={tmp_path / 'v.npy'}", "--start-i", f"cell={tmp_path / 'i.npy'}"]
    for fold in ([], ["--fold-time"]):
        done = tool(*command, *records, *starts, "--device", "cpu", *fold)
        assert done.returncode == 0, done.stderr
        out, currents, membranes = (np.load(tmp_path / f"{name}.npy") for name in ("out", "currents", "membranes"))
        assert out.shape == currents.shape == membranes.shape == x.shape
        for sample in range(4):
            simulator = Simulator(graph, dt=DT)
            simulator.state["cell"] = {"v": v[sample], "i": i}
            for t in range(12):
                values = simulator.step(x[t, sample])
                np.testing.assert_array_equal(out[t, sample], values["cell"])
                np.testing.assert_allclose(membranes[t, sample], simulator.membrane("cell"), rtol=1e-12)
                np.testing.assert_allclose(currents[t, sample], simulator.state["cell"]["i"], rtol=1e-12)
    assert out.sum() > 5
    np.save(tmp_path / "v.npy", np.zeros(2))
    done = tool(*command, *starts)
    assert done.returncode == 1 and "node cell: expected a state of shape [4, 3]" in done.stderr, done.stderr
    done = tool(*command, "--device", "moon")
    assert done.returncode == 2 and "moon is not a device" in done.stderr


def test_layers_over_all_steps_at_once_give_the_same_spikes(tmp_path):
    random = np.random.default_rng(29)
    graph = {
        "nodes": {"input": ("Input", {"shape": [4]}), "w": ("Affine", {"weight": random.normal(size=(3, 4)), "bias": np.ones(3)}),
                  "lif": neuron("LIF", (3,), random), "output": ("Output", {"shape": [3]})},
        "edges": [("input", "w"), ("w", "lif"), ("lif", "output")],
    }  # fmt: skip
    file, x = write(graph, tmp_path / "a.nir"), random.normal(size=(20, 4))
    expected = run(file, x, tmp_path)[0]
    done = tool("run", file, "--input", tmp_path / "x.npy", "--dt", DT, "--dtype", "float64", "--output", tmp_path / "b.npy", "--fold-time")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), expected)
    check_python(file, x[:, None], [expected[:, None]], "float64", {"dt": DT, "fold_time": True})  # one sample
    assert expected.sum() > 3


def test_a_nested_input_with_a_wrong_shape_uses_the_arriving_shape(tmp_path):
    random = np.random.default_rng(31)
    inner = {
        "nodes": {"input": ("Input", {"shape": [12]}), "lif": neuron("LIF", (5,), random), "output": ("Output", {"shape": [12]})},
        "edges": [("input", "lif"), ("lif", "output")],
    }
    graph = {
        "nodes": {"input": ("Input", {"shape": [5]}), "layer": ("NIRGraph", inner), "output": ("Output", {"shape": [5]})},
        "edges": [("input", "layer"), ("layer", "output")],
    }
    done = tool("check", write(graph, tmp_path / "a.nir"))
    assert done.returncode == 1 and "input -> lif: the output has shape [12], but the input must have [5]" in done.stderr, done.stderr
    assert check(graph, random.normal(0.5, 1, (20, 5)), tmp_path, shapes="tolerant") > 5
    done = tool("check", tmp_path / "a.nir", "--shapes", "tolerant")
    assert "node layer/input: it declares the input shape [12], but the input has shape [5]" in done.stdout
