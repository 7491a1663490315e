"""The predefined neurons as modules, thin over their operators."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikeforge import surrogate as surrogates
from spikeforge._numbers import check_whole, is_number
from spikeforge.nn.constant import ConstantsModule, Learnable, taken_by
from spikeforge.nn.errors import ERRORS, explained, first_line
from spikeforge.nn.stateful import NO_STATE, Memory, State, States
from spikeforge.nn.text import TextCell, predefined_cell

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


ops = torch.ops.spikeforge
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
Number = float | Tensor | Learnable
Surrogate = str | surrogates.Surrogate | surrogates.Custom
OPTIONS = ("decay_input", "detach_reset", "spiking", "strict", "surrogate")  # not all neurons have them


class Quick:
    """The attributes that a call of a predefined neuron reads, in slots: faster than a module's attributes."""

    __slots__ = ("builtin", "keywords", "memory", "mixes", "name", "op", "taken")

    def __init__(self, memory: Memory, name: str, keywords: dict[str, Any] | None, taken: tuple, mixes: bool):
        self.memory, self.name, self.mixes = memory, name, mixes
        self.keywords = keywords  # None: the neuron runs as text
        self.taken = taken
        packet = getattr(ops, name, None) if name else None
        self.op = getattr(packet, "any" if mixes else "default", None)
        self.builtin = getattr(self.op, "_op", None)  # saves a call of Python, but cannot be traced

    def __reduce__(self) -> tuple[Any, ...]:
        return Quick, (self.memory, self.name, self.keywords, self.taken, self.mixes)


def _initializer(cls: type[PredefinedNeuron]) -> Callable[..., None]:
    """Returns ``__init__`` with the fields of the class as keywords: its constants and options."""
    fields = cls.__fields__
    constants = ", ".join(f"{name!r}: {name}" for name in fields if name not in cls._option_kinds)
    options = ", ".join(f"{name!r}: {name}" for name in fields if name in cls._option_kinds)
    source = (
        f"def __init__(self, *, {', '.join(fields)}):\n  options = {{{options}}}\n"
        f"  PredefinedNeuron.__init__(self, {{{constants}}}, options)"
    )
    found: dict[str, Any] = {}
    exec(source, globals(), found)
    function = found["__init__"]
    function.__kwdefaults__ = {name: default for name, (_, default) in fields.items() if default is not ...}
    function.__annotations__ = {name: annotation for name, (annotation, _) in fields.items()}
    function.__qualname__ = f"{cls.__qualname__}.__init__"
    return function


@dataclass_transform(kw_only_default=True)
class PredefinedNeuron(ConstantsModule):
    """The base class of predefined neurons.

    x is ``[T, *shape]``, time first, of float16, bfloat16, float32 or float64; the output has its shape and type.
    States are ``[*shape]``, in float32 for half types, else in the type of x.

    Args:
        v_threshold: the neuron fires if H >= v_threshold.
        v_reset: the value of V after a spike; None is soft reset, which subtracts the threshold.
        detach_reset: no gradient flows through the spike in the reset.
        surrogate: a name, or an object of :mod:`spikeforge.surrogate`.
        spiking: False replaces the step function by the surrogate's primitive: a smooth neuron, for gradient checks.
        strict: fire if H > v_threshold instead.
        stateful, persistent_state: see :class:`~spikeforge.nn.StatefulModule`.

    Every constant is a number, a tensor, an ``nn.Parameter`` or a :class:`~spikeforge.nn.Learnable`.
    """

    _op_name: str
    _body: Callable[[Any], str] | None = None  # writes the equations of a neuron without an operator: see published.py
    _derived: Mapping[str, str] = {}  # further operands of _body, as formats of the others
    _as_text = False  # whether the neuron always runs as neuron text: it has a _body, or no operator
    _is_binary = True  # whether its output contains only 0 and 1
    _draws = False  # whether it draws random numbers
    takes_samples = fresh_outputs = True
    _required: tuple[str, ...] = ()  # constants that the operator accepts only as tensors
    _outside: tuple[str, ...] = ()  # constants that the text does not contain
    state_names = ("v",)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.rpartition(".")[0] == __package__:
            cls._take_fields()
        if cls.__doc__ and PredefinedNeuron.__doc__:  # there are none under python -OO
            described = re.findall(r"^ {8}(\w+)[\w, ]*:", cls.__doc__, re.MULTILINE)
            others = set(cls.__fields__) - set(described)
            lines = PredefinedNeuron.__doc__.split("\n", 1)[1].split("\n")
            named = [re.match(r" {8}(\w+)", line) for line in lines]
            common = "\n".join(line for line, name in zip(lines, named) if name is None or name[1] in others)
            (head, _, own), (what, args, rest) = (doc.partition("\n    Args:\n") for doc in (cls.__doc__, common))
            cls.__doc__ = f"{head.rstrip()}\n{what}{args}{own.rstrip(' ')}{rest}"

    __fields__: dict[str, tuple[Any, Any]] = {}  # annotation of each keyword, and its default or ...
    _option_kinds: dict[str, str] = {}  # the annotation of each option: a keyword that is no constant

    @classmethod
    def _take_fields(cls) -> None:
        """Adds an ``__init__`` with the annotations of the class and of its bases as keywords, and removes them from
        the class: they are for type checkers, and instances have the attributes."""
        annotations = vars(cls).get("__annotations__", {})
        names = [name for name in annotations if not name.startswith("_")]
        own = {name: (annotations.pop(name), vars(cls).get(name, ...)) for name in names}
        for name in own:
            if name in vars(cls):
                delattr(cls, name)
        cls.__fields__ = own | {name: field for name, field in cls.__fields__.items() if name not in own}
        kinds = {name: kind for name, (kind, _) in cls.__fields__.items()}
        cls._option_kinds = {n: kind for n, kind in kinds.items() if not kind.startswith(("Number", "float"))}
        cls._as_text = cls._as_text or cls._body is not None
        cls.__init__ = _initializer(cls)  # type: ignore[method-assign]

    def _converted(self, constants: dict[str, Any]) -> dict[str, Any]:
        """Returns the constants, with initial values in place of None."""
        return constants

    def __init__(self, constants: dict[str, Any], options: dict[str, Any]):
        kept = {name: options.pop(name, False) for name in ("stateful", "persistent_state")}
        super().__init__(**kept)
        for name, value in options.items():
            setattr(self, name, value)
        self._ready = True
        self._set_constants(self._converted(constants))

    # --- constants, options and the arguments of the operator

    decay_input, detach_reset, spiking, strict = True, False, True, False
    _ready = False

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._option_kinds.get(name)
        if kind == "bool":
            self._check_flag(name, value)
        elif kind == "int":
            value = check_whole(f"{self._title()}: {name}", value)
            if value < 1:
                raise ValueError(f"{self._title()}: {name} must be 1 or more, but is {value}")
        elif name == "surrogate" and kind:
            try:
                value = surrogates.of(value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{self._title()}: {error}") from None
        elif kind is None and name in OPTIONS:
            raise AttributeError(f"{self._title()}: it has no option {name}")
        super().__setattr__(name, value)
        if kind and self._ready and self._constant_names:
            self._prepare()

    def _prepare(self) -> None:
        self._cell: TextCell | None = None
        keywords = None
        if self._as_text or self.strict or isinstance(self.surrogate, surrogates.Custom):
            self._check_options_of_text()
            try:
                self._cell = predefined_cell(self)
            except ValueError as error:
                raise ValueError(f"{self._title()}: {error}") from None
        else:
            keywords = self._operator_keywords()
        mixes = any(name not in self._required for name in self._placements)
        self._quick = Quick(self._memory, getattr(self, "_op_name", ""), keywords, self._taken, mixes)
        self._check_numbers()

    def _check_options_of_text(self) -> None:
        what = "strict=True" if self.strict else "a Custom surrogate"
        if not self.spiking:
            raise ValueError(
                f"{self._title()}: spiking=False needs a surrogate's primitive, which {what} does not have"
            )

    def _operator_keywords(self) -> dict[str, Any]:
        """Returns the arguments that differ from the operator's defaults: every argument costs time."""
        given = dict(self._numbers, detach_reset=self.detach_reset, spiking=self.spiking)
        given |= {"surrogate": self.surrogate.name, "surrogate_args": list(self.surrogate.args)}
        if "decay_input" in self._option_kinds:
            given["decay_input"] = self.decay_input
        defaults = {
            argument.name: argument.default_value
            for argument in getattr(ops, self._op_name).default._schema.arguments
            if argument.has_default_value()
        }
        keywords = {name: value for name, value in given.items() if name not in defaults or defaults[name] != value}
        if self.surrogate == surrogates.SURROGATES[self.surrogate.name]():
            keywords.pop("surrogate_args", None)
        return keywords

    def _check_numbers(self) -> None:
        """Checks scalars by a call of the operator with 0 steps."""
        check_positive(self)
        nothing, one = torch.empty(0, device="cpu"), torch.ones((), device="cpu")
        keywords = self._quick.keywords
        if keywords is None:
            keywords = {name: value for name, value in self._numbers.items() if name not in self._required}
        try:
            if not self._as_text:
                getattr(ops, self._op_name).default(nothing, **dict.fromkeys(self._required, one), **keywords)
            if self._cell is not None:
                self._cell.check()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self._title()}: {first_line(error)}") from None

    # --- running

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Returns the spikes ``[T, *shape]`` of x ``[T, *shape]``; see :class:`~spikeforge.nn.StatefulModule` for the states."""
        quick = self._quick
        memory = quick.memory
        if state is not ... or store_states or memory.keeping or memory.samples:
            return self._forward((x,), state, store_states)
        try:
            keywords = quick.keywords
            if keywords is None:
                return self._cell.call(self, (x,), NO_STATE, False)[0][0]
            if quick.taken:
                keywords = {**keywords, **taken_by(self, quick.taken, x.dim())}
            return (quick.op if is_dynamo_compiling() else quick.builtin)(x, **keywords)[0]
        except ERRORS as error:
            raise explained(self, error, (x,), NO_STATE)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        quick, x = self._quick, inputs[0]
        try:
            if quick.keywords is None:
                outputs, after = self._cell.call(self, inputs, state, store)
                return outputs[0], dict(zip(self.state_names, after))
            keywords = {**quick.keywords, **taken_by(self, quick.taken, x.dim()), **state}
            if store:
                keywords["store_v"] = True
            if quick.memory.samples:
                keywords |= quick.memory.samples
            spikes, *after = (quick.op if is_dynamo_compiling() else quick.builtin)(x, **keywords)
        except ERRORS as error:
            raise explained(self, error, inputs, state)
        return spikes, dict(zip(self.state_names, after))

    def extra_repr(self) -> str:
        parts = self._described_constants()
        if "v_reset" in self._numbers and self.v_reset is None:
            parts.append("soft reset")
        for name in self._option_kinds:
            value = getattr(self, name)
            if name == "surrogate" or value != self.__fields__[name][1]:
                parts.append(f"{name}={value!r}")
        return ", ".join(parts)


def check_positive(module: ConstantsModule) -> None:
    """Checks constants that are scalars; TextCell checks tensors at each call."""
    for name in module._positive:
        value = module._numbers.get(name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{module._title()}: {name} must be finite and above 0, but is {value}")


class WithStates(PredefinedNeuron):
    stateful: bool = False
    persistent_state: bool = False


class Firing(WithStates):
    surrogate: Surrogate = "sigmoid"
    detach_reset: bool = False
    strict: bool = False


class _Predefined(Firing):
    spiking: bool = True


class IF(_Predefined):
    """Integrate-and-fire: H = V + X. State: v."""

    _op_name = "integrate_and_fire"

    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0


class LIF(_Predefined):
    """Leaky integrate-and-fire: H = V + (X - (V - Vr)) / tau, or without `decay_input` H = V - (V - Vr) / tau + X.
    State: v.

    Vr is v_reset, or 0 under soft reset; tau is above 0, in steps.
    """

    _op_name = "lif"
    _positive = ("tau",)

    tau: Number = 2.0
    decay_input: bool = True
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0


class PLIF(_Predefined):
    """Parametric LIF: a LIF with 1 / tau = sigmoid(w), where w is learned. State: v.

    Args:
        w: by default a learned parameter with the initial value 0 (tau = 2).
        init_tau: the initial tau, above 1, as an alternative to w.
    """

    _op_name = "plif"
    _required = ("w",)

    w: Number | None = None
    init_tau: float | None = None
    decay_input: bool = True
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0

    def _converted(self, constants: dict[str, Any]) -> dict[str, Any]:
        w, init_tau = constants["w"], constants.pop("init_tau")
        if w is not None and init_tau is not None:
            raise ValueError("PLIF: pass w or init_tau, not both: init_tau determines the initial w")
        if init_tau is not None:
            if not is_number(init_tau) or not (1 < init_tau < math.inf):
                raise ValueError(f"PLIF: init_tau must be a finite number above 1, but is {init_tau}")
            w = Learnable(-math.log(init_tau - 1))
        w = Learnable(0.0) if w is None else torch.tensor(float(w), device="cpu") if is_number(w) else w
        return constants | {"w": w}


class QIF(_Predefined):
    """Quadratic integrate-and-fire: H = V + (X + a0 (V - v_rest) (V - v_c)) / tau. State: v."""

    _op_name = "qif"
    _positive = ("tau",)

    tau: Number = 2.0
    v_c: Number = 0.8
    a0: Number = 1.0
    v_threshold: Number = 1.0
    v_rest: Number = 0.0
    v_reset: Number | None = -0.1


class EIF(_Predefined):
    """Exponential integrate-and-fire: H = V + (X + v_rest - V + delta_t exp((V - theta_rh) / delta_t)) / tau.

    State: v.
    """

    _op_name = "eif"
    _positive = ("tau", "delta_t")

    tau: Number = 2.0
    delta_t: Number = 1.0
    theta_rh: Number = 0.8
    v_threshold: Number = 1.0
    v_rest: Number = 0.0
    v_reset: Number | None = -0.1


class Izhikevich(_Predefined):
    """Izhikevich's neuron: H = V + (X + a0 (V - v_rest) (V - v_c) - W) / tau, W' = W + (a (H - v_rest) - W) / tau_w + b
    S.

    States: v, and w, which starts at w_rest.
    """

    _op_name = "izhikevich"
    _outside = ("w_rest",)
    _positive = ("tau", "tau_w")
    state_names = ("v", "w")

    tau: Number = 2.0
    v_c: Number = 0.8
    a0: Number = 1.0
    v_threshold: Number = 1.0
    v_rest: Number = -0.1
    w_rest: Number = 0.0
    v_reset: Number | None = 0.0
    tau_w: Number = 2.0
    a: Number = 0.0
    b: Number = 0.0


class AdaptiveLIF(_Predefined):
    """A LIF whose threshold grows with its spikes: it fires at H >= v_threshold + b A, and A' = decay A + S. States: v,
    a.

    decay is between 0 and 1. A soft reset subtracts the threshold that was crossed.
    """

    _op_name = "adaptive_lif"
    _positive = ("tau",)
    state_names = ("v", "a")

    tau: Number = 2.0
    decay_input: bool = True
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0
    decay: Number = 0.9
    b: Number = 0.1
