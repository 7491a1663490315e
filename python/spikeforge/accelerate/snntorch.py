"""The neurons of snnTorch 1.0 as operators: one step per call, in the order of snnTorch's own arithmetic.

snnTorch fires above the threshold, and resets by the spike of the previous step: if the potential after the previous
step was above the threshold, the current step subtracts the threshold from its result, or sets it to zero.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, NamedTuple

import snntorch
import torch
from snntorch import surrogate

from spikeforge._numbers import is_number, operand, state_type
from spikeforge.accelerate.replacing import Replaced, Verdict, ancestor, left, named, overridden, own_class, readable
from spikeforge.nn.stateful import first_step_
from spikeforge.nn.text import BUILTIN, OPERATOR, is_compiling

PACKAGE = "snntorch._neurons"
NOTES = (
    "in float16 and bfloat16 states are kept in float32, where snnTorch rounds them to the input's type at each step",
)
HARMLESS = (
    "reset_mem", "init_leaky", "init_synaptic", "init_lapicque", "init_alpha", "init_rleaky", "init_rsynaptic",
    "extra_repr", "reset_hidden", "detach_hidden",
)  # fmt: skip
DYNAMICS = ("forward", "fire", "mem_reset", "_base_state_function")
RESETS = {"_base_sub": ("subtract", 0), "_base_zero": ("zero", 1), "_base_int": ("none", 2)}


# --- surrogates ------------------------------------------------------------------------------------------------------


class Spike(NamedTuple):
    """A surrogate: its text for a spike at u, and its title in the report."""

    text: str
    title: str


def _built_in(name: str, *arguments: str):
    """Returns a surrogate of this library; `arguments` are the names in snnTorch, in this library's order."""

    def spike(numbers: dict[str, Any]) -> Spike:
        values = [numbers[argument] for argument in arguments]
        return Spike(f"spike_strict(u, {named(name, values)})", readable(name, values))

    return spike


def _heaviside(numbers: dict[str, Any]) -> Spike:
    return Spike("add_gradient(spike_strict(u, none), u, where(u > 0, 1, 0))", "heaviside")


def _sparse_fast_sigmoid(numbers: dict[str, Any]) -> Spike:
    slope, least = numbers["slope"], numbers["B"]
    derivative = f"where(u > {operand(least)}, surrogate_gradient(u, {named('fast_sigmoid', [slope])}), 0)"
    return Spike(f"add_gradient(spike_strict(u, none), u, {derivative})", f"SFS({slope:g}, {least:g})")


# By the code of the function that snnTorch's makers of surrogates return. Its LSO raises an error, and SSO is random.
SURROGATES: dict[types.CodeType, Any] = {
    surrogate.straight_through_estimator().__code__: _built_in("straight_through"),
    surrogate.triangular().__code__: _built_in("triangular", "threshold"),
    surrogate.fast_sigmoid().__code__: _built_in("fast_sigmoid", "slope"),
    surrogate.atan().__code__: _built_in("atan", "alpha"),
    surrogate.sigmoid().__code__: _built_in("sigmoid", "slope"),
    surrogate.spike_rate_escape().__code__: _built_in("spike_rate_escape", "beta", "slope"),
    surrogate.heaviside().__code__: _heaviside,
    surrogate.SFS().__code__: _sparse_fast_sigmoid,
}


def _spike(function: Any) -> Spike | None:
    """Returns the surrogate that a function of snnTorch computes; None for any other function."""
    if function is snntorch.SpikingNeuron._surrogate_bypass:
        return Spike("spike_strict(u, none)", "no surrogate")
    maker = SURROGATES.get(getattr(function, "__code__", None))
    if maker is None:
        return None
    cells = function.__closure__ or ()
    numbers = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells)}
    return maker(numbers) if all(is_number(number) for number in numbers.values()) else None


# --- the equations of each neuron -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A neuron's equations: g is its graded spike, r the spike of the previous step, v the potential.

    Attributes:
        states: the buffers of its states, in the order of the text's.
        parameters: the buffers or parameters that are parameters of the text.
        step: statements that compute the next states from x, r and the states; the potential is h.
        next: the next states after h, by their names in the text.
        texts: the names of the states in the text.
        recurrent: whether a layer maps the spikes of the step before to a second input.
    """

    states: tuple[str, ...]
    texts: tuple[str, ...]
    parameters: tuple[str, ...]
    step: dict[str, str]
    next: dict[str, str]
    recurrent: bool = False


def _leaky(charge: str) -> dict[str, str]:
    """Returns the three resets of a charge."""
    return {
        "subtract": f"h = {charge} - r * threshold",
        "zero": f"c = {charge}; h = c - r * c",
        "none": f"h = {charge}",
    }


def _synaptic(current: str) -> dict[str, str]:
    """Returns the three resets of a potential that a decaying current charges; the current is not reset."""
    charge = f"i = {current}; c = clamp(beta, 0, 1) * v + i"
    return {
        "subtract": f"{charge}; h = c - r * threshold",
        "zero": f"{charge}; h = c - c * r",
        "none": f"{charge}; h = c",
    }


LAPICQUE = "x * R * (1 / (R * C)) * time_step + (1 - time_step / (R * C)) * v"
ALPHA = "e = clamp(alpha, 0, 1) * p + x; n = clamp(beta, 0, 1) * q - x; c = tau_alpha * (e + n)"

RULES: dict[type, Rule] = {
    snntorch.Leaky: Rule(
        ("mem",),
        ("v",),
        ("beta", "threshold", "graded"),
        {
            "subtract": "h = clamp(beta, 0, 1) * v + x - r * threshold",
            "zero": "h = clamp(beta, 0, 1) * ((1 - r) * v) + x",
            "none": "h = clamp(beta, 0, 1) * v + x",
        },
        {},
    ),
    snntorch.Synaptic: Rule(
        ("syn", "mem"),
        ("y", "v"),
        ("alpha", "beta", "threshold", "graded"),
        _synaptic("clamp(alpha, 0, 1) * y + x"),
        {"y": "i"},
    ),
    snntorch.Lapicque: Rule(("mem",), ("v",), ("R", "C", "time_step", "threshold", "graded"), _leaky(LAPICQUE), {}),
    snntorch.Alpha: Rule(
        ("syn_exc", "syn_inh", "mem"),
        ("p", "q", "v"),
        ("alpha", "beta", "tau_alpha", "threshold", "graded"),
        {
            "subtract": f"{ALPHA}; a = e - threshold * r; b = n - n * r; h = c - (-q) * r",
            "zero": f"{ALPHA}; a = e - e * r; b = n - n * r; h = c - c * r",
            "none": f"{ALPHA}; a = e; b = n; h = c",
        },
        {"p": "a", "q": "b"},
    ),
    snntorch.RLeaky: Rule(
        ("mem",), ("v",), ("beta", "threshold", "graded"), _leaky("(clamp(beta, 0, 1) * v + x + z)"), {}, recurrent=True
    ),
    snntorch.RSynaptic: Rule(
        ("syn", "mem"),
        ("y", "v"),
        ("alpha", "beta", "threshold", "graded"),
        _synaptic("clamp(alpha, 0, 1) * y + x + z"),
        {"y": "i"},
        recurrent=True,
    ),
}

# The change of the potential by a reset in the same step: `d` is 1 if it is due and has not been applied.
AT_ONCE = {"subtract": "h - d * threshold", "zero": "h - d * h", "none": "h"}


def _text(rule: Rule, name: str, reset: str, delayed: bool, spike: Spike) -> str:
    """Returns neuron text of one step."""
    inputs = "x, z" if rule.recurrent else "x"
    lines = [
        "r = detach(spike_strict(v - threshold, none))",
        rule.step[reset],
        "u = h - threshold",
        f"s = {spike.text}",
        "g = s * graded",
    ]
    if not delayed and reset != "none":
        lines.append("d = g / graded - r")
    lines += ["return g", f"v' = {'h' if delayed else AT_ONCE[reset]}"]
    lines += [f"{state}' = {value}" for state, value in rule.next.items()]
    head = f"neuron {name}({inputs}; {', '.join(rule.texts)}; {', '.join(rule.parameters)})"
    return head + " {\n  " + "\n  ".join(lines) + "\n}\n"


# --- the operator of a neuron -----------------------------------------------------------------------------------------


class Neuron(Replaced):
    """A neuron of snnTorch whose step is one operator."""

    def _step(self, input_, given):
        """Returns the result of the neuron's forward for a step; `given` has the states that the caller passed."""
        if not self._unchanged() or (self.init_hidden and any(value is not None for value in given.values())):
            return None
        rule = RULES[type(self).of_neuron]
        names = ("spk", *rule.states) if rule.recurrent else rule.states
        values = {name: getattr(self, name) if given[name] is None else given[name] for name in names}
        for name, value in values.items():
            if value.shape != input_.shape:
                values[name] = torch.zeros_like(input_, device=value.device)
        parameters = self._parameters_of(rule, input_)
        states = [values[name] for name in rule.states]
        if parameters is None or any(state.dtype not in (input_.dtype, state_type(input_.dtype)) for state in states):
            return None
        inputs = [input_.unsqueeze(0)]
        if rule.recurrent:
            self._set(values)
            arriving = self.recurrent(self.spk)
            if arriving.shape != input_.shape or arriving.dtype != input_.dtype:
                return None
            inputs.append(arriving.unsqueeze(0))
        run = OPERATOR if is_compiling() else BUILTIN
        (spikes,), after = run(self._spikeforge["text"], inputs, states, parameters)
        values.update(zip(rule.states, after))
        spikes = first_step_(spikes)
        if spikes.dtype != torch.float32:
            spikes = spikes.float()  # snnTorch's surrogates return float32 for every type
        if rule.recurrent:
            values["spk"] = spikes
        self._set(values)
        if self.init_hidden and not self.output:
            return spikes
        return (spikes, *(values[name] for name in rule.states))

    def _set(self, values):
        for name, value in values.items():
            setattr(self, name, value)

    def _prepare(self):
        self.__dict__.pop("reset", None)  # the reset by the previous step, which the operator computes itself
        self._unchanged()

    def _unchanged(self):
        """Returns True if the neuron's constants are those for which its text was written."""
        kept = self.__dict__.get("_spikeforge")
        if kept is None:
            kept = self._kept()
            if kept is None:
                return False
            self.__dict__["_spikeforge"] = kept
        return (
            self.spike_grad is kept["spike_grad"]
            and _function(self.state_function) is kept["state_function"]
            and self.__dict__.get("reset_delay", True) == kept["reset_delay"]
            and not self.inhibition
            and not self.state_quant
        )

    def _kept(self):
        spike, reset = _spike(self.spike_grad), _reset(self)
        if spike is None or reset is None:
            return None
        base, delayed = type(self).of_neuron, self.__dict__.get("reset_delay", True)
        text = _text(RULES[base], base.__name__.lower(), reset[0], delayed, spike)
        return dict(
            text=text, spike_grad=self.spike_grad, state_function=_function(self.state_function), reset_delay=delayed
        )

    def _parameters_of(self, rule, input_):
        """Returns the text's parameters; None if the result would differ from the input in shape or type."""
        dtype, values = state_type(input_.dtype), []
        if not input_.is_floating_point() or input_.layout != torch.strided:
            return None
        for name in rule.parameters:
            value = (
                self._tau_alpha()
                if name == "tau_alpha"
                else getattr(self, "graded_spikes_factor" if name == "graded" else name)
            )
            if value.ndim and (
                value.is_floating_point()
                and torch.finfo(value.dtype).bits > torch.finfo(dtype).bits
                or torch.broadcast_shapes(value.shape, input_.shape) != input_.shape
            ):
                return None
            values.append(value if value.dtype == dtype else value.to(dtype))
        return values

    def _tau_alpha(self):
        alpha, beta = self.alpha.clamp(0, 1).log(), self.beta.clamp(0, 1).log()
        return alpha / (beta - alpha) + 1


def _function(method):
    """Returns the function of a bound method; torch.compile compares functions, not names."""
    return method.__func__ if isinstance(method, types.MethodType) else None


def _reset(neuron):
    """Returns the reset of the neuron's construction, and snnTorch's number for it; None if it was replaced."""
    return RESETS.get(getattr(_function(neuron.state_function), "__name__", None))


class Membrane(Neuron):
    """Leaky and Lapicque."""

    def forward(self, input_, mem=None):
        outputs = self._step(input_, {"mem": mem})
        return super().forward(input_, mem) if outputs is None else outputs


class Synapse(Neuron):
    """Synaptic."""

    def forward(self, input_, syn=None, mem=None):
        outputs = self._step(input_, {"syn": syn, "mem": mem})
        return super().forward(input_, syn, mem) if outputs is None else outputs


class AlphaSynapse(Neuron):
    """Alpha."""

    def forward(self, input_, syn_exc=None, syn_inh=None, mem=None):
        outputs = self._step(input_, {"syn_exc": syn_exc, "syn_inh": syn_inh, "mem": mem})
        return super().forward(input_, syn_exc, syn_inh, mem) if outputs is None else outputs


class RecurrentMembrane(Neuron):
    """Implements RLeaky."""

    def forward(self, input_, spk=None, mem=None):
        outputs = self._step(input_, {"spk": spk, "mem": mem})
        if outputs is None:
            return super().forward(input_, spk, mem)
        return outputs


class RecurrentSynapse(Neuron):
    """RSynaptic."""

    def forward(self, input_, spk=None, syn=None, mem=None):
        outputs = self._step(input_, {"spk": spk, "syn": syn, "mem": mem})
        return super().forward(input_, spk, syn, mem) if outputs is None else outputs


_FORMS = {
    snntorch.Leaky: Membrane,
    snntorch.Lapicque: Membrane,
    snntorch.Synaptic: Synapse,
    snntorch.Alpha: AlphaSynapse,
    snntorch.RLeaky: RecurrentMembrane,
    snntorch.RSynaptic: RecurrentSynapse,
}
_MIXINS = {
    base: type(f"Fused{base.__name__}", (form,), {"__module__": __name__, "of_neuron": base})
    for base, form in _FORMS.items()
}
globals().update({mixin.__name__: mixin for mixin in _MIXINS.values()})  # where pickle finds them


# --- which modules are replaced --------------------------------------------------------------------------------------


def examine(module: torch.nn.Module) -> Verdict | None:
    """Returns the verdict on a module; None if it is not a neuron of snnTorch."""
    if ancestor(module, PACKAGE) is None or own_class(module).__name__ == "RecurrentOneToOne":
        return None
    base = next((cls for cls in own_class(module).__mro__ if cls in RULES), None)
    if base is None:
        return left("it has no fused form here")
    changed = overridden(module, base, HARMLESS, DYNAMICS)
    if changed is not None:
        return left(f"it defines its own {changed}")
    return _readiness(module, base)


def _readiness(neuron: Any, base: type) -> Verdict:
    spike = _spike(neuron.spike_grad)
    reset, number = _reset(neuron) or (None, None)
    delayed = neuron.__dict__.get("reset_delay", True)
    if spike is None:
        return left("its surrogate is not one of snnTorch's that this library implements")
    if neuron.inhibition:
        return left("inhibition selects one neuron of the layer, and must read all of them")
    if neuron.state_quant:
        return left("its states are quantised by a function")
    if reset is None or neuron.reset_mechanism_val.item() != number:
        return left("its reset_mechanism was changed after it was made")
    if base is snntorch.RSynaptic and not delayed:
        return left("RSynaptic with reset_delay=False raises an error in snnTorch itself")
    when = "" if delayed else ", reset at once"
    return Verdict(_MIXINS[base], f"neuron text {base.__name__.lower()}, reset {reset}{when}, {spike.title}")
