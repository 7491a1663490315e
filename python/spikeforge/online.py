"""Trains networks while a sequence runs, in memory that does not grow with its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from spikeforge.nn.composite import Recurrent
from spikeforge.nn.containers import Sequential, TimeDistributed
from spikeforge.nn.loops import _why_not_linear, text_of, why_not_neuron
from spikeforge.nn.own import Neuron
from spikeforge.nn.parts import foreign_neurons
from spikeforge.nn.stateful import has_hooks, has_states

ops = torch.ops.spikeforge
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
RULES = ("eprop", "ottt")
FEEDBACKS = ("symmetric", "random")


class Online(nn.Module):
    """Trains a network on each piece of a sequence as it arrives, with traces instead of a graph of earlier pieces.

    ::

        net = nn.Sequential(nn.Linear(700, 128), snn.LIF(), nn.Linear(128, 20), snn.LI(tau=20.0))
        online = spikeforge.Online(net)
        for x in pieces:                    # [T, B, 700]: T steps at once, most often 1
            loss(online(x)).backward()      # adds to the gradients of net's parameters

    States and traces are kept between calls, but no graph: a call after a million steps uses the memory of the first.
    Within a piece, gradients are those of backpropagation through time, except through the recurrent connections of a
    ``Recurrent``; earlier pieces contribute through the traces. ``docs/online.md`` defines what each rule neglects.

    Args:
        net: layers one after the other, in ``nn.Sequential`` of torch or of spikeforge: ``nn.Linear`` and, with
            ``rule="ottt"``, ``nn.Conv1d`` to ``nn.Conv3d``; the neurons of :mod:`spikeforge.nn`;
            ``Recurrent(neuron, nn.Linear)``; and layers without weights or states, which are applied to each step. A
            layer with weights must be directly before a neuron, or after the last one.
        rule: "eprop" keeps a trace for each synapse and is exact for a single layer; "ottt" keeps a trace for each
            input.
        feedback: "symmetric" sends gradients back through the weights; "random" through fixed random matrices instead
            of each ``nn.Linear`` that follows another layer with weights, drawn from ``generator``.
        generator: draws the feedback matrices; by default torch's generator.

    Raises:
        ValueError: if the network contains another module; the message names it.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        rule: str = "eprop",
        feedback: str = "symmetric",
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        for name, value, legal in (("rule", rule, RULES), ("feedback", feedback, FEEDBACKS)):
            if value not in legal:
                raise ValueError(f"Online: {name} must be {' or '.join(map(repr, legal))}, but is {value!r}")
        self.net, self.rule, self.feedback = net, rule, feedback
        self._parts = list(_flat(net))
        self._layers = _layers(self._parts, rule)
        if not any(layer.neuron is not None for layer in self._layers):
            raise ValueError("Online: the network has no neuron")
        taken = [
            part
            for layer in self._layers
            if layer.neuron is not None
            for part in (layer.product, layer.neuron, layer.back)
        ]
        self._replaced = [
            (name, part) for name, part in net.named_modules() if part in taken or isinstance(part, Recurrent)
        ]
        if feedback == "random":
            learns = [isinstance(layer.product, (nn.Linear, *CONVOLUTIONS)) for layer in self._layers]
            for i, layer in enumerate(self._layers):
                if isinstance(layer.product, nn.Linear) and any(learns[:i]):
                    self.register_buffer(f"feedback{i}", _drawn_like(layer.product.weight, generator))
        self.reset()

    def reset(self, samples: Tensor | None = None) -> None:
        """Resets states and traces before the next call.

        Args:
            samples: bool ``[B]``, the samples to reset; by default all, and the batch size may change.

        Raises:
            ValueError: if the states have another number of samples.
        """
        if samples is None:
            self._memories = [_Memory() for _ in self._layers]
            self._restart: Tensor | None = None
            return
        if not isinstance(samples, Tensor) or samples.dtype != torch.bool or samples.dim() != 1:
            raise TypeError("Online: samples of reset must be a bool tensor [B]")
        if self._restart is not None and self._restart.shape != samples.shape:
            raise ValueError(
                f"Online: samples of reset must be {list(self._restart.shape)}, as in the pending reset, but are "
                f"{list(samples.shape)}"
            )
        for kept in (memory.states[0].shape[0] for memory in self._memories if memory.states):
            if len(samples) != kept:
                raise ValueError(
                    f"Online: samples of reset must be [{kept}], the number of samples of the kept states, but are "
                    f"[{len(samples)}]; reset() resets all"
                )
        self._restart = samples.clone() if self._restart is None else self._restart | samples

    def forward(self, x: Tensor) -> Tensor:
        """Returns the outputs of the network for a piece ``[T, B, ...]``."""
        if not isinstance(x, Tensor):
            raise TypeError(f"Online: x must be a tensor [T, B, ...], but is {type(x).__name__}")
        if x.dim() < 3:
            raise ValueError(f"Online: x must be [T, B, ...], time first, but has {x.dim()} dimensions")
        self._check_parts()
        batch = x.shape[1]
        if self._restart is not None and len(self._restart) != batch:
            raise ValueError(f"Online: samples of reset were [{len(self._restart)}], but x has {batch} samples")
        for memory in self._memories:
            if memory.states and memory.states[0].shape[0] != batch:
                kept = memory.states[0].shape[0]
                raise ValueError(
                    f"Online: x has {batch} samples, but the kept states have {kept}; call reset() to restart"
                )
        if not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled():
            for memory in self._memories:
                memory.leave_inference_mode()
        # If a layer raises, no layer keeps its new states.
        memories = [_Memory(memory.states, memory.traces, memory.last_spikes) for memory in self._memories]
        for i, (layer, memory) in enumerate(zip(self._layers, memories)):
            x = layer(x, memory, self.rule, getattr(self, f"feedback{i}", None), self._restart)
        self._memories, self._restart = memories, None
        return x

    def _check_parts(self) -> None:
        """Raises ValueError if layers were replaced or got hooks, which no call would run."""
        if torch.compiler.is_compiling():
            return
        now = list(_flat(self.net))
        for (name, part), (_, before) in zip(now, self._parts):
            if part is not before:
                raise ValueError(
                    f"Online: {name} is another {type(part).__name__} than at construction, and the traces belong to "
                    "the former layer: construct Online again after layers were replaced"
                )
        if len(now) != len(self._parts):
            raise ValueError(
                f"Online: the network has {len(now)} layers, but had {len(self._parts)} at construction: "
                "construct Online again"
            )
        for name, part in self._replaced:
            if has_hooks(part):
                raise ValueError(
                    f"Online: {name or 'the network'} ({type(part).__name__}) got hooks after construction, such as a "
                    "Monitor's, which would not be called: remove them, or call the network itself"
                )

    @property
    def traces(self) -> list[list[Tensor]]:
        """The traces of each layer with a neuron; ``docs/online.md`` lists their shapes."""
        return [memory.traces for layer, memory in zip(self._layers, self._memories) if layer.neuron is not None]

    def extra_repr(self) -> str:
        return f"rule={self.rule!r}, feedback={self.feedback!r}"


@dataclasses.dataclass
class _Memory:
    """The states, traces and spikes that a layer keeps between pieces."""

    states: list[Tensor] = dataclasses.field(default_factory=list)
    traces: list[Tensor] = dataclasses.field(default_factory=list)
    last_spikes: Tensor | None = None  # [1, B, ..., N + 1] for a recurrent layer; the last element is 1, for its bias

    def leave_inference_mode(self) -> None:
        """Clones tensors of inference mode, which cannot be part of a graph."""
        self.states, self.traces = [_ordinary(t) for t in self.states], [_ordinary(t) for t in self.traces]
        self.last_spikes = None if self.last_spikes is None else _ordinary(self.last_spikes)


def _ordinary(t: Tensor) -> Tensor:
    return t.clone() if t.is_inference() else t


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A product and its neuron, one of them, or a layer without weights as the product."""

    product: nn.Module | None
    neuron: nn.Module | None = None
    back: nn.Linear | None = None  # of a recurrent layer
    name: str = ""  # of the product, for messages

    def __call__(
        self, x: Tensor, memory: _Memory, rule: str, feedback: Tensor | None, restart: Tensor | None
    ) -> Tensor:
        if isinstance(self.product, (nn.Linear, *CONVOLUTIONS)):
            self._check_input(x)
        if self.neuron is None:
            if feedback is None:
                return _over_time(self.product, x)
            return _over_time(self.product, x.detach()) + _RandomFeedback.apply(x, feedback)
        if self.back is None or not len(x):
            return self._piece(x, memory, rule, feedback, restart)
        first, *rest = x.split(1)
        steps = [self._piece(first, memory, rule, feedback, restart)]
        steps += [self._piece(step, memory, rule, feedback, None) for step in rest]
        return torch.cat(steps)

    def _check_input(self, x: Tensor) -> None:
        product, weight = self.product, self.product.weight
        is_linear = isinstance(product, nn.Linear)
        width = product.in_features if is_linear else product.in_channels
        has_shape = x.shape[-1] == width if is_linear else x.dim() == weight.dim() + 1 and x.shape[2] == width
        shape = f"[T, B, ..., {width}]" if is_linear else f"[T, B, {width}{', size' * (weight.dim() - 2)}]"
        if not has_shape:
            raise ValueError(f"Online: {self.name} takes {shape}, but gets {list(x.shape)}")
        if x.device != weight.device:
            raise ValueError(f"Online: {self.name} is on {weight.device}, but gets a tensor on {x.device}")
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(
                f"Online: {self.name} is {str(weight.dtype).removeprefix('torch.')}, but gets "
                f"{str(x.dtype).removeprefix('torch.')}"
            )

    def _piece(self, x: Tensor, memory: _Memory, rule: str, feedback: Tensor | None, restart: Tensor | None) -> Tensor:
        current_like = x  # a tensor of the neuron's shape
        if self.product is not None:
            with torch.no_grad():
                current_like = x.new_empty(()).expand(len(x), *_over_time(self.product, x[:0]).shape[1:])
        text, starts, params = self._text_and_parameters(current_like)
        if restart is not None and memory.states:
            self._restart_samples(memory, rule, text, starts, params, current_like, x, restart)
        states = memory.states or starts
        if isinstance(self.product, nn.Linear):
            weight, bias = self._weights()
            inputs = None if feedback is None else [_RandomFeedback.apply(x, feedback)]
            joined = self._with_last_spikes(x if feedback is None else x.detach(), memory)
            outputs, states, memory.traces = ops.online_linear(
                text, joined, weight, bias, states, params, memory.traces, rule=rule, inputs=inputs,
                learned=self._learned(),
            )  # fmt: skip
        elif self.product is not None:
            outputs, states, memory.traces = self._convolved(text, x, states, params, memory.traces, current_like)
        else:
            outputs, states = ops.run(text, [x], states, params)
        memory.states = [state.detach() for state in states]
        if self.back is not None and len(x):
            spikes = outputs[0].detach()
            memory.last_spikes = torch.cat([spikes, spikes.new_ones(()).expand_as(spikes[..., :1])], -1)
        return outputs[0]

    def _with_last_spikes(self, x: Tensor, memory: _Memory) -> Tensor:
        if self.back is None:
            return x
        spikes = memory.last_spikes
        if spikes is None:
            spikes = _no_spikes(x.new_zeros(1, *x.shape[1:-1], self.back.in_features + 1))
        return torch.cat([x, spikes[: len(x)]], -1)

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        """Returns the weight [N, I] and the bias [N]; recurrent inputs come after the others."""
        weight, bias = self.product.weight, self.product.bias
        if self.back is None:
            return weight, bias
        of_ones = weight.new_zeros(len(weight), 1) if self.back.bias is None else self.back.bias[:, None]
        return torch.cat([weight, self.back.weight, of_ones], 1), bias

    def _learned(self) -> list[int]:
        """Returns the indices of the neuron's parameters with traces, which do not depend on requires_grad."""
        own = dict(self.neuron.named_parameters())
        return [j for j, name in enumerate(text_of(self.neuron).params) if name in own]

    def _text_and_parameters(self, current_like: Tensor) -> tuple[str, Sequence[Tensor], Sequence[Tensor]]:
        """Returns the neuron's text, its initial states ([] for those in the text), and its parameters."""
        captured: list = []

        def layer(text: str, _: Sequence[Tensor], states: Sequence[Tensor], params: Sequence[Tensor]):
            captured.extend((text, states, params))
            return [], []

        text_of(self.neuron).call(self.neuron, [current_like], {}, False, layer)
        return tuple(captured)

    def _restart_samples(
        self, memory: _Memory, rule: str, text: str, starts: Sequence[Tensor], params: Sequence[Tensor],
        current_like: Tensor, x: Tensor, restart: Tensor,
    ) -> None:  # fmt: skip
        with torch.no_grad():  # a run of no steps returns the initial states
            _, states = ops.run(text, [current_like[:0]], starts, params)
            traces = [torch.zeros_like(trace) for trace in memory.traces]
            if rule == "ottt" and traces:
                of_x = ops.run(ops.trace_of_input(text), [self._with_last_spikes(x[:0], memory)], [], params)[1]
                of_bias = [t[..., :1] if isinstance(self.product, nn.Linear) else t.flatten(1)[:, :1] for t in of_x]
                traces = [*of_x, *of_bias][: len(traces)]

        def chosen(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(restart.to(old.device).view(-1, *[1] * (old.dim() - 1)), new, old)

        memory.states = [chosen(old, new) for old, new in zip(memory.states, states)]
        memory.traces = [chosen(old, new) for old, new in zip(memory.traces, traces)]
        if memory.last_spikes is not None:
            memory.last_spikes = chosen(memory.last_spikes[0], _no_spikes(memory.last_spikes[0]))[None]

    def _convolved(
        self, text: str, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], traces: Sequence[Tensor],
        current_like: Tensor,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:  # fmt: skip
        """Computes what online_linear does with rule="ottt", for a convolution.

        The gradient by a trace is that of the trace's own product, which is added to the states with value 0.
        """
        conv = self.product
        of_x = traces[: len(traces) // (1 if conv.bias is None else 2)]
        if not states:
            states = ops.run(text, [current_like[:0]], [], params)[1]
        kept = of_x[len(of_x) - len(states) :] if traces else []
        images = torch.cat([x.flatten(0, 1), *(trace.to(x.dtype) for trace in kept)])
        currents = conv._conv_forward(images, conv.weight, None)
        current, *shares = currents.split([x.shape[0] * x.shape[1], *[x.shape[1]] * len(kept)])
        current = current.unflatten(0, x.shape[:2])
        if conv.bias is not None:
            by_channel = conv.bias.view(-1, *[1] * (x.dim() - 3))
            current = current + by_channel
            of_bias = traces[len(traces) - len(states) :] if traces else []
            shares = [
                share + trace.view(-1, *[1] * (x.dim() - 2)) * by_channel for share, trace in zip(shares, of_bias)
            ]
        before = [state.detach() for state in states]
        if shares:
            before = [state + (share - share.detach()) for state, share in zip(before, shares)]
        outputs, after = ops.run(text, [current], before, params)
        with torch.no_grad():
            response, ones = ops.trace_of_input(text), x.new_ones(()).expand(*x.shape[:2], 1)
            new = ops.run(response, [x], of_x, params)[1]
            if conv.bias is not None:
                new = [*new, *ops.run(response, [ones], traces[len(of_x) :], params)[1]]
        return outputs, after, new


class _RandomFeedback(torch.autograd.Function):
    """Returns zeros instead of the product of x; the backward pass uses the feedback weights."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad @ ctx.saved_tensors[0].to(grad.dtype), None


def _drawn_like(weight: Tensor, generator: torch.Generator | None) -> Tensor:
    bound = weight.shape[1] ** -0.5  # the distribution of torch.nn.Linear
    return torch.empty(weight.shape, dtype=weight.dtype).uniform_(-bound, bound, generator=generator).to(weight.device)


def _no_spikes(like: Tensor) -> Tensor:
    """Returns zeros, with a 1 at the end as the input of a recurrent layer's bias."""
    return nn.functional.pad(torch.zeros_like(like[..., 1:]), (0, 1), value=1.0)


def _over_time(module: nn.Module, x: Tensor) -> Tensor:
    """Applies a layer without a time dimension to every step."""
    return module(x.flatten(0, 1)).unflatten(0, x.shape[:2])


# --- the network as layers


def _flat(net: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if isinstance(net, TimeDistributed):
        yield from _flat(net.module, prefix + "module.")
    elif isinstance(net, (nn.Sequential, Sequential)) and type(net).forward in (
        nn.Sequential.forward,
        Sequential.forward,
    ):
        for name, part in net._modules.items():  # a module may occur several times
            yield from _flat(part, f"{prefix}{name}.")
    else:
        yield prefix[:-1] or "0", net


def _layers(parts: list[tuple[str, nn.Module]], rule: str) -> list[_Layer]:
    kinds = [_kind_of(name, part, rule) for name, part in parts]
    last = max((i for i, kind in enumerate(kinds) if kind == "neuron"), default=-1)
    layers: list[_Layer] = []
    for i, ((name, part), kind) in enumerate(zip(parts, kinds)):
        shown = f"{name} ({type(part).__name__})"
        product = parts[i - 1][1] if i > 0 and kinds[i - 1] == "product" else None
        if kind == "product":
            if i > last:
                layers.append(_Layer(part, name=shown))
            elif kinds[i + 1] != "neuron":
                raise ValueError(f"Online: {shown} must be directly before a neuron, or after the last one")
            elif reason := _why_not_product(part):
                raise ValueError(f"Online: {shown}: {reason}, which traces would ignore")
        elif kind == "neuron":
            neuron, back = (part.cell, part.module) if isinstance(part, Recurrent) else (part, None)
            if product is None and (back is not None or any(p.requires_grad for p in part.parameters())):
                raise ValueError(f"Online: {shown} learns, so a Linear must be directly before it")
            if back is not None and not isinstance(product, nn.Linear):
                raise ValueError(
                    f"Online: the layer before {shown} must be a Linear, but is a {type(product).__name__}"
                )
            text_of(neuron)  # caches the text: a graph tracer could not write it
            layers.append(_Layer(product, neuron, back, f"{parts[i - 1][0]} ({type(product).__name__})"))
        else:
            if i < last and any(True for _ in part.parameters()):
                raise ValueError(
                    f"Online: {shown} has parameters, for which no traces are kept; put it after the last neuron"
                )
            layers.append(_Layer(part))
    return layers


def _kind_of(name: str, part: nn.Module, rule: str) -> str:
    shown = f"{name} ({type(part).__name__})"
    if isinstance(part, CONVOLUTIONS):
        if rule == "eprop":
            raise ValueError(
                f"Online: {shown}: traces for each synapse of a convolution would be larger than all other tensors; "
                "pass "
                'rule="ottt"'
            )
        return "product"
    if isinstance(part, nn.Linear):
        return "product"
    if isinstance(part, Recurrent) or has_states(part):
        recurrent = isinstance(part, Recurrent)
        reason = _why_not_linear(part.module) if recurrent else ""
        neuron = part.cell if recurrent else part
        reason = reason or why_not_neuron(neuron)
        if not reason and (has_hooks(part) or has_hooks(neuron)):
            reason = "it has hooks, which would not be called"
        if not reason and isinstance(neuron, Neuron) and neuron.n_inputs != 1:
            reason = f"it has {neuron.n_inputs} inputs"
        if reason:
            raise ValueError(f"Online: {shown} cannot learn online: {reason}")
        return "neuron"
    for neuron in foreign_neurons(part):
        raise ValueError(
            f"Online: {shown} has the states of {type(neuron).__name__}; spikeforge.accelerate replaces it"
        )
    if isinstance(part, nn.RNNBase):
        raise ValueError(f"Online: {shown} has states, which are not kept between pieces")
    return "layer"


def _why_not_product(part: nn.Module) -> str:
    kind = next(kind for kind in (nn.Linear, *CONVOLUTIONS) if isinstance(part, kind))
    if type(part).forward is not kind.forward or (
        kind is not nn.Linear and type(part)._conv_forward is not kind._conv_forward
    ):
        return "it has a custom forward"
    return "it has hooks" if has_hooks(part) else ""
