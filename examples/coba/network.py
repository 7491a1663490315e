"""The conductance-based network of Vogels and Abbott (J. Neurosci. 25, 2005) as in Brette et al. (J. Comput. Neurosci.
23, 2007): leaky integrate-and-fire neurons, four excitatory to one inhibitory, each with 80 random targets.

    tau_m dV/dt = (E_leak - V) + g_e (E_e - V) + g_i (E_i - V) + drive,    tau_e dg_e/dt = -g_e,    tau_i dg_i/dt = -g_i

with conductances relative to the leak. A spike arrives in the next step; its weight is a constant of the neuron's text.
"""

import dataclasses

import torch

import spikeforge
from spikeforge import rules

EXCITATORY, INHIBITORY, TARGETS = 3200, 800, 80  # at scale 1; targets do not scale
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
    """Returns the targets of every neuron: int32 [neurons, 80]."""

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


def build(connectivity, voltage, drive=20.0, dtype=torch.float32, device="cpu"):
    """Returns the network and its populations. A drive of 20 mV keeps all neurons active, as in the examples of other
    simulators."""
    network = spikeforge.Network(dtype=dtype, device=device)
    targets = (connectivity.excitatory, connectivity.inhibitory)
    counts = [len(t) for t in targets]
    populations = [
        network.populate(name, len(v), NEURON, states={"v": v}, drive=drive)
        for name, v in zip(("excitatory", "inhibitory"), voltage.split(counts))
    ]
    for source, to, into in zip(populations, targets, ("x_e", "x_i")):
        sources = torch.arange(len(to)).repeat_interleave(TARGETS)
        for target in populations:
            here = (to.flatten() >= target.start) & (to.flatten() < target.stop)
            network.project(source, target, rules.arrays(sources[here], to.flatten()[here] - target.start), into=into)  # weight 1, delay 1
    return network, populations
