"""The neurons of Norse 1.1 as operators: cells run one step per call, sequence modules all steps in one call.

Norse integrates by Euler's method, and computes dt * tau_inv first; torch computes it here as well, and the text has
the product as a parameter. A neuron fires above the threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from norse.torch.functional import iaf, izhikevich, leaky_integrator, leaky_integrator_box, lif, lif_box, lif_ex, lsnn
from norse.torch.functional.reset import reset_subtract, reset_value
from norse.torch.module.snn import SNN, SNNCell, SNNRecurrent, SNNRecurrentCell, _merge_states

from spikeforge._numbers import state_type
from spikeforge.accelerate.replacing import Replaced, Verdict, ancestor, left, overridden, parameter, reaches
from spikeforge.nn.stateful import first_step_
from spikeforge.nn.text import BUILTIN, OPERATOR, is_compiling

PACKAGE = "norse.torch.module"
NOTES = ()
HARMLESS = ("extra_repr", "initial_state")
DYNAMICS = ("forward",)
NEURONS = (SNN, SNNCell, SNNRecurrent, SNNRecurrentCell)
EXP_NOTE = "the exponential of LIFEx may differ from torch's in the last place, and so may its potential"

# Norse's threshold functions: surrogates of the library ("super" has no alpha), and derivatives at u of the others.
SURROGATES = {"heaviside": "none", "super": "super_spike(1)"}
DERIVATIVES = {
    "triangle": "alpha * relu(1 - abs(u))",
    "tanh": "1 - square(tanh(u * alpha))",
    "circ": "(1 / (2 * sqrt(alpha * alpha + square(u)))"
    " - square(u) / (2 * pow(alpha * alpha + square(u), 1.5))) * 2 * alpha",
    "heavi_erfc": "2 * exp(-square(alpha * u)) / 1.772453850905516",
}


def _spike(method: str) -> str:
    """Returns neuron text of a spike at u."""
    if method in SURROGATES:
        return f"spike_strict(u, {SURROGATES[method]})"
    return f"add_gradient(spike_strict(u, none), u, {DERIVATIVES[method].replace('alpha', 'detach(alpha)')})"


# --- the equations of each neuron -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A neuron's equations.

    Attributes:
        name: the name of the text.
        states: the fields of the state, in its order (without z, the spikes of a recurrent neuron).
        parameters: the parameters of the text, as functions of Norse's parameters p and of dt.
        step: the statements of one step; $SPIKE is the spike at u, $RESET the potential after it.
        recurrent: whether the state holds spikes, and the reset passes no gradient to them.
        spiking: whether there is a threshold, and a method for its derivative.
        notes: what is not the same in the last place.
    """

    name: str
    states: tuple[str, ...]
    parameters: dict[str, Callable[[Any, float], Any]]
    step: tuple[str, ...]
    recurrent: bool = False
    spiking: bool = True
    notes: tuple[str, ...] = ()


def _field(name: str) -> Callable[[Any, float], Any]:
    return lambda p, dt: getattr(p, name)


def _fields(*names: str) -> dict[str, Callable[[Any, float], Any]]:
    return {name: _field(name) for name in names}


MEMBRANE = {"mem": lambda p, dt: dt * p.tau_mem_inv}
SYNAPSE = {"syn": lambda p, dt: -dt * p.tau_syn_inv}
FIRE = ("u = h - v_th", "s = $SPIKE", "return s")
HARD = (*FIRE, "v' = select($S, v_reset, h)")
LIF = ("h = v + mem * (v_leak - v + j)", *HARD, "i' = j + syn * j")
LIF_PARAMETERS = {**SYNAPSE, **MEMBRANE, **_fields("v_leak", "v_th", "v_reset")}
LI = ("j = i + x", "h = v + mem * (v_leak - v + j)", "return h", "v' = h", "i' = j + syn * j")
LSNN = (
    "h = v + mem * (v_leak - v + i)", "k = b + adapt * (v_th - b)", "u = h - k", "s = $SPIKE", "return s",
    "v' = select($S, v_reset, h)", "b' = k + $S * beta",
)  # fmt: skip
LSNN_PARAMETERS = {**LIF_PARAMETERS, "adapt": lambda p, dt: dt * p.tau_adapt_inv, **_fields("beta")}
IZHIKEVICH = (
    "h = v + rate * (sq * square(v) + mn * v + bias - w + x)",
    "m = w + slow * (b * v - w)",
    *FIRE,
    "v' = select(s, c, h)",
    "w' = select(s, m + d, m)",
)

RULES: dict[Any, Rule] = {
    lif.lif_feed_forward_step: Rule("lif", ("v", "i"), LIF_PARAMETERS, ("j = i + x", *LIF)),
    lif.lif_step: Rule("lif", ("v", "i"), LIF_PARAMETERS, ("j = i + x + z", *LIF), recurrent=True),
    lif_box.lif_box_feed_forward_step: Rule(
        "lif_box",
        ("v",),
        {**MEMBRANE, **_fields("v_leak", "v_th", "v_reset")},
        ("h = v + mem * (x + v_leak - v)", *FIRE, "v' = $BOX"),
    ),
    leaky_integrator.li_feed_forward_step: Rule(
        "li", ("v", "i"), {**SYNAPSE, **MEMBRANE, **_fields("v_leak")}, LI, spiking=False
    ),
    leaky_integrator_box.li_box_feed_forward_step: Rule(
        "li_box",
        ("v",),
        {**MEMBRANE, **_fields("v_leak")},
        ("h = v + mem * (v_leak - v + x)", "return h", "v' = h"),
        spiking=False,
    ),
    iaf.iaf_feed_forward_step: Rule("iaf", ("v",), _fields("v_th", "v_reset"), ("h = v + x", *HARD)),
    lif_ex.lif_ex_feed_forward_step: Rule(
        "lif_ex",
        ("v", "i"),
        {**LIF_PARAMETERS, **_fields("delta_T")},
        (
            "j = i + x",
            "h = v + mem * (v_leak - v + delta_T * exp((v - v_th) / delta_T) + j)",
            *HARD,
            "i' = j + syn * j",
        ),
        notes=(EXP_NOTE,),
    ),
    lsnn.lsnn_feed_forward_step: Rule("lsnn", ("v", "i", "b"), LSNN_PARAMETERS, (*LSNN, "i' = i + syn * i + x")),
    lsnn.lsnn_step: Rule("lsnn", ("v", "i", "b"), LSNN_PARAMETERS, (*LSNN, "i' = i + syn * i + x + z"), recurrent=True),
    izhikevich.izhikevich_feed_forward_step: Rule(
        "izhikevich",
        ("v", "u"),
        {
            "rate": lambda p, dt: p.tau_inv * dt,
            "slow": lambda p, dt: p.tau_inv * dt * p.a,
            **_fields("sq", "mn", "bias", "v_th", "b", "c", "d"),
        },
        IZHIKEVICH,
    ),
}

BOX_RESETS = {reset_value: "select(s, v_reset, h)", reset_subtract: "select(s, h - v_th, h)"}


def _takes_alpha(rule: Rule, method: str) -> bool:
    return rule.spiking and method in DERIVATIVES


def _text(rule: Rule, method: str, box_reset: Any) -> str:
    """Returns neuron text of one step."""
    names = [{"u": "w"}.get(state, state) for state in rule.states]
    parameters = [*rule.parameters, *(["alpha"] if _takes_alpha(rule, method) else [])]
    head = f"neuron {rule.name}({'x, z' if rule.recurrent else 'x'}; {', '.join(names)}; {', '.join(parameters)})"
    step = "\n  ".join(rule.step).replace("$BOX", BOX_RESETS.get(box_reset, ""))
    step = step.replace("$SPIKE", _spike(method) if rule.spiking else "").replace(
        "$S", "detach(s)" if rule.recurrent else "s"
    )
    return head + " {\n  " + step + "\n}\n"


# --- the operator of a module -----------------------------------------------------------------------------------------


class Cell(Replaced):
    """Base class of replaced modules of Norse."""

    def _prepare(self):
        self._kept()

    def _kept(self):
        """Returns the text, written again if activation, method or reset have changed; None if there is none."""
        p = self.p
        method, box_reset = getattr(p, "method", ""), getattr(p, "reset_method", None)
        kept = self.__dict__.get("_spikeforge")
        if kept is None or kept[0] is not self.activation or kept[1] != method or kept[2] is not box_reset:
            if _obstacle(self) is not None:
                return None
            kept = (self.activation, method, box_reset, _text(RULES[self.activation], method, box_reset))
            self.__dict__["_spikeforge"] = kept
        return kept

    def _run(self, x, state, rule, text, arriving=(), store=False):
        """Returns outputs and states of the steps of x; None if their shape or type would differ from Norse's."""
        shape, dtype = x.shape[1:], state_type(x.dtype)
        states = [getattr(state, name) for name in rule.states]
        p, dt = self.p, self.dt
        values = [rule.parameters[name](p, dt) for name in rule.parameters]
        if _takes_alpha(rule, getattr(p, "method", "")):
            values.append(p.alpha)
        values = [parameter(value, dtype, x.device) for value in values]
        states = [_state(value, dtype, shape, x.device) for value in states]
        if any(value is None for value in states) or any(not reaches(value, shape) for value in values):
            return None
        run = OPERATOR if is_compiling() else BUILTIN
        (outputs,), after = run(text, [x, *arriving], states, values, store_states=store)
        return outputs if outputs.dtype == dtype else outputs.to(dtype), after

    def _takes(self, x):
        return isinstance(x, torch.Tensor) and x.layout == torch.strided and x.is_floating_point()

    def _next(self, state, rule, after, spikes=None):
        """Returns the state after these steps."""
        values = dict(zip(rule.states, after))
        return state._replace(**values, **({} if spikes is None else {"z": spikes}))


def _state(value, dtype, shape, device):
    """Returns a state in the operator's type and shape; None if its type or shape is wider, or its device differs.

    Norse's cells start at v_leak, a tensor with one element, which may be on the CPU if inputs are on a GPU.
    """
    value = torch.as_tensor(value)
    if value.device != device:
        if value.ndim:
            return None
        value = value.to(device)
    if value.is_floating_point() and torch.finfo(value.dtype).bits > torch.finfo(dtype).bits:
        return None
    if value.shape != shape:
        if not reaches(value, shape):
            return None
        value = value.expand(shape)
    return value if value.dtype == dtype else value.to(dtype)


class StepCell(Cell):
    """A cell: one step per call."""

    def forward(self, input_tensor, state=None):
        kept = self._kept() if self._takes(input_tensor) else None
        if kept is None:
            return super().forward(input_tensor, state)
        state = state if state is not None else self.state_fallback(input_tensor)
        rule = RULES[kept[0]]
        done = self._run(input_tensor.unsqueeze(0), state, rule, kept[3])
        if done is None:
            return super().forward(input_tensor, state)
        return first_step_(done[0]), self._next(state, rule, done[1])


class Sequence(Cell):
    """A module over all steps of [T, ...]."""

    def forward(self, input_tensor, state=None):
        kept = self._kept() if self._takes(input_tensor) and len(input_tensor) else None
        if kept is None:
            return super().forward(input_tensor, state)
        state = state if state is not None else self.state_fallback(input_tensor)
        rule = RULES[kept[0]]
        done = self._run(input_tensor, state, rule, kept[3], store=self.record_states)
        if done is None:
            return super().forward(input_tensor, state)
        return done[0], self._next(state, rule, done[1])


class Loop(Cell):
    """A recurrent cell or module, whose products with its own spikes are torch's, one step after the other."""

    def _one(self, x, state, kept):
        """Runs one step; returns None if Norse's own code must run."""
        rule = RULES[kept[0]]
        if state.z.is_sparse:
            return None
        given = torch.nn.functional.linear(x, self.input_weights)
        arriving = torch.nn.functional.linear(state.z, self.recurrent_weights)
        if given.shape != arriving.shape or given.dtype != arriving.dtype:
            return None
        done = self._run(given.unsqueeze(0), state, rule, kept[3], [arriving.unsqueeze(0)])
        if done is None:
            return None
        spikes = first_step_(done[0])
        return spikes, self._next(state, rule, done[1], spikes)


class RecurrentCell(Loop):
    """A recurrent cell: one step per call."""

    def forward(self, input_tensor, state=None):
        kept = self._kept() if self._takes(input_tensor) else None
        if kept is None:
            return super().forward(input_tensor, state)
        state = state if state is not None else self.state_fallback(input_tensor)
        done = self._one(input_tensor, state, kept)
        return super().forward(input_tensor, state) if done is None else done


class RecurrentSequence(Loop):
    """A recurrent module over all steps of [T, ...]."""

    def forward(self, input_tensor, state=None):
        kept = self._kept() if self._takes(input_tensor) and len(input_tensor) else None
        if kept is None:
            return super().forward(input_tensor, state)
        first = state = state if state is not None else self.state_fallback(input_tensor)
        outputs, states = [], []
        for x in input_tensor:
            done = self._one(x, state, kept)
            if done is None:
                return super().forward(input_tensor, first)
            outputs.append(done[0])
            state = done[1]
            if self.record_states:
                states.append(state)
        return torch.stack(outputs), _merge_states(states) if self.record_states else state


_MIXINS: dict[type, type[Cell]] = {
    SNNCell: StepCell,
    SNN: Sequence,
    SNNRecurrentCell: RecurrentCell,
    SNNRecurrent: RecurrentSequence,
}


# --- which modules are replaced --------------------------------------------------------------------------------------


def examine(module: torch.nn.Module) -> Verdict | None:
    """Returns whether and how a module is replaced; None if it is not a neuron of Norse."""
    family = next((cls for cls in NEURONS if isinstance(module, cls)), None)
    if family is None:
        return None
    base = ancestor(module, PACKAGE)
    changed = overridden(module, base, HARMLESS, DYNAMICS)
    if changed is not None:
        return left(f"it defines its own {changed}")
    changed = overridden(module, family, HARMLESS, DYNAMICS)
    if changed is not None:
        return left("it has no fused form here")
    obstacle = _obstacle(module)
    if obstacle is not None:
        return left(obstacle)
    rule = RULES[module.activation]
    method = f", {module.p.method}" if rule.spiking else ""
    return Verdict(_MIXINS[family], f"neuron text {rule.name}{method}", rule.notes)


def _obstacle(module: Any) -> str | None:
    """Returns the reason why the module has no text, or None."""
    try:
        rule = RULES.get(module.activation)
    except TypeError:
        rule = None
    if rule is None:
        title = getattr(module.activation, "__name__", "its activation")
        return f"{title} has no fused form here"
    p = module.p
    if rule.spiking and p.method not in SURROGATES and p.method not in DERIVATIVES:
        return f"the threshold method {p.method!r} has no fused form here"
    if rule.name == "lif_box" and p.reset_method not in BOX_RESETS:
        return "its reset_method is a custom function"
    return None
