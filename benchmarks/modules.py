#!/usr/bin/env python3
"""Measures the overhead of a module over a call of its operator, x of 4 x 1024 float32 on one CPU thread.

Both alternate in many short measurements; each time is the shortest of them.
"""

import argparse
import json
import timeit

import torch

import spikeforge.nn as snn
from spikeforge import surrogate

ops = torch.ops.spikeforge
TEXT = "neuron lif(x; v; tau) { h = v + (x - v) / tau; s = spike(h - 1, atan(2)); return s; v' = select(s, 0, h) }"


def cases():
    """Returns a name, the call of the operator, and the module for each case."""
    tau, two = torch.nn.Parameter(torch.full((1024,), 2.0)), torch.tensor(2.0)
    yield "LIF()", lambda x: ops.lif(x)[0], snn.LIF()
    yield (
        'LIF(tau=3.0, surrogate="atan")',
        lambda x: ops.lif(x, tau=3.0, surrogate="atan")[0],
        snn.LIF(tau=3.0, surrogate="atan"),
    )
    own = snn.LIF(surrogate=surrogate.ATan(3.0))
    yield "LIF(surrogate=ATan(3.0))", lambda x: ops.lif(x, surrogate="atan", surrogate_args=[3.0])[0], own
    yield "LIF(tau=nn.Parameter(...))", lambda x: ops.lif(x, tau=tau)[0], snn.LIF(tau=tau)
    bounded = snn.LIF(tau=snn.Learnable(2.0, min=1.0, per_channel=1024))
    yield "LIF(tau=Learnable(2.0, min=1.0))", lambda x: ops.lif(x, tau=bounded.tau.clamp(min=1.0))[0], bounded
    yield "PLIF()", lambda x, w=torch.nn.Parameter(torch.zeros(())): ops.plif(x, w)[0], snn.PLIF()
    yield "Izhikevich()", lambda x: ops.izhikevich(x)[0], snn.Izhikevich()
    yield "Neuron(text, tau=2.0)", lambda x: ops.run(TEXT, [x], [], [two])[0][0], snn.Neuron(TEXT, tau=2.0)
    yield (
        "Neuron(text, tau=nn.Parameter(...))",
        lambda x: ops.run(TEXT, [x], [], [tau])[0][0],
        snn.Neuron(TEXT, tau=tau),
    )


def times(functions, calls, rounds):
    """Returns microseconds per call."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            best[i] = min(best[i], timeit.timeit(function, number=calls) / calls * 1e6)
    return best


def measure(rounds):
    x, leaf, upstream = torch.randn(4, 1024), torch.randn(4, 1024, requires_grad=True), torch.ones(4, 1024)
    for name, bare, module in cases():
        with torch.no_grad():
            inference = times([lambda f=f: f(x) for f in (bare, module)], 60, rounds)
        training = times([lambda f=f: f(leaf).backward(upstream) for f in (bare, module)], 20, rounds)
        yield {"case": name, "inference_us": inference, "training_us": training}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", help="write the table there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':38s}{'inference, us':^26s}{'training, us':^26s}")
    rows = []
    for row in measure(options.rounds):
        rows.append(row)
        columns = (f"{a:8.2f} {b:8.2f}  x {b / a:4.2f}" for a, b in (row["inference_us"], row["training_us"]))
        print(f"{row['case']:38s}" + "  ".join(columns), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
