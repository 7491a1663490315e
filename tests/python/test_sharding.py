"""Operators on torch's DTensor: what several ranks compute of their shards is what one process computes of all."""

import pytest
import torch

from ranks import on_ranks

LIF = """neuron leaky(x; v, a; leak, gain) {
  h = leak * v + gain * x
  s = spike(h - (1 + a), atan(2))
  return s
  v' = select(s, 0, h)
  a' = 0.75 * a + s
}"""


def _neuron_calls():
    """By name: a function of tensors, and those tensors with the dimension of each that lies along C, None for none."""
    ops = torch.ops.spikeforge

    def draw(*shape):
        return torch.rand(shape, dtype=torch.float64)

    def of_defaults(op):
        return lambda x, v: op(3 * x, v)

    predefined = ("lif", "integrate_and_fire", "qif", "eif", "izhikevich", "adaptive_lif")
    x, v = draw(6, 5, 4), draw(5, 4)
    calls = {name: (of_defaults(getattr(ops, name)), [x, v]) for name in predefined}
    calls["plif"] = lambda x, w, v: ops.plif(3 * x, w, v), [x, draw(4) - 0.5, v]
    calls["lif, parameters"] = (
        lambda x, v, tau, reset: ops.lif(3 * x, v, tau=tau, v_reset=reset, store_v=True),
        [x, v, 1.5 + draw(4), draw(1)],
    )
    calls["run"] = lambda x, v, a, leak, gain: _flat(ops.run(LIF, [3 * x], [v, a], [leak, gain])), [x, v, draw(5, 4), draw(4), draw(1)]
    return calls


def _flat(results):
    return tuple(t for part in results for t in (part if isinstance(part, (list, tuple)) else [part]))


def _gradients(function, tensors, weights):
    results = function(*tensors)
    results = results if isinstance(results, tuple) else (results,)
    sum((result * weight).sum() for result, weight in zip(results, weights)).backward()
    return [t.detach() for t in results] + [t.grad for t in tensors]
