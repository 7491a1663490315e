"""The neurons of SpikingJelly 2.0 as operators.

Charges are evaluated in SpikingJelly's order, so float32 results have the same bits. SpikingJelly divides by tau; the
predefined operators multiply by 1/tau, which is the same for powers of two. Neurons with other values of tau run as
neuron text.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from spikingjelly.activation_based import neuron, surrogate

from spikeforge._names import SPIKINGJELLY
from spikeforge._numbers import HALF_TYPES, is_number, operand, state_type
from spikeforge.accelerate.in_pieces import is_result_of_chain
from spikeforge.accelerate.layers import NEURONS, is_recomputed, norm_of, normalised, pool_of
from spikeforge.accelerate.replacing import Replaced, Verdict, ancestor, left, named, overridden, own_class, readable
from spikeforge.nn.layers import fits, is_better_apart, joined, normalised_run, parameter, what_is_normalised
from spikeforge.nn.stateful import first_step_

SURROGATES = {getattr(surrogate, name): known for name, known in SPIKINGJELLY.items()}

NOTES = (
    "in float16 and bfloat16 states are kept in float32, "
    "where SpikingJelly rounds them to the input's type at each step",
)
HARMLESS = ("extra_repr", "supported_step_mode", "reset", "detach")
DYNAMICS = (
    "forward", "single_step_forward", "multi_step_forward", "functional_forward", "single_step_functional_forward",
    "multi_step_functional_forward", "materialize_states",
)  # fmt: skip
QIF = ("tau", "v_c", "a0", "v_rest")  # the constants of nodes that are predefined neurons here
IZHIKEVICH = (*QIF, "w_rest", "tau_w", "a", "b")
EXP_NOTE = "the exponentials of EIF and CLIF may differ from torch's in the last place, and so may their potentials"


# --- the equations of each neuron -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A neuron's equations.

    Attributes:
        constants: the attributes that are scalars (or booleans), besides v_threshold, v_reset and detach_reset.
        states: the memories in SpikingJelly's order, with the initial value of each.
        text: returns the neuron text of a node with these constants.
        operator: returns the predefined operator and its options, if it evaluates in the same order.
        parameters: returns the tensors that are the text's parameters.
        notes: differences in the last place, for the report.
    """

    constants: tuple[str, ...]
    states: Callable[[Any], dict[str, float]]
    text: Callable[[Any, str], str]
    operator: Callable[[Any], tuple[str, dict[str, Any]] | None] = lambda node: None
    parameters: Callable[[Any, torch.dtype], list[torch.Tensor]] = lambda node, dtype: []
    notes: tuple[str, ...] = ()


def _resting(node: Any) -> float:
    return 0.0 if node.v_reset is None else node.v_reset


def _v(node: Any) -> dict[str, float]:
    return {"v": _resting(node)}


def _reset(node: Any, h: str = "h", threshold: str | None = None) -> str:
    """Returns the membrane potential after the spike s at the charge h."""
    s = "detach(s)" if node.detach_reset else "s"
    if node.v_reset is None:
        return f"{h} - {s} * {threshold or operand(node.v_threshold)}"
    return f"select({s}, {operand(node.v_reset)}, {h})"


def _neuron(name: str, node: Any, charge: str, spike: str, after: str = "", parameters: str = "") -> str:
    """Returns neuron text with one potential v: charge, fire, reset."""
    head = f"x; v = {_resting(node)!r}" + (f"; {parameters}" if parameters else "")
    return (
        f"neuron {name}({head}) {{\n{charge}\n  s = spike(h - {operand(node.v_threshold)}, {spike})\n"
        f"  return s\n  v' = {after or _reset(node)}\n}}\n"
    )


def _leak(node: Any, rate: str) -> str:
    """Returns the charge of a leaky neuron; `rate` multiplies by 1/tau or divides by tau."""
    leak = "v" if _resting(node) == 0 else f"(v - {operand(node.v_reset)})"
    return f"  h = v + (x - {leak}) {rate}" if node.decay_input else f"  h = v - {leak} {rate} + x"


def _plif_text(node: Any, spike: str) -> str:
    return _neuron("plif", node, _leak(node, "* rate"), spike, parameters="rate")


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


def _klif_text(node: Any, spike: str) -> str:
    charge = _leak(node, f"/ {operand(node.tau)}").replace("h =", "c =") + "\n  h = relu(k * c)"
    scaled = _reset(node, "h / k", f"({operand(node.v_threshold)} / k)") if node.scale_reset else ""
    return _neuron("klif", node, charge, spike, scaled, parameters="k")


def _cuba_text(node: Any, spike: str) -> str:
    return (
        f"neuron cuba_lif(x; v = {_resting(node)!r}, c) {{\n  i = c * {operand(node.c_decay)} + x\n"
        f"  h = v * {operand(node.v_decay)} + i\n  s = spike(h - {operand(node.v_threshold)}, {spike})\n"
        f"  return s\n  v' = {_reset(node)}\n  c' = i\n}}\n"
    )


def _complementary_text(node: Any, spike: str) -> str:
    threshold, tau = operand(node.v_threshold), operand(node.tau)
    spike = spike if node.training else "none"
    return (
        f"neuron complementary_lif(x; v, m) {{\n  h = v - v / {tau} + x\n  s = spike(h - {threshold}, {spike})\n"
        f"  n = m * sigmoid(h / {tau}) + s\n  return s\n  v' = h - s * ({threshold} + sigmoid(n))\n  m' = n\n}}\n"
    )


def _half_threshold_text(node: Any, spike: str) -> str:
    text = _neuron("integrate_and_fire", node, "  h = v + x", spike)
    return text.replace("v = 0.0", f"v = {node.v_threshold / 2.0!r}", 1)


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


def _rate(node: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    w = node.w.float() if node.w.dtype in HALF_TYPES else node.w
    return [w.sigmoid().to(dtype)]


RULES: dict[type, Rule] = {
    neuron.IFNode: Rule((), _v, _predefined("integrate_and_fire"), lambda node: ("integrate_and_fire", {})),
    neuron.LIFNode: Rule(("tau", "decay_input"), _v, _predefined("lif", "tau"), _lif_operator),
    neuron.ParametricLIFNode: Rule(("decay_input",), _v, _plif_text, parameters=_rate),
    neuron.QIFNode: Rule(QIF, _v, _predefined("qif", *QIF), _qif_operator),
    neuron.EIFNode: Rule(
        ("tau", "delta_T", "theta_rh", "v_rest"),
        _v,
        _predefined("eif", "tau", "theta_rh", "v_rest", delta_t="delta_T"),
        notes=(EXP_NOTE,),
    ),
    neuron.IzhikevichNode: Rule(
        IZHIKEVICH,
        lambda node: {"v": _resting(node), "w": node.w_rest},
        _predefined("izhikevich", *IZHIKEVICH),
        _izhikevich_operator,
    ),
    neuron.KLIFNode: Rule(
        ("tau", "decay_input", "scale_reset"), _v, _klif_text, parameters=lambda node, dtype: [node.k.to(dtype)]
    ),
    neuron.CUBALIFNode: Rule(("c_decay", "v_decay"), lambda node: {"v": _resting(node), "c": 0.0}, _cuba_text),
    neuron.ComplementaryLIFNode: Rule(
        ("tau", "training"), lambda node: {"v": 0.0, "m": 0.0}, _complementary_text, notes=(EXP_NOTE,)
    ),
    neuron.HalfThresholdIFNode: Rule((), lambda node: {"v": node.v_threshold / 2.0}, _half_threshold_text),
}


# --- the operator of a node -------------------------------------------------------------------------------------------


def _spike(function: Any) -> tuple[str, list[float]] | None:
    """Returns the surrogate's name and arguments in this library; None for one that it does not have."""
    known = SURROGATES.get(type(function))
    if known is None or not function.spiking or "forward" in function.__dict__:
        return None
    numbers = [getattr(function, name) for name in known[1]]
    return (known[0], numbers) if all(is_number(number) for number in numbers) else None


def _signature(node: Any, rule: Rule) -> tuple[Any, ...] | None:
    """Returns all scalars that determine the program of the node; None if one of them is not a scalar."""
    spike = _spike(node.surrogate_function)
    numbers = [getattr(node, name) for name in rule.constants]
    fit = all(isinstance(number, (bool, int, float)) for number in numbers)
    if (
        spike is None
        or not fit
        or not is_number(node.v_threshold)
        or not (node.v_reset is None or is_number(node.v_reset))
    ):
        return None
    return spike[0], tuple(spike[1]), node.v_threshold, node.v_reset, bool(node.detach_reset), tuple(numbers)


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
    function = own["_modules"].get("surrogate_function") or node.surrogate_function
    numbers = getattr(function, "__dict__", {})
    read = [numbers.get(name) for name in SURROGATES.get(type(function), ("", ()))[1]]
    return (
        function, numbers.get("spiking"), numbers.get("forward"), *read, own.get("v_threshold"), own.get("v_reset"),
        own.get("detach_reset"), *[own.get(name) for name in rule.constants],
    )  # fmt: skip


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
        return None if value == start else torch.full(x.shape[1:], value, dtype=state_type(x.dtype), device=x.device)
    if value.shape != x.shape[1:]:
        return None
    fits = value.dtype == x.dtype or value.dtype == state_type(x.dtype)
    return value if fits and value.device == x.device else value.to(device=x.device, dtype=state_type(x.dtype))


# By neuron that has run before its call: the input that it will receive, with its version, and its spikes and states.
_ahead: weakref.WeakKeyDictionary[Any, tuple[Any, int, torch.Tensor, Any]] = weakref.WeakKeyDictionary()


class Node(Replaced):
    """A node of SpikingJelly that runs all steps of a call at once, and the batch normalisation that accelerate.layers
    has fused into it."""

    takes_norm = True

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
        if self in _ahead:
            total, version, spikes, states = _ahead.pop(self)
            if total() is x_seq and x_seq._version == version:
                self._take(states)
                return spikes
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
        _ahead[self] = weakref.ref(total), total._version, spikes, states
        return total

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
        return self.store_v_seq

    def _keep_sequences(self, sequences):
        self.v_seq = sequences[0]

    def _fused(self, inputs):
        """Returns the program of the node; None if only SpikingJelly's own code can run the call."""
        x = inputs[0]
        if (
            self._neuron_precision is not None
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


_MIXINS: dict[type, type[Node]] = {
    base: type(
        f"Fused{base.__name__}",
        (ComplementaryNode if base is neuron.ComplementaryLIFNode else Node,),
        {"__module__": __name__, "of_node": base},
    )
    for base in RULES
}
globals().update({mixin.__name__: mixin for mixin in _MIXINS.values()})  # where pickle finds them


# --- which modules are replaced --------------------------------------------------------------------------------------


def examine(module: torch.nn.Module) -> Verdict | None:
    """Returns the verdict on a module; None if it is not a neuron of SpikingJelly."""
    if ancestor(module, NEURONS) is None:
        return None
    base = next((cls for cls in own_class(module).__mro__ if cls in RULES), None)
    if isinstance(module, neuron.FlexSN):
        return left("its core is a custom function: spikeforge.trace.from_core traces it")
    if base is None:
        return left("it has no fused form here")
    if not hasattr(neuron.BaseNode, "single_step_functional_forward"):
        return left("its version is not SpikingJelly 2, the supported one")
    changed = overridden(module, base, HARMLESS, DYNAMICS)
    if changed is not None:
        return left(f"it defines its own {changed}")
    return _readiness(module, base)


def _readiness(node: Any, base: type) -> Verdict:
    function, rule = node.surrogate_function, RULES[base]
    if node._neuron_precision is not None:
        return left("its precision was set explicitly")
    if not getattr(function, "spiking", True):
        return left("its surrogate has spiking=False, so that it does not spike")
    if _spike(function) is None:
        return left(
            f"its surrogate {type(function).__name__} is not one of the library's, or its arguments are not numbers"
        )
    signature = _signature(node, rule)
    if signature is None:
        return left("v_threshold, v_reset or another constant is not a number")
    program, options = _program(node, rule, signature)
    what = f"neuron text {program.split('(')[0].split()[1]}" if options is None else program
    return Verdict(_MIXINS[base], f"{what}, {readable(*signature[:2])}", rule.notes)
