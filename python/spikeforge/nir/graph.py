"""Converts graphs of the package `nir` to values by their place in a file, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

try:
    import nir
except ModuleNotFoundError:
    nir = None

if TYPE_CHECKING or nir is not None:
    Base = nir.NIRGraph
else:
    Base = object


class NIRGraph(Base):  # type: ignore[misc, valid-type]
    """A ``nir.NIRGraph`` that is constructed from the values of C++, without the shape checks of `nir` (which reject
    kernels that are not square, and grouped convolutions), and prints itself as a table.
    """

    def __repr__(self) -> str:
        return "\n".join(_described(self))


def _needed() -> Any:
    if nir is None:
        raise ImportError("graphs need the package nir: pip install nir; files do not: spikeforge.nir.load(path)")
    return nir


# --- to values


def values_of(graph: nir.NIRGraph) -> dict[str, Any]:
    """Returns the values of a graph by their names in `nir.write`: ``{"node/nodes/lif/tau": tensor, ...}``."""
    if not isinstance(graph, _needed().NIRNode):
        raise TypeError(f"load: expected a path or a nir.NIRGraph, but got {type(graph).__name__}")
    return dict(_placed("node", _fields(graph)))


def _fields(node: nir.NIRNode) -> dict[str, Any]:
    """Returns the fields of one node, without copies of its arrays."""
    fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    inputs, outputs = fields.pop("input_type"), fields.pop("output_type")
    if isinstance(node, nir.Input):
        fields["shape"] = inputs["input"]
    elif isinstance(node, nir.Output):
        fields["shape"] = outputs["output"]
    elif isinstance(node, nir.Flatten):
        fields["input_type"] = inputs["input"]
    elif isinstance(node, nir.NIRGraph):
        fields["nodes"] = {name: _fields(inner) for name, inner in node.nodes.items()}
        fields["edges"] = [[str(a), str(b)] for a, b in node.edges]
    if not fields["metadata"]:
        del fields["metadata"]
    return {"type": "NIRGraph" if isinstance(node, nir.NIRGraph) else type(node).__name__, **fields}


def _placed(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        if not value:
            yield place, None
        for name, inner in value.items():
            yield from _placed(f"{place}/{name}", inner)
    elif value is not None:
        yield place, _value(place, value)


def _value(place: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind in "USO" and not array.size:
        return torch.zeros(array.shape)  # an empty list has no type for C++
    if array.dtype.kind in "USO":
        return np.char.asarray(array).tolist() if array.dtype.kind == "S" else array.astype(str).tolist()
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{place}: expected numbers or text, but it is {array.dtype}")
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


# --- from values


def graph_of(values: Mapping[str, Any]) -> NIRGraph:
    """Returns the graph of a file's values."""
    _needed()
    root: dict[str, Any] = {}
    for place, value in values.items():
        *path, name = place.split("/")
        group = root
        for step in path:
            group = group.setdefault(step, {})
        group[name] = {} if value is None else _numpy(value) if isinstance(value, torch.Tensor) else value
    return _graph(root["node"])


def _numpy(value: torch.Tensor) -> Any:
    """Converts a tensor for `nir.write`, which compresses arrays; h5py cannot compress those without dimensions."""
    return value.numpy() if value.dim() else value.item()


def _graph(group: dict[str, Any]) -> NIRGraph:
    nodes = {name: _node(inner) for name, inner in group["nodes"].items()}
    edges = group["edges"] if isinstance(group["edges"], list) else []
    return NIRGraph(nodes, [(a, b) for a, b in edges], group.get("metadata", {}), type_check=False)


def _node(group: dict[str, Any]) -> nir.NIRNode:
    if group["type"] == "NIRGraph":
        return _graph(group)
    return nir.dict2NIRNode(dict(group))


# --- printing


def _described(graph: nir.NIRGraph) -> list[str]:
    rows = [("node", "type", "fields"), *_rows(graph, "")]
    wide = [max(len(row[i]) for row in rows) for i in range(2)]
    numbers = sum(np.size(value) for node in _leaves(graph) for value in _arrays(node).values())
    title = f"NIRGraph: {len(graph.nodes)} nodes, {len(graph.edges)} edges, {numbers} parameters"
    return [title, *(f"  {name:{wide[0]}}  {kind:{wide[1]}}  {fields}".rstrip() for name, kind, fields in rows)]


def _leaves(graph: nir.NIRGraph) -> Iterator[nir.NIRNode]:
    for node in graph.nodes.values():
        if isinstance(node, nir.NIRGraph):
            yield from _leaves(node)
        else:
            yield node


def _arrays(node: nir.NIRNode) -> dict[str, np.ndarray]:
    return {
        name: value
        for name, value in _fields(node).items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    }


def _rows(graph: nir.NIRGraph, prefix: str) -> Iterator[tuple[str, str, str]]:
    targets: dict[str, list[str]] = {}
    for source, target in graph.edges:
        targets.setdefault(source, []).append(target)
    for name, node in graph.nodes.items():
        fields = [] if isinstance(node, nir.NIRGraph) else [_field(*field) for field in _fields(node).items()]
        if name in targets:
            fields.append("-> " + ", ".join(targets[name]))
        kind = "NIRGraph" if isinstance(node, nir.NIRGraph) else type(node).__name__
        yield prefix + name, kind, "; ".join(filter(None, fields))
        if isinstance(node, nir.NIRGraph):
            yield from _rows(node, f"{prefix}{name}/")


def _field(name: str, value: Any) -> str:
    if name in ("type", "metadata") or value is None:
        return ""
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return f"{name} {array.tolist()}"
    low, high = (array.min(), array.max()) if array.size else (0.0, 0.0)
    return f"{name} {list(array.shape)} {low:.4g}" + (f" to {high:.4g}" if high != low else "")
