#!/usr/bin/env python3
"""Compares recurrent_run with loops over time, for a recurrent layer of LIF neurons over a sequence of steps.

y[t] = LIF(x[t] + y[t - 1] @ w) for x [T, B, H] is trained: forward, and backward to x and w. Columns are milliseconds,
the least of all rounds, in which contestants alternate; "ours / best" is recurrent_run relative to the fastest of the
others that are installed. "inference" is recurrent_run alone, without gradients; "loop of run" steps this library's
neuron.

    python benchmarks/recurrent.py                              # CPU: H = 128 and 512
    python benchmarks/recurrent.py --device cuda --dtype float16 --steps 1000 --json FILE

On a GPU torch's loop is also captured as a CUDA graph, and cuDNN's RNN (relu) and LSTM of the same size are measured:
these multiply x by a matrix as well. --kernels measures only the layer's two kernels, without w's gradient, in
microseconds per step, for LIF and for a neuron of two states with adaptation:

    python benchmarks/recurrent.py --device cuda --dtype float16 --steps 1000 --kernels --json FILE"""

import argparse
import json
import pathlib
import sys
import time

import this_clone  # noqa: F401
import torch
from contestants import TRACED, Fire
from measure import Clock, least, profiled
from torch import nn

ops = torch.ops.spikeforge
TAU = 2.0
LIF = TRACED["traced lif"]
ADAPTIVE = """neuron adaptive(x; v, a) {
  h = v + (x - v) * 0.5; s = spike(h - 1 - 0.2 * a, sigmoid(4)); return s; v' = select(s, 0, h); a' = 0.9 * a + s
}"""


# --- contestants: each returns the spikes for x and w -----------------------------------------------------------------


def ours(x, w):
    return ops.recurrent_run(LIF, [x], w, [], [])[0][0]


def loop_of_run(x, w):
    s, states, rows = None, [], []
    for row in x:
        current = row if s is None else torch.addmm(row, s, w)
        (s,), states = ops.run(LIF, [current.unsqueeze(0)], states, [])
        s = s[0]
        rows.append(s)
    return torch.stack(rows)


def torch_loop(x, w):
    s = v = torch.zeros_like(x[0])
    rows = []
    for row in x:
        h = v + (torch.addmm(row, s, w) - v) / TAU
        s = Fire.apply(h - 1)
        v = (1 - s) * h
        rows.append(s)
    return torch.stack(rows)


def norse_loop():
    from norse.torch import LIFParameters
    from norse.torch.functional.lif import LIFFeedForwardState, lif_feed_forward_step

    p = LIFParameters()

    def run(x, w):
        s = torch.zeros_like(x[0])
        state, rows = LIFFeedForwardState(s, s), []
        for row in x:
            s, state = lif_feed_forward_step(torch.addmm(row, s, w), state, p)
            rows.append(s)
        return torch.stack(rows)

    return run


def snntorch_loop():
    import snntorch

    made = {}

    def run(x, w):
        if w.shape not in made:
            made[w.shape] = snntorch.RLeaky(beta=0.5, linear_features=w.shape[0]).to(x)
            made[w.shape].recurrent = Product()
        cell = made[w.shape]
        cell.recurrent.w = w
        s, v = cell.init_rleaky()
        rows = []
        for row in x:
            s, v = cell(row, s, v)
            rows.append(s)
        return torch.stack(rows)

    return run


class Product(nn.Module):
    def forward(self, s):
        return s @ self.w if s.dim() == 2 else s


def spikingjelly_loop():
    from spikingjelly.activation_based import functional, neuron, surrogate

    node = neuron.LIFNode(tau=TAU, surrogate_function=surrogate.Sigmoid())

    def run(x, w):
        functional.reset_net(node)
        s, rows = torch.zeros_like(x[0]), []
        for row in x:
            s = node(torch.addmm(row, s, w))
            rows.append(s)
        return torch.stack(rows)

    return run


def cudnn(kind):
    made = {}

    def run(x, w):
        if w.shape not in made:
            options = {"nonlinearity": "relu"} if kind is nn.RNN else {}
            made[w.shape] = kind(w.shape[0], w.shape[0], bias=False, **options).to(x)
        return made[w.shape](x)[0]

    return run


def contestants(device, peers):
    found = {"recurrent_run": ours}
    if not peers:
        return found
    found |= {"loop of run": loop_of_run, "torch loop": torch_loop}
    makers = {"Norse": norse_loop, "snnTorch": snntorch_loop, "SpikingJelly": spikingjelly_loop}
    if device == "cuda":
        makers |= {"cuDNN RNN": lambda: cudnn(nn.RNN), "cuDNN LSTM": lambda: cudnn(nn.LSTM)}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError as error:
            print(f"{name} is not measured: {error}", file=sys.stderr)
    return found


# --- measuring -------------------------------------------------------------------------------------------------------


def training(run, x, w, upstream):
    y = run(x, w)
    y.backward(upstream)
    x.grad = w.grad = None
    return y


@torch.no_grad()
def inference(run, x, w, upstream):
    return run(x, w)


def as_graph(call):
    """Captures the call as a CUDA graph, and returns its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay():
        graph.replay()

    replay.call = call  # keeps the tensors that the graph reads
    return replay


def measure(options, batch, width):
    torch.manual_seed(0)
    like = dict(device=options.device, dtype=getattr(torch, options.dtype))
    x = (torch.randn(options.steps, batch, width, **like) * 1.5 + 0.2).requires_grad_()
    w = (torch.randn(width, width, **like) * width**-0.5).requires_grad_()
    upstream = torch.randn(options.steps, batch, width, **like)
    calls = {name: lambda run=run: training(run, x, w, upstream) for name, run in contestants(options.device, options.peers).items()}
    calls["inference"] = lambda: inference(ours, x, w, upstream)
    if options.device == "cuda":
        for name in {"recurrent_run", "torch loop"} & calls.keys():
            calls[f"{name}, graph"] = as_graph(calls[name])
    rate = calls["recurrent_run"]().float().mean().item()
    best = least(calls, options.rounds, Clock(options.device))
    return {"T": options.steps, "B": batch, "H": width, "rate": rate, "ms": {k: v * 1e3 for k, v in best.items()}}


def kernels(options, batch, width):
    """Returns microseconds per step of the forward and the backward kernel, the least of all rounds."""
    def microseconds(call):
        return profiled([call], of="spikeforge_") * 1e6 / options.steps

    torch.manual_seed(0)
    like = dict(device=options.device, dtype=getattr(torch, options.dtype))
    x = torch.randn(options.steps, batch, width, **like).requires_grad_()
    w, upstream = torch.randn(width, width, **like) * 0.5 * width**-0.5, torch.randn(options.steps, batch, width, **like)
    row = {"T": options.steps, "B": batch, "H": width}
    for name, neuron in (("LIF", LIF), ("adaptive", ADAPTIVE)):
        (s,), _ = ops.recurrent_run(neuron, [x], w, [], [])
        calls = {
            "forward": lambda neuron=neuron: ops.recurrent_run(neuron, [x], w, [], []),
            "backward": lambda s=s: torch.autograd.grad(s, x, upstream, retain_graph=True),
        }
        for call in calls.values():
            call()
        row[name] = {which: min(microseconds(call) for _ in range(options.rounds)) for which, call in calls.items()}
        row[name]["rate"] = s.float().mean().item()
    return row


def print_kernels(rows):
    print(f"{'H':>5} {'B':>4}   microseconds a step, forward + backward")
    for row in rows:
        both = (f"{name} {row[name]['forward']:.3f} + {row[name]['backward']:.3f}" for name in ("LIF", "adaptive"))
        print(f"{row['H']:>5} {row['B']:>4}   " + ", ".join(both))


def print_table(rows, steps):
    names = list(rows[0]["ms"])
    print(f"{'H':>5} {'B':>4} {'fired':>6} " + " ".join(f"{name:>14}" for name in names) + f" {'ours / best':>12} {'us a step':>10}")
    for row in rows:
        ms = row["ms"]
        others = (value for name, value in ms.items() if not name.startswith(("recurrent_run", "inference", "loop of run", "cuDNN")))
        best = min(others, default=float("nan"))
        print(
            f"{row['H']:>5} {row['B']:>4} {row['rate']:>6.1%} " + " ".join(f"{ms[name]:>14.2f}" for name in names)
            + f" {ms['recurrent_run'] / best:>12.2f} {ms['recurrent_run'] / steps * 1e3:>10.2f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--width", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="only this library")
    parser.add_argument("--kernels", action="store_true", help="the layer's kernels alone, on a GPU")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    batches, widths = options.batch or ([64, 256] if gpu else [32]), options.width or ([128, 256, 512, 1024] if gpu else [128, 512])
    if options.kernels and not gpu:
        parser.error("--kernels needs --device cuda")
    rows = [(kernels if options.kernels else measure)(options, batch, width) for width in widths for batch in batches]
    print(f"T = {options.steps}, {options.dtype}, " + (torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"))
    print_kernels(rows) if options.kernels else print_table(rows, options.steps)
    if options.json:
        named = dict(torch=torch.__version__, device=torch.cuda.get_device_name() if gpu else "cpu", dtype=options.dtype)
        options.json.write_text(json.dumps({**named, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
