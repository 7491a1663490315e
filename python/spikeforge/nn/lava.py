"""Lava's processes as modules that run in floating point or in Loihi's fixed point, by an argument, and learn in both.

Parameters are floating-point numbers in either case. In the run configuration ``"fixed"`` a call computes what the chip
will: weights, biases, thresholds and decays are rounded to its numbers on the way, and gradients go straight through to
the parameters. :func:`deploy` makes the integer network with the same spikes. ``docs/loihi.md`` says what is
differentiated.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikeforge import surrogate as surrogates
from spikeforge._numbers import is_number
from spikeforge.nn.errors import ERRORS, first_line
from spikeforge.nn.loihi import LoihiConv, LoihiDelayDense, LoihiDense, LoihiLIF
from spikeforge.nn.network import Network
from spikeforge.nn.stateful import State, StatefulModule, shape_of

ops = torch.ops.spikeforge
RUN_CONFIGS = ("float", "fixed")
DECAY, VOLTAGE_BITS, LARGEST_MANTISSA = 4096, 6, 4095
FLOAT_LIF = """neuron lava_lif(x; u, v; du, dv, bias, vth) {{
  current = u * (1 - du) + x
  h = v * (1 - dv) + current + bias
  s = spike_strict((h - vth) / detach(vth), {surrogate})
  return s
  u' = current
  v' = select({reset}, 0, h)
}}
"""


def straight_round(x: Tensor) -> Tensor:
    """The nearest whole numbers, with the gradient of x."""
    return x.detach().round() + (x - x.detach())


def as_spikes(x: Tensor) -> Tensor:
    """1 for anything but 0, with the gradient of x."""
    return (x.detach() != 0).to(x.dtype) + (x - x.detach())


class LavaModule(StatefulModule):
    """What they share: the run configuration, and the scale between the two arithmetics."""

    def __init__(self, *, run_config: str, scale: int, stateful: bool, persistent_state: bool):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        if isinstance(scale, bool) or not isinstance(scale, int) or scale < 1:
            raise ValueError(f"{self._title()}: scale must be a whole number of 1 or more, but is {scale!r}")
        self.scale = scale
        self.run_config = run_config

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "run_config" and value not in RUN_CONFIGS:
            raise ValueError(f"{self._title()}: run_config must be float or fixed, but is {value!r}")
        super().__setattr__(name, value)

    def deployed(self) -> StatefulModule:
        """The module of integers that computes what this one does in the configuration "fixed"."""
        raise NotImplementedError

    def _called(self, x: Any, run: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{self._title()}: x must be a floating-point tensor [T, *shape], time first, but is {kind}")
        try:
            return run()
        except ERRORS as error:
            kind = type(error) if isinstance(error, (TypeError, ValueError)) else RuntimeError
            raise kind(f"{self._title()}: {first_line(error)}") from error


class LavaLIF(LavaModule):
    """Lava's LIF: u = (1 - du) u + x, v = (1 - dv) v + u + bias; it fires above vth, and v is then 0.

    In fixed point the constants become ``du = round(4096 du) - 1``, ``dv = round(4096 dv)``, ``vth = round(scale vth)``
    and ``bias_mant = round(scale bias)`` with an exponent of 6, and x comes times `scale`, as the connections send it.

    Args:
        du, dv: how much of u and v is lost in a step, 0 to 1; 1 is no memory.
        bias: a number, a tensor that broadcasts against a step, or an ``nn.Parameter``.
        vth: the threshold, above 0.
        scale: how many of the chip's units a 1 is: the same in all modules of a network.
        run_config: "float" or "fixed".
        surrogate: a name, or an object of :mod:`spikeforge.surrogate`. It sees the voltage above the threshold in units
            of the threshold, in both configurations.
        detach_reset: no gradient flows through the spike in the reset.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`. States are u and v; in fixed point they
            are the chip's.

    Raises:
        ValueError: for a constant out of range, also of the chip's.
    """

    takes_samples = True
    state_names = ("u", "v")

    def __init__(
        self, *, du: float = 0.0, dv: float = 0.0, bias: float | Tensor = 0.0, vth: float = 10.0, scale: int = 64,
        run_config: str = "fixed", surrogate: str | surrogates.Surrogate = "sigmoid", detach_reset: bool = False,
        stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        super().__init__(run_config=run_config, scale=scale, stateful=stateful, persistent_state=persistent_state)
        for name, value in (("du", du), ("dv", dv), ("vth", vth)):
            if not is_number(value):
                raise TypeError(f"LavaLIF: {name} must be a number, but is {type(value).__name__}")
        for name, value in (("du", du), ("dv", dv)):
            if not 0 <= value <= 1:
                raise ValueError(f"LavaLIF: {name} must lie in [0, 1], but is {value}")
        if not vth > 0:
            raise ValueError(f"LavaLIF: vth must be above 0, but is {vth}")
        self._check_flag("detach_reset", detach_reset)
        self.du, self.dv, self.vth, self.detach_reset = float(du), float(dv), float(vth), detach_reset
        if isinstance(bias, nn.Parameter):
            self.bias = bias
        else:
            self.register_buffer("bias", torch.as_tensor(bias, dtype=torch.get_default_dtype()).detach().clone())
        found = surrogates.of(surrogate)
        if isinstance(found, surrogates.Custom):
            raise TypeError("LavaLIF: surrogate must be one of the table of docs/surrogates.md, but is a Custom one")
        self.surrogate = found
        self.deployed()  # the chip's numbers are in their ranges

    def _numbers(self) -> dict[str, int]:
        return {
            "du": round(DECAY * self.du) - 1, "dv": round(DECAY * self.dv), "vth": round(self.scale * self.vth),
            "bias_exp": VOLTAGE_BITS,
        }  # fmt: skip

    def bias_mant(self) -> Tensor:
        """The chip's mantissas of the bias, clipped to 13 bits."""
        return straight_round((self.bias * self.scale).clamp(-LARGEST_MANTISSA, LARGEST_MANTISSA))

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x = inputs[0]
        spikes, u, v = self._called(x, lambda: self._run(x, state.get("u"), state.get("v"), store))
        return spikes, {"u": u, "v": v}

    def _run(self, x: Tensor, u: Tensor | None, v: Tensor | None, store: bool) -> tuple[Tensor, Tensor, Tensor]:
        samples = self._memory.samples or {}
        if self.run_config == "fixed":
            return ops.loihi_lif.bias(
                x, u, v, bias_mant=self.bias_mant().to(x.dtype), store_states=store, surrogate=self.surrogate.name,
                surrogate_args=list(self.surrogate.args), detach_reset=self.detach_reset, **self._numbers(), **samples
            )  # fmt: skip
        text = FLOAT_LIF.format(surrogate=self.surrogate.text, reset="detach(s)" if self.detach_reset else "s")
        kind = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
        number = lambda value: torch.full((), value, dtype=kind, device=x.device)
        params = [number(self.du), number(self.dv), self.bias.to(kind), number(self.vth)]
        states = [] if u is None and v is None else [
            x.new_zeros(x.shape[1:], dtype=kind) if s is None else s for s in (u, v)
        ]
        (spikes,), (u, v) = ops.run(text, [x], states, params, store_states=store, **samples)
        return spikes, u, v

    def deployed(self) -> LoihiLIF:
        try:
            return LoihiLIF(bias_mant=self.bias_mant().detach().to(torch.int32), **self._numbers())
        except ValueError as error:
            raise ValueError(f"{self._title()}: at scale {self.scale}, {first_line(error)}") from None

    def extra_repr(self) -> str:
        numbers = f"du={self.du:g}, dv={self.dv:g}, vth={self.vth:g}, bias={shape_of(self.bias)}"
        return f"{numbers}, scale={self.scale}, run_config={self.run_config}"


class LavaConnection(LavaModule):
    """What the connections share: weights, messages, and what is on its way: the state buffer.

    In fixed point the weights become ``loihi_fake_quantize(scale / 2**weight_exp * weight)``: of `num_weight_bits`, and
    even where signs are mixed. What arrives is `scale` times that of the floating-point configuration.
    """

    def __init__(
        self, weight: Tensor, slots: int, *, num_message_bits: int, num_weight_bits: int, sign_mode: str | None,
        weight_exp: int, **options: Any,
    ):  # fmt: skip
        super().__init__(**options)
        self.weight = nn.Parameter(weight)
        self.num_message_bits, self.num_weight_bits, self.weight_exp = num_message_bits, num_weight_bits, weight_exp
        self.sign_mode, self._slots = sign_mode, slots
        self.state_names = ("buffer",) if slots > 0 else ()
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear and nn.Conv2d

    def _check_numbers(self) -> None:
        try:
            self.deployed()
        except ValueError as error:
            raise ValueError(f"{self._title()}: {first_line(error)}") from None

    def quantized_weight(self) -> Tensor:
        """The chip's weights, as floating-point numbers with the gradient of a clip."""
        unit = self.scale / 2**self.weight_exp
        return ops.loihi_fake_quantize(self.weight * unit, num_weight_bits=self.num_weight_bits, sign_mode=self.sign_mode)

    def _integers(self) -> Tensor:
        return self.quantized_weight().detach().to(torch.int32)

    def _numbers(self) -> dict[str, int]:
        return {"weight_exp": self.weight_exp, "num_message_bits": self.num_message_bits}

    def _message(self, x: Tensor) -> Tensor:
        return as_spikes(x) if self.num_message_bits == 0 else x

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        if store and self._slots:
            raise ValueError(
                f"{self._title()}: store_states is for neurons; what is on its way is returned as it is after the last "
                "step"
            )
        x, buffer = inputs[0], state.get("buffer")
        run = self._fixed if self.run_config == "fixed" else self._float
        y, after = self._called(x, lambda: run(x, buffer))
        return y, {"buffer": after} if self._slots else {}

    def _fixed(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _float(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        """All messages are on their way for as long."""
        sent = self._sent(self._message(x))
        if buffer is None:
            buffer = sent.new_zeros((self._slots, *sent.shape[1:]))
        arriving = torch.cat([buffer, sent])
        return arriving[: len(x)], arriving[len(x) :].clone()

    def _sent(self, message: Tensor) -> Tensor:
        raise NotImplementedError

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        y, _ = self._advance(inputs, {}, False)
        return (torch.zeros_like(y) if self._slots else y,)

    def extra_repr(self) -> str:
        parts = [shape_of(self.weight), *(f"{name}={value}" for name, value in self._numbers().items())]
        return ", ".join([*parts, f"scale={self.scale}", f"run_config={self.run_config}"])


class LavaDense(LavaConnection):
    """Lava's Dense: all to all, ``[T, *batch, in]`` to ``[T, *batch, out]``, `delay` steps later.

    Args:
        in_features, out_features: the weights are ``[out, in]``, and start as those of ``nn.Linear``.
        delay: in steps, 0 to 64; 1 is Lava's own.
        num_message_bits: 0 where messages are spikes, and anything but 0 counts as 1.
        num_weight_bits: 1 to 8.
        sign_mode: "mixed", "excitatory" or "inhibitory"; read off the weights where it is not given.
        weight_exp: the chip's weights stand for 2**weight_exp times as much, -8 to 7: with 0 their range is
            -256 / scale to 255 / scale.
        scale: how many of the chip's units a 1 is: the same in all modules of a network.
        run_config: "float" or "fixed".
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.
    """

    def __init__(
        self, in_features: int, out_features: int, *, delay: int = 1, num_message_bits: int = 0,
        num_weight_bits: int = 8, sign_mode: str | None = None, weight_exp: int = 0, scale: int = 64,
        run_config: str = "fixed", stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        self.delay = delay
        super().__init__(
            torch.empty(out_features, in_features), delay, num_message_bits=num_message_bits,
            num_weight_bits=num_weight_bits, sign_mode=sign_mode, weight_exp=weight_exp, scale=scale,
            run_config=run_config, stateful=stateful, persistent_state=persistent_state,
        )  # fmt: skip
        self._check_numbers()

    def _fixed(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        return ops.loihi_dense(x, self.quantized_weight(), buffer, delay=self._slots, **self._numbers())

    def _sent(self, message: Tensor) -> Tensor:
        return F.linear(message, self.weight)

    def deployed(self) -> LoihiDense:
        return LoihiDense(self._integers(), delay=self._slots, **self._numbers())


class LavaDelayDense(LavaConnection):
    """Lava's DelayDense: as :class:`LavaDense`, with a delay for each synapse. A message of step t arrives at t + 1 + delay.

    Args:
        in_features, out_features: the weights are ``[out, in]``, and start as those of ``nn.Linear``.
        delays: whole numbers ``[out, in]``, 0 to max_delay.
        max_delay: 0 to 63; the largest of the delays where it is not given.
        num_message_bits, num_weight_bits, sign_mode, weight_exp, scale, run_config, stateful, persistent_state: as those
            of :class:`LavaDense`.
    """

    def __init__(
        self, in_features: int, out_features: int, delays: Tensor, *, max_delay: int | None = None,
        num_message_bits: int = 0, num_weight_bits: int = 8, sign_mode: str | None = None, weight_exp: int = 0,
        scale: int = 64, run_config: str = "fixed", stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        self.max_delay = int(delays.max()) if max_delay is None else max_delay
        super().__init__(
            torch.empty(out_features, in_features), self.max_delay + 1, num_message_bits=num_message_bits,
            num_weight_bits=num_weight_bits, sign_mode=sign_mode, weight_exp=weight_exp, scale=scale,
            run_config=run_config, stateful=stateful, persistent_state=persistent_state,
        )  # fmt: skip
        self.register_buffer("delays", delays.detach().to(torch.int32, copy=True))
        self._check_numbers()

    def _fixed(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        return ops.loihi_delay_dense(
            x, self.quantized_weight(), self.delays, buffer, max_delay=self.max_delay, **self._numbers()
        )

    def _float(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        message, slots = self._message(x), self._slots
        arriving = 0.0
        for delay in range(slots):
            sent = F.linear(message, self.weight * (self.delays == delay))
            arriving = arriving + F.pad(sent, (0, 0) * (sent.dim() - 1) + (1 + delay, self.max_delay - delay))
        if buffer is not None:
            arriving = arriving + F.pad(buffer, (0, 0) * (buffer.dim() - 1) + (0, len(x)))
        return arriving[: len(x)], arriving[len(x) :].clone()

    def deployed(self) -> LoihiDelayDense:
        return LoihiDelayDense(self._integers(), self.delays, max_delay=self.max_delay, **self._numbers())


class LavaConv(LavaConnection):
    """Lava's Conv: a convolution of two dimensions, ``[T, *batch, channels, height, width]``, `delay` steps later.

    Layouts and weights are those of ``nn.Conv2d``; Lava's kernels are these turned around. In fixed point the sums wrap
    around at 24 bits.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups: as those of ``nn.Conv2d``.
        delay, num_message_bits, num_weight_bits, sign_mode, weight_exp, scale, run_config, stateful, persistent_state: as
            those of :class:`LavaDense`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int | Sequence[int], *, stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, delay: int = 1,
        num_message_bits: int = 0, num_weight_bits: int = 8, sign_mode: str | None = None, weight_exp: int = 0,
        scale: int = 64, run_config: str = "fixed", stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        pair = lambda n: [n, n] if isinstance(n, int) else list(n)
        self.delay, self.groups = delay, groups
        self.geometry = {"stride": pair(stride), "padding": pair(padding), "dilation": pair(dilation)}
        super().__init__(
            torch.empty(out_channels, in_channels // groups, *pair(kernel_size)), delay,
            num_message_bits=num_message_bits, num_weight_bits=num_weight_bits, sign_mode=sign_mode,
            weight_exp=weight_exp, scale=scale, run_config=run_config, stateful=stateful,
            persistent_state=persistent_state,
        )  # fmt: skip
        self._check_numbers()

    def _fixed(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        return ops.loihi_conv(
            x, self.quantized_weight(), buffer, delay=self._slots, groups=self.groups, **self.geometry, **self._numbers()
        )

    def _sent(self, message: Tensor) -> Tensor:
        images = message.reshape(-1, *message.shape[-3:])
        sent = F.conv2d(images, self.weight, groups=self.groups, **self.geometry)
        return sent.reshape(*message.shape[:-3], *sent.shape[1:])

    def deployed(self) -> LoihiConv:
        return LoihiConv(self._integers(), delay=self._slots, groups=self.groups, **self.geometry, **self._numbers())


def set_run_config_(net: nn.Module, run_config: str) -> nn.Module:
    """Has all Lava modules at and below `net` run in ``"float"`` or in ``"fixed"``, and returns `net`.

    States that were kept are of the other arithmetic, and are forgotten.

    Raises:
        ValueError: for another configuration, and a network without such modules.
    """
    found = [module for module in net.modules() if isinstance(module, LavaModule)]
    if not found:
        raise ValueError("set_run_config_: there is no module of Lava's in the network")
    for module in found:
        module.run_config = run_config
        module._memory.states = None
    return net


def deploy(net: nn.Module) -> nn.Module:
    """A copy of `net` with Loihi's integer modules in the place of Lava's: int32 in, int32 out.

    Its spikes are those of `net` in the configuration ``"fixed"``, whatever that is now.

    Raises:
        ValueError: for a network without modules of Lava's.
    """
    if not any(isinstance(module, LavaModule) for module in net.modules()):
        raise ValueError("deploy: there is no module of Lava's in the network")
    if isinstance(net, LavaModule):
        return net.deployed()
    copied = copy.deepcopy(net)
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, LavaModule):
                parent._modules[name] = child.deployed()
                if isinstance(parent, Network):
                    parent._plan = None
    return copied
