"""EventProp: exact gradients of spike times, for leaky integrate-and-fire neurons with a hard reset. See
``docs/eventprop.md``.

Below its threshold such a neuron is linear. With the states V and I, the input x and h the membrane before the reset,

    h[t] = a V[t-1] + p I[t-1] + q x[t] + c,    I[t] = b I[t-1] + m x[t] + n,

and V[t] is v_reset if h[t] >= threshold, else h[t]. Let v, i be the derivatives of the loss with respect to V[t], I[t],
and g[t] that with respect to the output s[t]: the effect of one more spike at step t. A spike that moves by one step
changes the loss by dg = g[t+1] - g[t]. Backwards in time

    y[t] = v, or in a step with a spike (v V'+ - dg) / V'-
    dx[t] = m i + q y[t],    i <- b i + p y[t],    v <- a y[t],

where V'- and V'+ are the slopes of V, in 1 / step, before and after the spike.
Sources: Wunderlich and Pehle, Scientific Reports 11, 12829 (2021); Nowotny, Turner and Knight, "Loss shaping enhances
exact gradient learning with Eventprop in spiking neural networks" (2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spikeforge._numbers import check_whole, is_number, state_type
from spikeforge.nn import samples
from spikeforge.nn.errors import ERRORS, explained
from spikeforge.nn.loops import in_flight, is_plain_linear, text_of
from spikeforge.nn.population import Population
from spikeforge.nn.stateful import State, _join, _under

ops = torch.ops.spikeforge
AT_ONCE = 1 << 21  # elements of a piece of a sequence, which bounds the temporary memory of forward and backward

# The equations above, with k = 1 / V'- in steps with a spike, else 0, so that V'+ / V'- = 1 + kappa k. The first output
# is dx[t + 1] - dx[t], which a recurrent layer reads from the neurons that a spike reaches.
ADJOINT = """neuron adjoint(dg, k; v, i, later; a, b, p, q, m, kappa) {
  y = v + k * (kappa * v - dg)
  dx = m * i + q * y
  return later - dx, dx
  v' = a * y
  i' = b * i + p * y
  later' = dx
}"""


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of the equations above. `v` and `i` are the indices of the states in the neuron; i is None if it
    has no current."""

    a: float
    p: float
    q: float
    c: float
    b: float
    m: float
    threshold: float
    v_reset: float
    v: int
    i: int | None

    @property
    def adjoint(self) -> tuple[float, ...]:
        """The parameters of ADJOINT; the last one is V'+ - V'-."""
        return self.a, self.b, self.p, self.q, self.m, (1 - self.a) * (self.threshold - self.v_reset)

    def slope(self, current: Tensor | float, x: Tensor) -> Tensor:
        """Returns V'- from I[t-1] and x[t]; h >= threshold > V[t-1] in a step with a spike, so it is positive there."""
        slope = self.p * current + self.q * x + (self.c - (1 - self.a) * self.threshold)
        return slope.clamp(min=torch.finfo(slope.dtype).eps)


@lru_cache(256)
def coefficients(text: str, params: tuple[float, ...], states: int) -> Coefficients | str:
    """Returns the coefficients of a neuron of one input, from its results for many inputs and states; or the reason why
    it is not a neuron of the family."""
    if states not in (1, 2):
        return f"it has {states} states"
    constants = [torch.tensor(param, dtype=torch.float64, device="cpu") for param in params]

    def step(points: Tensor) -> tuple[Tensor, Tensor]:  # [states + 1, n], the last row is x
        (s,), after = ops.run(text, [points[-1:]], list(points[:-1]), constants)
        return s[0], torch.stack(after)

    random = torch.Generator("cpu").manual_seed(0)
    draw = lambda: torch.rand(states + 1, 1024, dtype=torch.float64, generator=random, device="cpu")
    points = 10 ** (7 * draw() - 3) * (2 * (draw() > 0.5) - 1)  # of each size from 1e-3 to 1e4, of both signs
    s, after = step(points)
    quiet = s == 0
    if not ((s == 1) | quiet).all() or quiet.all() or not quiet.any():
        return "its output is not a spike, 0 or 1, or does not change for inputs and states from -1e4 to 1e4"
    rows = torch.cat((points, torch.ones_like(points[:1])))
    size = rows.abs().sum(0)
    fit = torch.linalg.lstsq((rows / size)[:, quiet].t(), (after / size)[:, quiet].t()).solution  # [states + 2, states]
    error = (fit.t() @ rows - after).abs() / size
    if (error[:, quiet] > 1e-9).any():
        return "its states are not linear below the threshold"
    resets = [j for j in range(states) if after[j, ~quiet].unique().numel() == 1]
    if len(resets) != 1:
        return "a spike does not set one of its states to a constant (hard reset)"
    v, i = resets[0], next((j for j in range(states) if j != resets[0]), None)
    fit = fit.where(fit.abs() > 1e-12, 0)
    if i is not None and ((error[i] > 1e-9).any() or fit[v, i] != 0):
        return "its current depends on the membrane or on spikes"
    h = fit[:, v] @ rows
    ends = points[:, h.where(quiet, -math.inf).argmax()], points[:, h.where(~quiet, math.inf).argmin()]
    fractions = torch.linspace(0, 1, 1001, dtype=torch.float64, device="cpu")
    for _ in range(5):  # the threshold, between a quiet point and one that fires
        line = torch.lerp(ends[0].unsqueeze(1), ends[1].unsqueeze(1), fractions)
        fires = int(step(line)[0].argmax())
        ends = line[:, max(fires - 1, 0)], line[:, fires]
    threshold = float(fit[:-1, v] @ ends[1] + fit[-1, v])
    if ((h >= threshold) == quiet)[(h - threshold).abs() > 1e-9 * size].any():
        return "it does not fire exactly when its membrane reaches a constant threshold"
    v_reset = float(after[v, ~quiet][0])
    if v_reset > threshold - 1e-12 * (1 + abs(threshold)):
        return "its reset is not below its threshold"
    a, p, q, c, b, m = (
        *(float(fit[j, v]) for j in (v, v if i is None else i, -2, -1)),
        *((0.0, 0.0) if i is None else (float(fit[i, i]), float(fit[-2, i]))),
    )
    return Coefficients(a, 0.0 if i is None else p, q, c, b, m, threshold, v_reset, v, i)


class Events(NamedTuple):
    """The entries of a matrix ``[rows, cols]`` that are not zero."""

    indices: Tensor  # of the flattened matrix, int32, in ascending order
    values: Tensor  # one for each index, or a single one for all
    shape: tuple[int, int]

    @staticmethod
    def of(x: Tensor) -> Events:
        indices = x.flatten().nonzero().squeeze(1)
        values = x.flatten()[indices]
        return Events(indices.int(), values.new_ones(1) if bool((values == 1).all()) else values, tuple(x.shape))

    def times(self, matrix: Tensor, transpose: bool = False) -> Tensor:
        """Returns the product with a matrix ``[cols, n]``, or of the transpose with ``[rows, n]``."""
        rows, cols = self.shape
        counts = self.indices.div(max(cols, 1), rounding_mode="floor").bincount(minlength=rows)
        return ops.csrmm(
            self.values.to(matrix.dtype), self.indices % max(cols, 1), torch.cat((counts.new_zeros(1), counts.cumsum(0))),
            matrix.contiguous(), rows=rows, cols=cols, transpose=transpose, unchecked=True,
        )  # fmt: skip


@dataclass
class Call:
    """The arguments of a call that have no gradient."""

    text: str
    params: Sequence[Tensor]
    found: Coefficients
    shape: tuple[int, ...]  # of a step: [*batch, neurons]; without layer and recurrent [B, *neurons]
    neurons: int
    states: list[Tensor]
    line: Tensor | None  # the spikes in flight at the start, [delay, *batch, neurons]; None: zeros
    delay: int
    lengths: Tensor | None
    count: tuple[float, float]  # target and strength
    saves: bool  # for a backward pass

    def pieces(self, x_shape: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the first step of each piece of a sequence, and the step after its last one."""
        steps, size = x_shape[0], max(1, AT_ONCE // max(1, math.prod(self.shape), math.prod(x_shape[1:])))
        return [(first, min(first + size, steps)) for first in range(0, steps, size)]


def _run(text: str, inputs: list[Tensor], matrix: Tensor | None, states: list[Tensor], params: Sequence[Tensor],
         line: Tensor | None, delay: int, store: bool = False) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Runs the neuron `text`, with a recurrent `matrix` [in, out] or without: outputs, and states as in ops.run."""
    if matrix is None:
        return ops.run(text, inputs, states, params, store_states=store)
    return ops.recurrent_run(text, inputs, matrix, states, params, line, delay=delay, store_states=store)


class _Layer(torch.autograd.Function):
    """Returns the spikes of a layer, the spikes in flight and the states at its end. Only the spikes have a gradient.

    Args:
        weight, recurrent: as in nn.Linear, ``[out, in]``.
    """

    @staticmethod
    def forward(ctx, call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, recurrent: Tensor | None):
        found = call.found
        dtype = next((w.dtype for w in (weight, recurrent) if w is not None), x.dtype)
        spikes = x.new_empty((x.shape[0], *call.shape), dtype=dtype)
        states, line, saved = call.states, call.line, []
        for first, last in call.pieces(x.shape):
            current, inputs = x[first:last].to(dtype), ()
            if weight is not None:
                events = Events.of(current.flatten(0, -2))
                current, inputs = events.times(weight.t()).view(last - first, *call.shape), events[:2]
            if bias is not None:
                current = current + bias
            (s,), stored = _run(
                call.text, [current], None if recurrent is None else recurrent.t(), states, call.params, line,
                call.delay, store=True,
            )  # fmt: skip
            given = {}
            if call.lengths is not None:
                given = {"lengths": (call.lengths - first).clamp(0, s.shape[0])}
                s = s.masked_fill(samples.ended("EventProp", given["lengths"], s), 0)
            spikes[first:last] = s
            if call.saves:
                indices = s.flatten().nonzero().squeeze(1)
                before: Tensor | float = 0.0
                if found.i is not None:
                    before = torch.cat((states[found.i].unsqueeze(0), stored[found.i][:-1])).flatten()[indices]
                k = found.slope(before, current.flatten()[indices].to(state_type(dtype))).reciprocal()
                saved += [indices.int(), k, *inputs]
            if given:
                states = [samples.leaving(r, 1, v.unsqueeze(0), **given)[0] for r, v in zip(stored, states)]
                line = None if recurrent is None else samples.leaving(s, call.delay, line, **given)
            else:
                states = [row[-1].clone() for row in stored]
                line = None if recurrent is None else in_flight(s[-call.delay :], call.delay, line)
        if recurrent is not None and line is None:  # no steps
            line = in_flight(spikes, call.delay, None)
        ctx.call, ctx.x = call, (x.shape, x.dtype)
        ctx.save_for_backward(weight, recurrent, call.line, *saved)
        ctx.mark_non_differentiable(*states, *(() if line is None else (line,)))
        ctx.set_materialize_grads(False)
        return spikes, line, *states

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor | None, *_):
        if g is None:
            return None, None, None, None, None
        call, (shape, x_dtype) = ctx.call, ctx.x
        weight, recurrent, before, *saved = ctx.saved_tensors
        per_piece = 2 if weight is None else 4
        pieces = [saved[n : n + per_piece] for n in range(0, len(saved), per_piece)]
        dtype, neurons = state_type(g.dtype), call.neurons
        zeros = lambda *sizes: g.new_zeros(sizes, dtype=dtype)
        params = [torch.full((), c, dtype=dtype, device=g.device) for c in call.found.adjoint]
        matrix = None if recurrent is None else recurrent.to(dtype)  # from the neurons that a spike reaches, back to it
        push = None  # the derivative of the penalty with respect to the count of each neuron in a sample
        if call.count[1]:
            (target, strength), batch = call.count, max(1, math.prod(call.shape) // max(1, neurons))
            counts = sum(((n % neurons).bincount(minlength=neurons) for n, *_ in pieces), zeros(neurons))
            push = strength * (counts / batch - target) / batch
        x_grad = g.new_empty(shape, dtype=x_dtype) if ctx.needs_input_grad[1] else None
        weight_grad = zeros(shape[-1], neurons) if ctx.needs_input_grad[2] else None
        bias_grad = zeros(neurons) if ctx.needs_input_grad[3] else None
        recurrent_grad = zeros(neurons, neurons) if ctx.needs_input_grad[4] else None
        states, line = [zeros(*call.shape) for _ in range(3)], None
        after = zeros(call.delay, *call.shape)  # dx of the steps after the piece
        for (first, last), (indices, k, *events) in zip(reversed(call.pieces(shape)), reversed(pieces)):
            dg, spread, n = zeros(last - first, *call.shape), zeros(last - first, *call.shape), indices.long()
            end = min(last, shape[0] - 1)  # the difference of the last step is 0
            dg[: end - first] = g[first + 1 : end + 1]
            dg[: end - first] -= g[first:end]
            if call.lengths is not None:
                dg.masked_fill_(samples.ended("EventProp", (call.lengths - 1 - first).clamp(0, last - first), dg), 0)
            if push is not None:
                dg.view(-1)[n] -= push[n % neurons] / k
            spread.view(-1)[n] = k
            inputs = [dg.flip(0), spread.flip(0)]
            (change, dx), states = _run(ADJOINT, inputs, matrix, states, params, line, call.delay)
            dx = dx.flip(0)
            rows = dx if weight is None and recurrent is None else dx.flatten(0, -2)
            if x_grad is not None:
                x_grad[first:last] = dx if weight is None else dx @ weight.to(dtype)
            if weight_grad is not None:
                weight_grad += Events(*events, (rows.shape[0], shape[-1])).times(rows, transpose=True)
            if bias_grad is not None:
                bias_grad += rows.sum(0)
            if recurrent is not None:
                line = in_flight(change[-call.delay :], call.delay, line)
                both = torch.cat((dx, after))
                if recurrent_grad is not None:
                    sent = Events(indices, k.new_ones(1), (rows.shape[0], neurons))
                    recurrent_grad += sent.times(both[call.delay :].flatten(0, -2), transpose=True)
                after = both[: call.delay]
        if recurrent_grad is not None and before is not None:
            recurrent_grad += before.flatten(0, -2).t().to(dtype) @ after.flatten(0, -2)
        return (
            None, x_grad, weight_grad if weight_grad is None else weight_grad.t(), bias_grad,
            recurrent_grad if recurrent_grad is None else recurrent_grad.t(),
        )  # fmt: skip


class EventProp(Population):
    """A layer of leaky integrate-and-fire neurons whose spike times have exact gradients: at step t the neurons receive
    ``layer(x[t]) + recurrent(spikes[t - delay])``. State: those of the neuron, and with `recurrent` the last spikes.

    >>> EventProp(CubaLIF(tau_synapse=5.0, tau_membrane=20.0), nn.Linear(700, 256), nn.Linear(256, 256))

    Args:
        neuron: a :class:`LIF` or :class:`CubaLIF` with hard reset, or a :class:`Neuron` that computes the same: linear
            below a constant threshold, with a constant reset below it, and scalar constants. Its surrogate has no effect.
        layer: an ``nn.Linear`` before the neurons, whose gradient is computed from the entries of x that are not 0;
            None: x is the neurons' input. With hooks or another forward it is called like any other module. Any other
            layer may precede the module (a :class:`DelayedLinear`, whose delays are learned, or a convolution).
        recurrent: an ``nn.Linear`` from the neurons to themselves, without hooks; None: no recurrence.
        delay: of `recurrent`, 1 step or more.
        target_count, count_strength: adds the gradient of ``count_strength / 2 * sum((mean count - target_count)**2)``
            in training mode, for the spikes of a neuron in a call, averaged over the batch. The derivative of a count
            is replaced: a spike counts 1 more for each unit of V (Nowotny et al.). A loss scale does not scale it.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.

    x is ``[T, *batch, in]``. The gradient of the output at step t is read as that of one more spike there, as all
    linear layers and :mod:`spikeforge.losses` compute it; only its difference between the steps t and t + 1 moves the
    spike of step t. A loss that depends on the number of spikes alone has no gradient. The gradient reaches neither the
    passed states nor neurons without spikes. The limits of the method: ``docs/eventprop.md``. Second derivatives raise
    an error, and hooks of `neuron` do not run.

    Sources: Wunderlich and Pehle, Scientific Reports 11, 12829 (2021); Nowotny, Turner and Knight (2025); for delays
    Mészáros, Knight and Nowotny (2025).

    Raises:
        TypeError: if the neuron is of another family, or `layer` or `recurrent` is not an ``nn.Linear``; at a call, if
            `recurrent` has hooks or another forward.
        ValueError: if sizes do not match, or the delay is below 1.
    """

    takes_start = False

    def __init__(
        self, neuron: nn.Module, layer: nn.Linear | None = None, recurrent: nn.Linear | None = None, *, delay: int = 1,
        target_count: float = 0.0, count_strength: float = 0.0, stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        super().__init__(neuron, stateful=stateful, persistent_state=persistent_state)
        self.delay = check_whole("EventProp: delay", delay)
        if self.delay < 1:
            raise ValueError(f"EventProp: delay must be 1 step or more, but is {delay}")
        for name, linear in (("layer", layer), ("recurrent", recurrent)):
            if not isinstance(linear, nn.Linear | None):
                raise TypeError(f"EventProp: {name} must be an nn.Linear, but is {type(linear).__name__}")
        if recurrent is not None:
            sizes = {recurrent.in_features, recurrent.out_features} | ({layer.out_features} if layer else set())
            if len(sizes) > 1:
                raise ValueError(f"EventProp: recurrent must be square and of layer's outputs, but sizes are {sizes}")
        for name, value in (("target_count", target_count), ("count_strength", count_strength)):
            if not is_number(value) or not 0 <= value < math.inf:
                raise ValueError(f"EventProp: {name} must be a finite number, 0 or more, but is {value!r}")
        self.layer, self.recurrent = layer, recurrent
        self.target_count, self.count_strength = float(target_count), float(count_strength)
        self.state_names = () if recurrent is None else ("spikes",)
        self._found()

    def _found(self) -> Coefficients:
        cell = text_of(self.neuron)
        reason: Coefficients | str = "its constants are tensors"
        if cell.inputs != 1:
            reason = f"it has {cell.inputs} inputs"
        elif not cell.taken:
            reason = coefficients(cell.text, tuple(cell.numbers.values()), len(cell.initial))
        if isinstance(reason, str):
            raise TypeError(
                f"{self._title()}: neuron must be a LIF or CubaLIF with hard reset and scalar constants, or text of the "
                f"same equations: {reason}"
            )
        return reason

    @torch.compiler.disable
    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Any, State]:
        x, neuron, found = inputs[0], self.neuron, self._found()
        if self.recurrent is not None and not is_plain_linear(self.recurrent):
            raise TypeError(f"{self._title()}: recurrent must be an nn.Linear without hooks or another forward")
        called = self.layer is not None and not is_plain_linear(self.layer)  # not part of the operation
        first, second = None if called else self.layer, self.recurrent
        weight, recurrent = (None if part is None else part.weight for part in (first, second))
        n = None if called else next((part.in_features for part in (first, second) if part is not None), None)
        if not isinstance(x, Tensor) or x.dim() < (1 if n is None else 2) or n not in (None, x.shape[-1]):
            form = "*shape" if n is None else f"*batch, {n}"
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{self._title()}: x must be a tensor [T, {form}], but is {got}")
        lengths = (neuron._memory.samples or {}).get("lengths")
        if lengths is not None:
            x = x.masked_fill(samples.ended(self._title(), lengths, x, least_dims=2 if n is None else 3), 0)
            lengths = lengths.to(x.device)
        x = self.layer(x) if called else x
        biases = [part.bias for part in (first, second) if part is not None and part.bias is not None]
        bias = sum(biases[1:], biases[0]) if biases else None
        dtype = next((w.dtype for w in (weight, recurrent) if w is not None), x.dtype)
        shape = x.shape[1:] if weight is None else (*x.shape[1:-1], weight.shape[0])
        line = state.get("spikes")
        cell, like = text_of(neuron), x.new_empty((), dtype=dtype).expand(x.shape[0], *shape)

        def layer(text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]):
            starts = cell.initial.values()
            states = list(states) or [x.new_full(shape, start, dtype=state_type(dtype)) for start in starts]
            count = (self.target_count, self.count_strength if self.training else 0.0)
            neurons = math.prod(shape[1:] or shape) if (self.layer or self.recurrent) is None else shape[-1]
            saves = torch.is_grad_enabled()
            given = Call(text, params, found, shape, neurons, states, line, self.delay, lengths, count, saves)
            spikes, *after = _Layer.apply(given, x, weight, bias, recurrent)
            return [spikes], after

        try:
            (spikes,), (line, *after) = cell.call(neuron, (like,), _under("neuron", state), False, layer)
        except ERRORS as error:
            raise explained(neuron, error, (like,), _under("neuron", state))
        states = {_join("neuron", name): value for name, value in zip(neuron.state_names, after)}
        return spikes, states if recurrent is None else states | {"spikes": line}

    def extra_repr(self) -> str:
        counts = f", target_count={self.target_count}, count_strength={self.count_strength}" * (self.count_strength > 0)
        return ("" if self.recurrent is None else f"delay={self.delay}") + counts
