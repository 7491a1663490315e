"""Runs a TorchScript network written by C++ (tests/torchscript/to_torchscript.cpp), with the operator library only.

    python load_torchscript.py LIBRARY FOLDER

FOLDER contains net.pt, and the tensors x.pt, first.pt and second.pt: an input, and the outputs of the first and the
second call.
"""

import sys

import torch

library, folder = sys.argv[1:]
torch.ops.load_library(library)
x, first, second = (torch.load(f"{folder}/{name}.pt") for name in ("x", "first", "second"))
for prepare in (lambda net: net, torch.jit.freeze, lambda net: torch.jit.freeze(net, ["reset"])):
    net = prepare(torch.jit.load(f"{folder}/net.pt").eval())
    with torch.no_grad():
        for _ in range(3):
            for expected in (first, second):
                assert torch.equal(net(x), expected), f"{(net(x) - expected).abs().max()} off"
            if not hasattr(net, "reset"):
                break
            net.reset()
net = torch.jit.load(f"{folder}/net.pt")
names = [name for name, _ in net.named_modules()]
assert "1.v_state" in names and "6.0.cell_out_to_module_in_state" in names, names
assert not any("_state" in name for name in net.state_dict()), list(net.state_dict())
assert "6.1.tau" in dict(net.named_parameters())
