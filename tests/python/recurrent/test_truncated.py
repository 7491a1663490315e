"""Compares random networks of stateful modules, run in pieces with truncated backpropagation, with a plain loop over
their steps."""

import os
import random

import pytest
import torch
from loops import detached, fire, in_pieces
from torch import nn

import spikeforge
import spikeforge.nn as snn

WIDTH, BATCH = 3, 2
COUNT = 500 if os.environ.get("SPIKEFORGE_ALL_TESTS") == "1" else 120
TEXT = """neuron n(x; v, a; k) {
  h = 0.6 * v + k * x - 0.3 * a
  s = spike(h - 0.4, atan(2))
  return s
  v' = h - 0.4 * s
  a' = 0.8 * a + s
}"""


def zeros():
    return torch.zeros(BATCH, WIDTH, dtype=torch.float64)


# Each reference module takes a list of its states, and returns the output of a step and the list after it.


class LIF:
    def __init__(self, draw):
        self.soft, self.detach = draw.random() < 0.5, draw.random() < 0.5
        options = dict(v_threshold=0.3, v_reset=None if self.soft else 0.0, surrogate="atan", detach_reset=self.detach)
        self.module = snn.LIF(tau=snn.Learnable(draw.uniform(1.5, 3)), **options)
        self.start = [zeros()]

    def step(self, x, state):
        (v,) = state
        h = v + (x - v) / self.module.tau
        s = fire(h - 0.3)
        reset = s.detach() if self.detach else s
        return s, [h - reset * 0.3 if self.soft else h - reset * h]


class LI:
    def __init__(self, draw):
        self.module, self.start = snn.LI(tau=snn.Learnable(draw.uniform(1.5, 3))), [zeros()]

    def step(self, x, state):
        v = state[0] + (x - state[0]) / self.module.tau
        return v, [v]


class Text:
    def __init__(self, draw):
        self.module, self.start = snn.Neuron(TEXT, k=snn.Learnable(draw.uniform(0.5, 1))), [zeros(), zeros()]

    def step(self, x, state):
        v, a = state
        h = 0.6 * v + self.module.k * x - 0.3 * a
        s = fire(h - 0.4)
        return s, [h - 0.4 * s, 0.8 * a + s]


class Linear:
    def __init__(self, draw):
        self.module, self.start = nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7), []

    def step(self, x, state):
        bias = self.module.bias
        return x @ self.module.weight.T + (0 if bias is None else bias), []


class Delay:
    def __init__(self, draw):
        steps = draw.randint(0, 3)
        self.module, self.start = snn.Delay(steps), [zeros() for _ in range(steps)]

    def step(self, x, state):
        line = [*state, x]
        return line[0], line[1:]


class DelayedLinear:
    def __init__(self, draw):
        longest = draw.randint(1, 3)
        self.module, self.start = snn.DelayedLinear(WIDTH, WIDTH, longest), [zeros() for _ in range(longest)]

    def step(self, x, state):
        line = [*state, x]
        y = self.module.bias
        for j, past in enumerate(reversed(line)):
            share = (1 - (self.module.delay - j).abs()).clamp(min=0)
            y = y + past @ (self.module.weight * share).T
        return y, line[1:]


class Row:
    """A Sequential."""

    def __init__(self, draw):
        self.parts = [draw.choice([Linear, Delay])(draw), neuron(draw)]
        self.module = snn.Sequential(*(part.module for part in self.parts))
        self.start = [part.start for part in self.parts]

    def step(self, x, state):
        after = []
        for part, own in zip(self.parts, state):
            x, own = part.step(x, own)
            after.append(own)
        return x, after


class Back:
    """A Recurrent."""

    def __init__(self, draw):
        self.cell = draw.choice([LIF, Text, Row])(draw)
        self.back = draw.choice([Linear, Linear, DelayedLinear, Row])(draw)
        self.module = snn.Recurrent(self.cell.module, self.back.module)
        self.start = [self.cell.start, self.back.start, zeros()]

    def step(self, x, state):
        cell, back, s = state
        current, back = self.back.step(s, back)
        s, cell = self.cell.step(x + current, cell)
        return s, [cell, back, s]


class Net:
    """A Composite: connections without a delay lead to later parts only, those with a delay to any part."""

    def __init__(self, draw, depth=0):
        kinds = [LIF, LI, Text, Linear, Linear, Delay, DelayedLinear, Row, Back] + [Net] * (depth == 0)
        count = draw.randint(1, 4)
        self.parts = [Net(draw, 1) if kind is Net else kind(draw) for kind in draw.choices(kinds, k=count)]
        self.wires = []  # source (-1: the network's input), target (count: its output), delay
        for target in range(count + 1):
            first = draw.randint(-1, target - 1)
            self.wires.append((first, target, draw.choice([0, 0, 1, 2])))
            for _ in range(draw.randint(0, 2)):
                source = draw.randint(-1, count - 1)
                self.wires.append((source, target, draw.randint(0 if source < target else 1, 3)))
        self.wires = list(dict.fromkeys(self.wires))
        draw.shuffle(self.wires)
        self.module = snn.Composite()
        for i in draw.sample(range(count), count):
            self.module.add(f"p{i}", self.parts[i].module)
        for source, target, delay in self.wires:
            ends = "x" if source < 0 else self.out(source), "y" if target == count else self.into(target)
            self.module.connect(*ends, delay=delay)
        self.start = [[part.start for part in self.parts], [[zeros() for _ in range(delay)] for *_, delay in self.wires]]

    def out(self, i):
        return f"p{i}.{'y' if isinstance(self.parts[i], Net) else 'out'}"

    def into(self, i):
        return f"p{i}.{'x' if isinstance(self.parts[i], Net) else 'in'}"

    def step(self, x, state):
        states, lines = state
        sent, after = {-1: x}, []
        arriving = lambda i: sum(
            (line[0] if line else sent[source] for (source, target, _), line in zip(self.wires, lines) if target == i)
        )
        for i, (part, own) in enumerate(zip(self.parts, states)):
            sent[i], own = part.step(arriving(i), own)
            after.append(own)
        y = arriving(len(self.parts))
        return y, [after, [[*line, sent[source]][1:] for (source, *_), line in zip(self.wires, lines)]]


def neuron(draw):
    return draw.choice([LIF, LI, Text])(draw)


def cut(state):
    return state.detach() if isinstance(state, torch.Tensor) else [cut(part) for part in state]


def plain(net, pieces, grads):
    state, outputs = net.start, []
    for piece, grad in zip(pieces, grads):
        rows = []
        for x in piece:
            y, state = net.step(x, state)
            rows.append(y)
        outputs.append(torch.stack(rows))
        backward(outputs[-1], grad)
        state = cut(state)
    return torch.cat(outputs)


def backward(y, grad):
    if y.requires_grad:
        (y * grad).sum().backward()


def by_kept_states(net, pieces, grads):
    outputs = []
    with snn.keep_state(net):
        for piece, grad in zip(pieces, grads):
            outputs.append(net(piece))
            backward(outputs[-1], grad)
            snn.detach_(net)
    return torch.cat(outputs)


def by_states(net, pieces, grads):
    grads = iter(grads)
    return in_pieces(net, pieces, after_piece=lambda y, state: (backward(y, next(grads)), detached(state))[1])[0]


def by_checkpoints(net, pieces, grads):
    y, _ = spikeforge.checkpointed(net, list(pieces), truncated=True)
    backward(y, torch.cat(grads))
    return y


WAYS = {"kept": by_kept_states, "handed on": by_states, "checkpointed": by_checkpoints}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Net, Back])
def test_a_network_in_pieces_is_its_loop_over_steps(kind, way):
    first = torch.initial_seed()
    for seed in range(first, first + COUNT // (2 * len(WAYS))):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        net = kind(draw)
        net.module.double()
        steps = draw.randint(1, 12)
        cuts = sorted(draw.sample(range(1, steps), draw.randint(0, steps - 1)))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, steps])]
        x = 2 * torch.rand(steps, BATCH, WIDTH, dtype=torch.float64)
        grads = torch.randn_like(x).split(sizes)
        results = []
        for run in (lambda *args: WAYS[way](net.module, *args), lambda *args: plain(net, *args)):
            own = x.clone().requires_grad_()
            net.module.zero_grad()
            y = run(own.split(sizes), grads)
            results.append({"y": y.detach(), "x": own.grad} | {n: p.grad for n, p in net.module.named_parameters()})
        for name, found in results[0].items():
            wanted = results[1][name]
            words = f"seed {seed}, pieces {sizes}: {name}\n{net.module}"
            assert (found is None or not found.any()) if wanted is None else found is not None, words
            if wanted is not None:
                assert (found - wanted).abs().max() <= 1e-9 * (1 + wanted.abs().max()), words
