"""The brain of Shiu et al., Nature 634, 210 (2024): a leaky integrate-and-fire neuron for each neuron of a connectome.

Symbols are those of the published program, github.com/philshiu/Drosophila_brain_model.
"""

import math

import torch

import spikeforge
from spikeforge import rules

DT = 0.1  # ms
V_0, V_RST, V_TH = -52.0, -52.0, -45.0  # mV: resting potential, reset, threshold
T_MBR, TAU = 20.0, 5.0  # ms: time constants of membrane and synapse
T_RFC, T_DLY = 2.2, 1.8  # ms: refractory period, delay
W_SYN = 0.275  # mV, the weight of one synapse
R_POI, F_POI = 150.0, 250  # spikes/s: rate of the input of activated neurons, and its weight in synapses

# dg/dt = -g / tau                  g(t + dt) = A g(t)                            A = exp(-dt / tau)
# dv/dt = (v_0 - v + g) / t_mbr     v(t + dt) = v_0 + B (v(t) - v_0) + C g(t)     B = exp(-dt / t_mbr),  C = (A - B) tau / (tau - t_mbr)
A, B = math.exp(-DT / TAU), math.exp(-DT / T_MBR)
C = (A - B) * TAU / (TAU - T_MBR)

# A step integrates, compares with the threshold, adds the input, and resets, in the order of Brian2. A refractory neuron
# stays in the state after the reset, and ignores its input. Weights are whole numbers of synapses, so that sums are exact
# and every run has the same bits, also on a GPU.
NEURON = f"""
neuron shiu(synapses, poisson; v = {V_0}, g, wait; refractory) {{
  h = {V_0} + {B!r} * (v - {V_0}) + {C!r} * g
  s = spike_strict(h - {V_TH}, none)
  is_refractory = wait > 0
  return s
  v' = where(is_refractory, {V_RST}, select(s, {V_RST}, h + poisson))
  g' = where(is_refractory, 0, select(s, 0, {A!r} * g + {W_SYN} * synapses))
  wait' = select(s, refractory, maximum(wait - 1, 0))
}}
"""


class Fly:
    """The network of a connectome, in which neurons are activated and silenced. Trials are copies of the network."""

    def __init__(self, connectome, dtype=torch.float32, device="cpu", trials=1):
        size = len(connectome.ids)
        waiting = torch.full((size,), round(T_RFC / DT) - 1.0)  # steps, which activate() changes for some neurons
        self.network = spikeforge.Network(dtype=dtype, device=device, copies=trials)
        self.neurons = self.network.populate("neurons", size, NEURON, refractory=waiting)
        self.network.project(
            self.neurons, self.neurons, rules.arrays(connectome.sources, connectome.targets),
            weight=connectome.synapses.to(dtype), delay=round(T_DLY / DT), into="synapses",
        )  # fmt: skip
        self.resting = self.network.state_dict()
        self.rates = torch.zeros(size)  # spikes/s of the input

    def activate(self, neurons, rate=R_POI):
        """Gives neurons random input spikes, spikes/s, each of which makes the neuron fire; ends their refractory period."""
        self.rates[neurons] = rate
        refractory = self.neurons.params["refractory"]
        refractory[..., neurons] = 0
        self.neurons.params["refractory"] = refractory

    def silence(self, neurons):
        """Suppresses the spikes of neurons."""
        self.network.silence(self.neurons, neurons)

    def run(self, milliseconds, seed=0):
        """Simulates all trials from the resting state, and returns the recording. Trial k draws its input spikes with
        seed + k."""
        steps, trials = round(milliseconds / DT), self.network.copies
        self.network.load_state_dict(self.resting)
        drawn = [draw(self.rates, steps, torch.Generator().manual_seed(seed + k)) for k in range(trials)]
        when, which = (torch.cat(each) for each in zip(*drawn))
        trial = torch.arange(trials).repeat_interleave(torch.tensor([len(steps) for steps, _ in drawn]))
        events = when, which, F_POI * W_SYN, trial
        return spikeforge.simulate(self.network, steps, inputs={(self.neurons, "poisson"): events})

    def mean_rates(self, recording):
        """Returns the spikes/s of each neuron in each trial, [trials, neurons]."""
        trials, size = self.network.copies, len(self.neurons)
        places = recording.neurons if recording.copies is None else recording.copies * size + recording.neurons
        counts = torch.bincount(places.cpu(), minlength=trials * size)
        return counts.view(trials, size) * (1000 / (len(recording.span) * DT))


def draw(rates, steps, generator):
    """Returns steps and neurons of input spikes: in each step at most one, with probability rate dt."""
    neurons = rates.nonzero().flatten()
    numbers = torch.rand(steps, len(neurons), generator=generator, dtype=torch.float64)
    when, which = (numbers < rates[neurons] * DT / 1000).nonzero(as_tuple=True)
    return when, neurons[which]
