"""Loihi's fixed-point neurons and connections as modules: the operators ``torch.ops.spikeforge.loihi_*``, bit for bit.

All tensors are int32 (indices int64), copied and registered as buffers. Values out of range raise an error at
construction. ``docs/loihi.md`` lists the ranges. Integers have no gradients: :mod:`spikeforge.nn.lava` has modules that
learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from spikeforge import surrogate as surrogates
from spikeforge.nn.errors import ERRORS, first_line
from spikeforge.nn.stateful import State, StatefulModule, States, shape_of

ops = torch.ops.spikeforge
FORMS = {"plain": "", "reset": "_reset", "refractory": "_refractory"}
STEPS = ("reset_interval", "reset_offset", "refractory_period")  # always scalars
RESERVED = (
    "x", "u", "v", "phase", "wait", "store_states", "lengths", "start", "surrogate", "surrogate_args", "detach_reset",
)  # fmt: skip


class LoihiModule(StatefulModule):
    """Base class of Loihi modules: calls whose errors name the module."""

    _taken = (torch.int32,)  # accepted dtypes of x

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Maps int32 ``[T, *shape]`` to int32; see :class:`~spikeforge.nn.StatefulModule` for the states."""
        return self._forward((x,), state, store_states)

    def _call(self, op: Any, x: Tensor, state: Mapping[str, Tensor], *args: Any, **keywords: Any) -> tuple[Tensor, ...]:
        try:
            return op(x, *args, **keywords)
        except ERRORS as error:
            raise self._explained(error, x, state) from error

    def _explained(self, error: Exception, x: Any, state: Mapping[str, Tensor]) -> Exception:
        if not isinstance(x, Tensor):
            return TypeError(
                f"{self._title()}: x must be an int32 tensor [T, *shape], time first, but is {type(x).__name__}"
            )
        if x.dtype not in self._taken:
            kind = str(x.dtype).removeprefix("torch.")
            taken = " or ".join(str(dtype).removeprefix("torch.") for dtype in self._taken)
            return TypeError(f"{self._title()}: x must be {taken}, but is {kind}; pass x.to(torch.int32)")
        kind = type(error) if isinstance(error, (TypeError, ValueError)) else RuntimeError
        kept = self._memory.keeping and state is self._memory.states
        mend = "call spikeforge.nn.reset_(net)" if kept else "pass None"
        return kind(f"{self._title()}: {first_line(error)}{f'; {mend} to restart' if state else ''}")


class LoihiLIF(LoihiModule):
    """Loihi's LIF, in all its forms. States: u and v; and phase (form "reset") or wait (form "refractory").

    Args:
        ternary: fire 1 above vth_hi and -1 below vth_lo, instead of 1 above vth.
        form: "plain"; "reset", which takes reset_interval and reset_offset; or "refractory", which takes
            refractory_period.
        surrogate: a name, or an object of :mod:`spikeforge.surrogate`. It is used if x is float32 or float64 and
            contains whole numbers: the spikes then have the dtype of x, and gradients.
        detach_reset: no gradient flows through the spike in the reset.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.
        constants: du, dv, bias_mant, bias_exp, vth (or vth_hi and vth_lo), numbers or int32 tensors that broadcast
            against a step.

    Raises:
        ValueError: if a constant is out of range, or the operator of this form does not have it.
    """

    takes_samples = fresh_outputs = True
    _taken = (torch.int32, torch.float32, torch.float64)

    def __init__(
        self, *, ternary: bool = False, form: str = "plain", surrogate: str | surrogates.Surrogate = "sigmoid",
        detach_reset: bool = False, stateful: bool = False, persistent_state: bool = False, **constants: int | Tensor,
    ):  # fmt: skip
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        if form not in FORMS:
            raise ValueError(f"LoihiLIF: form must be {', '.join(FORMS)}, but is {form!r}")
        self._check_flag("detach_reset", detach_reset)
        self.ternary, self.form, self.detach_reset = ternary, form, detach_reset
        self.surrogate = surrogates.of(surrogate)
        if isinstance(self.surrogate, surrogates.Custom):
            raise TypeError("LoihiLIF: surrogate must be built in (docs/surrogates.md), but is Custom")
        self.op_name = f"loihi{'_ternary' * ternary}_lif{FORMS[form]}"
        schema = getattr(ops, self.op_name).default._schema
        self.state_names = tuple(a.name for a in schema.arguments if a.name in RESERVED[1:5])
        self._known = tuple(a.name for a in schema.arguments if a.name not in RESERVED)
        self._numbers: dict[str, int] = {}
        self._tensors: tuple[str, ...] = ()
        for name, value in constants.items():
            self._set(name, value)
        shapes = [getattr(self, name).shape for name in self._tensors]
        device = getattr(self, self._tensors[0]).device if self._tensors else "cpu"
        try:  # a call with 0 steps only checks the arguments
            shape = torch.broadcast_shapes(*shapes)
        except RuntimeError:
            raise ValueError(
                f"LoihiLIF: the constants' shapes do not broadcast: {', '.join(map(str, map(list, shapes)))}"
            ) from None
        self._advance((torch.zeros((0, *shape), dtype=torch.int32, device=device),), {}, False)

    def _set(self, name: str, value: Any) -> None:
        if name not in self._known:
            known = ", ".join(self._known)
            raise ValueError(f"LoihiLIF: {name} is not an argument of {self.op_name}, which has {known}")
        if isinstance(value, Tensor) and name not in STEPS:
            self.register_buffer(name, value.detach().clone())
            self._tensors += (name,)
        elif isinstance(value, int) and not isinstance(value, bool):
            self._numbers[name] = value
        else:
            kind = "a whole number" if name in STEPS else "a whole number or an int32 tensor"
            raise TypeError(f"LoihiLIF: {name} must be {kind}, but is {type(value).__name__}")

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x, keywords = inputs[0], dict(self._numbers)
        packet = getattr(ops, self.op_name)
        op = packet.default
        if self._tensors == ("bias_mant",):
            op = packet.bias
        elif self._tensors:
            op = packet.tensor
            numbers = [name for name in keywords if name not in STEPS]
            keywords |= {name: torch.full((), keywords[name], dtype=torch.int32, device=x.device) for name in numbers}
        keywords |= {name: getattr(self, name) for name in self._tensors}
        if isinstance(x, Tensor) and x.is_floating_point():
            keywords |= {"surrogate": self.surrogate.name, "surrogate_args": list(self.surrogate.args)}
            keywords["detach_reset"] = self.detach_reset
        states = (state.get(name) for name in self.state_names)
        spikes, *after = self._call(
            op, x, state, *states, store_states=store, **keywords, **(self._memory.samples or {})
        )
        return spikes, dict(zip(self.state_names, after))

    def extra_repr(self) -> str:
        parts = ["ternary"] if self.ternary else []
        parts += [f"{name}={value}" for name, value in self._numbers.items()]
        parts += [f"{name}={shape_of(getattr(self, name))}" for name in self._tensors]
        return ", ".join([*parts, f"form={self.form}"])


class LoihiConnection(LoihiModule):
    """A connection, ``[T, *batch, in]`` to ``[T, *batch, out]``.

    State, if the connection has a delay: buffer, the values in flight.
    """

    fresh_outputs = True

    def __init__(
        self, op: Any, tensors: Mapping[str, Tensor], slots: int, numbers: Mapping[str, Any], *, stateful: bool,
        persistent_state: bool,
    ):  # fmt: skip
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        self._op_name, self._slots, self._numbers, self._tensors = op, slots, dict(numbers), tuple(tensors)
        self.state_names = ("buffer",) if slots > 0 else ()
        for name, value in tensors.items():
            if not isinstance(value, Tensor):
                raise TypeError(f"{self._title()}: {name} must be a tensor, but is {type(value).__name__}")
            self.register_buffer(name, value.detach().clone())
        first = getattr(self, self._tensors[0])
        self._send(torch.zeros((0, *self._input_shape()), dtype=torch.int32, device=first.device), {})

    def _input_shape(self) -> tuple[int, ...]:
        weight = getattr(self, self._tensors[0])
        return (weight.shape[1] if weight.dim() == 2 else 1,)

    def _outputs(self) -> int:
        return getattr(self, self._tensors[0]).shape[0]

    def _send(self, x: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        tensors = [getattr(self, name) for name in self._tensors]
        return self._call(getattr(ops, self._op_name).default, x, state, *tensors, state.get("buffer"), **self._numbers)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        if store and self._slots:
            raise ValueError(
                f"{self._title()}: store_states is supported only by neurons; a connection returns the values in "
                "flight after the last step"
            )
        y, buffer = self._send(inputs[0], state)
        return y, {"buffer": buffer} if self._slots else {}

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x = inputs[0]
        return (x.new_zeros((*x.shape[:-1], self._outputs())) if self._slots else self._send(x, {})[0],)

    def extra_repr(self) -> str:
        parts = [f"{name}={shape_of(getattr(self, name))}" for name in self._tensors]
        return ", ".join([*parts, *(f"{name}={value}" for name, value in self._numbers.items())])


class LoihiDense(LoihiConnection):
    """``loihi_dense``: all to all.

    Args:
        weight: prepared, ``[out, in]``: see ``torch.ops.spikeforge.loihi_prepare_weights``.
        delay: in steps, 0 to 64.
        weight_exp, num_message_bits: as the operator's.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.
    """

    def __init__(
        self, weight: Tensor, *, delay: int = 1, weight_exp: int = 0, num_message_bits: int = 0, stateful: bool = False,
        persistent_state: bool = False,
    ):  # fmt: skip
        numbers = {"delay": delay, "weight_exp": weight_exp, "num_message_bits": num_message_bits}
        super().__init__(
            "loihi_dense", {"weight": weight}, delay, numbers, stateful=stateful, persistent_state=persistent_state
        )


class LoihiSparse(LoihiConnection):
    """``loihi_sparse``: prepared weights in CSR.

    Args:
        crow_indices: ``[out + 1]``, int64.
        col_indices: ``[nnz]``, int64.
        values: ``[nnz]``, int32.
        delay, weight_exp, num_message_bits, stateful, persistent_state: as those of :class:`LoihiDense`.
    """

    def __init__(
        self, crow_indices: Tensor, col_indices: Tensor, values: Tensor, *, delay: int = 1, weight_exp: int = 0,
        num_message_bits: int = 0, stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        tensors = {"crow_indices": crow_indices, "col_indices": col_indices, "values": values}
        numbers = {"delay": delay, "weight_exp": weight_exp, "num_message_bits": num_message_bits}
        super().__init__("loihi_sparse", tensors, delay, numbers, stateful=stateful, persistent_state=persistent_state)

    def _input_shape(self) -> tuple[int, ...]:
        # The matrix does not define the number of inputs: this is the least, and x may have more.
        return (max(int(self.col_indices.max()) if self.col_indices.numel() else 0, 0) + 1,)

    def _outputs(self) -> int:
        return self.crow_indices.shape[0] - 1


class LoihiDelayDense(LoihiConnection):
    """``loihi_delay_dense``: all to all, with a delay for each synapse.

    Args:
        weight, delays: ``[out, in]`` both; delays from 0 to max_delay.
        max_delay: 0 to 63.
        weight_exp, num_message_bits, stateful, persistent_state: as those of :class:`LoihiDense`.
    """

    def __init__(
        self, weight: Tensor, delays: Tensor, *, max_delay: int, weight_exp: int = 0, num_message_bits: int = 0,
        stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        numbers = {"max_delay": max_delay, "weight_exp": weight_exp, "num_message_bits": num_message_bits}
        super().__init__(
            "loihi_delay_dense", {"weight": weight, "delays": delays}, max_delay + 1, numbers, stateful=stateful,
            persistent_state=persistent_state,
        )  # fmt: skip


class LoihiConv(LoihiConnection):
    """``loihi_conv``: a convolution, ``[T, *batch, channels, height, width]``, whose sums wrap around at 24 bits.

    Args:
        weight: prepared, ``[out, in / groups, height, width]``, as that of ``nn.Conv2d``.
        stride, padding, dilation: a number, or one for each dimension.
        groups: as those of ``nn.Conv2d``.
        delay, weight_exp, num_message_bits, stateful, persistent_state: as those of :class:`LoihiDense`.
    """

    def __init__(
        self, weight: Tensor, *, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1, groups: int = 1, delay: int = 1, weight_exp: int = 0,
        num_message_bits: int = 0, stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        given = {"stride": stride, "padding": padding, "dilation": dilation}
        numbers = {name: [value] if isinstance(value, int) else list(value) for name, value in given.items()}
        numbers |= {"groups": groups, "delay": delay, "weight_exp": weight_exp, "num_message_bits": num_message_bits}
        super().__init__(
            "loihi_conv", {"weight": weight}, delay, numbers, stateful=stateful, persistent_state=persistent_state
        )

    def _input_shape(self) -> tuple[int, ...]:
        if self.weight.dim() != 4:
            return (1, 1, 1)
        # Zero-padded to the size of the kernel.
        (height, width), apart = self.weight.shape[2:], self._numbers["dilation"]
        spans = [(n - 1) * d + 1 for n, d in zip((height, width), (apart[0], apart[-1]))]
        return (self.weight.shape[1] * self._numbers["groups"], *spans)

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        y = self._send(inputs[0], {})[0]
        return (torch.zeros_like(y) if self._slots else y,)
