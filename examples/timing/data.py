"""A set of spike trains with the form of the Spiking Heidelberg Digits (700 channels, 100 to 250 steps, 20 classes), of which
nothing but timing tells the classes apart.

The channels are ten groups of seventy. A group's channels fire together, in a volley once every fifty steps; groups take
turns, five steps from one to the next, and go round again and again. A class is the order of the turns. So in every class

- each channel fires at the same mean rate, at any step: where the turns begin is drawn for each sample, uniformly;
- the same channels fire together, and the number of spikes at a step is the same;
- what differs is how long after one group another one fires, never less than the gap of five steps.

A channel takes part in a volley with probability ``TAKES_PART``, up to a step early or late, and fires at random besides.
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
    spikes: torch.Tensor  # uint8 [count, LONGEST, CHANNELS]; nothing behind a sample's end
    lengths: torch.Tensor  # [count]
    labels: torch.Tensor  # [count]

    def __len__(self):
        return len(self.labels)

    def first(self, count):
        return Samples(self.spikes[:count], self.lengths[:count], self.labels[:count])

    def batches(self, size, generator=None):
        """(spikes [T, B, CHANNELS] as floats, lengths, labels), with a generator in a new order."""
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for some in order.split(size):
            lengths = self.lengths[some]
            yield self.spikes[some, : int(lengths.max())].transpose(0, 1).float(), lengths, self.labels[some]


def orders(seed):
    """Of each class the turn of each group, [CLASSES, GROUPS]: cyclic orders, no two of them the same."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    while len(found) < CLASSES:
        others = 1 + torch.randperm(GROUPS - 1, generator=generator)
        order = [0, *others.tolist()]  # a cycle begins where one likes: with group 0
        if order not in found:
            found.append(order)
    turns = torch.empty(CLASSES, GROUPS, dtype=torch.long)
    for turn, order in zip(turns, found):
        turn[order] = torch.arange(GROUPS)
    return turns


def samples(count, seed, of_orders=0):
    """``count`` of them, as many of each class as can be, drawn from ``seed``; those of one ``of_orders`` are of one set."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(shape, generator=generator)
    labels = torch.arange(count) % CLASSES
    labels = labels[torch.randperm(count, generator=generator)]
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=generator)
    start = torch.randint(PERIOD, (count, 1, 1), generator=generator)

    # A volley of each group in each period, and periods before the first step and behind the last.
    volleys = torch.arange(-1, LONGEST // PERIOD + 2).view(1, -1, 1) * PERIOD
    times = start + volleys + GAP * orders(of_orders)[labels][:, None, :]  # [count, volleys, GROUPS]
    times = times.unsqueeze(-1) + torch.randint(-1, 2, (*times.shape, CHANNELS // GROUPS), generator=generator)
    fires = (draw(*times.shape) < TAKES_PART) & (times >= 0) & (times < LONGEST)
    sample, _, group, member = fires.nonzero(as_tuple=True)
    spikes = (draw(count, LONGEST, CHANNELS) < AT_RANDOM).to(torch.uint8)
    spikes[sample, times[fires], group * (CHANNELS // GROUPS) + member] = 1
    spikes[torch.arange(LONGEST) >= lengths[:, None]] = 0
    return Samples(spikes, lengths, labels)
