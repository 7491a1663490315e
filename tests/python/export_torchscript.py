"""Writes TorchScript files that call the operators, for a C++ program.

    python export_torchscript.py OUTDIR

OUTDIR then contains
    function.pt  a scripted function      forward(Tensor x) -> (Tensor spikes, Tensor v)
    module.pt    a scripted module        forward(Tensor x) -> Tensor, with trainable parameters
    traced.pt    a scripted module with a neuron written as text  forward(Tensor x) -> (Tensor spikes, Tensor tired)
    values.pt    a module whose attributes are the tensors x, spikes, v, y, grad_w, grad_tau, traced_spikes, tired and
                 grad_leak: the results of function.pt, module.pt and traced.pt for x, the gradients of y.sum() with
                 respect to the parameters "w" and "tau" of module.pt, and of tired.sum() with respect to "leak" of traced.pt
torch::jit::load loads them after libspikeforge.so; a tensor is module.attr("x").toTensor().
"""

import sys
from pathlib import Path
from typing import Optional, Tuple

import torch
from torch import Tensor


class Function(torch.nn.Module):
    """Scalars, strings, lists and flags: every kind of argument."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        spikes, v = torch.ops.spikeforge.lif(
            x, tau=2.5, v_threshold=0.75, v_reset=None, surrogate="piecewise_leaky_relu", surrogate_args=[0.7, 0.05]
        )
        return spikes, v


class Network(torch.nn.Module):
    """A linear layer and three neurons, with trainable parameters."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 5)
        torch.nn.init.constant_(self.linear.bias, 1.5)  # so that neurons fire
        self.w = torch.nn.Parameter(torch.zeros(5))
        self.tau = torch.nn.Parameter(torch.tensor(3.0))
        self.register_buffer("v_reset", torch.tensor(-0.125))
        self.v: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        spikes, _ = torch.ops.spikeforge.plif(self.linear(x), self.w, self.v, detach_reset=True)
        _, v = torch.ops.spikeforge.lif(2 * spikes, tau=self.tau, v_reset=self.v_reset, store_v=True)
        counts, last, recovery = torch.ops.spikeforge.izhikevich(v + 1, a=0.25, b=0.125, surrogate="atan")
        return counts.sum(0) + last + recovery


class Traced(torch.nn.Module):
    """A neuron whose text is a constant of the program."""

    def __init__(self):
        super().__init__()
        self.neuron = """neuron tiring(x; v, tired = 0.25; leak) {
            h = leak * v + x
            s = spike(h - (1 + tired), atan(2))
            return s
            v' = select(s, 0, h)
            tired' = 0.75 * tired + s
        }"""
        self.leak = torch.nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        outputs, states = torch.ops.spikeforge.run(self.neuron, [x], [], [self.leak], store_states=True)
        return outputs[0], states[1]


class Values(torch.nn.Module):
    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().clone())

    def forward(self) -> Tensor:
        return self.x


def export(folder):
    torch.manual_seed(0)
    function, network, traced = Function(), Network(), Traced()
    x = 2 * torch.rand(12, 3, 6) + 0.5
    spikes, v = function(x)
    y = network(x)
    grad_w, grad_tau = torch.autograd.grad(y.sum(), (network.w, network.tau))
    traced_spikes, tired = traced(x)
    (grad_leak,) = torch.autograd.grad(tired.sum(), traced.leak)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.jit.script(function).save(str(folder / "function.pt"))
    torch.jit.script(network).save(str(folder / "module.pt"))
    torch.jit.script(traced).save(str(folder / "traced.pt"))
    values = Values(x=x, spikes=spikes, v=v, y=y, grad_w=grad_w, grad_tau=grad_tau,
                    traced_spikes=traced_spikes, tired=tired, grad_leak=grad_leak)
    torch.jit.script(values).save(str(folder / "values.pt"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    from conftest import library_path

    torch.ops.load_library(str(library_path()))
    export(sys.argv[1])
