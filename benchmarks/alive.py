#!/usr/bin/env python3
"""Counts the peak memory of a training step of the networks of networks.py, on meta tensors: no GPU is needed.

A step runs on torch's meta device, in float16 after linear layers and convolutions as under autocast. The count
includes the results of operators while they are alive: the memory of a step beyond its weights and images, without
workspaces of libraries. SEW-ResNet18 at T=16, B=32 recomputed: 2.76 GiB here, 2.78 on an H200.

    python benchmarks/alive.py --networks SEW-ResNet18 --steps 16 --forms recomputed "in pieces"
    python benchmarks/alive.py --networks SEW-ResNet18 --steps 16 --forms "in pieces" --what 10
"""

import argparse
import copy

import networks
import torch
from spikingjelly.activation_based import functional
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


FORMS = ["accelerated", "with layers", "stateless", "recomputed", "in pieces"]


class Alive(TorchDispatchMode):
    """Records the results of operators that are alive at the same time."""

    def __init__(self):
        super().__init__()
        self.alive, self.older = {}, set()
        self.peak, self.what, self.where = 0, [], ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.older |= {self.key(t) for t in self.tensors((args, kwargs))} - self.alive.keys()
        result = func(*args, **(kwargs or {}))
        for t in self.tensors(result):
            if self.key(t) not in self.alive.keys() | self.older:
                storage = t.untyped_storage()
                self.alive[self.key(t)] = StorageWeakRef(storage), storage.nbytes(), f"{tuple(t.shape)} {t.dtype}, {func}"
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        now = sum(entry[1] for entry in self.alive.values())
        if now > self.peak:
            self.peak, self.where = now, str(func)
            self.what = sorted((entry[1:] for entry in self.alive.values()), reverse=True)
        return result

    @staticmethod
    def tensors(nested):
        return [t for t in tree_flatten(nested)[0] if isinstance(t, torch.Tensor)]

    @staticmethod
    def key(t):
        return t.untyped_storage()._cdata


def counted(name, form, options):
    """Returns the peak of a step."""
    net = networks.NETWORKS[name](options.steps, options.size, options.classes)
    small = copy.copy(options)
    small.size = 32  # the size of the images in this run
    net = networks.FORMS[form](net, small).to("meta")
    for module in net.modules():
        if isinstance(module, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Linear)):
            module.half()
    functional.reset_net(net)
    images = torch.empty(options.batch, 3, options.size, options.size, device="meta").to(memory_format=torch.channels_last)
    labels = torch.empty(options.batch, dtype=torch.long, device="meta")
    with Alive() as alive:
        scores = net.net(net.over_time(images).half()).mean(0)
        torch.nn.functional.cross_entropy(scores.float(), labels).backward()
    return alive


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(networks.NETWORKS), default=list(networks.NETWORKS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--steps", type=int, default=4, help="time steps T")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--what", type=int, default=0, help="print this number of tensors that are alive at the peak")
    options = parser.parse_args()
    options.device, options.dtype = "cpu", "float32"
    for name in options.networks:
        print(f"{name}, T={options.steps}, B={options.batch}, {options.size}x{options.size}, float16: GiB alive at the peak")
        for form in options.forms:
            found = counted(name, form, options)
            print(f"  {form:<14}{found.peak / 2**30:8.2f}  at {found.where}", flush=True)
            for size, tensor in found.what[: options.what]:
                print(f"    {size / 1e6:10.1f} MB  {tensor}")


if __name__ == "__main__":
    main()
