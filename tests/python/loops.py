"""Plain loops over time, networks and checks that several files of tests use."""

import subprocess
import sys

import pytest
import spikeforge.nn as snn
import torch
from reference import SURROGATES, Fire


def fire(u, surrogate="atan"):
    """Returns spikes where u >= 0, with the derivative of the surrogate with default arguments."""
    form = SURROGATES[surrogate]
    return Fire.apply(u, form, form.defaults, True)


def lif_step(x, v, tau=2.0, v_threshold=1.0):
    """Returns a LIF's spikes and v after a step, with decay of the input and reset to 0."""
    h = v + (x - v) / tau
    s = fire(h - v_threshold)
    return s, (1 - s) * h


def lif_loop(x, tau=2.0):
    """Returns spikes and v after each step."""
    v, spikes, states = torch.zeros_like(x[0]), [], []
    for row in x:
        s, v = lif_step(row, v, tau)
        spikes.append(s)
        states.append(v)
    return torch.stack(spikes), torch.stack(states)


def in_pieces(net, pieces, state=None, after_piece=lambda y, state: state):
    """Returns the outputs and last states of calls that pass states on; `after_piece` may change the passed states."""
    outputs = []
    for piece in pieces:
        y, state = net(piece, state)
        state = after_piece(y, state)
        outputs.append(y)
    return torch.cat(outputs), state


def detached(state):
    return {name: value.detach() for name, value in state.items()}


def in_steps(net, x, state=None):
    outputs = []
    for row in x:
        y, state = net.step(row, state)
        outputs.append(y)
    return torch.stack(outputs), state


def same(a, b):
    """Returns whether two dicts of states have the same bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def composite(connections, /, stateful=False, **parts):
    """A Composite of these parts. Connections are "source -> target", with a delay "source -> target 2"."""
    net = snn.Composite(stateful=stateful)
    for name, part in parts.items():
        net.add(name, part)
    for connection in connections.split(", "):
        source, _, target, *delay = connection.split()
        net.connect(source, target, delay=int(*delay))
    return net


TWO = """
neuron two(x, y; v = 0.25, a; tau, beta) {   # two inputs, two outputs
  h = v + (x - v) / tau + beta * y
  s = spike(h - (1 + a), atan(2))
  return s, h
  v' = select(s, 0, h)
  a' = 0.9 * a + s
}
"""
STATEFUL = {
    "IF": snn.IF,
    "LIF": lambda: snn.LIF(tau=3.0, v_reset=None),
    "PLIF": snn.PLIF,
    "QIF": snn.QIF,
    "EIF": snn.EIF,
    "Izhikevich": lambda: snn.Izhikevich(a=0.1, b=0.2, w_rest=0.05),
    "AdaptiveLIF": snn.AdaptiveLIF,
    "CubaLIF": snn.CubaLIF,
    "GatedLIF": lambda: snn.GatedLIF(steps=4),
    "MultiLevelLIF": snn.MultiLevelLIF,
    "SlidingPSN": lambda: snn.SlidingPSN(k=3),
    "LI": snn.LI,
    "strict": lambda: snn.AdaptiveLIF(strict=True, v_reset=torch.tensor(-0.1)),
    "Neuron": lambda: snn.Neuron(
        "neuron n(x; v = 0.5) { h = 0.8 * v + x; s = spike(h - 1, atan); return s; v' = select(s, 0, h) }"
    ),
    "Delay": lambda: snn.Delay(torch.tensor([2, 0, 1, 4, 1])),
    "Latency": lambda: snn.Latency(6),
}


def refused(kind, words, call):
    """Checks that call() raises an error of this kind, whose message matches `words`."""
    with pytest.raises(kind, match=words):
        call()


def with_threads(counts, call):
    """Returns the results of call() with each of these numbers of threads; tests start with one thread."""
    results = []
    for count in counts:
        torch.set_num_threads(count)
        results.append(call())
    torch.set_num_threads(1)
    return results


def printed_by(*command, **options):
    """Runs a command, which must succeed, and returns its standard output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{' '.join(done.args)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def output_of(program, *arguments, **options):
    """Runs a Python program in a new process, which must succeed, and returns its output."""
    return printed_by(sys.executable, "-c", program, *arguments, **options)
