"""The neurons of SpikingJelly 2.0 as operators.

Charges are evaluated in SpikingJelly's order, so float32 results have the same bits. SpikingJelly divides by tau; the
predefined operators multiply by 1/tau, which is the same for powers of two. Neurons with other values of tau run as
neuron text.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from spikingjelly.activation_based import base as memory
from spikingjelly.activation_based import neuron, surrogate

from spikeforge._names import SPIKINGJELLY
from spikeforge._numbers import HALF_TYPES, is_number, operand, state_type
from spikeforge.accelerate.in_pieces import is_result_of_chain
from spikeforge.accelerate.layers import NEURONS, is_recomputed, norm_of, normalised, pool_of
from spikeforge.accelerate.replacing import Replaced, Verdict, ancestor, left, named, overridden, own_class, readable
from spikeforge.accelerate.watch import version_of
from spikeforge.nn import published
from spikeforge.nn.layers import fits, is_better_apart, joined, normalised_run, parameter, what_is_normalised
from spikeforge.nn.stateful import first_step_
from spikeforge.nn.text import written

SURROGATES = {getattr(surrogate, name): known for name, known in SPIKINGJELLY.items()}
COUNTS = {surrogate.MultiLevelSpikeCount: ("multi_level_spike_count", ("max_spike_count", "grad_min", "grad_max"))}

NOTES = (
    "in float16 and bfloat16 states are kept in float32, "
    "where SpikingJelly rounds them to the input's type at each step",
)
HARMLESS = ("extra_repr", "supported_step_mode", "reset", "detach")
DYNAMICS = (
    "forward", "single_step_forward", "multi_step_forward", "functional_forward", "single_step_functional_forward",
    "multi_step_functional_forward", "materialize_states",
)  # fmt: skip
COMMON = ("v_threshold", "v_reset", "detach_reset")  # constants of most nodes
QIF = ("tau", "v_c", "a0", "v_rest")  # the constants of nodes that are predefined neurons here
IZHIKEVICH = (*QIF, "w_rest", "tau_w", "a", "b")
EXP_NOTE = "the exponentials of EIF and CLIF may differ from torch's in the last place, and so may their potentials"


# --- the equations of each neuron -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A neuron's equations.

    Attributes:
        constants: the attributes that the text depends on, besides the surrogate's.
        states: the initial values of the text's states, in the order of SpikingJelly's memories.
        text: returns the neuron text of a node with these constants.
        operator: returns the predefined operator and its options, if it evaluates in the same order.
        parameters: returns the tensors that are the text's parameters.
        notes: differences in the last place, for the report.
        surrogates: the surrogates that the node may have; empty if it has none.
        why_not: returns why a node with these constants runs SpikingJelly's code, else None.
        mixin: the class of replaced nodes.
        is_binary: whether the output contains only 0 and 1.
    """

    constants: tuple[str, ...]
    states: Callable[[Any], dict[str, float]]
    text: Callable[[Any, str], str]
    operator: Callable[[Any], tuple[str, dict[str, Any]] | None] = lambda node: None
    parameters: Callable[[Any, torch.dtype], list[torch.Tensor]] = lambda node, dtype: []
    notes: tuple[str, ...] = ()
    surrogates: Mapping[type, tuple[str, tuple[str, ...]]] = field(default_factory=lambda: SURROGATES)
    why_not: Callable[[Any], str | None] = lambda node: None
    mixin: str = "Node"
    is_binary: bool = True


def _resting(node: Any) -> float:
    return 0.0 if node.v_reset is None else node.v_reset


def _v(node: Any) -> dict[str, float]:
    return {"v": _resting(node)}


def _rule(
    name: str, body: Callable[[Any], str], constants: tuple[str, ...] = COMMON, states: Any = _v, *,
    params: Callable[[Any], dict[str, torch.Tensor]] = lambda node: {},
    operands: Callable[[Any], dict[str, Any]] = lambda node: {}, **others: Any,
) -> Rule:  # fmt: skip
    """Returns the rule of a node whose text `body` writes, as the functions of ``spikeforge.nn.published`` do.

    Args:
        params: returns the text's parameters by name.
        operands: returns further attributes of the argument of `body`.
    """

    def text(node: Any, spike: str) -> str:
        spike = "none" if "training" in constants and not node.training else spike
        values = {constant: getattr(node, constant) for constant in constants}
        given: dict[str, Any] = {name: operand(v) if is_number(v) else v for name, v in values.items()}
        named = list(params(node))
        given |= dict(zip(named, named)) | operands(node)
        return written(name, body(SimpleNamespace(fire=lambda e: f"spike({e}, {spike})", **given)), states(node), named)

    def parameters(node: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        return [param.to(dtype) for param in params(node).values()]

    return Rule(constants, states, text, parameters=parameters, **others)


def _zeros(*names: str) -> Callable[[Any], dict[str, float]]:
    return lambda node: dict.fromkeys(names, 0.0)


def _v_and(name: str) -> Callable[[Any], dict[str, float]]:
    return lambda node: {"v": _resting(node), name: 0.0}


def _only_steps(node: Any) -> str | None:
    if node.step_mode != "s":
        return 'only in step mode "s" SpikingJelly evaluates its equations; in "m" it runs the kernel of LIFNode'
    return None


def _predefined(name: str, *constants: str, **attributes: str) -> Callable[[Any, str], str]:
    """Returns a function for the neuron text of a predefined neuron that divides by its time constants.

    Args:
        constants: the attributes of a node that have the same name in this library.
        attributes: other attributes, by the name of the constant in this library.
    """

    def text(node: Any, spike: str) -> str:
        named = {"v_threshold": "v_threshold", **{constant: constant for constant in constants}, **attributes}
        numbers = {constant: float(getattr(node, attribute)) for constant, attribute in named.items()}
        if node.v_reset is not None:
            numbers["v_reset"] = float(node.v_reset)
        return torch.ops.spikeforge.neuron_text(
            name, f"spike(u, {spike})", [], list(numbers), list(numbers.values()),
            detach_reset=bool(node.detach_reset), decay_input=bool(getattr(node, "decay_input", True)), divides=True,
        )  # fmt: skip

    return text


def _exact(*numbers: float) -> bool:
    """Returns True if division by each number and multiplication by its reciprocal give the same bits: powers of
    two."""
    return all(math.isfinite(number) and math.frexp(number)[0] == 0.5 for number in numbers)


def _lif_operator(node: Any) -> tuple[str, dict[str, Any]] | None:
    return ("lif", dict(tau=node.tau, decay_input=node.decay_input)) if _exact(node.tau) else None


def _qif_operator(node: Any) -> tuple[str, dict[str, Any]] | None:
    return ("qif", {name: getattr(node, name) for name in QIF}) if _exact(node.tau) else None


def _izhikevich_operator(node: Any) -> tuple[str, dict[str, Any]] | None:
    return ("izhikevich", {name: getattr(node, name) for name in IZHIKEVICH}) if _exact(node.tau, node.tau_w) else None


def _rate(node: Any) -> dict[str, torch.Tensor]:
    return {"rate": (node.w.float() if node.w.dtype in HALF_TYPES else node.w).sigmoid()}


def _counting(node: Any) -> dict[str, str]:
    """Returns the operands of ILIF. A step and a sequence round differently in SpikingJelly."""
    rate = operand(1.0 - 1.0 / node.tau)
    charge = f"{rate} * v + x" if node.step_mode == "m" else f"v - v / {operand(node.tau)} + x"
    function = node.surrogate_function
    ends = {"levels": function.max_spike_count, "low": function.grad_min, "high": function.grad_max}
    return {"charge": charge, **{name: operand(float(end)) for name, end in ends.items()}}


def _rotation(node: Any) -> dict[str, str]:
    angle = node.omega * node.dt
    turn = {"decay": math.exp(node.b * node.dt), "cosine": math.cos(angle), "sine": math.sin(angle)}
    return {name: operand(number) for name, number in turn.items()}


ACTIVATIONS = {
    **{getattr(torch, name): name for name in ("relu", "sigmoid", "tanh")},
    **{getattr(torch.nn.functional, name): name for name in published.ACTIVATIONS},
    torch.nn.ReLU: "relu", torch.nn.Sigmoid: "sigmoid", torch.nn.Tanh: "tanh",
}  # fmt: skip


def _activation(node: Any) -> str | None:
    kind = type(node.act) if isinstance(node.act, torch.nn.Module) else node.act
    return None if getattr(node.act, "inplace", False) else ACTIVATIONS.get(kind)


def _why_not_analog(node: Any) -> str | None:
    return _only_steps(node) or (None if _activation(node) else "its act is not an activation of neuron text")


def _gates(node: Any) -> dict[str, torch.Tensor]:
    return {name: getattr(node, gate).view(-1, 1, 1).sigmoid() for name, gate in published.GATES.items()}


def _numbered(name: str, values: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{name}{i}": value for i, value in enumerate(values.unbind())}


def _charge_of_simple_lif(n: Any) -> str:
    lost = f"{n.v_reset} - v"
    return f"  h = v + ({lost} + x) / {n.tau}" if n.decay_input else f"  h = v + ({lost}) / {n.tau} + x"


def _why_not_simple(node: Any) -> str | None:
    if node.v_reset is None or (node.v_reset != 0 and not node.decay_input):
        return "without decay_input it starts in double precision" if node.v_reset else "its v_reset is None"
    return None


def _bipolar(n: Any) -> str:
    return (
        f"  h = q + x / {n.q_threshold}\n  n = round(acc_q)\n  up = where(h >= 1 and n < {n.pos_max}, 1, 0)\n"
        f"  down = where(h < 0 and n > {n.neg_min}, 1, 0)\n  s = up - down\n  return s * {n.q_threshold}\n"
        "  q' = h - up + down\n  acc_q' = n + s\n  cur_output' = s"
    )


def _of_channels(node: Any) -> dict[str, torch.Tensor]:
    trailing = (1,) * (-1 - node.channel_dim)
    values = {name: getattr(node, name) for name in ("v_threshold", "v_offset")}
    return {name: value.view(-1, *trailing) if value.dim() else value for name, value in values.items()}


def _integrate(n: Any) -> str:
    return published.firing(n, "  h = v + x")


RULES: dict[type, Rule] = {
    neuron.IFNode: Rule(COMMON, _v, _predefined("integrate_and_fire"), lambda node: ("integrate_and_fire", {})),
    neuron.LIFNode: Rule(("tau", "decay_input", *COMMON), _v, _predefined("lif", "tau"), _lif_operator),
    neuron.ParametricLIFNode: _rule(
        "plif", lambda n: published.firing(n, published.leak(n, rate="* rate")), ("decay_input", *COMMON),
        params=_rate),
    neuron.QIFNode: Rule((*QIF, *COMMON), _v, _predefined("qif", *QIF), _qif_operator),
    neuron.EIFNode: Rule(
        ("tau", "delta_T", "theta_rh", "v_rest", *COMMON), _v,
        _predefined("eif", "tau", "theta_rh", "v_rest", delta_t="delta_T"), notes=(EXP_NOTE,)),
    neuron.IzhikevichNode: Rule(
        (*IZHIKEVICH, *COMMON), lambda node: {"v": _resting(node), "w": node.w_rest},
        _predefined("izhikevich", *IZHIKEVICH), _izhikevich_operator),
    neuron.KLIFNode: _rule(
        "klif", published.klif, ("tau", "decay_input", "scale_reset", *COMMON), params=lambda node: {"k": node.k}),
    neuron.CUBALIFNode: _rule("cuba_lif", published.current_lif, ("c_decay", "v_decay", *COMMON), _v_and("c")),
    neuron.ComplementaryLIFNode: _rule(
        "complementary_lif", published.clif, ("tau", "training", *COMMON), _zeros("v", "m"),
        operands=lambda node: {"detach_reset": False}, notes=(EXP_NOTE,), mixin="ComplementaryNode"),
    neuron.HalfThresholdIFNode: _rule(
        "integrate_and_fire", _integrate, states=lambda node: {"v": node.v_threshold / 2.0}),
    neuron.ILIFNode: _rule(
        "ilif", published.ilif, ("tau", "_step_mode", *COMMON), operands=_counting, surrogates=COUNTS, is_binary=False),
    neuron.TernaryIFNode: _rule("ternary_if", published.ternary, is_binary=False),
    neuron.TernaryLIFNode: _rule("ternary_lif", published.ternary, ("tau", "decay_input", *COMMON), is_binary=False),
    neuron.RAFNode: _rule(
        "resonate_and_fire", published.resonate, ("b", "omega", "dt", *COMMON), _v_and("u"), operands=_rotation),
    neuron.LIAFNode: _rule(
        "liaf", published.liaf, ("tau", "decay_input", "threshold_related", "act", "_step_mode", *COMMON),
        operands=lambda node: {"activation": _activation(node)}, why_not=_why_not_analog, is_binary=False),
    neuron.SLTTLIFNode: _rule(
        "lif", lambda n: published.firing(n, published.leak(n, v="detach(v)" if n.training else "v")),
        ("tau", "decay_input", "training", "_step_mode", *COMMON), why_not=_only_steps),
    neuron.GatedLIFNode: _rule(
        "gated_lif", lambda n: published.gated_charge(n, "x"), ("T",), _zeros("v", "fired"), params=_gates,
        mixin="GatedNode"),
    neuron.SimpleIFNode: _rule("integrate_and_fire", _integrate, states=_zeros("v"), mixin="SimpleNode"),
    neuron.SimpleLIFNode: _rule(
        "lif", lambda n: published.firing(n, _charge_of_simple_lif(n)), ("tau", "decay_input", *COMMON), _zeros("v"),
        why_not=_why_not_simple, mixin="SimpleNode"),
    neuron.ActivationAwareIFNode: _rule(
        "integrate_and_fire", lambda n: _integrate(n).replace("e = h -", "e = h + v_offset -"),
        ("v_reset", "detach_reset", "channel_dim"), params=_of_channels,
        why_not=lambda node: None if node.channel_dim < 0 else "its channel_dim counts from the front"),
    neuron.STBIFNode: _rule(
        "st_bif", _bipolar, (), lambda node: {"q": 0.5, "acc_q": 0.0, "cur_output": 0.0}, surrogates={},
        params=lambda node: {name: getattr(node, name).view(()) for name in ("q_threshold", "pos_max", "neg_min")},
        mixin="InferenceNode", is_binary=False),
    neuron.NonSpikingIFNode: _rule(
        "integrator", lambda n: "  h = v + x\n  return h\n  v' = h", (), _zeros("v"), surrogates={},
        mixin="NonSpikingNode"),
    neuron.NonSpikingLIFNode: _rule(
        "leaky_integrator", lambda n: f"  h = v + (x - v) / {n.tau}\n  return h\n  v' = h", ("tau",), _zeros("v"),
        surrogates={}, mixin="NonSpikingNode"),
    neuron.SlidingPSN: _rule(
        "sliding_psn", published.sliding, ("k",), lambda node: {f"x{i}": 0.0 for i in range(1, node.k)},
        params=lambda node: {**_numbered("weight", node.weight), "bias": node.bias},
        operands=lambda node: {"k": node.k, "weight": [f"weight{i}" for i in range(node.k)]},
        notes=("SlidingPSN adds its inputs in another order than a matrix product",), mixin="SlidingNode"),
}  # fmt: skip
# The classes that are left as they are, by reason.
REASONS: dict[str, str] = {
    name: reason
    for reason, names in {
        "it is one product over the steps, without a loop": "PSN MaskedPSN",
        "it has no recurrence over a sequence: its steps are those of a table":
            "FewSpikeNode HGNode OutlierAwareThresholdNode",
        "its backward pass is that of rates": "DSRIFNode DSRLIFNode",
        "a convolution runs between its steps":
            "ILCBaseNode ILCIFNode ILCLIFNode ILCCUBALIFNode NoisyILCBaseNode NoisyILCCUBALIFNode",
        "a batch normalisation runs between its steps": "MPBNBaseNode MPBNLIFNode",
        "it draws coloured noise before the loop":
            "NoisyBaseNode NoisyCUBALIFNode NoisyNonSpikingBaseNode NoisyNonSpikingIFNode",
        "it returns spikes with a trace, step by step": "OTTTLIFNode",
        "its core is a custom function: spikeforge.trace.from_core traces it": "FlexSN",
        "it is a base class: a subclass defines its dynamics":
            "BaseNode SimpleBaseNode NonSpikingBaseNode AdaptBaseNode",
    }.items()
    for name in names.split()
}  # fmt: skip


# --- the operator of a node -------------------------------------------------------------------------------------------


def _spike(node: Any, rule: Rule) -> tuple[str, list[float]] | None:
    """Returns the surrogate's name and arguments in this library; None for one that it does not have."""
    if not rule.surrogates:
        return "none", []
    function = node.surrogate_function
    known = rule.surrogates.get(type(function))
    if known is None or not function.spiking or "forward" in function.__dict__:
        return None
    numbers = [getattr(function, name) for name in known[1]]
    return (known[0], numbers) if all(is_number(number) for number in numbers) else None


def _signature(node: Any, rule: Rule) -> tuple[Any, ...] | None:
    """Returns all that determines the program of the node; None if SpikingJelly's own code must run it."""
    spike = _spike(node, rule)
    values = [getattr(node, name) for name in rule.constants]
    if spike is None or not all(map(_is_constant, rule.constants, values)) or rule.why_not(node) is not None:
        return None
    return spike[0], tuple(spike[1]), *values


def _is_constant(name: str, value: Any) -> bool:
    if name in ("v_threshold", "v_reset"):
        return is_number(value) or (value is None and name == "v_reset")
    return isinstance(value, (bool, int, float, str)) or name == "act"


class Program(NamedTuple):
    """The program of a node, and the constants for which it was written.

    Attributes:
        attributes: the constants of the node as objects: the program is valid while the node has these.
        signature: their values, without the surrogate object.
        what: the name of a predefined operator, or neuron text.
        options: the operator's options; None for a text.
        starts: the initial values of the states.
    """

    attributes: tuple[Any, ...]
    signature: tuple[Any, ...]
    what: str
    options: dict[str, Any] | None
    starts: tuple[float, ...]


def _attributes(node: Any, rule: Rule) -> tuple[Any, ...]:
    """Returns all that `_signature` reads, unchanged. It is fast, since every call compares it."""
    own = node.__dict__
    modules = own["_modules"]
    function = modules.get("surrogate_function") or getattr(node, "surrogate_function", None)
    numbers = getattr(function, "__dict__", {})
    read = [numbers.get(name) for name in rule.surrogates.get(type(function), ("", ()))[1]]
    constants = [own.get(name, modules.get(name)) for name in rule.constants]
    return function, numbers.get("spiking"), numbers.get("forward"), *read, *constants


def _program(node: Any, rule: Rule, signature: tuple[Any, ...]) -> tuple[str, dict[str, Any] | None]:
    """Returns the operator's name and options, or neuron text."""
    spike, numbers = signature[:2]
    predefined = rule.operator(node)
    if predefined is None:
        return rule.text(node, named(spike, numbers)), None
    common = dict(v_threshold=node.v_threshold, v_reset=node.v_reset, detach_reset=node.detach_reset, surrogate=spike)
    return predefined[0], {**predefined[1], **common, "surrogate_args": [float(number) for number in numbers]}


def _state(value: Any, start: float, x: torch.Tensor) -> torch.Tensor | None:
    """Returns a memory as an argument of the operator; None if it has its initial value, or another shape than x."""
    if not isinstance(value, torch.Tensor):
        return (
            None
            if value is None or value == start
            else torch.full(x.shape[1:], value, dtype=state_type(x.dtype), device=x.device)
        )
    if value.shape != x.shape[1:]:
        return None
    fits = value.dtype == x.dtype or value.dtype == state_type(x.dtype)
    return value if fits and value.device == x.device else value.to(device=x.device, dtype=state_type(x.dtype))


class Ahead(NamedTuple):
    """The results of a neuron that ran before its call, for the call that passes this input under these conditions."""

    input: weakref.ref[torch.Tensor]
    conditions: tuple[Any, ...]
    spikes: torch.Tensor
    states: Any


_ahead: weakref.WeakKeyDictionary[Any, Ahead] = weakref.WeakKeyDictionary()


def _are_same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    return before[:2] == now[:2] and len(before) == len(now) and all(a is b for a, b in zip(before[2:], now[2:]))


class Node(Replaced):
    """A node of SpikingJelly that runs all steps of a call at once, and the batch normalisation that accelerate.layers
    has fused into it."""

    takes_norm = is_binary = True

    def materialize_states(self, inputs, states, step_mode):
        return super().materialize_states(inputs, states, step_mode) if self._fused(inputs) is None else states

    def single_step_functional_forward(self, inputs, states, **kwargs):
        fused = None if kwargs else self._fused(inputs)
        if fused is None:
            if norm_of(self) is not None:
                inputs = (normalised(self, inputs[0].unsqueeze(0)).squeeze(0), *inputs[1:])
            return super().single_step_functional_forward(inputs, states, **kwargs)
        spikes, states = self._run(fused, inputs[0].unsqueeze(0), states)
        return (first_step_(spikes),), tuple(states)

    def multi_step_functional_forward(self, inputs, states, **kwargs):
        fused = None if kwargs else self._fused(inputs)
        if fused is None:
            return super().multi_step_functional_forward((normalised(self, inputs[0]), *inputs[1:]), states, **kwargs)
        spikes, states = self._run(fused, inputs[0], states)
        return (spikes,), tuple(states)

    def single_step_forward(self, x, *args, residual=None, **kwargs):
        return joined(super().single_step_forward(x, *args, **kwargs), residual)

    def multi_step_forward(self, x_seq, *args, residual=None, **kwargs):
        """With `residual`, a pair of a mode and a tensor r: joins the spikes with r."""
        if is_result_of_chain(self, x_seq):
            return x_seq
        if not torch.compiler.is_compiling() and self in _ahead:
            ahead = _ahead.pop(self)
            if ahead.input() is x_seq and _are_same(ahead.conditions, self._conditions(x_seq)):
                self._take(ahead.states)
                return ahead.spikes
        fused = None if args or kwargs else self._fused((x_seq,))
        keeps = self._keeps_states()
        if fused is None:
            before = dict(self._memories)
            spikes = joined(super().multi_step_forward(normalised(self, x_seq), *args, **kwargs), residual)
            if not keeps:
                self._memories.update(before)
            return spikes
        store, before = self._stores_states(), tuple(self._memories.values())
        spikes, states = self._run(fused, x_seq, before, store, residual, last_states=store or keeps)
        if store:
            self._keep_sequences(states)
            states = [state[-1].clone() for state in states] if keeps else []
        self._take(states)
        return spikes

    def run_ahead(self, norm, x, residual):
        """Runs the neuron on the sum of the normalised x and a residual, and keeps its spikes for the call that passes
        this sum. Returns the sum; None if the operator cannot compute this call."""
        program = self._fused((x,))
        if (
            program is None
            or self.step_mode != "m"
            or self._stores_states()
            or not fits(residual, x)
            or is_better_apart(x)
            and not is_recomputed(norm)
            or torch.compiler.is_compiling()
        ):
            return None
        states, options = tuple(self._memories.values()), {"last_states": self._keeps_states(), "norm": norm}
        (spikes, total), states = self._run(program, x, states, residual=("membrane", residual), **options)
        _ahead[self] = Ahead(weakref.ref(total), self._conditions(total), spikes, states)
        return total

    def _conditions(self, x):
        """Returns the objects that determine the result of a call with x."""
        modes = torch.is_grad_enabled(), self.training, self._stores_states(), self._keeps_states()
        return version_of(x), modes, self._current(), *self._memories.values()

    def _keeps_states(self):
        return self.__dict__.get("_spikeforge_keeps_states", True)

    def _take(self, states):
        """Stores the states after a sequence, unless keep_states is False."""
        if self._keeps_states():
            self._memories.update(zip(self._memories, states))

    def _from_rest(self, x, dtype):
        """Returns text and parameters of a node whose states all have their initial values, else None."""
        program = self._fused((x,))
        if program is None or self._stores_states():
            return None
        if any(isinstance(v, torch.Tensor) or v != start for v, start in zip(self._memories.values(), program.starts)):
            return None
        return self._text(program), RULES[type(self).of_node].parameters(self, dtype)

    def _stores_states(self):
        return getattr(self, "store_v_seq", False)

    def _keep_sequences(self, sequences):
        self.v_seq = sequences[0]

    def _fused(self, inputs):
        """Returns the program of the node; None if only SpikingJelly's own code can run the call."""
        x = inputs[0]
        if (
            getattr(self, "_neuron_precision", None) is not None
            or len(inputs) != 1
            or not x.is_floating_point()
            or x.layout != torch.strided
        ):
            return None
        return self._current()

    def _prepare(self):
        self._current()

    def _current(self):
        """Returns the program for the node's current constants; None if there is none."""
        kept, rule = self.__dict__.get("_spikeforge"), RULES[type(self).of_node]
        compiling = torch.compiler.is_compiling()  # which does not preserve the identity of scalars
        if kept is not None and not compiling and all(map(operator.is_, _attributes(self, rule), kept.attributes)):
            return kept
        signature = _signature(self, rule)
        if signature is None:
            return None
        if kept is None or kept.signature != signature or not compiling:
            starts = tuple(rule.states(self).values())
            kept = Program(_attributes(self, rule), signature, *_program(self, rule, signature), starts)
            self.__dict__["_spikeforge"] = kept
        return kept

    def _run(self, program, x, states, store=False, residual=None, last_states=True, norm=None):
        """Returns spikes, joined with the residual, and states: with `store` those of all steps, else the last ones,
        which may be missing without `last_states`. With `norm`, the normalisation of x, spikes and the neuron's input."""
        norm, pool = (norm_of(self), pool_of(self)) if norm is None else (norm, None)
        apart = norm is None or is_better_apart(x) and not is_recomputed(norm)
        # After a pooling the residual has the maxima's sizes; torch joins it, unless they equal those of x.
        if residual is not None and (apart or not fits(residual[1], x)):
            spikes, states = self._run(program, x, states, store, last_states=last_states)
            return joined(spikes, residual), states
        if apart and norm is not None:
            norm, x = None, normalised(self, x)
        elif norm is not None:
            weight = parameter(norm, "weight")
            x, *statistics = what_is_normalised(norm, pool, weight, x)
        bits = self.__dict__.get("_spikeforge_packs", 0)
        states = [_state(value, start, x) for value, start in zip(states, program.starts)]
        if norm is None and program.options is not None:
            overload = getattr(torch.ops.spikeforge, program.what).default
            spikes, *states = overload(x, *states, **program.options, store_v=store, bits=bits)
            return spikes, states
        dtype = state_type(x.dtype)
        if all(state is None for state in states):
            states = []
        states = [
            torch.full(x.shape[1:], start, dtype=dtype, device=x.device) if state is None else state
            for state, start in zip(states, program.starts)
        ]
        parameters = RULES[type(self).of_node].parameters(self, dtype)
        if norm is None:
            run = torch.ops.spikeforge.run
            (spikes,), states = run(program.what, [x], states, parameters, store_states=store, bits=bits)
            return spikes, states
        call = self._text(program), [x], states, parameters
        options = {"store_states": store, "bits": bits, "last_states": last_states}
        outputs, states = normalised_run(call, norm, weight, *statistics, residual, **options)
        return outputs[0] if len(outputs) == 1 else outputs, states

    def _text(self, program):
        """Returns the neuron text of a program, also of a predefined operator."""
        if program.options is None:
            return program.what
        kept = self.__dict__.get("_spikeforge_text")
        if kept is None or kept[0] != program.signature:
            text = RULES[type(self).of_node].text(self, named(*program.signature[:2]))
            kept = self.__dict__["_spikeforge_text"] = program.signature, text
        return kept[1]


class ComplementaryNode(Node):
    """The complementary LIF neuron, which stores the sequences of both of its states, or none."""

    def _stores_states(self):
        return self.store_state_seqs

    def _keep_sequences(self, sequences):
        self.state_seqs = list(sequences)


class PlainNode(Node):
    """A node that no normalisation is fused into."""

    takes_norm = False


class GatedNode(PlainNode):
    """The gated LIF neuron: a call takes images and all of its steps; it starts with no spike, and keeps V twice."""

    def _fused(self, inputs):
        x = inputs[0]
        fits = self.step_mode == "m" and x.dim() == 5 and x.shape[0] == self.T
        return super()._fused(inputs) if fits else None

    def _run(self, program, x, states, *args, **kwargs):
        beta, conduct = self.beta.view(-1, 1, 1).sigmoid(), self.conduct.view(self.T, 1, -1, 1, 1).sigmoid()
        x = x * (1 - beta * (1 - conduct)).to(x.dtype)
        spikes, (v, _) = super()._run(program, x, (states[0], 0.0), *args, **kwargs)
        return spikes, [v, v]


class SimpleNode(PlainNode):
    """A node of SpikingJelly without functional forwards."""

    def single_step_forward(self, x):
        fused = self._fused((x,)) is not None
        return memory.MemoryModule.single_step_forward(self, x) if fused else super().single_step_forward(x)


class InferenceNode(PlainNode):
    """A node that SpikingJelly runs without gradients only."""

    def _fused(self, inputs):
        trains = torch.is_grad_enabled() and inputs[0].requires_grad
        return None if trains or not len(inputs[0]) else super()._fused(inputs)


class NonSpikingNode(PlainNode):
    """A node without memories, whose potentials over the steps are decoded by SpikingJelly's forward."""

    def forward(self, x_seq):
        program = self._fused((x_seq,))
        self.__dict__["_spikeforge_charged"] = program is not None
        if program is not None:
            (x_seq,), _ = torch.ops.spikeforge.run(program.what, [x_seq], [], [])
        return super().forward(x_seq)

    def neuronal_charge(self, x):
        if self._spikeforge_charged:
            self.v = x
        else:
            super().neuronal_charge(x)


class SlidingNode(PlainNode):
    """The sliding PSN: a sequence starts without inputs before it, and keeps none."""

    def single_step_functional_forward(self, inputs, states, **kwargs):
        return super(Node, self).single_step_functional_forward(inputs, states, **kwargs)

    def _run(self, program, x, states, *args, **kwargs):
        return super()._run(program, x, program.starts, *args, **kwargs)[0], states


_MIXINS: dict[type, type[Node]] = {
    base: type(
        f"Fused{base.__name__}",
        (globals()[rule.mixin],),
        {"__module__": __name__, "of_node": base, "is_binary": rule.is_binary},
    )
    for base, rule in RULES.items()
}
globals().update({mixin.__name__: mixin for mixin in _MIXINS.values()})  # where pickle finds them


# --- which modules are replaced --------------------------------------------------------------------------------------


def examine(module: torch.nn.Module) -> Verdict | None:
    """Returns the verdict on a module; None if it is not a neuron of SpikingJelly."""
    if ancestor(module, NEURONS) is None:
        return None
    base = next((cls for cls in own_class(module).__mro__ if cls in RULES or cls.__name__ in REASONS), None)
    if base not in RULES:
        return left("it has no fused form here" if base is None else REASONS[base.__name__])
    if not hasattr(neuron.BaseNode, "single_step_functional_forward"):
        return left("its version is not SpikingJelly 2, the supported one")
    changed = overridden(module, base, HARMLESS, DYNAMICS)
    if changed is not None:
        return left(f"it defines its own {changed}")
    return _readiness(module, base)


def _readiness(node: Any, base: type) -> Verdict:
    function, rule = getattr(node, "surrogate_function", None), RULES[base]
    if getattr(node, "_neuron_precision", None) is not None:
        return left("its precision was set explicitly")
    if not getattr(function, "spiking", True):
        return left("its surrogate has spiking=False, so that it does not spike")
    if _spike(node, rule) is None:
        return left(
            f"its surrogate {type(function).__name__} is not one of the library's, or its arguments are not numbers"
        )
    why = rule.why_not(node)
    if why is not None:
        return left(why)
    signature = _signature(node, rule)
    if signature is None:
        return left("v_threshold, v_reset or another constant is not a number")
    program, options = _program(node, rule, signature)
    what = f"neuron text {program.split('(')[0].split()[1]}" if options is None else program
    of_surrogate = f", {readable(*signature[:2])}" if rule.surrogates else ""
    return Verdict(_MIXINS[base], f"{what}{of_surrogate}", rule.notes)
