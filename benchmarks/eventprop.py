#!/usr/bin/env python3
"""Measures training steps of a recurrent layer with exact gradients (EventProp) beside surrogate gradients.

    python benchmarks/eventprop.py --json benchmarks/results/eventprop_cpu.json
    python benchmarks/eventprop.py --device cuda --json benchmarks/results/eventprop_h200.json

A network of 700 inputs, 256 current-based LIF neurons with recurrence and 20 leaky integrators, as for the Spiking
Heidelberg Digits. *saved* are the bytes of the tensors that the recurrent layer saves for its backward pass, without the input and the
weights; *peak*, on a GPU, is the memory of a training step at most, without what was allocated before.
"""

import argparse
import json
import pathlib

import spikeforge.nn as snn
import torch
from measure import Clock, least
from this_clone import spikeforge
from torch import nn


def network(args, exact):
    torch.manual_seed(0)
    layer, recurrent = nn.Linear(args.inputs, args.hidden), nn.Linear(args.hidden, args.hidden, bias=False)
    nn.init.normal_(layer.weight, args.mean, args.mean)
    nn.init.normal_(recurrent.weight, 0, 0.2 / args.hidden**0.5)
    neuron = snn.CubaLIF(tau_synapse=5.0, tau_membrane=20.0, surrogate="super_spike")
    if exact:
        hidden = [snn.EventProp(neuron, layer, None if args.feedforward else recurrent)]
    else:
        hidden = [layer, neuron if args.feedforward else snn.Recurrent(neuron, recurrent)]
    readout = snn.LI(tau=5.0, decay_input=False), snn.LI(tau=20.0)
    return snn.Sequential(*hidden, nn.Linear(args.hidden, 20), *readout).to(args.device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inputs", type=int, default=700)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--feedforward", action="store_true", help="without recurrence")
    parser.add_argument("--rate", type=float, default=0.011, help="of inputs, in spikes per step")
    parser.add_argument("--mean", type=float, default=0.05, help="of input weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    x = (torch.rand(args.steps, args.batch, args.inputs, device=args.device) < args.rate).float()
    labels = torch.randint(20, (args.batch,), device=args.device)
    nets = {"exact": network(args, True), "surrogate": network(args, False)}
    result = {"device": torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} threads", **vars(args)}
    result.pop("json")

    def forward(net):
        return nn.functional.cross_entropy(net(x).mean(0), labels)

    for name, net in nets.items():
        excluded = {t.untyped_storage().data_ptr() for t in (x, *net.parameters())}
        saved = {}

        def save(t, saved=saved, excluded=excluded):
            storage = t.untyped_storage()
            if storage.data_ptr() not in excluded:
                saved[storage.data_ptr()] = storage.nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
            spikes = net[:-3](x)
        result[f"{name}, saved MB"] = sum(saved.values()) / 1e6
        result[f"{name}, spikes a neuron"] = float(spikes.detach().sum(0).mean())
        del spikes
        if args.device == "cuda":
            forward(net).backward()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            forward(net).backward()
            result[f"{name}, peak MB"] = (torch.cuda.max_memory_allocated() - before) / 1e6
    calls = {f"{name}, forward": lambda net=net: forward(net) for name, net in nets.items()}
    calls |= {f"{name}, training": lambda net=net: forward(net).backward() for name, net in nets.items()}
    times = least(calls, args.rounds, Clock(args.device))
    result["ms"] = {name: 1e3 * seconds for name, seconds in times.items()}
    print(spikeforge.__version__, json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
