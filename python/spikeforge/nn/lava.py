"""Lava's processes as modules that run in floating point or in Loihi's fixed point, by an argument, and learn in both.

Parameters are floating-point tensors in both cases. In the run configuration ``"fixed"`` a call computes the same as
the chip: weights, biases, thresholds and decays are rounded to its integers, and gradients pass through the rounding to
the parameters (straight-through). :func:`deploy` returns the integer network with the same spikes. ``docs/loihi.md``
describes what is differentiated.
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
from spikeforge.nn.composite import Composite
from spikeforge.nn.errors import ERRORS, first_line
from spikeforge.nn.loihi import LoihiConv, LoihiDelayDense, LoihiDense, LoihiLIF
from spikeforge.nn.samples import later
from spikeforge.nn.stateful import State, StatefulModule, reset_, shape_of

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
    """Rounds x to the nearest integers; the gradient is that of x."""
    return x.detach().round() + (x - x.detach())


def as_spikes(x: Tensor) -> Tensor:
    """Returns 1 for every value except 0, with the gradient of x."""
    return (x.detach() != 0).to(x.dtype) + (x - x.detach())


class LavaModule(StatefulModule):
    """Base class of Lava modules: the run configuration, and the scale between the two arithmetics."""

    def __init__(self, *, run_config: str, scale: int, stateful: bool, persistent_state: bool):
        super().__init__(stateful=stateful, persistent_state=persistent_state)
        if isinstance(scale, bool) or not isinstance(scale, int) or scale < 1:
            raise ValueError(f"{self._title()}: scale must be a whole number of 1 or more, but is {scale!r}")
        self.scale = scale
        self.run_config = run_config

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "run_config":
            if value not in RUN_CONFIGS:
                raise ValueError(f"{self._title()}: run_config must be float or fixed, but is {value!r}")
            if value != self.__dict__.get(name):
                self._memory.states = None  # they belong to the other arithmetic
        super().__setattr__(name, value)

    def deployed(self) -> StatefulModule:
        """Returns the integer module with the results of the configuration "fixed", without kept states."""
        raise NotImplementedError

    def _flags(self) -> dict[str, bool]:
        return {"stateful": self.stateful, "persistent_state": self.persistent_state}

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.persistent_state and self._memory.states:
            destination[prefix + "run_config"] = torch.tensor(RUN_CONFIGS.index(self.run_config), device="cpu")

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        saved = state_dict.pop(prefix + "run_config", None) if self.persistent_state else None
        if saved is not None and RUN_CONFIGS[int(saved)] != self.run_config:
            errors.append(
                f"{prefix.removesuffix('.') or self._title()}: the saved states are of run_config "
                f"{RUN_CONFIGS[int(saved)]}, but the module's is {self.run_config}"
            )
            for name in self.state_names:
                state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def _called(self, x: Any, run: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"{self._title()}: x must be a floating-point tensor [T, *shape], time first, but is {kind}"
            )
        if self.run_config == "fixed" and x.dtype not in (torch.float32, torch.float64):
            kind = str(x.dtype).removeprefix("torch.")
            raise TypeError(f"{self._title()}: x must be float32 or float64 in fixed point, but is {kind}")
        try:
            return run()
        except ERRORS as error:
            kind = type(error) if isinstance(error, (TypeError, ValueError)) else RuntimeError
            raise kind(f"{self._title()}: {first_line(error)}") from error


class LavaLIF(LavaModule):
    """Lava's LIF: u = (1 - du) u + x, v = (1 - dv) v + u + bias; it fires above vth, and v is then 0.

    In fixed point the constants become ``du = round(4096 du) - 1``, ``dv = round(4096 dv)``, ``vth = round(scale vth)``
    and ``bias_mant = round(scale bias)`` with an exponent of 6. x is multiplied by `scale`, as the connections send it.

    Args:
        du, dv: the fractions of u and v that are lost in a step, 0 to 1; 1 is no memory.
        bias: a number, a tensor that broadcasts against a step, or an ``nn.Parameter``; up to ±4095 / scale. In fixed
            point, a learned bias is clipped to this range.
        vth: the threshold; above 0, also in the chip's units.
        scale: the chip's units per 1: the same in all modules of a network.
        run_config: "float" or "fixed".
        surrogate: a name, or an object of :mod:`spikeforge.surrogate`. Its argument is the voltage above the threshold
            in units of the threshold, in both configurations.
        detach_reset: no gradient flows through the spike in the reset.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`. States are u and v; in fixed point they
            are the chip's.

    Raises:
        ValueError: if a constant is out of its range or the chip's.
    """

    takes_samples = fresh_outputs = True
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
                raise ValueError(f"LavaLIF: {name} must be in [0, 1], but is {value}")
        if not 0 < vth < math.inf:
            raise ValueError(f"LavaLIF: vth must be above 0 and finite, but is {vth}")
        if round(scale * vth) < 1:
            raise ValueError(f"LavaLIF: at scale {scale}, vth must be at least 1 unit of the chip, but is {vth}")
        self._check_flag("detach_reset", detach_reset)
        self.du, self.dv, self.vth, self.detach_reset = float(du), float(dv), float(vth), detach_reset
        if isinstance(bias, nn.Parameter):
            self.bias = bias
        else:
            self.register_buffer("bias", torch.as_tensor(bias, dtype=torch.get_default_dtype()).detach().clone())
        found = surrogates.of(surrogate)
        if isinstance(found, surrogates.Custom):
            raise TypeError("LavaLIF: surrogate must be built in (docs/surrogates.md), but is Custom")
        self.surrogate = found
        if not self.bias.is_meta:  # the values of a tensor on "meta" are set later
            self._check_bias()
            self.deployed()  # raises an error if a constant is out of the chip's range

    def _check_bias(self) -> None:
        largest = LARGEST_MANTISSA / self.scale
        if not (self.bias.detach().double().abs() * self.scale).round().le(LARGEST_MANTISSA).all():
            least, most = (float(bound) for bound in self.bias.detach().aminmax())
            raise ValueError(
                f"LavaLIF: at scale {self.scale}, bias must be in [{-largest:g}, {largest:g}], but has values from "
                f"{least:g} to {most:g}"
            )

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
        given = () if u is None and v is None else (u, v)
        states = [x.new_zeros(x.shape[1:], dtype=kind) if s is None else s for s in given]
        (spikes,), (u, v) = ops.run(text, [x], states, params, store_states=store, **samples)
        return spikes, u, v

    def deployed(self) -> LoihiLIF:
        try:
            bias_mant = self.bias_mant().detach().to(torch.int32)
            return LoihiLIF(bias_mant=bias_mant, **self._numbers(), **self._flags())
        except ValueError as error:
            raise ValueError(f"{self._title()}: at scale {self.scale}, {first_line(error)}") from None

    def extra_repr(self) -> str:
        numbers = f"du={self.du:g}, dv={self.dv:g}, vth={self.vth:g}, bias={shape_of(self.bias)}"
        return f"{numbers}, scale={self.scale}, run_config={self.run_config}"


class LavaConnection(LavaModule):
    """Base class of connections: weights, messages, and the values in flight (the state "buffer").

    In fixed point the weights become ``loihi_fake_quantize(scale / 2**weight_exp * weight)``: integers of
    `num_weight_bits`, which are even if signs are mixed. The output is `scale` times that of the floating-point
    configuration.
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
        """Returns the chip's weights as floating-point values, with the gradient of a clip."""
        unit = self.scale / 2**self.weight_exp
        return ops.loihi_fake_quantize(
            self.weight * unit, num_weight_bits=self.num_weight_bits, sign_mode=self.sign_mode
        )

    def _integers(self) -> Tensor:
        return self.quantized_weight().detach().to(torch.int32)

    def _numbers(self) -> dict[str, int]:
        return {"weight_exp": self.weight_exp, "num_message_bits": self.num_message_bits}

    def _message(self, x: Tensor) -> Tensor:
        return as_spikes(x) if self.num_message_bits == 0 else x

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        if store and self._slots:
            raise ValueError(
                f"{self._title()}: store_states is supported only by neurons; a connection returns the values in "
                "flight after the last step"
            )
        x, buffer = inputs[0], state.get("buffer")
        run = self._fixed if self.run_config == "fixed" else self._float
        y, after = self._called(x, lambda: run(x, buffer))
        return y, {"buffer": after} if self._slots else {}

    def _fixed(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _float(self, x: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        """Computes a connection in floating point, where all messages have the same delay."""
        sent = self._sent(self._message(x))
        if buffer is None:
            buffer = sent.new_zeros((self._slots, *sent.shape[1:]))
        self._check_buffer(buffer, sent)
        return later(buffer, sent)

    def _check_buffer(self, buffer: Tensor, sent: Tensor) -> None:
        expected = (self._slots, *sent.shape[1:])
        if buffer.shape != expected:
            raise ValueError(
                f"buffer must have shape {list(expected)}, [delay, *batch, out], but has {shape_of(buffer)}"
            )
        if buffer.dtype != sent.dtype:
            kinds = (str(t.dtype).removeprefix("torch.") for t in (sent, buffer))
            raise TypeError("buffer must be {}, the type of the messages, but is {}".format(*kinds))

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

    The state buffer holds the sums in flight, as the chip does. :func:`~spikeforge.nn.detach_` cuts their history, so
    in truncated backpropagation a weight learns only from what arrives in the piece in which it was sent.

    Args:
        in_features, out_features: the weights are ``[out, in]``, initialised as in ``nn.Linear``.
        delay: in steps, 0 to 64; 1 is Lava's default.
        num_message_bits: 0 for spikes: every value except 0 is treated as 1.
        num_weight_bits: 1 to 8.
        sign_mode: "mixed", "excitatory" or "inhibitory"; None determines it from the signs of the weights at each call.
        weight_exp: the chip multiplies its weights by 2**weight_exp, -8 to 7: with 0 the range of weights is
            -256 / scale to 255 / scale.
        scale: the chip's units per 1: the same in all modules of a network.
        run_config: "float" or "fixed".
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.
    """

    def __init__(
        self, in_features: int, out_features: int, *, delay: int = 1, num_message_bits: int = 0,
        num_weight_bits: int = 8, sign_mode: str | None = "mixed", weight_exp: int = 0, scale: int = 64,
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
        return LoihiDense(self._integers(), delay=self._slots, **self._numbers(), **self._flags())


class LavaDelayDense(LavaConnection):
    """Lava's DelayDense: as :class:`LavaDense`, with a delay for each synapse. A message of step t arrives at t + 1 +
    delay.

    Args:
        in_features, out_features: the weights are ``[out, in]``, initialised as in ``nn.Linear``.
        delays: whole numbers ``[out, in]``, 0 to max_delay.
        max_delay: 0 to 63; by default the largest of the delays.
        num_message_bits, num_weight_bits, sign_mode, weight_exp, scale, run_config, stateful, persistent_state: as
            those of :class:`LavaDense`.
    """

    def __init__(
        self, in_features: int, out_features: int, delays: Tensor, *, max_delay: int | None = None,
        num_message_bits: int = 0, num_weight_bits: int = 8, sign_mode: str | None = "mixed", weight_exp: int = 0,
        scale: int = 64, run_config: str = "fixed", stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        if not isinstance(delays, Tensor):
            raise TypeError(f"LavaDelayDense: delays must be a tensor, but is {type(delays).__name__}")
        if delays.shape != (out_features, in_features):
            raise ValueError(f"LavaDelayDense: delays must be {[out_features, in_features]}, but is {shape_of(delays)}")
        if delays.is_floating_point() and not (delays == delays.trunc()).all():
            raise ValueError("LavaDelayDense: delays must be whole numbers, but some are not")
        most = int(delays.max().clamp(-1, 64)) if delays.numel() else 0
        self.max_delay = most if max_delay is None else max_delay
        super().__init__(
            torch.empty(out_features, in_features), self.max_delay + 1, num_message_bits=num_message_bits,
            num_weight_bits=num_weight_bits, sign_mode=sign_mode, weight_exp=weight_exp, scale=scale,
            run_config=run_config, stateful=stateful, persistent_state=persistent_state,
        )  # fmt: skip
        self.register_buffer("delays", delays.detach().clamp(-1, 64).to(torch.int32, copy=True))
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
            self._check_buffer(buffer, sent)
            arriving = arriving + F.pad(buffer, (0, 0) * (buffer.dim() - 1) + (0, x.shape[0]))
        return arriving[: x.shape[0]].clone(), arriving[x.shape[0] :].clone()

    def deployed(self) -> LoihiDelayDense:
        return LoihiDelayDense(
            self._integers(), self.delays, max_delay=self.max_delay, **self._numbers(), **self._flags()
        )


class LavaConv(LavaConnection):
    """Lava's Conv: a convolution of two dimensions, ``[T, *batch, channels, height, width]``, `delay` steps later.

    Layouts and weights are those of ``nn.Conv2d``; Lava's kernels are flipped. In fixed point the sums wrap
    around at 24 bits.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups: as those of ``nn.Conv2d``.
        delay, num_message_bits, num_weight_bits, sign_mode, weight_exp, scale, run_config, stateful, persistent_state:
            as those of :class:`LavaDense`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int | Sequence[int], *, stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, delay: int = 1,
        num_message_bits: int = 0, num_weight_bits: int = 8, sign_mode: str | None = "mixed", weight_exp: int = 0,
        scale: int = 64, run_config: str = "fixed", stateful: bool = False, persistent_state: bool = False,
    ):  # fmt: skip
        pair = lambda n: [n, n] if isinstance(n, int) else list(n)
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                "LavaConv: groups must be 1 or more and divide in_channels and out_channels, but is "
                f"{groups} of {in_channels} and {out_channels}"
            )
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
            x, self.quantized_weight(), buffer, delay=self._slots, groups=self.groups, **self.geometry,
            **self._numbers(),
        )  # fmt: skip

    def _sent(self, message: Tensor) -> Tensor:
        images = message.reshape(-1, *message.shape[-3:])
        sent = F.conv2d(images, self.weight, groups=self.groups, **self.geometry)
        return sent.reshape(*message.shape[:-3], *sent.shape[1:])

    def deployed(self) -> LoihiConv:
        return LoihiConv(
            self._integers(), delay=self._slots, groups=self.groups, **self.geometry, **self._numbers(), **self._flags()
        )


def set_run_config_(net: nn.Module, run_config: str) -> nn.Module:
    """Makes all Lava modules at and below `net` run in ``"float"`` or in ``"fixed"``, and returns `net`.

    States kept at and below `net` belong to the other arithmetic, and are dropped. If you set the ``run_config`` of a
    single module in a stateful network, call :func:`reset_` to drop the states that the network keeps.

    Raises:
        ValueError: for another configuration, or a network without such modules.
    """
    found = [module for module in net.modules() if isinstance(module, LavaModule)]
    if not found:
        raise ValueError("set_run_config_: the network has no Lava module")
    for module in found:
        module.run_config = run_config
    reset_(net)
    return net


def deploy(net: nn.Module) -> nn.Module:
    """Returns a copy of `net` in which Loihi's integer modules replace Lava's: int32 in, int32 out.

    Its spikes are those of `net` in the configuration ``"fixed"``, for any present configuration. It keeps states if
    `net` does, and starts from the initial states.

    Raises:
        ValueError: for a network without Lava modules.
    """
    if not any(isinstance(module, LavaModule) for module in net.modules()):
        raise ValueError("deploy: the network has no Lava module")
    copied = copy.deepcopy(net)
    reset_(copied)
    made: dict[nn.Module, nn.Module] = {}  # a module that is used twice stays one
    if isinstance(copied, LavaModule):
        return _deployed(copied, made)
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, LavaModule):
                parent._modules[name] = _deployed(child, made)
                if isinstance(parent, Composite):
                    parent._plan = None
    return copied


def _deployed(module: LavaModule, made: dict[nn.Module, nn.Module]) -> nn.Module:
    if module not in made:
        made[module] = module.deployed().train(module.training)
        made[module]._path = module._path
    return made[module]
