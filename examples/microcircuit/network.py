"""The cortical microcircuit of Potjans and Diesmann (Cerebral Cortex 24, 785, 2014): the eight populations under a
square millimetre of early sensory cortex, 77,169 neurons and 0.3 billion synapses. README.md in this folder
lists the source of each number.
"""

import math

import torch

import spikeforge
from spikeforge import rules

DT = 0.1  # ms

NAMES = ("L23E", "L23I", "L4E", "L4I", "L5E", "L5I", "L6E", "L6I")
NEURONS = (20683, 5834, 21915, 5479, 4850, 1065, 14395, 2948)
# Probabilities of a connection of two neurons: rows are targets, columns sources.
PROBABILITIES = (
    (0.1009, 0.1689, 0.0437, 0.0818, 0.0323, 0.0000, 0.0076, 0.0000),
    (0.1346, 0.1371, 0.0316, 0.0515, 0.0755, 0.0000, 0.0042, 0.0000),
    (0.0077, 0.0059, 0.0497, 0.1350, 0.0067, 0.0003, 0.0453, 0.0000),
    (0.0691, 0.0029, 0.0794, 0.1597, 0.0033, 0.0000, 0.1057, 0.0000),
    (0.1004, 0.0622, 0.0505, 0.0057, 0.0831, 0.3726, 0.0204, 0.0000),
    (0.0548, 0.0269, 0.0257, 0.0022, 0.0600, 0.3158, 0.0086, 0.0000),
    (0.0156, 0.0066, 0.0211, 0.0166, 0.0572, 0.0197, 0.0396, 0.2252),
    (0.0364, 0.0010, 0.0034, 0.0005, 0.0277, 0.0080, 0.0658, 0.1443),
)

LEAK, THRESHOLD = -65.0, -50.0  # mV; the reset is the leak
CAPACITY = 250.0  # pF
TAU_M, TAU_SYN = 10.0, 0.5  # ms
REFRACTORY = 2.0  # ms
INITIAL_MEAN = (-68.28, -63.16, -63.33, -63.45, -63.11, -61.66, -66.72, -61.43)  # mV
INITIAL_DEVIATION = (5.36, 4.57, 4.74, 4.94, 4.94, 4.55, 5.46, 4.48)

POTENTIAL = 0.15  # mV, the peak that an excitatory spike causes; from L4E to L23E it is twice that
INHIBITION = -4.0  # times an excitatory weight
WEIGHT_DEVIATION = 0.1  # of the mean
DELAY_E, DELAY_I = 1.5, 0.75  # ms
DELAY_DEVIATION = 0.5  # of the mean

EXTERNAL_DEGREES = (1600, 1500, 2100, 1900, 2000, 1900, 2900, 2100)
EXTERNAL_RATE = 8.0  # spikes/s
# Spikes/s of one run of the whole network, which scaled networks should have as well.
RATES = (0.903, 2.965, 4.414, 5.876, 7.569, 8.633, 1.105, 7.829)


def weight_of_potential(peak):
    """Returns the current in pA, decaying with TAU_SYN, whose potential peaks at this value in mV."""
    a, b = TAU_M / (TAU_SYN - TAU_M), TAU_SYN / (TAU_SYN - TAU_M)
    ratio = TAU_M / TAU_SYN
    return peak / (TAU_M * TAU_SYN / (CAPACITY * (TAU_SYN - TAU_M)) * (ratio**a - ratio**b))


WEIGHT = weight_of_potential(POTENTIAL)

# For several areas, which are not a published network: every L4E neuron has this number of synapses from L23E of the
# previous area, with the weights of synapses within an area. Their delays allow an exchange of spikes every 10 ms.
LONG_RANGE_DEGREE = 40
LONG_RANGE_DELAY, LONG_RANGE_DEVIATION, LONG_RANGE_LEAST, LONG_RANGE_MOST = 15.0, 2.5, 10.0, 20.0  # ms

# The equations are solved exactly for each step (Rotter and Diesmann, Biological Cybernetics 81, 1999). v is relative to
# the leak.
_V, _I = math.exp(-DT / TAU_M), math.exp(-DT / TAU_SYN)
NEURON = f"""
neuron microcircuit(x; v, i, wait; current) {{
  h = {_V!r} * v + {TAU_SYN * TAU_M / (CAPACITY * (TAU_M - TAU_SYN)) * (_V - _I)!r} * i + {TAU_M / CAPACITY * (1 - _V)!r} * current
  resting = wait > 0
  s = where(resting, 0, spike(h - {THRESHOLD - LEAK!r}, none))
  return s
  v' = where(resting, v, select(s, 0, h))
  i' = {_I!r} * i + x
  wait' = select(s, {round(REFRACTORY / DT)}, maximum(wait - 1, 0))
}}
"""


def is_excitatory(population):
    return NAMES[population].endswith("E")


def connections(target, source):
    """Returns the numbers of synapses of the whole network at which a pair is connected, once or several times, with
    its probability."""
    pairs = NEURONS[target] * NEURONS[source]
    return math.log(1 - PROBABILITIES[target][source]) / math.log1p(-1 / pairs)


def mean_weight(target, source):
    if not is_excitatory(source):
        return INHIBITION * WEIGHT
    return 2 * WEIGHT if (NAMES[target], NAMES[source]) == ("L23E", "L4E") else WEIGHT


def missing_current(target, degrees, external):
    """Returns the current in pA that replaces the mean input lost by fewer, stronger synapses: a share sqrt(degrees)
    remains."""
    mean = sum(connections(target, s) / NEURONS[target] * mean_weight(target, s) * RATES[s] for s in range(len(NAMES)))
    mean += EXTERNAL_DEGREES[target] * WEIGHT * EXTERNAL_RATE if external else 0
    return (1 - math.sqrt(degrees)) * TAU_SYN * mean / 1000


def build(scale=1.0, degrees=None, drive="poisson", seed=0, dtype=torch.float32, weight_dtype=None, device="cpu", areas=1, group=None, deterministic=False):
    """Returns the network with `scale` of its neurons, each with `degrees` (by default `scale`) of its synapses, and
    its populations, area by area. The processes of `group`, of torch.distributed, share it by areas or neurons."""
    degrees = scale if degrees is None else degrees
    network = spikeforge.Network(seed=seed, dtype=dtype, weight_dtype=weight_dtype, device=device, group=group, deterministic=deterministic)
    generator = torch.Generator().manual_seed(seed)
    made = [populate(network, scale, degrees, drive, generator, f"area {k}" if areas > 1 else "") for k in range(areas)]
    for populations in made:
        connect(network, populations, scale, degrees, drive)
    for k in range(areas if areas > 1 else 0):
        couple(network, made[k - 1][NAMES.index("L23E")], made[k][NAMES.index("L4E")], degrees)
    return network, [population for populations in made for population in populations]


def couple(network, source, target, degrees):
    weight = WEIGHT / math.sqrt(degrees)
    delay = rules.normal(LONG_RANGE_DELAY / DT, LONG_RANGE_DEVIATION / DT, low=LONG_RANGE_LEAST / DT, high=LONG_RANGE_MOST / DT)
    degree = max(1, round(LONG_RANGE_DEGREE * degrees))
    network.project(source, target, rules.fixed_in_degree(degree), weight=rules.normal(weight, WEIGHT_DEVIATION * weight, low=0.0), delay=delay)


def populate(network, scale, degrees, drive, generator, area):
    populations = []
    for i, name in enumerate(NAMES):
        size = round(scale * NEURONS[i])
        v = (INITIAL_MEAN[i] - LEAK) + INITIAL_DEVIATION[i] * torch.randn(size, generator=generator)
        current = missing_current(i, degrees, drive == "poisson")
        if drive == "dc":
            current += EXTERNAL_RATE / 1000 * EXTERNAL_DEGREES[i] * WEIGHT * TAU_SYN
        full_name = f"{area} {name}" if area else name
        populations.append(network.populate(full_name, size, NEURON, states={"v": v}, area=area, current=current))
    return populations


def connect(network, populations, scale, degrees, drive):
    for t, target in enumerate(populations):
        for s, source in enumerate(populations):
            weight = mean_weight(t, s) / math.sqrt(degrees)
            bound = {"low": 0.0} if weight > 0 else {"high": 0.0}
            delay = (DELAY_E if is_excitatory(s) else DELAY_I) / DT
            network.project(
                source,
                target,
                rules.fixed_total(round(connections(t, s) * scale * degrees)),
                weight=rules.normal(weight, WEIGHT_DEVIATION * abs(weight), **bound),
                delay=rules.normal(delay, DELAY_DEVIATION * delay, low=0.5, redraw=True),  # at least one step after rounding
            )
        if drive == "poisson":
            rate = EXTERNAL_DEGREES[t] * degrees * EXTERNAL_RATE / 1000 * DT
            network.drive(target, rate, weight=WEIGHT / math.sqrt(degrees))
