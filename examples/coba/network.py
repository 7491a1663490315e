"""The conductance-based network of Vogels and Abbott (J. Neurosci. 25, 2005) as in Brette et al. (J. Comput. Neurosci. 23,
2007): leaky integrate-and-fire neurons, four excitatory to one inhibitory, each with 80 random targets.

    tau_m dV/dt = (E_leak - V) + g_e (E_e - V) + g_i (E_i - V) + drive,    tau_e dg_e/dt = -g_e,    tau_i dg_i/dt = -g_i

with conductances relative to the leak. The neuron is text, stepped by torch.ops.spikeforge.run; spikes reach their
targets by event products, which cost what the spikes cost, not what the connections do.
"""

import dataclasses

import torch

ops = torch.ops.spikeforge

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
  g_e' = g_e * exp({-DT / 5}) + x_e
  g_i' = g_i * exp({-DT / 10}) + x_i
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

    def to(self, device):
        return Connectivity(self.excitatory.to(device), self.inhibitory.to(device))


def random_connectivity(scale=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    neurons = scale * (EXCITATORY + INHIBITORY)
    draw = lambda rows: torch.randint(neurons, (rows, TARGETS), dtype=torch.int32, generator=generator).sort(1).values
    return Connectivity(draw(scale * EXCITATORY), draw(scale * INHIBITORY))


def random_voltage(neurons, seed=1):
    return -60 + 10 * torch.rand(neurons, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Network:
    """Steps the network; `spikes` are those of the last step. A drive of 20 mV keeps all neurons busy, as other
    simulators' examples do."""

    def __init__(self, connectivity, voltage, drive=20.0, dtype=torch.float32, device="cpu"):
        self.connectivity = connectivity.to(device)
        neurons = connectivity.neurons
        zeros = lambda: torch.zeros(neurons, dtype=dtype, device=device)
        self.states = [voltage.to(device, dtype), zeros(), zeros(), zeros()]
        self.spikes = zeros()
        self.drive = torch.tensor(drive, dtype=dtype, device=device)
        self.weights = [torch.tensor([w], dtype=dtype, device=device) for w in (WEIGHT_E, WEIGHT_I)]

    def step(self):
        fired = self.spikes.split([len(self.connectivity.excitatory), len(self.connectivity.inhibitory)])
        targets = self.connectivity.excitatory, self.connectivity.inhibitory
        arriving = [
            ops.event_ellmv(weight, to, spikes, cols=len(self.spikes), transpose=True).unsqueeze(0)
            for weight, to, spikes in zip(self.weights, targets, fired)
        ]
        (spikes,), self.states = ops.run(NEURON, arriving, self.states, [self.drive])
        self.spikes = spikes[0]
        return self.spikes


class Recorder:
    """Runs steps and keeps who fired; on a GPU `steps_a_graph` of them are one CUDA graph."""

    def __init__(self, network, steps_a_graph=20):
        self.network = network
        self.steps = steps_a_graph if network.spikes.is_cuda else 1
        self.graph = None
        self.fired = torch.zeros(self.steps, len(network.spikes), dtype=torch.bool, device=network.spikes.device)
        if network.spikes.is_cuda:
            self._capture()

    def _run(self):
        for i in range(self.steps):
            torch.gt(self.network.step(), 0, out=self.fired[i])

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
