"""spikeforge-nir with files of all versions of the nir package, and with untrusted files."""

import json
import os
import resource
import subprocess
from pathlib import Path

import h5py
import nir
import numpy as np
import pytest
from simulator import TEXT, put, write
from test_network import LIBRARY, TOOL, tool

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"there is no {TOOL}: built without HDF5?")


def info(file, *options):
    done = tool("info", file, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def nodes_of(file, *options):
    return {node["name"]: node for node in info(file, *options)["graph"]["nodes"]}


def convert(source, target, *options):
    done = tool("convert", source, target, *options)
    assert done.returncode == 0, done.stderr
    return target


def refusal(file, *options):
    """Returns the error message for a rejected file, which is one line."""
    done = tool("check", file, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and str(file) in lines[0], done.stderr
    return lines[0]


# --- the nir package -------------------------------------------------------------------------------------------------

S = np.array([0.5, 1.5, 2.5])


def chain(node, shape_in, shape_out):
    return nir.NIRGraph(
        nodes={"input": nir.Input(np.array(shape_in)), "node": node, "output": nir.Output(np.array(shape_out))},
        edges=[("input", "node"), ("node", "output")],
    )


def conv2d(**changes):
    fields = dict(
        input_shape=(9, 9), weight=np.random.default_rng(0).random((4, 2, 3, 3)), stride=(2, 1), padding=(1, 0),
        dilation=(1, 1), groups=1, bias=np.arange(4.0),
    )  # fmt: skip
    return nir.Conv2d(**{**fields, **changes})


def conv1d(**changes):
    fields = dict(input_shape=20, weight=np.ones((2, 3, 4), np.float32), stride=2, padding=1, dilation=1, groups=1, bias=np.zeros(2))
    return nir.Conv1d(**{**fields, **changes})


GRAPHS = {
    "Affine": chain(nir.Affine(np.arange(6.0).reshape(2, 3), np.array([1, 2], np.float32)), [3], [2]),
    "Affine of rank 3": chain(nir.Affine(np.ones((5, 2, 3)), np.ones((5, 2))), [5, 3], [5, 2]),
    "Linear": chain(nir.Linear(np.ones((2, 3), np.float16)), [3], [2]),
    "Scale": chain(nir.Scale(np.array([1, -2, 3], ">i4")), [3], [3]),
    "Conv1d": chain(conv1d(), [3, 20], [2, 10]),
    "Conv1d valid": chain(conv1d(padding="valid"), [3, 20], [2, 9]),
    "Conv2d": chain(conv2d(), [2, 9, 9], [4, 5, 7]),
    "Conv2d same": chain(conv2d(padding="same", stride=1), [2, 9, 9], [4, 9, 9]),
    "SumPool2d": chain(nir.SumPool2d(np.array([2, 2]), np.array([2, 2]), np.array([0, 0])), [2, 8, 6], [2, 4, 3]),
    "AvgPool2d": chain(nir.AvgPool2d(np.array([2, 2]), np.array([2, 2]), np.array([0, 0])), [2, 8, 6], [2, 4, 3]),
    "Flatten": chain(nir.Flatten({"input": np.array([2, 4, 3])}, 0, -1), [2, 4, 3], [24]),
    "Delay": chain(nir.Delay(S), [3], [3]),
    "Threshold": chain(nir.Threshold(S), [3], [3]),
    "I": chain(nir.I(S), [3], [3]),
    "LI": chain(nir.LI(S, S, -S), [3], [3]),
    "IF": chain(nir.IF(S, S, -S), [3], [3]),
    "LIF": chain(nir.LIF(S, S, -S, S.astype(np.float32), np.array([0, 1, 2])), [3], [3]),
    "CubaLI": chain(nir.CubaLI(S, S, S, S, S), [3], [3]),
    "CubaLIF": chain(nir.CubaLIF(S, 2 * S, 3 * S, 4 * S, 5 * S, 6 * S, 7 * S), [3], [3]),
    "types": chain(
        nir.LIF(*(S.astype(t) for t in (">f8", np.float16)), np.array([True, False, True]), np.array([1, 2, 3], np.uint8), S), [3], [3]
    ),
    "nested": chain(nir.NIRGraph.from_list(nir.NIRGraph.from_list(nir.LIF(S, S, S, S, S)), nir.I(S)), [3], [3]),
    "metadata": nir.NIRGraph(
        nodes={
            "input": nir.Input(np.array([3]), metadata={"a": "text", "b": 3, "c": 0.5, "d": True, "e": S}),
            "output": nir.Output(np.array([3])),
        },
        edges=[("input", "output")],
        metadata={"words": ["x", "y"], "numbers": [1, 2], "inner": {"deep": "ß"}},
    ),
    "self edge": nir.NIRGraph(
        {"a": nir.I(S), "b": nir.Input(np.array([3])), "c": nir.Output(np.array([3]))}, [("b", "a"), ("a", "a"), ("a", "c")]
    ),
    "order of edges": nir.NIRGraph(
        {f"{i}": nir.Input(np.array([3])) if i == 0 else nir.Scale(S) for i in range(12)},
        [("0", f"{i}") for i in (11, 2, 10, 1)] + [(f"{i}", f"{i - 1}") for i in (10, 5, 11, 9, 8, 7, 6)],
    ),
}  # fmt: skip


def assert_same(a, b, place="graph"):
    if isinstance(a, dict):
        assert set(a) == set(b), place
        for key in a:
            assert_same(a[key], b[key], f"{place}.{key}")
    elif isinstance(a, (str, bytes)) or isinstance(b, (str, bytes)):
        text = [x.decode() if isinstance(x, bytes) else x for x in (a, b)]
        assert text[0] == text[1], place
    elif place.endswith(".edges"):
        assert [tuple(x) for x in a] == [tuple(x) for x in b], place
    elif isinstance(a, (list, tuple)) and a and isinstance(a[0], str):
        assert list(a) == [x.decode() for x in b], place
    else:
        x, y = np.asarray(a), np.asarray(b)
        assert x.shape == y.shape and np.array_equal(x, y), (place, a, b)
        assert x.dtype.newbyteorder("=") == y.dtype.newbyteorder("="), (place, x.dtype, y.dtype)


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_the_nir_package_come_back_to_it_unchanged(name, compression, tmp_path):
    nir.write(tmp_path / "a.nir", GRAPHS[name], compression=compression)
    done = tool("check", tmp_path / "a.nir")
    assert done.returncode == 0, done.stderr
    convert(tmp_path / "a.nir", tmp_path / "b.nir", "--compression", "4" if compression else "0")
    assert_same(nir.read(tmp_path / "a.nir").to_dict(), nir.read(tmp_path / "b.nir").to_dict())
    assert tool("diff", tmp_path / "a.nir", tmp_path / "b.nir").stdout == ""


def test_large_arrays_of_all_types_come_back_from_many_chunks(tmp_path):
    generator = np.random.default_rng(1)
    options = [
        dict(compression="gzip", shuffle=True),
        dict(compression="lzf", shuffle=True, fletcher32=True),
        dict(),
        dict(fletcher32=True),
        dict(compression="gzip", fletcher32=True),
    ]
    if h5py.h5z.get_filter_info(h5py.h5z.FILTER_SZIP) & h5py.h5z.FILTER_CONFIG_ENCODE_ENABLED:
        options.append(dict(compression="szip"))
    types = ["f2", ">f4", "f8", "i1", ">i2", "i4", "i8", "u1", "u2", ">u4", "u8", "?"]
    for i, dtype in enumerate(types):
        array = (generator.integers(0, 100, (123, 45, 7)) if dtype != "?" else generator.random((123, 45, 7)) > 0.5).astype(dtype)
        with h5py.File(tmp_path / f"{i}.nir", "w") as file:
            node = minimal(file, type="Scale")
            node.create_dataset("scale", data=array, chunks=(10, 45, 4), **options[i % len(options)])
        convert(tmp_path / f"{i}.nir", tmp_path / "b.nir", "--compression", "1")
        back = nir.read(tmp_path / "b.nir", type_check=False).nodes["n"].scale
        assert back.dtype == array.dtype.newbyteorder("=") and np.array_equal(back, array)


def test_a_reader_explains_a_file_of_the_package(tmp_path):
    nir.write(tmp_path / "a.nir", GRAPHS["Conv2d"])
    node = nodes_of(tmp_path / "a.nir")["node"]
    weight = GRAPHS["Conv2d"].nodes["node"].weight
    assert node["type"] == "Conv2d" and node["in"] == [2, 9, 9] and node["out"] == [4, 5, 7]
    assert node["settings"] == {"input_shape": [9, 9], "stride": [2, 1], "padding": [1, 0], "dilation": [1, 1], "groups": 1}
    assert node["parameters"]["weight"] == {
        "dtype": "float64", "shape": [4, 2, 3, 3], "min": weight.min(), "max": weight.max(), "has_nan": False,
    }  # fmt: skip
    assert info(tmp_path / "a.nir")["version"] == nir.version
    drawing = tool("dot", tmp_path / "a.nir").stdout
    assert '"input" -> "node";' in drawing and "Conv2d [4, 5, 7]" in drawing


def test_metadata_and_names_of_any_text_are_json(tmp_path):
    with h5py.File(tmp_path / "a.nir", "w") as file:
        node = minimal(file, 'a "name"\n\\', type="I", r=S)
        put(node.create_group("metadata"), text="two\nlines, ß, " + "long " * 100, number=3, truth=True)
        node["metadata"].create_dataset("broken", data=b"\xff\xc0\x80.", dtype=TEXT)
    (node,) = info(tmp_path / "a.nir")["graph"]["nodes"]
    assert node["name"] == 'a "name"\n\\'
    text = "two\nlines, ß, " + "long " * 100
    assert node["metadata"] == {"text": text, "number": 3, "truth": True, "broken": "\ufffd\ufffd\ufffd."}
    assert len(tool("info", tmp_path / "a.nir").stdout.splitlines()) == 5


def test_numbers_of_unusual_types_are_read(tmp_path):
    with h5py.File(tmp_path / "a.nir", "w") as file:
        node = minimal(file, type="LIF")
        values = np.array([1.5, -2.0, 0.0, 6.1e-5, np.inf])
        brain = h5py.h5t.IEEE_F32LE.copy()
        brain.set_fields(15, 7, 8, 0, 7)
        brain.set_size(2)
        brain.set_ebias(127)
        bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        dataset = h5py.h5d.create(node.id, b"r", brain, h5py.h5s.create_simple((5,)))
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=brain)
        node["v_leak"] = values.astype(np.longdouble)
        node["v_threshold"] = values.astype(np.float16)
        node["tau"] = np.full(5, 0.1)
    convert(tmp_path / "a.nir", tmp_path / "b.nir")
    lif = nir.read(tmp_path / "b.nir", type_check=False).nodes["n"]
    assert lif.r.dtype == np.float32 and np.array_equal(lif.r, (bits.astype(np.uint32) << 16).view(np.float32))
    assert lif.v_leak.dtype == np.float64 and np.array_equal(lif.v_leak, values)
    assert np.array_equal(lif.v_threshold, values.astype(np.float16))


@pytest.mark.parametrize("layout", ["earliest", "v108", "v110"])
def test_files_of_all_hdf5_layouts_are_read(layout, tmp_path):
    with h5py.File(tmp_path / "a.nir", "w", libver=(layout, "v110"), userblock_size=512) as file:
        nodes = minimal(file, type="Scale").parent
        nodes["n"]["scale"] = S
        for i in range(40):  # enough links for a fractal heap
            nodes.create_group(f"more{i}").create_dataset("type", data="Threshold", dtype=TEXT)
            sizes = [dict(), dict(chunks=(100,), compression="gzip"), dict(chunks=(2000,)), dict(chunks=(300,), maxshape=(None,))][i % 4]
            nodes[f"more{i}"].create_dataset("threshold", data=np.full(2000, i), **sizes)
    nodes = nodes_of(tmp_path / "a.nir")
    assert len(nodes) == 41 and nodes["more39"]["parameters"]["threshold"]["max"] == 39


# --- versions ----------------------------------------------------------------------------------------------------------


def minimal(file, name="n", **fields):
    """A graph of one node, whose group is returned."""
    root = put(file.create_group("node"), type="NIRGraph", edges=np.zeros(0))
    return put(root.create_group("nodes").create_group(name), **fields)


CONV = dict(weight=np.ones((4, 2, 3, 3)), stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1, bias=np.zeros(4))


def write_0_0_1(file, threshold="theta"):
    """Writes the layout up to version 0.0.5: nodes and edges at the root, numbers as names, `weights`."""
    nodes = file.create_group("nodes")
    put(nodes.create_group("0"), type="Input", shape=[3])
    put(nodes.create_group("1"), type="Linear", weights=np.arange(6.0).reshape(2, 3), bias=np.ones(2))
    put(nodes.create_group("2"), type="LIF", tau=S[:2], r=S[:2], v_leak=S[:2], **{threshold: S[:2]})
    put(nodes.create_group("3"), type="Output")
    file["edges"] = np.array([[0, 1], [1, 2], [2, 3]])


def write_0_0_6(file):
    root = put(file.create_group("node"), type="NIRGraph", edges=np.array([[0, 1], [1, 2], [2, 3]]))
    nodes = root.create_group("nodes")
    put(nodes.create_group("0"), type="Input", shape=[3])
    put(nodes.create_group("1"), type="Affine", weight=np.arange(6.0).reshape(2, 3), bias=np.ones(2))
    put(nodes.create_group("2"), type="LIF", tau=S[:2], r=S[:2], v_leak=S[:2], v_threshold=S[:2])
    put(nodes.create_group("3"), type="Output")


def names(edges):
    return np.array(edges, dtype=object)


def write_0_1(file):
    root = put(file.create_group("node"), type="NIRGraph")
    root.create_dataset("edges", data=names([("in", "f"), ("f", "a"), ("a", "s"), ("s", "out")]), dtype=TEXT)
    nodes = root.create_group("nodes")
    put(nodes.create_group("in"), type="Input", shape=[3, 1])
    put(nodes.create_group("f"), type="Flatten", start_dim=0, end_dim=-1)
    put(nodes.create_group("a"), type="Affine", weight=np.arange(6.0).reshape(2, 3), bias=np.ones(2))
    put(nodes.create_group("s"), type="Scale", scale=S[:2])
    put(nodes.create_group("out"), type="Output", shape=2)


def write_0_2(file):
    put(file, version="0.2")
    root = put(file.create_group("node"), type="NIRGraph")
    root.create_dataset("edges", data=names([("in", "c"), ("c", "f"), ("f", "l"), ("l", "out")]), dtype=TEXT)
    nodes = root.create_group("nodes")
    put(nodes.create_group("in"), type="Input", shape=[2, 3, 3])
    put(nodes.create_group("c"), type="Conv2d", **CONV)
    put(nodes.create_group("f"), type="Flatten", start_dim=0, end_dim=-1, input_type=[4, 1, 1])
    four = np.full(4, 0.5)
    put(nodes.create_group("l"), type="CubaLIF", tau_syn=four, tau_mem=four, r=four, v_leak=four, v_threshold=four)
    put(nodes.create_group("out"), type="Output", shape=[4])


def write_1_0(file):
    write_0_2(file)
    file["version"][()] = "1.0.1"
    put(file["node/nodes/c"], input_shape=[3, 3])
    put(file["node/nodes/l"], w_in=np.full(4, 2.0))


def write_1_0_4(file):
    write_1_0(file)
    root = file["node"]
    put(root["nodes"].create_group("p"), type="AvgPool2d", kernel_size=[1, 1], stride=1, padding=[0])
    put(root["nodes/c"].create_group("metadata"), a=1, b="text")
    del root["edges"]
    root.create_dataset("edges", data=names([("in", "c"), ("c", "p"), ("p", "f"), ("f", "l"), ("l", "out")]), dtype=TEXT)


def write_1_0_6(file):
    write_1_0_4(file)
    put(file["node/nodes/l"], v_reset=np.zeros(4))


VERSIONS = {
    "0.0.1": write_0_0_1,
    "0.0.5": lambda file: write_0_0_1(file, "v_threshold"),
    "0.0.6": write_0_0_6,
    "0.1": write_0_1,
    "0.2": write_0_2,
    "1.0": write_1_0,
    "1.0.4": write_1_0_4,
    "1.0.6": write_1_0_6,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_every_version_are_read_and_become_files_of_the_newest(version, tmp_path):
    with h5py.File(tmp_path / "old.nir", "w") as file:
        VERSIONS[version](file)
    nodes = nodes_of(tmp_path / "old.nir", "--shapes", "strict")
    assert all(node["in"] and node["out"] for node in nodes.values())
    warnings = info(tmp_path / "old.nir", "--shapes", "strict")["warnings"]
    assert warnings == [], warnings
    graph = nir.read(convert(tmp_path / "old.nir", tmp_path / "new.nir"))
    assert set(graph.nodes) == set(nodes)
    if version.startswith("0.0"):
        assert isinstance(graph.nodes["1"], nir.Affine)
        assert np.array_equal(graph.nodes["1"].weight, np.arange(6.0).reshape(2, 3))
        assert np.array_equal(graph.nodes["2"].v_threshold, S[:2])
        assert list(graph.edges) == [("0", "1"), ("1", "2"), ("2", "3")]
        assert np.array_equal(graph.nodes["3"].output_type["output"], [2])
    if version == "0.1":
        assert np.array_equal(graph.nodes["f"].input_type["input"], [3, 1])
    if version == "0.2":
        assert list(graph.nodes["c"].input_shape) == [3, 3]
    # A file without v_reset is converted to a file without v_reset.
    with h5py.File(tmp_path / "new.nir") as file:
        neuron = file["node/nodes/2" if version.startswith("0.0") else "node/nodes/s" if version == "0.1" else "node/nodes/l"]
        assert ("v_reset" in neuron) == (version == "1.0.6")


def test_a_lone_node_is_a_graph_of_it(tmp_path):
    with h5py.File(tmp_path / "a.nir", "w") as file:
        put(file.create_group("node"), type="LIF", tau=S, r=S, v_leak=S, v_threshold=S)
    assert nodes_of(tmp_path / "a.nir")["node"]["type"] == "LIF"


def test_shapes_that_the_nir_package_gets_wrong_are_right(tmp_path):
    cases = {
        "3 x 5": (CONV | dict(weight=np.ones((8, 3, 3, 5)), bias=np.zeros(8)), [3, 10, 12], [8, 8, 8]),
        "depthwise": (CONV | dict(weight=np.ones((6, 1, 3, 3)), bias=np.zeros(6), groups=6), [6, 8, 8], [6, 6, 6]),
        "same with stride": (CONV | dict(padding="same", stride=[2, 3]), [2, 9, 9], [4, 5, 3]),
    }
    for fields, shape_in, shape_out in cases.values():
        with h5py.File(tmp_path / "a.nir", "w") as file:
            put(minimal(file, type="Conv2d", **fields), input_shape=shape_in[1:])
            nodes = file["node/nodes"]
            put(nodes.create_group("in"), type="Input", shape=shape_in)
            put(nodes.create_group("out"), type="Output", shape=shape_out)
            del file["node/edges"]
            file["node"].create_dataset("edges", data=names([("in", "n"), ("n", "out")]), dtype=TEXT)
        assert tool("check", tmp_path / "a.nir").returncode == 0
        with h5py.File(tmp_path / "a.nir", "r+") as file:
            file["node/nodes/out/shape"][-1] += 1
        line = refusal(tmp_path / "a.nir")
        assert "field edges: n -> out: " in line and str(shape_out) in line


# --- untrusted files ---------------------------------------------------------------------------------------------------


def soft_link(file, path):
    file["node/nodes/n/scale"] = h5py.SoftLink("/version")


def external_link(file, path):
    file["node/nodes/n/scale"] = h5py.ExternalLink(secret(path), "/secret")


def secret(path):
    with h5py.File(path.with_name("secret.h5"), "w") as other:
        other["secret"] = S
    return str(path.with_name("secret.h5"))


def external_node(file, path):
    with h5py.File(path.with_name("other.h5"), "w") as other:
        put(other.create_group("n"), type="Scale", scale=S)
    file["node/nodes/m"] = h5py.ExternalLink(str(path.with_name("other.h5")), "/n")


def external_storage(file, path):
    path.with_name("raw").write_bytes(S.tobytes())
    file["node/nodes/n"].create_dataset("scale", shape=(3,), dtype="f8", external=[(str(path.with_name("raw")), 0, 24)])


def virtual(file, path):
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(secret(path), "secret", (3,))
    file["node/nodes/n"].create_virtual_dataset("scale", layout)


def cycle(file, path):
    file["node/nodes/n/scale"] = S
    file["node/nodes/n/again"] = file["node"]


def huge_chunked(file, path):
    file["node/nodes/n"].create_dataset("scale", shape=(2**20, 2**20), dtype="f4", chunks=(1024, 1024), compression="gzip")


def unwritten(file, path):
    file["node/nodes/n"].create_dataset("scale", shape=(2**20,), dtype="f4")


def missing_chunk(file, path):
    data = file["node/nodes/n"].create_dataset("scale", shape=(2000,), dtype="f4", chunks=(100,), compression="gzip")
    data[:1900] = np.random.default_rng(0).random(1900)


def bomb(file, path):
    """Writes a chunk of 8 bytes that inflates to 64 MB."""
    import zlib

    data = file["node/nodes/n"].create_dataset("scale", shape=(1,), dtype="f8", chunks=(1,), compression="gzip")
    data.id.write_direct_chunk((0,), zlib.compress(bytes(64 << 20), 9)[:4096])


def field(value, name="scale", **options):
    def write(file, path):
        file["node/nodes/n"].create_dataset(name, data=value, **options)

    return write


def node_with(**fields):
    def write(file, path):
        del file["node/nodes/n"]
        put(file["node/nodes"].create_group("n"), **fields)

    return write


def slash(file, path):
    file["node/nodes/n/scale"] = S
    put(file["node/nodes"].create_group("a/b"), type="Scale", scale=S)


def edges(value, **options):
    def write(file, path):
        file["node/nodes/n/scale"] = S
        del file["node/edges"]
        file["node"].create_dataset("edges", data=value, **options)

    return write


def deep(file, path):
    group = file["node"]
    for _ in range(80):
        group = put(group.require_group("nodes").create_group("n2"), type="NIRGraph", edges=np.zeros(0))
    file["node/nodes/n/scale"] = S


def committed(file, path):
    file["type"] = np.dtype("f8")
    file["node/nodes/n"].create_dataset("scale", data=S, dtype=file["type"])


def unknown_filter(file, path):
    file["node/nodes/n"].create_dataset("scale", data=np.arange(1000), chunks=(100,), scaleoffset=0)


LIF = dict(type="LIF", tau=S, r=S, v_leak=S, v_threshold=S)
NAN = np.array([1, np.nan, 2])

HOSTILE = {
    "soft link": (soft_link, "node n, field scale: it is a soft link"),
    "external link": (external_link, "node n, field scale: it is an external link"),
    "external node": (external_node, "node m: it is an external link"),
    "external storage": (external_storage, "node n, field scale: its data are in another file"),
    "virtual dataset": (virtual, "node n, field scale: its data are in other files"),
    "cycle": (cycle, "node n, field again: the same group is linked from two places"),
    "huge": (huge_chunked, "node n, field scale: its size is 4398046511104 bytes, but 0 are stored"),
    "unwritten": (unwritten, "node n, field scale: its size is 4194304 bytes, but 0 are stored"),
    "missing chunk": (missing_chunk, "node n, field scale: a chunk is missing"),
    "bomb": (bomb, "node n, field scale: a chunk "),
    "complex": (field(S + 1j), "node n, field scale: it is of a compound type"),
    "compound": (field(np.zeros(3, [("a", "f4"), ("b", "i4")])), "node n, field scale: it is of a compound type"),
    "array type": (field(np.zeros(3, [("a", "f4", 3)])), "node n, field scale: it is of a compound type"),
    "committed type": (committed, "its type is a separate object"),
    "vlen numbers": (field(np.array([S, S[:1]], object), dtype=h5py.vlen_dtype(float)), "node n, field scale: it is of a type of variable length"),
    "opaque": (field(np.zeros(3, "V5")), "node n, field scale: it is of an opaque type"),
    "null": (field(h5py.Empty("f4")), "node n, field scale: it is empty"),
    "enumeration": (field(np.zeros(3, "i1"), dtype=h5py.enum_dtype({"A": 0, "B": 1}, "i1")), "node n, field scale: it is of an enumeration type"),
    "text for numbers": (field("text", dtype=TEXT), "node n, field scale: expected numbers, but it is text"),
    "long text": (field("x" * 70000, name="extra", dtype=TEXT), "node n, field extra: a string has 70000 bytes; the limit is 65536"),
    "scaleoffset": (unknown_filter, "node n, field scale: it is stored with the filter scaleoffset"),
    "no type": (node_with(scale=S), "node n, field type: is missing"),
    "unknown type": (node_with(type="Identity"), "node n, field type: there is no node of type Identity"),
    "number for type": (node_with(type=3), "node n, field type: expected one text"),
    "line break": (node_with(type="two\nlines"), "node n, field type: there is no node of type two\\x0alines"),
    "no field": (node_with(type="LIF", tau=S), "node n, field r: is missing"),
    "NaN tau": (node_with(**LIF | dict(tau=NAN)), "node n, field tau: a time constant must be finite and > 0, but NaN is in it"),
    "zero tau": (node_with(**LIF | dict(tau=0 * S)), "node n, field tau: a time constant must be finite and > 0, but 0 is in it"),
    "negative tau": (node_with(**LIF | dict(tau=-S)), "node n, field tau: a time constant must be finite and > 0, but -2.5 is in it"),
    "infinite tau": (node_with(**LIF | dict(tau=S + np.inf)), "node n, field tau: a time constant must be finite and > 0, but inf is in it"),
    "negative delay": (node_with(type="Delay", delay=-S), "node n, field delay: a delay must be finite and >= 0"),
    "shapes of parameters": (node_with(**LIF | dict(r=S[:1])), "node n, field r: expected shape [3], that of tau, but it is [1]"),
    "weight of rank 1": (node_with(type="Linear", weight=S), "node n, field weight: expected shape [..., out, in], but it is [3]"),
    "stride 0": (node_with(type="Conv2d", **CONV | dict(stride=[0, 1])), "node n, field stride: expected numbers from 1"),
    "padding word": (node_with(type="Conv2d", **CONV | dict(padding="full")), "node n, field padding: expected numbers, same or valid, but it is full"),
    "groups": (node_with(type="Conv2d", **CONV | dict(groups=3)), "node n, field groups: 4 output channels are not divisible by 3 groups"),
    "negative shape": (node_with(type="Input", shape=[-3]), "node n, field shape: a dimension is -3"),
    "huge shape": (node_with(type="Input", shape=[2**40, 2**40]), "node n, field shape: it has too many elements"),
    "slash in a name": (slash, "node a, field type: is missing, and the group holds b: a node's name must not hold a slash"),
    "dangling edge": (edges(names([("n", "x")]), dtype=TEXT), "node /, field edges: n -> x: there is no node x"),
    "edges of three": (edges(names([("n", "n", "n")]), dtype=TEXT), "node /, field edges: expected shape [edges, 2], but it is [1, 3]"),
    "negative edge": (edges(np.array([[0, -1]])), "node /, field edges: expected names, or whole numbers"),
    "deep": (deep, "levels deep"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_that_names_node_and_field(case, tmp_path):
    write, words = HOSTILE[case]
    path = tmp_path / "hostile.nir"
    with h5py.File(path, "w") as file:
        minimal(file, type="Scale")
        put(file, version="1")
        write(file, path)
    assert words in refusal(path)


def test_a_chunk_is_as_large_as_its_index_says_and_no_larger(tmp_path):
    with h5py.File(tmp_path / "a.nir", "w") as file:
        minimal(file, type="Scale").create_dataset("scale", data=S, chunks=(3,))
    assert tool("check", tmp_path / "a.nir").returncode == 0
    content = bytearray((tmp_path / "a.nir").read_bytes())
    key = content.index(b"TREE\x01") + 24  # the bytes of the first chunk follow
    assert content[key : key + 4] == bytes([24, 0, 0, 0])
    content[key : key + 2] = (2000).to_bytes(2, "little")
    (tmp_path / "a.nir").write_bytes(content)
    assert "node n, field scale: a chunk has 2000 bytes instead of 24" in refusal(tmp_path / "a.nir")


def test_a_file_that_is_no_nir_file_is_refused(tmp_path):
    assert "cannot be opened: No such file" in refusal(tmp_path / "none.nir")
    assert "is not a regular file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.nir")
    assert "is not a regular file" in refusal(tmp_path / "pipe.nir")
    (tmp_path / "text.nir").write_text("not HDF5\n" * 100)
    assert "is not an HDF5 file" in refusal(tmp_path / "text.nir")
    with h5py.File(tmp_path / "other.nir", "w") as file:
        file["data"] = S
    assert "node /, field node: is missing: this HDF5 file holds no NIR graph" in refusal(tmp_path / "other.nir")


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    nir.write(tmp_path / "a.nir", GRAPHS["nested"])
    content = (tmp_path / "a.nir").read_bytes()
    for size in np.linspace(0, len(content) - 1, 12).astype(int):
        (tmp_path / "cut.nir").write_bytes(content[:size])
        refusal(tmp_path / "cut.nir")


def test_memory_stays_within_the_limit(tmp_path):
    with h5py.File(tmp_path / "a.nir", "w") as file:
        minimal(file, type="Scale").create_dataset("scale", data=np.zeros(40_000_000), chunks=(1_000_000,), compression="gzip")
    assert (tmp_path / "a.nir").stat().st_size < 1_000_000
    assert "node n, field scale: the file needs more than 100000000 bytes of memory, the limit" in refusal(
        tmp_path / "a.nir", "--max-bytes", "100000000"
    )
    assert tool("check", tmp_path / "a.nir").returncode == 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert "the limit" in refusal(tmp_path / "a.nir", "--max-bytes", "100MB")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >= before > 0


def test_the_levels_of_nesting_are_limited(tmp_path):
    inner = nir.NIRGraph.from_list(nir.I(S))
    for _ in range(9):
        inner = nir.NIRGraph.from_list(inner)
    nir.write(tmp_path / "a.nir", inner)
    assert tool("check", tmp_path / "a.nir", "--max-depth", "10").returncode == 0
    assert "it is nested more than 9 levels deep" in refusal(tmp_path / "a.nir", "--max-depth", "9")


def test_parameters_broadcast_where_that_is_asked_for(tmp_path):
    neuron = dict(tau=0.5, r=[2.0], v_leak=S, v_threshold=S)
    nodes = {"in": ("Input", dict(shape=[3])), "n": ("LIF", neuron), "out": ("Output", dict(shape=[7]))}
    write({"nodes": nodes, "edges": [("in", "n"), ("n", "out")]}, tmp_path / "a.nir")
    assert "node n, field r: expected shape [], that of tau, but it is [1]" in refusal(tmp_path / "a.nir")
    done = tool("check", tmp_path / "a.nir", "--shapes", "tolerant")
    assert done.returncode == 0
    assert "node out: it declares the input shape [7], but the input has shape [3]" in done.stdout


def test_parameters_that_broadcast_are_written_whole(tmp_path):
    neuron = dict(tau=np.full((2, 3), 0.5), r=np.float32(2.0), v_leak=S, v_threshold=[[1.0], [2.0]])
    nodes = {"in": ("Input", dict(shape=[2, 3])), "n": ("LIF", neuron), "out": ("Output", dict(shape=[2, 3]))}
    write({"nodes": nodes, "edges": [("in", "n"), ("n", "out")]}, tmp_path / "a.nir")
    node = nir.read(convert(tmp_path / "a.nir", tmp_path / "b.nir")).nodes["n"]
    assert np.array_equal(node.r, np.full((2, 3), 2.0)) and node.r.dtype == np.float32
    assert np.array_equal(node.v_leak, np.stack([S, S])) and np.array_equal(node.v_threshold, [[1.0] * 3, [2.0] * 3])


def test_a_file_that_is_refused_can_be_looked_at(tmp_path):
    with h5py.File(tmp_path / "a.nir", "w") as file:
        minimal(file, **LIF | dict(tau=np.array([0.5, -1.0, 2.0])))
    assert "a time constant must be finite" in refusal(tmp_path / "a.nir")
    done = tool("info", tmp_path / "a.nir")
    assert done.returncode == 0 and "tau float64[3] -1 to 2" in done.stdout, done.stdout
    assert "not sound: " in done.stdout and "node n, field tau: a time constant must be finite" in done.stdout
    assert "field tau" in info(tmp_path / "a.nir")["defect"] and "defect" not in info(convert_of_lif(tmp_path))
    done = tool("dot", tmp_path / "a.nir")
    assert done.returncode == 0 and "not sound" in done.stdout and '"n" [label="n\\nLIF ?"' in done.stdout, done.stdout
    with h5py.File(tmp_path / "b.nir", "w") as file:  # a field from which shapes are inferred
        minimal(file, type="Linear", weight=S)
    assert "not sound" in tool("info", tmp_path / "b.nir").stdout and tool("dot", tmp_path / "b.nir").returncode == 0


def convert_of_lif(folder):
    nir.write(folder / "lif.nir", GRAPHS["LIF"])
    return folder / "lif.nir"


def test_a_graph_without_an_input_is_reported(tmp_path):
    lif = "LIF", dict(tau=S, r=S, v_leak=S, v_threshold=S)
    write({"nodes": dict.fromkeys("abc", lif), "edges": [("a", "b"), ("b", "a"), ("b", "c")]}, tmp_path / "a.nir")
    done = tool("check", tmp_path / "a.nir")
    verdict = "a.nir: sound, but it cannot be run: node /, field edges: there is no Input"
    assert done.returncode == 0 and verdict in done.stdout and "good" not in done.stdout, done.stdout
    nir.write(tmp_path / "b.nir", GRAPHS["self edge"])
    assert "cannot be run" not in tool("check", tmp_path / "b.nir").stdout


def test_recordings_are_shown(tmp_path):
    gridded = nir.TimeGriddedData(np.arange(24.0).reshape(2, 3, 4), 1e-3)
    events = nir.EventData(np.array([[0, 3], [1, -1]]), np.array([[0.1, 0.2], [0.5, np.inf]]), 4, 0.5)
    valued = nir.ValuedEventData(idx=np.array([[0]]), time=np.array([[0.25]]), value=np.array([[7.0]]), n_neurons=2, t_max=1.0)
    data = nir.NIRGraphData({"lif": nir.NIRNodeData({"spikes": events, "v": gridded}), "w": nir.NIRNodeData({"out": valued})})
    nir.write_data(tmp_path / "a.nir", data)
    done = tool("info", "--data", tmp_path / "a.nir")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "lif, spikes: 2 samples, 3 events of 4 neurons within 0.5 s",
        "lif, v: 2 samples, 3 steps of 0.001 s, 4 neurons: 0 to 23",
        "w, out: 1 samples, 1 events of 2 neurons within 1 s: 7",
    ]
    assert "info --data shows it" in tool("info", tmp_path / "a.nir").stderr
    with h5py.File(tmp_path / "a.nir", "a") as file:
        file["nodes/lif/observables/v"].attrs["dt"] = "soon"
    assert "its attribute dt is not a single number" in tool("info", "--data", tmp_path / "a.nir").stderr


def test_a_driver_information_block_is_not_followed(tmp_path):
    """libhdf5 allocates the size that the block declares."""
    convert_of_lif(tmp_path)
    content = bytearray((tmp_path / "lif.nir").read_bytes())
    assert content[:9] == b"\x89HDF\r\n\x1a\n\0" and content[48:56] == b"\xff" * 8
    place = len(content)
    content[48:56] = place.to_bytes(8, "little")
    content += b"\0\0\0\0" + (0xF0000000).to_bytes(4, "little") + b"NCSAmult" + bytes(1 << 18)
    content[40:48] = len(content).to_bytes(8, "little")
    (tmp_path / "a.nir").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert "driver information block" in refusal(tmp_path / "a.nir", "--max-bytes", "1MB")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < before + 500_000  # KiB


# --- writing -----------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(tmp_path):
    nir.write(tmp_path / "a.nir", GRAPHS["LIF"])
    (tmp_path / "old.nir").write_text("old")
    with h5py.File(tmp_path / "bad.nir", "w") as file:
        minimal(file, type="Scale")
    assert tool("convert", tmp_path / "bad.nir", tmp_path / "old.nir").returncode == 1
    # A limit on file sizes emulates a full file system.
    limited = f"ulimit -f 4; trap '' XFSZ; {TOOL} convert {tmp_path}/a.nir {tmp_path}/old.nir"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert (tmp_path / "old.nir").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nir", "bad.nir", "old.nir"]


def test_differences_are_reported(tmp_path):
    nir.write(tmp_path / "a.nir", chain(nir.LIF(S, S, S, S, S), [3], [3]))
    nir.write(tmp_path / "b.nir", chain(nir.LIF(S, S, S + 0.25, S, S), [3], [3]))
    done = tool("diff", tmp_path / "a.nir", tmp_path / "b.nir")
    assert done.returncode == 1
    assert done.stdout == "! node, v_leak: 3 of 3 values differ, by up to 0.25\n"
    assert tool("diff", tmp_path / "a.nir", tmp_path / "b.nir", "--tolerance", "0.4").returncode == 0
    done = tool("diff", tmp_path / "a.nir", tmp_path / "b.nir", "--tolerance", "0.2")
    assert done.stdout == "! node, v_leak: 1 of 3 values differ, by up to 0.25\n"
    nir.write(tmp_path / "c.nir", chain(nir.LIF(S, S.astype(np.float32), S, S, S), [3], [3]))
    assert "float64 is float32" in tool("diff", tmp_path / "a.nir", tmp_path / "c.nir").stdout
    assert tool("diff", tmp_path / "a.nir", tmp_path / "c.nir", "--tolerance", "1e-6").returncode == 0


def test_another_hdf5_in_the_process_does_no_harm(tmp_path):
    nir.write(tmp_path / "a.nir", GRAPHS["nested"])
    # h5py's libhdf5 is loaded first, with global symbols, which have precedence over those of the library's.
    libraries = list((Path(h5py.__file__).parents[1] / "h5py.libs").glob("libhdf5-*"))
    if len(libraries) != 1:
        pytest.skip("this h5py has no HDF5 of its own")
    done = tool("check", tmp_path / "a.nir", env={**os.environ, "LD_PRELOAD": str(libraries[0])})
    assert done.returncode == 0 and "good" in done.stdout, done.stderr
    dynamic = subprocess.run(["nm", "-D", LIBRARY.with_name("libspikeforge_nir.so")], capture_output=True, text=True).stdout
    assert "spikeforge" in dynamic and not [line for line in dynamic.splitlines() if " H5" in line]


def test_a_large_graph_is_read_quickly_and_without_a_second_copy(tmp_path):
    weight = np.random.default_rng(0).random((2000, 5000), np.float32)
    nir.write(tmp_path / "a.nir", chain(nir.Linear(weight), [5000], [2000]), compression=None)
    program = f"""
import os, resource, subprocess, time
start = time.monotonic()
subprocess.run([{str(TOOL)!r}, "check", {str(tmp_path / "a.nir")!r}], check=True, stdout=subprocess.DEVNULL)
print(time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
    seconds, peak = map(float, subprocess.run(["python3", "-c", program], capture_output=True, text=True, check=True).stdout.split())
    size = (tmp_path / "a.nir").stat().st_size
    print(f"{size / 1e6:.0f} MB in {seconds:.2f} s, peak {peak / size:.2f} of the file's size")
    assert peak < 2.2 * size
    assert seconds < 10  # 2 s on an idle machine


def test_no_name_in_a_file_reaches_the_terminal_as_a_command(tmp_path):
    names = ["\x1b]0;title\x07", "\x9b2J", "\x7f"]
    for file, more in (("a.nir", []), ("b.nir", names)):
        write({"nodes": dict.fromkeys(["input", *more], ("Input", dict(shape=[3]))), "edges": []}, tmp_path / file)
    for arguments in (("diff", tmp_path / "a.nir", tmp_path / "b.nir"), ("diff", tmp_path / "b.nir", tmp_path / "a.nir"),
                      ("info", tmp_path / "b.nir"), ("info", tmp_path / "b.nir", "--json"), ("dot", tmp_path / "b.nir"), ("check", tmp_path / "b.nir")):
        done = tool(*arguments)
        assert "title" in done.stdout + done.stderr or arguments[0] == "check", done.stderr
        shown = (done.stdout + done.stderr).replace("\n", "")
        assert shown.isprintable(), (arguments, shown)
