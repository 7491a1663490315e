"""Generates spike trains with the form of the Spiking Heidelberg Digits (700 channels, 100 to 250 steps, 20 classes),
whose classes differ only in timing.

The channels are ten groups of seventy. A group's channels fire together, in a volley every fifty steps; the groups fire
one after the other, five steps apart, in a cycle. A class is the order of the groups. So in every class

- each channel fires at the same mean rate, at any step: the start of the cycle is drawn uniformly for each sample;
- the same channels fire together, and the number of spikes at a step is the same;
- only the delays between groups differ, which are at least the gap of five steps.

A channel fires in a volley with probability ``TAKES_PART``, up to a step early or late, and also at random.
"""

import dataclasses

import torch

CHANNELS, CLASSES, GROUPS = 700, 20, 10
GAP = 5  # steps
PERIOD = GAP * GROUPS
SHORTEST, LONGEST = 100, 250  # steps of a sample
TAKES_PART = 0.5
AT_RANDOM = 0.015  # spikes a step


@dataclasses.dataclass
class Samples:
    spikes: torch.Tensor  # uint8 [count, LONGEST, CHANNELS]; zero after a sample's end
    lengths: torch.Tensor  # [count]
    labels: torch.Tensor  # [count]

    def __len__(self):
        return len(self.labels)

    def first(self, count):
        return Samples(self.spikes[:count], self.lengths[:count], self.labels[:count])

    def batches(self, size, generator=None):
        """Yields (spikes [T, B, CHANNELS] as floats, lengths, labels), in a random order if a generator is passed."""
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for some in order.split(size):
            lengths = self.lengths[some]
            yield self.spikes[some, : int(lengths.max())].transpose(0, 1).float(), lengths, self.labels[some]


def orders(seed):
    """Returns the position of each group in each class, [CLASSES, GROUPS]: cyclic orders, no two of them equal."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    while len(found) < CLASSES:
        others = 1 + torch.randperm(GROUPS - 1, generator=generator)
        order = [0, *others.tolist()]  # a cycle can begin anywhere: here with group 0
        if order not in found:
            found.append(order)
    turns = torch.empty(CLASSES, GROUPS, dtype=torch.long)
    for turn, order in zip(turns, found):
        turn[order] = torch.arange(GROUPS)
    return turns


def samples(count, seed, of_orders=0):
    """Draws ``count`` samples from ``seed``, equally many of each class; ``of_orders`` is the seed of the orders."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(shape, generator=generator)
    labels = torch.arange(count) % CLASSES
    labels = labels[torch.randperm(count, generator=generator)]
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=generator)
    start = torch.randint(PERIOD, (count, 1, 1), generator=generator)

    # Each group has a volley in each period; there are periods before the first step and after the last.
    volleys = torch.arange(-1, LONGEST // PERIOD + 2).view(1, -1, 1) * PERIOD
    times = start + volleys + GAP * orders(of_orders)[labels][:, None, :]  # [count, volleys, GROUPS]
    times = times.unsqueeze(-1) + torch.randint(-1, 2, (*times.shape, CHANNELS // GROUPS), generator=generator)
    fires = (draw(*times.shape) < TAKES_PART) & (times >= 0) & (times < LONGEST)
    sample, _, group, member = fires.nonzero(as_tuple=True)
    spikes = (draw(count, LONGEST, CHANNELS) < AT_RANDOM).to(torch.uint8)
    spikes[sample, times[fires], group * (CHANNELS // GROUPS) + member] = 1
    spikes[torch.arange(LONGEST) >= lengths[:, None]] = 0
    return Samples(spikes, lengths, labels)
