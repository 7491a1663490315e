"""The conductance-based network of Vogels and Abbott (J. Neurosci. 25, 2005) as in Brette et al. (J. Comput. Neurosci. 23,
2007): leaky integrate-and-fire neurons, four excitatory to one inhibitory, each with 80 random targets.

    tau_m dV/dt = (E_leak - V) + g_e (E_e - V) + g_i (E_i - V) + drive,    tau_e dg_e/dt = -g_e,    tau_i dg_i/dt = -g_i

with conductances relative to the leak. The neuron is text, stepped by torch.ops.spikeforge.run; spikes reach their
targets by event products, which cost what the spikes cost, not what the connections do.
"""

import dataclasses
from typing import List

import torch

EXCITATORY, INHIBITORY, TARGETS = 3200, 800, 80  # of one scale unit; targets do not scale
DT = 0.1  # ms
REFRACTORY = 5.0  # ms
WEIGHT_E, WEIGHT_I = 0.6, 6.7  # 6 nS and 67 nS over a leak of 10 nS

NEURON = f"""
neuron coba(x_e, x_i; v = -60, g_e, g_i, wait; drive) {{
  h = v + {DT / 20} * (-60 - v - g_e * v + g_i * (-80 - v) + drive)
  resting = wait > 0
  s = where(resting, 0, spike(h + 50, none))
  return s
  v' = where(resting, v, select(s, -60, h))
  g_e' = g_e * exp({-DT / 5}) + {WEIGHT_E} * x_e
  g_i' = g_i * exp({-DT / 10}) + {WEIGHT_I} * x_i
  wait' = select(s, {round(REFRACTORY / DT)}, maximum(wait - 1, 0))
}}
"""


@dataclasses.dataclass
class Connectivity:
    """The targets of every neuron: int32 [neurons, 80]."""

    excitatory: torch.Tensor
    inhibitory: torch.Tensor

    @property
    def neurons(self):
        return len(self.excitatory) + len(self.inhibitory)


def random_connectivity(scale=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    neurons = scale * (EXCITATORY + INHIBITORY)
    draw = lambda rows: torch.randint(neurons, (rows, TARGETS), dtype=torch.int32, generator=generator).sort(1).values
    return Connectivity(draw(scale * EXCITATORY), draw(scale * INHIBITORY))


def random_voltage(neurons, seed=1):
    return -60 + 10 * torch.rand(neurons, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Network(torch.nn.Module):
    """Steps the network; `spikes` are those of the last step. A drive of 20 mV keeps all neurons busy, as other
    simulators' examples do."""

    states: List[torch.Tensor]

    def __init__(self, connectivity, voltage, drive=20.0, dtype=torch.float32, device="cpu"):
        super().__init__()
        neurons = connectivity.neurons
        zeros = lambda: torch.zeros(neurons, dtype=dtype, device=device)
        self.neuron = NEURON
        # One matrix: excitatory spikes arrive in its first columns, inhibitory ones in as many after them.
        self.targets = torch.cat([connectivity.excitatory, connectivity.inhibitory + neurons]).to(device)
        self.one = torch.ones(1, dtype=dtype, device=device)  # a spike's weight: the neuron knows what it brings
        self.drive = torch.tensor(drive, dtype=dtype, device=device)
        self.states = [voltage.to(device, dtype), zeros(), zeros(), zeros()]
        self.spikes = zeros()

    def forward(self, steps: int):
        """The spikes of so many steps: [steps, neurons]."""
        fired: List[torch.Tensor] = []
        for _ in range(steps):
            cols = 2 * self.spikes.size(0)
            arriving = torch.ops.spikeforge.event_ellmv(self.one, self.targets, self.spikes, cols=cols, transpose=True)
            inputs = arriving.view(2, 1, -1).unbind()
            outputs, self.states = torch.ops.spikeforge.run(self.neuron, inputs, self.states, [self.drive])
            self.spikes = outputs[0][0]
            fired.append(self.spikes)
        return torch.stack(fired)


class Recorder:
    """Runs `steps` at a time and keeps who fired. What Python costs a step is saved: on a GPU by a CUDA graph, on the CPU
    by TorchScript."""

    def __init__(self, network, steps=20):
        self.steps = steps
        self.graph = None
        self.fired = torch.zeros(self.steps, len(network.spikes), dtype=torch.bool, device=network.spikes.device)
        self.network = network if network.spikes.is_cuda else torch.jit.script(network)
        if network.spikes.is_cuda:
            self._capture()

    def _run(self):
        torch.gt(self.network(self.steps), 0, out=self.fired)

    def _capture(self):
        """The states a graph begins with are those that it ends with."""
        network = self.network
        begin = [*network.states, network.spikes]
        saved = [t.clone() for t in begin]

        def once():
            network.states, network.spikes = list(begin[:-1]), begin[-1]
            self._run()
            for to, of in zip(begin, [*network.states, network.spikes]):
                to.copy_(of)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            once()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            once()
        for to, of in zip(begin, saved):
            to.copy_(of)
        network.states, network.spikes = begin[:-1], begin[-1]

    def run(self):
        """[steps, neurons], valid until the next call."""
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()
        return self.fired
