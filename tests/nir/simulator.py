"""A simple, slow simulator of NIR graphs: the equations of the nodes in NumPy, step by step, in float64.

A graph is {"nodes": {name: (type, fields)}, "edges": [(from, to)]}; a nested one is ("NIRGraph", graph).
"""

import h5py
import numpy as np

TEXT = h5py.string_dtype()


def put(group, **fields):
    for name, value in fields.items():
        if isinstance(value, str):
            group.create_dataset(name, data=value, dtype=TEXT)
        else:
            group.create_dataset(name, data=value)
    return group


def write(graph, file, version="1.0.8"):
    """Writes the layout of the nir package without the package, which rejects some legal graphs."""
    with h5py.File(file, "w") as h5:
        h5.create_dataset("version", data=version, dtype=TEXT)
        _write_graph(h5.create_group("node"), graph)
    return file


def _write_graph(group, graph):
    group.create_dataset("type", data="NIRGraph", dtype=TEXT)
    nodes = group.create_group("nodes")
    for name, (kind, fields) in graph["nodes"].items():
        inner = nodes.create_group(name)
        if kind == "NIRGraph":
            _write_graph(inner, fields)
            continue
        put(inner, type=kind, **fields)
    edges = np.array([list(edge) for edge in graph["edges"]], dtype=object).reshape(-1, 2)
    group.create_dataset("edges", data=edges, dtype=TEXT)


OPTIONS = {
    "dt": 1e-3, "reset": "file", "if-scaling": "ode", "comparison": "gt", "cuba-current": "new", "recurrent-start": "zero",
}  # fmt: skip


class Simulator:
    """step(x) returns the outputs of all nodes by name; then self.membrane(name) is valid. Nested: "graph/node"."""

    def __init__(self, graph, **options):
        self.options = {**OPTIONS, **{key.replace("_", "-"): value for key, value in options.items()}}
        self.nodes, self.edges = graph["nodes"], graph["edges"]
        self.order, self.cut = order_of(self.nodes, self.edges)
        self.inner = {name: Simulator(n[1], **options) for name, n in self.nodes.items() if n[0] == "NIRGraph"}
        self.state = {}
        self.previous = None

    def step(self, x):
        if self.previous is None:
            self.previous = {}
            if self.options["recurrent-start"] == "apply":
                self.rest(np.zeros_like(x))
        values = {}
        for name in self.order:
            arriving = None
            for from_, to in self.edges:
                if to != name:
                    continue
                term = self.previous.get(from_) if (from_, to) in self.cut else values[from_]
                if term is not None:
                    arriving = term if arriving is None else arriving + term
            values[name] = self.node(name, x if self.nodes[name][0] == "Input" else self.or_zeros(name, arriving))
        self.previous = dict(values)
        for name, inner in self.inner.items():
            values.update({f"{name}/{key}": value for key, value in inner.values.items()})
        self.values = values
        return values

    def or_zeros(self, name, arriving):
        """Returns zeros if `arriving` is None: if all inputs of the node come from the step before the first one."""
        kind, fields = self.nodes[name]
        if arriving is not None or kind == "Input":
            return arriving
        while kind == "NIRGraph":
            kind, fields = next(node for node in fields["nodes"].values() if node[0] == "Input")
        if "weight" in fields:
            return np.zeros(np.shape(fields["weight"])[-1:])
        return np.zeros(fields["shape"] if "shape" in fields else np.shape(next(iter(fields.values()))))

    def membrane(self, name):
        graph, _, rest = name.partition("/")
        return self.inner[graph].membrane(rest) if rest else self.state[name]["v"]

    def output(self):
        return self.values[next(name for name, n in self.nodes.items() if n[0] == "Output")]

    def rest(self, x):
        """Computes the outputs of all nodes before the first step: without input, from the resting state."""
        for name in self.order:
            terms = [self.previous[a] for a, b in self.edges if b == name and (a, b) not in self.cut]
            arriving = self.or_zeros(name, sum(terms[1:], terms[0]) if terms else None)
            kind = self.nodes[name][0]
            if kind == "Input":
                self.previous[name] = x
            elif kind == "NIRGraph":
                inner = Simulator(self.nodes[name][1], **self.options)
                inner.previous = {}
                inner.rest(arriving)
                self.previous[name] = inner.previous[next(k for k, n in inner.nodes.items() if n[0] == "Output")]
            elif kind in ("I", "LI", "IF", "LIF", "CubaLI", "CubaLIF", "Delay"):
                self.previous[name] = np.zeros_like(arriving)
            else:
                self.previous[name] = self.node(name, arriving)

    # --- nodes

    def node(self, name, x):
        kind, fields = self.nodes[name]
        if kind == "NIRGraph":
            self.inner[name].step(x)
            return self.inner[name].output()
        f = {key: value if isinstance(value, str) else np.asarray(value) for key, value in fields.items()}
        f = {key: v.astype(float) if getattr(v, "dtype", None) is not None and v.dtype.kind == "f" else v for key, v in f.items()}
        return getattr(self, "node_" + kind)(f, x, self.state.setdefault(name, {}))

    def node_Input(self, f, x, state):
        return x

    def node_Output(self, f, x, state):
        return x

    def node_Linear(self, f, x, state):
        return np.einsum("...oi,...i->...o", f["weight"], x)

    def node_Affine(self, f, x, state):
        return self.node_Linear(f, x, state) + f["bias"]

    def node_Scale(self, f, x, state):
        return x * f["scale"]

    def node_Conv2d(self, f, x, state):
        return convolution(x, f, 2)

    def node_Conv1d(self, f, x, state):
        return convolution(x[..., None], {**f, "weight": f["weight"][..., None]}, 1)[..., 0]

    def node_SumPool2d(self, f, x, state):
        kernel, stride, pad = (np.broadcast_to(f[key], 2) for key in ("kernel_size", "stride", "padding"))
        x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(pad[0], pad[0]), (pad[1], pad[1])])
        size = [(x.shape[d - 2] - kernel[d]) // stride[d] + 1 for d in range(2)]
        y = np.zeros(x.shape[:-2] + tuple(size))
        for i in range(size[0]):
            for j in range(size[1]):
                at = i * stride[0], j * stride[1]
                y[..., i, j] = x[..., at[0] : at[0] + kernel[0], at[1] : at[1] + kernel[1]].sum((-2, -1))
        return y

    def node_AvgPool2d(self, f, x, state):
        return self.node_SumPool2d(f, x, state) / np.prod(np.broadcast_to(f["kernel_size"], 2))

    def node_Flatten(self, f, x, state):
        start, end = (int(f[key]) % x.ndim for key in ("start_dim", "end_dim"))
        return x.reshape(x.shape[:start] + (-1,) + x.shape[end + 1 :])

    def node_Delay(self, f, x, state):
        steps = np.broadcast_to(np.rint(f["delay"] / self.options["dt"]).astype(int), x.shape)
        past = state.setdefault("past", [])
        past.append(x)
        y = np.zeros_like(x)
        for index in np.ndindex(x.shape):
            if steps[index] < len(past):
                y[index] = past[len(past) - 1 - steps[index]][index]
        return y

    def above(self, v, threshold):
        return v >= threshold if self.options["comparison"] == "ge" else v > threshold

    def node_Threshold(self, f, x, state):
        return self.above(x, f["threshold"]).astype(float)

    def node_I(self, f, x, state):
        state["v"] = state.get("v", 0.0) + self.options["dt"] * f["r"] * x
        return state["v"]

    def node_LI(self, f, x, state):
        v = state.get("v", np.zeros_like(x))
        state["v"] = v + self.options["dt"] / f["tau"] * (f["v_leak"] - v + f["r"] * x)
        return state["v"]

    def fire(self, f, state, v):
        reset = self.options["reset"]
        late = self.above(state.get("v", np.zeros_like(v)), f["v_threshold"])
        if reset in ("subtract-delayed", "subtract-twice"):
            v = np.where(late, v - f["v_threshold"], v)
        spikes = self.above(v, f["v_threshold"])
        if reset == "subtract":
            v = np.where(spikes, v - f["v_threshold"], v)
        elif reset == "subtract-twice":  # like reset_delay=False of snnTorch
            v = v - (spikes.astype(float) - late.astype(float)) * f["v_threshold"]
        elif reset != "subtract-delayed":
            v = np.where(spikes, f.get("v_reset", 0.0) if reset == "file" else 0.0, v)
        state["v"] = v
        return spikes.astype(float)

    def node_IF(self, f, x, state):
        dt = self.options["dt"] if self.options["if-scaling"] == "ode" else 1.0
        return self.fire(f, state, state.get("v", np.zeros_like(x)) + dt * f["r"] * x)

    def node_LIF(self, f, x, state):
        v = state.get("v", np.zeros_like(x))
        return self.fire(f, state, v + self.options["dt"] / f["tau"] * (f["v_leak"] - v + f["r"] * x))

    def charge_of_cuba(self, f, x, state):
        old, v = state.get("i", np.zeros_like(x)), state.get("v", np.zeros_like(x))
        new = old + self.options["dt"] / f["tau_syn"] * (f.get("w_in", 1.0) * x - old)
        state["i"] = new
        current = new if self.options["cuba-current"] == "new" else old
        return v + self.options["dt"] / f["tau_mem"] * (f["v_leak"] - v + f["r"] * current)

    def node_CubaLI(self, f, x, state):
        state["v"] = self.charge_of_cuba(f, x, state)
        return state["v"]

    def node_CubaLIF(self, f, x, state):
        return self.fire(f, state, self.charge_of_cuba(f, x, state))


def convolution(x, f, dims):
    weight, groups = f["weight"], int(f["groups"])
    pair = lambda value, rest: [int(v) for v in np.broadcast_to(value, dims)] + [rest] * (2 - dims)  # noqa: E731
    stride, dilation = pair(f["stride"], 1), pair(f["dilation"], 1)
    reach = [dilation[d] * (weight.shape[d + 2] - 1) for d in range(2)]
    if isinstance(f["padding"], str):
        total = reach if f["padding"] == "same" else [0, 0]
        pads = [(t // 2, t - t // 2) for t in total]
    else:
        pads = [(p, p) for p in pair(f["padding"], 0)]
    x = np.pad(x, [(0, 0), *pads])
    size = [(x.shape[d + 1] - reach[d] - 1) // stride[d] + 1 for d in range(2)]
    y = np.zeros((len(weight), *size))
    per_group = len(weight) // groups
    for o in range(len(weight)):
        first = o // per_group * weight.shape[1]
        for i in range(size[0]):
            for j in range(size[1]):
                window = x[
                    first : first + weight.shape[1],
                    i * stride[0] : i * stride[0] + reach[0] + 1 : dilation[0],
                    j * stride[1] : j * stride[1] + reach[1] + 1 : dilation[1],
                ]
                y[o, i, j] = (window * weight[o]).sum()
    return y + f["bias"][:, None, None]


def order_of(nodes, edges):
    """Returns the order of nodes in a step, and the edges that carry the previous step's value, by NIRTorch's queue.

    Files list nodes by name. A node runs after all its predecessors, except, if it has several, those that it leads
    back to.
    """
    queue = sorted(nodes)
    first = next((i for i, name in enumerate(queue) if nodes[name][0] == "Input"), 0)
    queue = queue[first:] + queue[:first]
    before = {name: {a for a, b in edges if b == name} for name in nodes}

    def reaches(start, end):
        seen, left = set(), [start]
        while left:
            at = left.pop()
            for a, b in edges:
                if a == at and b not in seen:
                    seen.add(b)
                    left.append(b)
        return end in seen

    order, waited = [], 0
    while queue:
        name = queue.pop(0)
        missing = before[name] - set(order)
        may_cut = len(before[name]) > 1 or waited > len(queue)
        if missing and not (may_cut and all(reaches(name, m) for m in missing)):
            queue.append(name)
            waited += 1
            continue
        order.append(name)
        waited = 0
    place = {name: i for i, name in enumerate(order)}
    return order, {(a, b) for a, b in edges if place[a] >= place[b]}
