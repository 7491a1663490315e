"""Connections that learn by rules, given as text or as classes of Python functions::

    spikeforge.synapse(rule, **params)   a rule with values for its parameters
    spikeforge.Plastic(rule, ...)        connections that learn by a rule, stepped one step at a time
    Network.project(plasticity=rule)     connections of a simulated network that learn by a rule

Predefined rules: :func:`pair_stdp`, :func:`triplet_stdp`, :func:`reward_stdp`, :func:`synaptic_scaling`,
:func:`tsodyks_markram`. ``docs/plasticity.md`` defines a step, and the grammar of rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from spikeforge._numbers import whole

_OPS = torch.ops.spikeforge

# Steps are int64: a loaded step below this one cannot overflow.
MOST_STEPS = 2**62


def _in_large_pages(t: Tensor) -> Tensor:
    """Copies a tensor to large pages, because the connections of a neuron are scattered in memory."""
    return torch.ops.spikeforge_simulation.in_large_pages(t.detach())


@contextlib.contextmanager
def _ordinary() -> Iterator[None]:
    """Creates tensors outside inference mode: a step could not change tensors of inference mode outside it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@dataclasses.dataclass(frozen=True)
class Synapse:
    """A rule by which connections learn, with values for its parameters; :func:`synapse` makes it.

    Attributes:
        text: the synapse text of the rule, in the library's format.
        name: the name of the rule.
        params: the values of its parameters, by name.
        states: the initial values of the connections' states, by name; the first state is the weight.
        traces: the initial values of the neurons' traces, by name.
        after: the names of the traces of postsynaptic neurons; the others are those of presynaptic neurons.
        signals: the names of its signals.
    """

    text: str
    name: str
    params: Mapping[str, float]
    states: Mapping[str, float]
    traces: Mapping[str, float]
    after: frozenset[str]
    signals: tuple[str, ...]
    states_decay: bool
    reads_columns: bool

    def __call__(self, /, **params: float) -> Synapse:
        """Returns the same rule with other values for some parameters."""
        return _checked(
            dataclasses.replace(self, params=_numbers(self.name, tuple(self.params), {**self.params, **params}))
        )

    def __repr__(self) -> str:
        return f"Synapse({self.name}: {', '.join(f'{key}={value:g}' for key, value in self.params.items())})"


@overload
def synapse(rule: str | type, /, **params: float) -> Synapse: ...
@overload
def synapse(**params: float) -> Callable[[type], Synapse]: ...


def synapse(rule: str | type | None = None, /, **params: float) -> Synapse | Callable[[type], Synapse]:
    """Reads a rule from synapse text or from a class of Python functions::

        @spikeforge.synapse(a_plus=0.01, a_minus=0.012, tau=20)
        class stdp:
            states, traces = "w", ("x", "y")
            decay = {"x": "tau", "y": "tau"}

            def on_pre(w, x, y, a_minus):
                return {"w": torch.clamp(w - a_minus * y, 0, 1), "x": x + 1}

            def on_post(w, x, y, a_plus):
                return {"w": torch.clamp(w + a_plus * x, 0, 1), "y": y + 1}

    Each function is called once with values that record the operations, as in :func:`spikeforge.neuron`. Its arguments
    are the names of the states, traces, parameters and signals that it reads, in any order, without ``self``. It
    returns a dict of next values; ``on_pre`` may also return the value that a spike sends, as ``"send"``.

    Args:
        rule: synapse text; or a class with ``states``, ``traces`` and ``signals`` (names, or a dict of initial values),
            ``decay`` (for each name a time constant: a scalar, a parameter or a function of parameters, or a tuple of
            it and the value that it decays to), and functions ``on_pre``, ``on_post``, ``on_<signal>`` and
            ``each_step`` (``docs/plasticity.md``).
        params: a value for each parameter of the rule; a class has exactly these parameters. Time constants are in
            steps.

    Raises:
        ValueError: if a text cannot be read (with line and column), a parameter is unknown or missing, a time constant
            is not above 0, the weight has an initial value, or no event reads a signal.
        TypeError: if a function does something that a rule cannot compute (with its line).
    """
    if rule is None:
        return lambda given: synapse(given, **params)
    text = rule
    if isinstance(rule, type):
        from spikeforge.trace.synapse import text_of

        text = text_of(rule, list(params))
    if not isinstance(text, str):
        raise TypeError(f"synapse: rule must be text or a class of functions, but is a {type(rule).__name__}")
    try:
        read = torch.ops.spikeforge_simulation.read_synapse(text)
    except ValueError as error:
        if isinstance(rule, str):
            raise
        raise ValueError(
            f"{rule.__name__}: its functions are not a legal rule: {str(error).removeprefix('synapse: ')}"
        ) from None
    name, states, traces, names, signals, of_states, of_traces, after, decay, post, printed = read
    if of_states[0] != 0:
        raise ValueError(
            f"synapse: {states[0]} of the rule {name} is its weight, whose values are arguments of Plastic and "
            f"Network; it cannot start at {of_states[0]:g}"
        )
    body = printed.partition("{")[2]
    for signal in signals:
        if not re.search(rf"\b{signal}\b", body):
            raise ValueError(
                f"synapse: no event of the rule {name} reads the signal {signal}: write on {signal} {{ ... }}, or "
                f"remove it"
            )
    return _checked(
        Synapse(
            printed,
            name,
            _numbers(name, names, params),
            dict(zip(states, of_states)),
            dict(zip(traces, of_traces)),
            frozenset(trace for trace, is_after in zip(traces, after) if is_after),
            tuple(signals),
            decay,
            post,
        )
    )


def _checked(rule: Synapse) -> Synapse:
    """Checks the values of parameters by a step without connections."""
    types = torch.float32, torch.int32, torch.int64
    none, no_indices, no_slots = (torch.zeros(0, dtype=dtype, device="cpu") for dtype in types)
    indptr = torch.zeros(1, dtype=torch.int64, device="cpu")
    states = [none] * len(rule.states) + [no_indices] * rule.states_decay
    try:
        matrix = no_indices, indptr, [no_indices, indptr, no_slots] * rule.reads_columns
        traces, params = [none] * len(rule.traces), list(rule.params.values())
        _OPS.plastic_step_(rule.text, states, traces, *matrix, none, none, [], indptr[0], params=params, rows=0, cols=0)
    except ValueError as error:
        raise ValueError(f"synapse: {str(error).splitlines()[0].removeprefix('plastic_step: ')}") from None
    return rule


def _check_bounds(rule: Synapse, weights: Tensor) -> None:
    if weights.numel() == 0 or weights.is_meta:
        return
    bounds = torch.ops.spikeforge_simulation.weight_bounds(rule.text, list(rule.params.values()))
    low, high = (torch.tensor(bound, dtype=weights.dtype, device="cpu").item() for bound in bounds)
    least, most = (value.item() for value in weights.aminmax())
    if least < low or most > high:
        raise ValueError(
            f"Plastic: weights are from {least:g} to {most:g}, but the rule {rule.name} keeps them from {low:g} to "
            f"{high:g}: change its bounds, or the weights"
        )


def _numbers(rule: str, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, float]:
    for key in given:
        if key not in names:
            raise ValueError(f"synapse: the rule {rule} has no parameter {key}; it has {', '.join(names) or 'none'}")
    for key in names:
        if key not in given:
            raise ValueError(f"synapse: the parameter {key} of the rule {rule} is missing")
    return {key: _number(rule, key, given[key]) for key in names}


def _number(rule: str, key: str, value: Any) -> float:
    """Checks the value of a parameter; infinity is legal as a bound."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"synapse: the parameter {key} of the rule {rule} must be a number, but is {value!r}") from None
    if math.isnan(number):
        raise ValueError(f"synapse: the parameter {key} of the rule {rule} must be a number, but is nan")
    return number


class Plastic:
    """Connections from ``rows`` to ``cols`` neurons that learn by a rule, on the device of the weights.

    A step processes the connections of the neurons that fired, and the traces of all neurons. With ``each step`` or a
    signal, it processes all connections.

    Args:
        rule: a rule of :func:`synapse` or :mod:`spikeforge.plasticity`.
        weights: [connections] of any floating-point type; copied.
        indices, indptr: the matrix as in event products. Without ``indptr``, indices have shape [rows, connections per
            row]; without both, weights are dense, [rows, cols].
        rows, cols: the shape of the matrix; optional if the tensors' shapes define it.
        states: initial values of other states, by name, scalars or tensors; by default those of the rule.

    Raises:
        ValueError: for shapes that do not fit, an illegal matrix, and weights outside the bounds of the rule, which the
            first event would clamp.
        TypeError: for arguments of another type.
    """

    @_ordinary()
    def __init__(
        self, rule: Synapse, weights: Tensor, indices: Tensor | None = None, indptr: Tensor | None = None, *,
        rows: int | None = None, cols: int | None = None, states: Mapping[str, float | Tensor] | None = None,
    ):  # fmt: skip
        if not isinstance(rule, Synapse):
            raise TypeError(
                f"Plastic: rule must be a rule of spikeforge.synapse or spikeforge.plasticity, but is {rule!r}"
            )
        if not isinstance(weights, Tensor):
            raise TypeError(f"Plastic: weights must be a tensor, but are a {type(weights).__name__}")
        if indices is None:
            if weights.dim() != 2:
                raise ValueError(f"Plastic: dense weights must have shape [rows, cols], but have {list(weights.shape)}")
            if indptr is not None:
                raise ValueError("Plastic: indptr needs indices: dense weights have neither")
            rows, cols = _same("rows", rows, weights.shape[0]), _same("cols", cols, weights.shape[1])
            indices = torch.arange(cols, dtype=torch.int32, device=weights.device).repeat(rows, 1)
        if indptr is None:
            if indices.dim() != 2:
                raise ValueError(
                    "Plastic: indices without indptr must have shape [rows, connections per row], but have "
                    f"{list(indices.shape)}"
                )
            rows = _same("rows", rows, indices.shape[0])
            indptr = torch.arange(rows + 1, device=indices.device) * indices.shape[1]
        if rows is None or cols is None:
            raise ValueError("Plastic: pass rows and cols, the shape of the matrix")
        if weights.shape not in (indices.shape, indices.flatten().shape):
            raise ValueError(
                f"Plastic: weights must have one element per connection, as indices {list(indices.shape)}, but have "
                f"{list(weights.shape)}"
            )
        self.rule, self.rows, self.cols = rule, rows, cols
        self.shape = weights.shape
        self._indices, self._indptr = indices.flatten(), indptr
        _OPS.csr_check(self._indices, indptr, rows=rows, cols=cols, sorted=False)
        by_columns = _OPS.csr_transpose(self._indices, indptr, rows=rows, cols=cols) if rule.reads_columns else ()
        self._by_columns = [_in_large_pages(t) for t in by_columns]
        names = list(rule.states)
        given = dict(states or {})
        for key in given:
            if key not in names[1:]:
                raise ValueError(
                    f"Plastic: the rule {rule.name} has no state {key} besides the weights; it has "
                    f"{', '.join(names[1:]) or 'none'}"
                )
        own = weights.detach().flatten().clone()
        _check_bounds(rule, own)
        kind: Any = dict(dtype=torch.float64 if own.dtype == torch.float64 else torch.float32, device=own.device)
        rest = []
        for key in names[1:]:
            start = torch.as_tensor(given.get(key, rule.states[key]), **kind)
            if start.dim() > 0 and start.shape != self.shape:
                raise ValueError(
                    f"Plastic: the state {key} must be a number or have the shape of the weights, {list(self.shape)}, "
                    f"but has {list(start.shape)}"
                )
            rest.append(start.expand(self.shape).flatten().clone())
        self._states = [own, *rest]
        if rule.states_decay:
            self._states.append(torch.full_like(own, -1, dtype=torch.int32))
        self._states = [_in_large_pages(t) for t in self._states]
        self._traces = [
            torch.full((cols if key in rule.after else rows,), value, **kind) for key, value in rule.traces.items()
        ]
        self._step = torch.tensor(0, device="cpu")
        self._in_use = threading.Lock()

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of everything that steps change, and the text of the rule."""
        with self._alone():
            return {
                "rule": self.rule.text,
                "states": [t.clone() for t in self._states],
                "traces": [t.clone() for t in self._traces],
                "step": int(self._step),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a :meth:`state_dict` of the same rule and matrix. Values of the rule's parameters do not change.

        Raises:
            ValueError: if the state does not fit; the connections do not change.
            TypeError: if its tensors or its step have another type.
        """
        wrong = "Plastic: the loaded state does not fit: "
        for key in ("states", "traces", "step"):
            if not isinstance(state, Mapping) or key not in state:
                raise ValueError(f"{wrong}it has no {key!r}")
        if state.get("rule", self.rule.text) != self.rule.text:
            header = str(state["rule"]).partition(" {")[0]
            raise ValueError(f"{wrong}it belongs to another rule, {header}")
        for key, own in (("states", self._states), ("traces", self._traces)):
            given = state[key]
            if not isinstance(given, (list, tuple)) or not all(isinstance(t, Tensor) for t in given):
                raise TypeError(f"{wrong}its {key} must be a list of tensors, but are {given!r:.60}")
            if [(t.shape, t.dtype) for t in given] != [(t.shape, t.dtype) for t in own]:
                raise ValueError(f"{wrong}its {key} have other sizes or types")
            for t in given:
                if t.layout != torch.strided or t.is_meta:
                    raise ValueError(
                        f"{wrong}its {key} must be dense tensors with data, but one is {t.layout} on {t.device}"
                    )
        step = whole(state["step"])
        if step is None:
            raise TypeError(f"{wrong}its step must be a whole number, but is {state['step']!r:.60}")
        if not 0 <= step < MOST_STEPS:
            raise ValueError(f"{wrong}its step must be 0 or more and below 2^62, but is {step}")
        with self._alone(), _ordinary():
            for kept, loaded in zip(self._states + self._traces, [*state["states"], *state["traces"]]):
                kept.copy_(loaded)
            self._step = torch.tensor(step, device="cpu")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError(
                "Plastic: another thread is in a step of these connections: only one thread at a time may step them"
            )
        try:
            yield
        finally:
            self._in_use.release()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_in_use"}

    @_ordinary()
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _in_use=threading.Lock())
        self._states, self._traces = (
            [t.clone() if t.is_inference() else t for t in each] for each in (self._states, self._traces)
        )
        self._step = self._step.clone()

    @property
    def weights(self) -> Tensor:
        """The weights, in the shape of the argument ``weights``. A value written in place is used in the next step.

        If a state of the rule decays, reading this property updates the states to the last step: read it again
        after each step before you write.
        """
        return self.states[next(iter(self.rule.states))]

    @property
    def states(self) -> dict[str, Tensor]:
        """The states of the connections by name after the last step, in the shape of the weights."""
        if self.rule.states_decay:
            with self._alone():
                if self._step > 0:
                    pre, post = (self._states[0].new_zeros(size, dtype=torch.bool) for size in (self.rows, self.cols))
                    self._call(pre, post, [], self._step - 1, refresh=True)
        return {key: t.view(self.shape) for key, t in zip(self.rule.states, self._states)}

    @property
    def traces(self) -> dict[str, Tensor]:
        """The traces of the neurons by name: [rows] for presynaptic neurons, [cols] for postsynaptic ones."""
        return dict(zip(self.rule.traces, self._traces))

    @torch.no_grad()
    def step(self, pre: Tensor, post: Tensor, /, **signals: float | Tensor) -> None:
        """Runs one step: traces decay, spikes ``pre`` arrive, neurons ``post`` fire, signals are applied.

        Args:
            pre, post: bool or floating-point tensors [rows] and [cols]; a value that is true or above 0 is a spike.
                With delays, ``pre`` are the spikes that arrive in this step.
            signals: scalars, or tensors [cols]. A signal that is 0 or missing is not applied. Scalars must be finite;
                values of tensors are not checked.
        """
        self._advance(pre, post, signals)

    @torch.no_grad()
    def send(self, pre: Tensor, post: Tensor, /, **signals: float | Tensor) -> Tensor:
        """Runs :meth:`step`, and returns the input of the postsynaptic neurons, [cols]."""
        return self._advance(pre, post, signals, sends=True)

    def _advance(self, pre: Tensor, post: Tensor, signals: Mapping[str, float | Tensor], **options: bool) -> Tensor:
        for name, spikes, length in (("pre", pre, "rows"), ("post", post, "cols")):
            if not isinstance(spikes, Tensor):
                raise TypeError(
                    f"Plastic: {name} must be a bool or floating-point tensor [{length}], but is "
                    f"{type(spikes).__name__}"
                )
        with self._alone():
            sent = self._call(pre, post, self._of(signals), self._step, **options)
            self._step += 1
            return sent

    def _of(self, signals: Mapping[str, float | Tensor]) -> list[Tensor | None]:
        for key in signals:
            if key not in self.rule.signals:
                raise ValueError(
                    f"Plastic: the rule {self.rule.name} has no signal {key}; it has "
                    f"{', '.join(self.rule.signals) or 'none'}"
                )
        return [self._signal(key, signals[key]) if key in signals else None for key in self.rule.signals]

    def _signal(self, key: str, value: float | Tensor) -> Tensor:
        """Converts a signal to the type of the states. Only scalars are checked: a tensor may be on a GPU."""
        kind = torch.float64 if self._states[0].dtype == torch.float64 else torch.float32
        signal = torch.as_tensor(value, dtype=kind, device=None if isinstance(value, Tensor) else "cpu")
        if not isinstance(value, Tensor) and not signal.isfinite().all():
            raise ValueError(
                f"Plastic: the signal {key} must be finite in {str(kind).removeprefix('torch.')}, but is {value!r:.60}"
            )
        return signal.to(self._states[0].device)

    def _call(self, pre: Tensor, post: Tensor, signals: list[Tensor | None], step: Tensor, **options: Any) -> Tensor:
        matrix = self._indices, self._indptr, self._by_columns
        options |= dict(params=list(self.rule.params.values()), rows=self.rows, cols=self.cols)
        return _OPS.plastic_step_(
            self.rule.text, self._states, self._traces, *matrix, pre, post, signals, step, **options
        )


def _same(name: str, given: int | None, own: int) -> int:
    if given is not None and given != own:
        raise ValueError(f"Plastic: {name} must be {own}, the shape of the given matrix, but is {given!r}")
    return own


# ---- rules ----


def pair_stdp(
    *, a_plus: float = 0.01, a_minus: float = 0.0105, tau_plus: float = 20.0, tau_minus: float = 20.0,
    w_min: float = 0.0, w_max: float = 1.0,
) -> Synapse:  # fmt: skip
    """Pair-based STDP over all pairs of spikes.

    The weight changes by a_plus exp(-dt / tau_plus) if the postsynaptic spike is dt after the presynaptic one, and
    by -a_minus exp(-dt / tau_minus) if it is dt before.

    Source: Song, Miller and Abbott, Nature Neuroscience 3 (2000). Time constants are in steps, as in all rules.
    """
    return synapse(
        PAIR_STDP, a_plus=a_plus, a_minus=a_minus, tau_plus=tau_plus, tau_minus=tau_minus, w_min=w_min, w_max=w_max
    )


PAIR_STDP = """
synapse pair_stdp(w; x, y; a_plus, a_minus, tau_plus, tau_minus, w_min, w_max) {
  on pre {
    w' = clamp(w - a_minus * y, w_min, w_max)
    x' = x + 1
  }
  on post {
    w' = clamp(w + a_plus * x, w_min, w_max)
    y' = y + 1
  }
  decay x by tau_plus
  decay y by tau_minus
}
"""


def triplet_stdp(
    *, a2_plus: float = 0.0, a2_minus: float = 7.1e-3, a3_plus: float = 6.5e-3, a3_minus: float = 0.0,
    tau_plus: float = 16.8, tau_minus: float = 33.7, tau_x: float = 101.0, tau_y: float = 114.0, w_min: float = 0.0,
    w_max: float = math.inf,
) -> Synapse:  # fmt: skip
    """Triplet STDP over all pairs and triplets of spikes.

    Source: Pfister and Gerstner, Journal of Neuroscience 26 (2006). The defaults are its minimal model of visual
    cortex, for steps of 1 ms and weights of about 1.
    """
    numbers = dict(locals())
    return synapse(TRIPLET_STDP, **numbers)


TRIPLET_STDP = """
synapse triplet_stdp(w; r1, r2, o1, o2;
                     a2_plus, a2_minus, a3_plus, a3_minus, tau_plus, tau_minus, tau_x, tau_y, w_min, w_max) {
  on pre {
    w' = clamp(w - o1 * (a2_minus + a3_minus * r2), w_min, w_max)
    r1' = r1 + 1
    r2' = r2 + 1
  }
  on post {
    w' = clamp(w + r1 * (a2_plus + a3_plus * o2), w_min, w_max)
    o1' = o1 + 1
    o2' = o2 + 1
  }
  decay r1 by tau_plus
  decay r2 by tau_x
  decay o1 by tau_minus
  decay o2 by tau_y
}
"""


def reward_stdp(
    *, a_plus: float = 1.0, a_minus: float = 1.0, tau_plus: float = 20.0, tau_minus: float = 20.0,
    tau_c: float = 1000.0, rate: float = 0.001, w_min: float = 0.0, w_max: float = 1.0,
) -> Synapse:  # fmt: skip
    """Reward-modulated STDP: pairs of spikes change an eligibility c, which decays; ``reward`` adds rate reward c to w.

    Source: Izhikevich, Cerebral Cortex 17 (2007). A step with a reward processes all connections.
    """
    numbers = dict(locals())
    return synapse(REWARD_STDP, **numbers)


REWARD_STDP = """
synapse reward_stdp(w, c; x, y; a_plus, a_minus, tau_plus, tau_minus, tau_c, rate, w_min, w_max; reward) {
  on pre {
    c' = c - a_minus * y
    x' = x + 1
  }
  on post {
    c' = c + a_plus * x
    y' = y + 1
  }
  on reward { w' = clamp(w + rate * reward * c, w_min, w_max) }
  decay c by tau_c
  decay x by tau_plus
  decay y by tau_minus
}
"""


def synaptic_scaling(
    *, target: float = 0.01, beta: float = 1e-5, tau: float = 1000.0, w_max: float = math.inf
) -> Synapse:
    """Synaptic scaling: multiplies all weights of a neuron until it fires ``target`` times per step.

    Sources: Turrigiano and others, Nature 391 (1998); van Rossum, Bi and Turrigiano, Journal of Neuroscience 20 (2000).
    The signal ``scale`` is the number of steps since it was last sent. A step with it processes all connections.
    """
    return synapse(SYNAPTIC_SCALING, target=target, beta=beta, tau=tau, w_max=w_max)


SYNAPTIC_SCALING = """
synapse synaptic_scaling(w; r; target, beta, tau, w_max; scale) {
  on post { r' = r + 1 / tau }
  on scale { w' = clamp(w + scale * beta * w * (target - r), 0, w_max) }
  decay r by tau
}
"""


def tsodyks_markram(*, use: float = 0.5, tau_f: float = 20.0, tau_d: float = 100.0) -> Synapse:
    """Short-term plasticity: a spike uses the share u of the remaining resources x, and sends w u x.

    Source: Tsodyks, Pawelzik and Markram, Neural Computation 10 (1998). u decays with tau_f and grows by
    ``use`` (1 - u) at a spike; x recovers with tau_d. The weight does not change.
    """
    return synapse(TSODYKS_MARKRAM, use=use, tau_f=tau_f, tau_d=tau_d)


TSODYKS_MARKRAM = """
synapse tsodyks_markram(w; u, x = 1; use, tau_f, tau_d) {
  on pre {
    used = u + use * (1 - u)
    send w * used * x
    u' = used
    x' = x - used * x
  }
  decay u by tau_f
  decay x by tau_d to 1
}
"""
