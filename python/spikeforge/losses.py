"""Read-outs of a sequence, losses of them, and penalties of firing rates.

x is ``[T, B, C]``, time first: the voltages or spikes of a network's last layer. `lengths`, int ``[B]`` or a list, are
the steps of each sample: values after them may be NaN, and have no gradient; results equal those of each sample without
its padding, and a sample of no steps has zeros. Half types are summed, and returned, in float32.

Cross entropy of a read-out is ``torch.nn.functional.cross_entropy(max_over_time(v, lengths), labels)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from spikeforge._numbers import state_type
from spikeforge.nn import samples

__all__ = [
    "first_spike_times", "last_step", "max_over_time", "mean_over_time", "rate_mse_loss", "rate_penalty", "spike_count",
    "tet_loss", "time_to_first_spike_loss",
]  # fmt: skip

Lengths = Tensor | Sequence[int] | None


class _Steps(NamedTuple):
    """A sequence whose values after the ends of samples are zeros.

    Attributes:
        x: ``[T, B, ...]``, float32 or float64.
        ended: ``[T, B]``, the steps after the ends; None: there are none.
        length: the steps of each sample ``[B]``, int64.
    """

    x: Tensor
    ended: Tensor | None
    length: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Returns the mean of ``[T, B, ...]``, zeros after the ends, over the steps of each sample."""
        return values.sum(0) / self.length.clamp(min=1).view(-1, *[1] * (values.dim() - 2))


def _steps(name: str, x: Tensor, lengths: Lengths, *, of_classes: bool = False) -> _Steps:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{name}: x must be a floating-point tensor, but is {getattr(x, 'dtype', type(x).__name__)}")
    if x.dim() < 3 or (of_classes and x.dim() > 3) or x.shape[0] == 0:
        form = "[T, B, C]" if of_classes else "[T, B, C, ...]"
        raise ValueError(f"{name}: x must be {form} with T of 1 or more, but has shape {list(x.shape)}")
    x = x.to(state_type(x.dtype))
    if lengths is None:
        return _Steps(x, None, torch.full(x.shape[1:2], x.shape[0], device=x.device))
    lengths = torch.as_tensor(lengths)
    ended = samples.ended(name, lengths, x)
    return _Steps(x.masked_fill(ended, 0), ended.flatten(1), lengths.to(x.device, torch.int64))


def spike_count(x: Tensor, lengths: Lengths = None) -> Tensor:
    """Returns the sum over the steps of each sample: ``[T, B, C]`` to ``[B, C]``."""
    return _steps("spike_count", x, lengths).x.sum(0)


def mean_over_time(x: Tensor, lengths: Lengths = None) -> Tensor:
    """Returns the mean over the steps of each sample: ``[T, B, C]`` to ``[B, C]``. For spikes it is the firing rate."""
    steps = _steps("mean_over_time", x, lengths)
    return steps.mean(steps.x)


def last_step(x: Tensor, lengths: Lengths = None) -> Tensor:
    """Returns the values in the last step of each sample: ``[T, B, C]`` to ``[B, C]``."""
    steps = _steps("last_step", x, lengths)
    last = samples.beside((steps.length - 1).clamp(min=0).unsqueeze(0), steps.x)
    return steps.x.take_along_dim(last, 0).squeeze(0)


def max_over_time(x: Tensor, lengths: Lengths = None) -> Tensor:
    """Returns the maximum over the steps of each sample: ``[T, B, C]`` to ``[B, C]``. Equal maxima share the gradient.

    Source of its cross entropy: Cramer et al., IEEE TNNLS 33, 2022 (the Heidelberg datasets); Zenke and Vogels, Neural
    Computation 33, 2021.
    """
    steps = _steps("max_over_time", x, lengths)
    if steps.ended is None:
        return steps.x.amax(0)
    present = steps.x.masked_fill(samples.beside(steps.ended, steps.x), -math.inf)
    return present.amax(0).where(samples.beside((steps.length > 0).unsqueeze(0), steps.x)[0], 0)


class _FirstTimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, silent: Tensor) -> Tensor:
        """Returns the step of the first value of x above 0; that of `silent` ``[B, 1, ...]`` if there is none."""
        fired = x > 0
        first, fires = fired.int().argmax(0), fired.any(0)
        ctx.save_for_backward(first, fires)
        ctx.shape = x.shape
        return first.where(fires, silent).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        # A spike at the step before the first one, instead of at it, changes the loss by -grad.
        first, fires = ctx.saved_tensors
        x_grad = grad.new_zeros(ctx.shape)
        return x_grad.scatter_(0, first.unsqueeze(0), (-grad).where(fires, 0).unsqueeze(0)), None


def first_spike_times(x: Tensor, lengths: Lengths = None) -> Tensor:
    """Returns the step of the first spike of each neuron, from 0: ``[T, B, C]`` to ``[B, C]``; T, or the length of the
    sample, if there is none.

    The gradient of a time arrives at the first spike, negated, as a spike that is weaker there: it is the exact
    derivative with :class:`spikeforge.nn.EventProp`, and moves spikes in the same direction with surrogates. Silent
    neurons have no gradient.
    """
    steps = _steps("first_spike_times", x, lengths)
    return _FirstTimes.apply(steps.x, steps.length.view(-1, *[1] * (x.dim() - 2)))


def time_to_first_spike_loss(
    spikes: Tensor, target: Tensor, lengths: Lengths = None, *, tau0: float, alpha: float = 0.0, tau1: float = math.inf
) -> Tensor:
    """Cross entropy of -t / tau0, where t are the first spike times, plus alpha (exp(t_target / tau1) - 1) for early
    spikes; the mean of the samples, a scalar.

    Args:
        target: classes, int64 ``[B]``; those on the CPU are checked.
        tau0, tau1: in steps, above 0.

    Source: Göltz et al., Nature Machine Intelligence 3, 2021; Wunderlich and Pehle, Scientific Reports 11, 2021.
    """
    for name, tau in (("tau0", tau0), ("tau1", tau1)):
        if not tau > 0:
            raise ValueError(f"time_to_first_spike_loss: {name} must be above 0, but is {tau}")
    steps = _steps("time_to_first_spike_loss", spikes, lengths, of_classes=True)
    _check_target("time_to_first_spike_loss", target, steps.x)
    times = _FirstTimes.apply(steps.x, steps.length.unsqueeze(1))
    late = (times.gather(1, target.unsqueeze(1)) / tau1).expm1().mean() if alpha else 0.0  # exp may be infinite
    return functional.cross_entropy(-times / tau0, target) + alpha * late


def tet_loss(
    x: Tensor, target: Tensor, lengths: Lengths = None, *, lamb: float = 0.05, threshold: float = 1.0
) -> Tensor:
    """Temporal efficient training: the mean over steps of (1 - lamb) the cross entropy of each step + lamb the mean
    squared distance of x to the threshold; the mean of the samples, a scalar. ``lamb=0`` is the cross entropy alone.

    Args:
        x: ``[T, B, C]``, voltages or currents of the last layer.
        target: classes, int64 ``[B]``, or probabilities ``[B, C]``. Classes on the CPU are checked.

    Source: Deng et al., ICLR 2022.
    """
    steps = _steps("tet_loss", x, lengths, of_classes=True)
    _check_target("tet_loss", target, steps.x, probabilities=True)
    targets = target.expand(x.shape[0], *target.shape).flatten(0, 1)
    entropy = functional.cross_entropy(steps.x.flatten(0, 1), targets, reduction="none").view(x.shape[:2])
    of_steps = (1 - lamb) * entropy + lamb * (steps.x - threshold).square().mean(2)
    return steps.mean(of_steps if steps.ended is None else of_steps.masked_fill(steps.ended, 0)).mean()


def rate_mse_loss(
    spikes: Tensor, target: Tensor, lengths: Lengths = None, *, correct: float = 0.8, incorrect: float = 0.2
) -> Tensor:
    """Mean over samples and classes of the squared distance of a firing rate, in spikes per step, to `correct` for the
    class `target`, int64 ``[B]``, and to `incorrect` for the others; a scalar.

    Source: the loss of spike counts of SLAYER, Shrestha and Orchard, NeurIPS 2018, divided by the steps of a sample.
    """
    steps = _steps("rate_mse_loss", spikes, lengths, of_classes=True)
    _check_target("rate_mse_loss", target, steps.x)
    wanted = incorrect + (correct - incorrect) * functional.one_hot(target, spikes.shape[2])
    return (steps.mean(steps.x) - wanted).square().mean()


def rate_penalty(spikes: Tensor, lengths: Lengths = None, *, lower: float, upper: float) -> Tensor:
    """Penalty of the firing rates of a layer ``[T, B, C, ...]``, in spikes per step; a scalar:

    the mean over samples and neurons of max(0, lower - rate)², plus the mean over samples of
    max(0, mean rate of the layer - upper)². ``lower=0`` and ``upper=math.inf`` are no bounds.

    The lower bound gives silent neurons a gradient.
    Source: the regularisers of Cramer et al., IEEE TNNLS 33, 2022, with the upper bound as a rate, not a count.
    """
    steps = _steps("rate_penalty", spikes, lengths)
    rate = steps.mean(steps.x).flatten(1)
    return (lower - rate).relu().square().mean() + (rate.mean(1) - upper).relu().square().mean()


def _check_target(name: str, target: Tensor, x: Tensor, *, probabilities: bool = False) -> None:
    if not isinstance(target, Tensor):
        raise TypeError(f"{name}: target must be a tensor, but is {type(target).__name__}")
    if target.dtype == torch.int64 and target.shape == x.shape[1:2]:
        wrong = target[(target < 0) | (target >= x.shape[2])] if samples.is_readable(target) else target[:0]
        if len(wrong):  # also -100, which cross_entropy skips
            raise ValueError(f"{name}: target must be classes in [0, {x.shape[2] - 1}], but one is {int(wrong[0])}")
    elif not (probabilities and target.is_floating_point() and target.shape == x.shape[1:]):
        other = f", or probabilities {list(x.shape[1:])}" if probabilities else ""
        raise ValueError(
            f"{name}: target must be classes, int64 {list(x.shape[1:2])}{other}, but is {target.dtype} "
            f"{list(target.shape)}"
        )
