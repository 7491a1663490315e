"""Comparisons shared by the tests of accelerate."""

import spikeforge
import torch
from spikeforge.accelerate import restore


def close(got, wanted, what, summed=0.0):
    """Checks errors within 1e-5 of the largest value, plus the rounding of sums whose magnitudes sum to `summed`."""
    bound = 1e-5 * wanted.abs().max().item() + 2**-23 * summed
    torch.testing.assert_close(got, wanted, rtol=0, atol=bound, msg=lambda message: f"{what}: {message}")


def assert_accelerated_trains_alike(net, fused, neurons, call, loss, draw):
    """Accelerates `fused`, a copy of net, and checks that outputs, gradients, and weights after three steps of training
    agree. `call` returns a tuple of outputs, from which `loss` computes a scalar."""
    parameters = list(fused.parameters())
    report = spikeforge.accelerate(fused)
    assert len(report.replaced) == neurons and not report.left
    assert list(fused.state_dict()) == list(net.state_dict())
    assert all(a is b for a, b in zip(fused.parameters(), parameters))
    optimisers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in (net, fused)]
    for step in range(3):
        x = draw()
        wanted, got = call(net, x), call(fused, x)
        if step == 0:
            assert wanted[0].any() and all(map(torch.equal, got, wanted))
        for outputs, optimiser in zip((wanted, got), optimisers):
            optimiser.zero_grad()
            loss(*outputs).backward()
        if step == 0:
            for (parameter, theirs), ours in zip(net.named_parameters(), fused.parameters()):
                assert (ours.grad is None) == (theirs.grad is None), parameter
                if theirs.grad is not None:
                    close(ours.grad, theirs.grad, parameter)
        for optimiser in optimisers:
            optimiser.step()
    for (parameter, theirs), ours in zip(net.named_parameters(), fused.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5, msg=lambda message: f"{parameter}: {message}")


def assert_left_alone(neuron, why):
    cls = type(neuron)
    (entry,) = spikeforge.accelerate(neuron)
    assert entry.status == "left" and why in entry.what and type(neuron) is cls


def assert_restored_as_it_was(net, names):
    """Checks that a second call replaces nothing, and that restore reverts the modules of these names."""
    kinds, shown = [type(net.get_submodule(name)) for name in names], repr(net)
    first, again = spikeforge.accelerate(net), spikeforge.accelerate(net)
    assert (len(first.replaced), len(again.replaced), len(again.already)) == (len(names), 0, len(names))
    assert repr(net) == shown and all(isinstance(net.get_submodule(name), kind) for name, kind in zip(names, kinds))
    assert restore(net) == names and [type(net.get_submodule(name)) for name in names] == kinds and restore(net) == []
    assert not any("spikeforge" in name for module in net.modules() for name in vars(module))
