"""NIR files as TorchScript: Python with the operator library alone gives what spikeforge-nir run gives, bit for bit."""

import itertools
import os
import zipfile

import h5py
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
    """The outputs of the network, which are these nodes: over all steps, in pieces, for a batch, anew after reset()."""
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
    for _ in range(2):  # the interpreter rewrites itself while it sees calls
        net.reset()
        pieces = [call(piece) for piece in x.split([1, 2, len(x) - 3])]
        check_same([torch.cat(rows) for rows in zip(*pieces, strict=True)])
        check_same(call(x), after)
    net.reset()
    for y, e in zip(call(torch.stack([x.flip(0), x], 1)), expected, strict=True):  # layers round a batch otherwise
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
    for name, (kind, _) in list(graph["nodes"].items()):  # what leads nowhere is an output where there is no Output
        if kind == "Output":
            del graph["nodes"][name]
    graph["edges"] = [(a, b) for a, b in graph["edges"] if b in graph["nodes"]]
    sources = {a for a, _ in graph["edges"]}
    check(graph, random.normal(0.2, 1, (5, *shape)), tmp_path, sorted(n for n in graph["nodes"] if n not in sources))


@pytest.mark.parametrize("start", STARTS)
def test_cycles_start_as_they_do_in_the_network(start, tmp_path):
    """Biases and a graph within on the way back, edges that are there twice, a node that nothing leads to."""
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
    assert "--dt" in refusal(tmp_path / "net.pt", tmp_path / "back.nir", "--dt", DT, status=2)
    assert "nowhere" in refusal(file, tmp_path / "nowhere" / "net.pt", "--dt", DT)
    assert "graph.nir" in refusal(tmp_path / "no graph.nir", tmp_path / "net.pt", "--dt", DT)
    assert tool("convert", file, tmp_path / "net.pt", "--dt", DT).returncode == 0
    load(tmp_path / "net.pt")


# --- and back ----------------------------------------------------------------------------------------------------------


def check_back(folder, file="net.pt"):
    """The result is the file that was converted, to the last bit."""
    done = tool("convert", folder / file, folder / "back.nir")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    done = tool("diff", folder / "graph.nir", folder / "back.nir")
    assert (done.returncode, done.stdout) == (0, "")


def every_neuron(random):
    nodes = {kind: neuron(kind, (2, 3), random) for kind in WITH_MEMBRANE}
    nodes |= {kind + " of old files": neuron(kind, (2, 3), random, reset=False) for kind in WITH_MEMBRANE}
    nodes |= {"Threshold": ("Threshold", {"threshold": random.normal(size=(2, 3))}), "Scale": ("Scale", {"scale": random.integers(-9, 9, (2, 3))})}
    nodes |= {"Delay": ("Delay", {"delay": random.integers(0, 5, (2, 3)) * DT}), "é lambda.1": ("Scale", {"scale": np.full((2, 3), 0.1)})}
    return {"nodes": {"input": ("Input", {"shape": [2, 3]}), **nodes}, "edges": [("input", name) for name in nodes]}


def without_outputs(graph):
    nodes = {name: node for name, node in graph["nodes"].items() if node[0] != "Output"}
    return {"nodes": nodes, "edges": [(a, b) for a, b in graph["edges"] if b in nodes]}


@pytest.mark.long(but="every_neuron-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("graph_of", [every_neuron, lambda r: without_outputs(layers(r)), lambda r: without_outputs(convolutions_over_one_dimension(r))])
def test_every_node_comes_back_as_it_was(graph_of, dtype, tmp_path):
    assert convert(graph_of(np.random.default_rng(3)), tmp_path, dtype=dtype).returncode == 0
    check_back(tmp_path)
    load(tmp_path / "net.pt").save(str(tmp_path / "again.pt"))  # as Python saves it
    check_back(tmp_path, "again.pt")


@pytest.mark.long(but=r"^0$")
@pytest.mark.parametrize("seed", range(4))
def test_a_random_graph_comes_back_as_it_was(seed, tmp_path):
    print("seed", seed)
    random = np.random.default_rng(200 + seed)
    options = {"reset": random.choice(RESETS), "if_scaling": random.choice(SCALINGS), "comparison": random.choice(COMPARISONS),
               "recurrent_start": random.choice(STARTS)}  # fmt: skip
    done = convert(random_graph(random), tmp_path, **options)
    assert done.returncode == 0, done.stderr
    check_back(tmp_path)


def test_a_trained_network_is_saved_without_the_last_batch(tmp_path):
    assert convert(small_network(np.random.default_rng(1)), tmp_path).returncode == 0
    net = load(tmp_path / "net.pt")
    x = 8 * torch.rand(9, 5, 4, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = net(x)
    net.save(str(tmp_path / "again.pt"))  # no reset()
    again = load(tmp_path / "again.pt")
    assert again.inner.lif.v_state.value is None and net.inner.lif.v_state.value is not None
    with torch.no_grad():
        assert torch.equal(again(x), expected)
        load(tmp_path / "again.pt")(torch.full((9, 2, 4), 0.6))
    load(tmp_path / "net.pt").load_state_dict(net.state_dict())
    check_back(tmp_path, "again.pt")


def fields_of(file, name):
    with h5py.File(file) as opened:
        return {field: value[()] for field, value in opened["node/nodes/" + name].items() if isinstance(value, h5py.Dataset)}


def small_network(random, weights="float32"):
    return {
        "nodes": {"input": ("Input", {"shape": [4]}), "w": ("Affine", {"weight": random.normal(size=(3, 4)).astype(weights), "bias": random.normal(size=3).astype(weights)}),
                  "inner": ("NIRGraph", {"nodes": {"in": ("Input", {"shape": [3]}), "lif": neuron("LIF", (3,), random), "out": ("Output", {"shape": [3]})},
                                         "edges": [("in", "lif"), ("lif", "out")]}),
                  "scale": ("Scale", {"scale": np.array([1, 2, 3], "int16")}), "output": ("Output", {"shape": [3]})},
        "edges": [("input", "w"), ("w", "inner"), ("inner", "scale"), ("scale", "inner"), ("scale", "output")],
    }  # fmt: skip


@pytest.mark.long(but="float16")
@pytest.mark.parametrize("weights", ["float16", "float32", "float64"])
def test_weights_trained_in_python_come_back_and_the_rest_as_it_was(weights, tmp_path):
    graph = small_network(np.random.default_rng(1), weights)
    graph["edges"] = [("input", "w"), ("w", "inner"), ("inner", "scale"), ("scale", "output")]
    assert convert(graph, tmp_path).returncode == 0
    net = load(tmp_path / "net.pt")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net.reset()
        optimizer.zero_grad()
        net(torch.full((20, 5, 4), 0.7)).sub(0.3).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        net.scale.scale[0] = 2.5
    net.save(str(tmp_path / "net.pt"))
    assert tool("convert", tmp_path / "net.pt", tmp_path / "back.nir").returncode == 0
    now = fields_of(tmp_path / "back.nir", "w")
    for field in ("weight", "bias"):
        trained = getattr(net.w, field).detach().numpy()
        assert not np.array_equal(trained, graph["nodes"]["w"][1][field].astype("float32"))
        assert now[field].dtype == ("float64" if weights == "float64" else "float32")  # halves do not hold it
        np.testing.assert_array_equal(now[field], trained)
    scale = fields_of(tmp_path / "back.nir", "scale")["scale"]
    np.testing.assert_array_equal(scale, net.scale.scale.detach().numpy())
    assert scale.dtype == "float32"
    before, after = (fields_of(tmp_path / f"{name}.nir", "inner/nodes/lif") for name in ("graph", "back"))
    assert all(np.array_equal(before[field], after[field]) for field in before) and before["tau"].dtype == "float64"
    x = np.full((9, 4), 0.6)
    (expected,) = run(tmp_path / "back.nir", x, tmp_path, ["output"])
    net.reset()
    np.testing.assert_array_equal(net(torch.tensor(x).float()).detach().numpy(), expected)


@pytest.mark.long(but="float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_graph_does_not_double_the_file(dtype, tmp_path):
    random = np.random.default_rng(2)
    shape = (40, 40)
    graph = {
        "nodes": {"input": ("Input", {"shape": shape}), "w": ("Linear", {"weight": random.normal(size=(40, 300, 40)).astype(dtype)}),
                  "lif": ("LIF", {field: np.full((40, 300), 0.3) for field in ("tau", "r", "v_leak", "v_threshold", "v_reset")}), "output": ("Output", {"shape": [40, 300]})},
        "edges": [("input", "w"), ("w", "lif"), ("lif", "output")],
    }  # fmt: skip
    assert convert(graph, tmp_path).returncode == 0
    check_back(tmp_path)
    assert (tmp_path / "net.pt").stat().st_size < 1.05 * (tmp_path / "graph.nir").stat().st_size


class Foreign(torch.nn.Module):
    def forward(self, x):
        return x


class Talkative(torch.nn.Module):
    """Its code runs while torch loads it."""

    def forward(self, x):
        return x

    @torch.jit.export
    def __getstate__(self):
        return 1

    @torch.jit.export
    def __setstate__(self, state: int) -> None:
        print("this code runs")
        self.training = True


def test_a_module_that_does_not_come_back_is_refused_in_one_line_and_leaves_the_old_file(tmp_path, capfd):
    random = np.random.default_rng(4)
    assert convert(small_network(random), tmp_path).returncode == 0
    good = (tmp_path / "net.pt").read_bytes()
    (tmp_path / "back.nir").write_text("old")
    file = tmp_path / "bad.pt"

    def refusal(*words):
        before = sorted(os.listdir(tmp_path))
        done = tool("convert", file, tmp_path / "back.nir")
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
        assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "back.nir").read_text() == "old"
        assert all(word in done.stderr for word in ("bad.pt", *words)), done.stderr

    refusal("opened")
    for text in (b"", b"no zip file", good[: len(good) // 2]):
        file.write_bytes(text)
        refusal()
    torch.save({"weight": torch.ones(2)}, file)
    refusal("no TorchScript")
    torch.jit.script(Foreign()).save(str(file))
    refusal("holds no NIR graph")
    torch.jit.freeze(load(tmp_path / "net.pt")).save(str(file))
    refusal("frozen")
    torch.jit.script(Talkative()).save(str(file))
    capfd.readouterr()
    torch.jit.load(str(file))
    assert "this code runs" in capfd.readouterr().out
    refusal()

    def altered(change, *words):
        net = load(tmp_path / "net.pt")
        change(net)
        net.save(str(file))
        refusal(*words)

    def table(change):
        def set_table(net):
            rows = [list(row) for row in getattr(net, "nir/graph")]
            change({row[0]: row for row in rows}, rows)
            net._c.setattr("nir/graph", [tuple(row) for row in rows])

        return set_table

    def set_shape(net):
        net.inner.lif.tau = torch.ones(7)

    def set_weight(net):
        net.w.weight = torch.nn.Parameter(torch.ones(3, 5))

    altered(set_shape, "node inner/lif, field tau", "[7]", "[3]")
    altered(set_weight, "node w, field weight", "[3, 5]", "[3, 4]")
    altered(lambda net: net.inner.lif.tau.fill_(-1), "node inner/lif, field tau")
    altered(table(lambda row, rows: rows.clear()), "node")
    altered(table(lambda row, rows: rows.append(rows[0])), "two members")
    altered(table(lambda row, rows: row["node/type"].__setitem__(0, "node/nodes/w/weight/x")))
    altered(table(lambda row, rows: row["node/type"].__setitem__(0, "/".join(["a"] * 5000))), "nested")
    altered(table(lambda row, rows: row["node/type"].__setitem__(0, "")), "name")
    altered(table(lambda row, rows: row["node/nodes/w/weight"].__setitem__(1, "complex64")), "node w, field weight", "complex64")
    altered(table(lambda row, rows: row["node/nodes/w/weight"].__setitem__(2, [3, -4])), "node w, field weight")
    altered(table(lambda row, rows: row["node/nodes/w/weight"].__setitem__(3, ["no.such"])), "node w, field weight", "no.such")
    altered(table(lambda row, rows: row["node/nodes/w/weight"].__setitem__(3, ["inner"])), "node w, field weight", "inner")
    altered(table(lambda row, rows: row["node/nodes/w/type"].__setitem__(3, [])), "node w, field type")
    altered(table(lambda row, rows: row["node/nodes/w/type"].__setitem__(3, ["LIF"])), "node w, field")
    altered(table(lambda row, rows: row["node/edges"][3].__setitem__(0, "nowhere")), "nowhere")
    for shape in ([1 << 20, 1 << 20], [1 << 40, 1 << 40]):  # one element, as often as is said
        altered(table(lambda row, rows, shape=shape: row["node/nodes/w/weight"].__setitem__(slice(1, 5), ["float64", shape, [], torch.zeros(8, dtype=torch.uint8)])),
                "node w, field weight")  # fmt: skip


def test_a_damaged_file_is_refused(tmp_path):
    """A byte here and there: nothing gets by the checksums but what is not read. And what has right checksums, but not
    the tensors that it speaks of."""
    assert convert(small_network(np.random.default_rng(5)), tmp_path).returncode == 0
    with zipfile.ZipFile(tmp_path / "net.pt") as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}

    def refused(changed):
        with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
            for name, data in changed.items():
                archive.writestr(name, data)
        done = tool("convert", tmp_path / "bad.pt", tmp_path / "bad.nir")
        assert not (tmp_path / "bad.nir").exists() or done.returncode == 0
        assert done.returncode in (0, 1) and done.stderr.count("\n") == done.returncode and "Traceback" not in done.stderr, done
        (tmp_path / "bad.nir").unlink(missing_ok=True)
        return done.returncode == 1

    assert not refused(content)
    (root,) = [name for name in content if name.endswith("/data.pkl")]
    tensors = [name for name in content if "/data/" in name]
    for name in [name for name in tensors if content[name]][:2]:
        assert refused(content | {name: content[name][:-1]}), name
    assert refused({name: data for name, data in content.items() if name != tensors[1]})
    random = np.random.default_rng(6)
    for place in random.integers(len(content[root]), size=5):
        pickle = bytearray(content[root])
        pickle[place] ^= 1 << int(random.integers(8))
        refused(content | {root: bytes(pickle)})
    for bomb in (
        b"\x80\x02" + b"]q\x00" + b"r\xff\xff\xff\xef" * 3 + b".",  # the last thing of very many to remember
        b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",  # lists in lists
        b"\x80\x02" + b")" + b"\x85" * 200_000 + b".",
        b"\x80\x02" + b"]q\x00h\x00a.",  # a list in itself
        b"\x80\x02X\xff\xff\xff\xff.",
    ):
        assert refused(content | {root: bomb})
    assert refused(content | {root: content[root][: random.integers(len(content[root]))]})
    whole = (tmp_path / "net.pt").read_bytes()
    weight = whole.find(content[tensors[1]])
    (tmp_path / "flipped.pt").write_bytes(whole[:weight] + bytes([whole[weight] ^ 1]) + whole[weight + 1 :])
    done = tool("convert", tmp_path / "flipped.pt", tmp_path / "bad.nir")
    assert done.returncode == 1 and "checksum" in done.stderr


@pytest.mark.parametrize("body", [b"}", b")", b"]", b"ca\nb\n", b"c__torch__\nA\nq\x00", b"Nr\x01\x00\x00\x00"])
def test_data_takes_no_more_memory_than_the_limit(body, tmp_path):
    count = (4 << 20) // len(body)
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        more = b"" if b"A" not in body else b"h\x00)\x81" * (1 << 20)
        archive.writestr("net/data.pkl", b"\x80\x02" + (body + more if more else body * count) + b".")
        archive.writestr("net/constants.pkl", b"\x80\x02).")
    done = tool("convert", tmp_path / "net.pt", tmp_path / "net.nir", "--max-bytes", 100 << 20)
    assert done.returncode == 1 and "beyond the limit of memory" in done.stderr, done.stderr
