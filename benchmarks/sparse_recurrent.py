#!/usr/bin/env python3
"""Measures steps of a sparse recurrent layer beside a loop of torch's CSR products.

    python benchmarks/sparse_recurrent.py --device cuda --json benchmarks/results/sparse_recurrent_h200.json
    python benchmarks/sparse_recurrent.py --scale 0.1 --threads 2 --steps 50 --json benchmarks/results/sparse_recurrent_cpu.json

The network has the size of a fly's brain times `scale`: 138,639 neurons, 15.09 million connections, all with the same
delay, so that torch's loop needs one product for each step. Both compute a LIF from the same weights and inputs. torch
differentiates the weights of a sparse tensor densely; its backward pass here computes the gradients of the inputs only.
"""

import argparse
import json
import pathlib

import spikeforge.nn as snn
import torch
from contestants import Fire
from measure import Clock, least
from this_clone import spikeforge

DECAY = 0.9


def by_torch(matrix, x, delay):
    """Returns the spikes of a loop; `matrix` is the transpose of the layer's, in CSR form."""
    v, sent = torch.zeros_like(x[0]), []
    for t, current in enumerate(x):
        if t >= delay:
            current = current + (matrix @ sent[t - delay].t()).t()
        h = DECAY * v + current
        s = Fire.apply(h - 1)
        v = h.masked_fill(s.bool(), 0)
        sent.append(s)
    return torch.stack(sent)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of neurons and connections")
    parser.add_argument("--delay", type=int, default=18)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    neurons, connections = round(138_639 * args.scale), round(15_090_000 * args.scale)
    rules = spikeforge.rules
    everyone = slice(0, neurons)
    drawn = spikeforge.connect(
        neurons, neurons,
        [spikeforge.Projection(everyone, everyone, rules.fixed_total(connections), weight=rules.normal(0.0, 0.05), delay=args.delay)],
        device=args.device,
    )  # fmt: skip
    text = f"neuron lif(x; v) {{ h = {DECAY} * v + x; s = spike(h - 1, sigmoid(4)); return s; v' = select(s, 0, h) }}"
    layer = snn.SparseRecurrent(snn.Neuron(text), drawn)
    x = (0.25 * torch.rand(args.steps, args.batch, neurons, device=args.device)).requires_grad_()
    matrix = torch.sparse_csr_tensor(drawn.indptr, drawn.indices.long(), layer.weights.detach(), (neurons, neurons))
    matrix = matrix.to_sparse_coo().t().coalesce().to_sparse_csr()

    def inference(run):
        with torch.no_grad():
            run()

    ours, theirs = (lambda: layer(x)), (lambda: by_torch(matrix, x, args.delay))
    calls = {
        "inference": lambda: inference(ours),
        "training": lambda: ours().sum().backward(),
        "torch, inference": lambda: inference(theirs),
        "torch, training without weights": lambda: theirs().sum().backward(),
    }
    times = least(calls, args.rounds, Clock(args.device))
    with torch.no_grad():
        spikes, expected = ours(), theirs()
    result = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} threads",
        "neurons": neurons, "connections": connections, "delay": args.delay, "steps": args.steps, "batch": args.batch,
        "firing": spikes.mean().item(), "spikes that differ": (spikes != expected).double().mean().item(),
        "ms a step": {name: 1e3 * seconds / args.steps for name, seconds in times.items()},
    }  # fmt: skip
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        calls["training"]()
        result["peak MiB of training"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
