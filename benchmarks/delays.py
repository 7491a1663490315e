#!/usr/bin/env python3
"""Compares training steps of a linear layer with learned delays and of the same layer without.

y = delayed_linear(x, weight, delay), x [T, B, I] of spikes, forward, and backward to weight and delay ("first layer")
or to x as well ("hidden layer"), and torch.nn.functional.linear with the same gradients except that of delays. Columns
are milliseconds, the least of all rounds, in which contestants alternate, and the ratio to linear's in the same run.

    python benchmarks/delays.py                                 # CPU
    python benchmarks/delays.py --device cuda --dtype float16 --json FILE

"gauss" is spread over a number of steps that depends on its width, and costs one product for each of them."""

import argparse
import json
import pathlib

import this_clone  # noqa: F401
import torch
from measure import Clock, least
from torch.nn.functional import linear

ops = torch.ops.spikeforge
FORMS = {  # delay [O, I] or [I], and how it is spread
    "synapse": ("synapse", "linear", 0.5),
    "input": ("input", "linear", 0.5),
    "synapse, gauss 0.5": ("synapse", "gauss", 0.5),
    "synapse, gauss 5": ("synapse", "gauss", 5.0),
}


def training(call, leaves, upstream):
    y = call()
    torch.autograd.grad(y, leaves, upstream)


def measure(options, max_delay, hidden):
    torch.manual_seed(0)
    like = dict(device=options.device, dtype=getattr(torch, options.dtype))
    x = (torch.rand(options.steps, options.batch, options.inputs, device=options.device) < options.rate).to(like["dtype"])
    x.requires_grad_(hidden)
    w = (torch.randn(options.outputs, options.inputs, **like) * options.inputs**-0.5).requires_grad_()
    upstream = torch.randn(options.steps, options.batch, options.outputs, **like)
    of = [x] if hidden else []
    calls = {"linear": lambda: training(lambda: linear(x, w), [w, *of], upstream)}
    for name in options.forms:
        per, form, width = FORMS[name]
        shape = (options.inputs,) if per == "input" else (options.outputs, options.inputs)
        d = (max_delay * torch.rand(shape, device=options.device)).requires_grad_()
        call = lambda d=d, form=form, width=width: ops.delayed_linear(x, w, d, max_delay=max_delay, interpolation=form, width=width)
        calls[name] = lambda call=call, d=d: training(call, [w, d, *of], upstream)
    return {"max_delay": max_delay, "hidden": hidden, "ms": {k: v * 1e3 for k, v in least(calls, options.rounds, Clock(options.device, of_own_time=True)).items()}}


def print_table(rows):
    names = list(rows[0]["ms"])
    print(f"{'':14} {'max_delay':>9} " + " ".join(f"{name:>20}" for name in names))
    for row in rows:
        plain = row["ms"]["linear"]
        print(f"{'hidden layer' if row['hidden'] else 'first layer':14} {row['max_delay']:>9} "
              + " ".join(f"{f'{ms:.2f} ({ms / plain:.2f})':>20}" for ms in row["ms"].values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inputs", type=int, default=700)
    parser.add_argument("--outputs", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.02, help="the rate of the spikes of x")
    parser.add_argument("--max-delay", type=int, nargs="+", default=[25, 100])
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = [measure(options, max_delay, hidden) for max_delay in options.max_delay for hidden in (False, True)]
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"T = {options.steps}, B = {options.batch}, {options.inputs} x {options.outputs}, {options.dtype}, {device}")
    print_table(rows)
    if options.json:
        sizes = {k: getattr(options, k) for k in ("steps", "batch", "inputs", "outputs", "rate", "dtype")}
        options.json.write_text(json.dumps({"torch": torch.__version__, "device": device, **sizes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
