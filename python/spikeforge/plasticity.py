"""Connections that learn: a rule is written as text or as Python functions, and runs at the spikes before and after a connection::

    spikeforge.synapse(rule, **params)   a rule with numbers for its parameters
    spikeforge.Plastic(rule, ...)        connections that learn by it, a step at a time
    Network.project(plasticity=rule)     the same within a simulated network

Rules that are there: :func:`pair_stdp`, :func:`triplet_stdp`, :func:`reward_stdp`, :func:`synaptic_scaling`,
:func:`tsodyks_markram`. ``docs/plasticity.md`` tells what a step is, and the grammar.
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

# Steps are int64: those after a loaded one below 2^62 do not overflow.
MOST_STEPS = 2**62


def _in_large_pages(t: Tensor) -> Tensor:
    """A copy: connections that a spike reaches lie apart."""
    return torch.ops.spikeforge_simulation.in_large_pages(t.detach())


@contextlib.contextmanager
def _ordinary() -> Iterator[None]:
    """Tensors made in inference mode could not be stepped outside it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@dataclasses.dataclass(frozen=True)
class Synapse:
    """A rule by which connections learn, and numbers for its parameters; made by :func:`synapse`.

    Attributes:
        text: the rule, as the library prints it.
        name: of the rule.
        params: the numbers, by name.
        states: what each connection has and starts at, by name; the first is its weight.
        traces: what each neuron has and starts at, by name.
        after: the names of the traces that the neurons after a connection have; those before it have the others.
        signals: what modulates it.
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
        """The same rule with other numbers for some parameters."""
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
    """Reads a rule, from text or from a class of Python functions::

        @spikeforge.synapse(a_plus=0.01, a_minus=0.012, tau=20)
        class stdp:
            states, traces = "w", ("x", "y")
            decay = {"x": "tau", "y": "tau"}

            def on_pre(w, x, y, a_minus):
                return {"w": torch.clamp(w - a_minus * y, 0, 1), "x": x + 1}

            def on_post(w, x, y, a_plus):
                return {"w": torch.clamp(w + a_plus * x, 0, 1), "y": y + 1}

    A function is called once, with values that record what is done with them, as those of :func:`spikeforge.neuron` are. Its
    arguments are the names of states, traces, parameters and signals that it reads, in any order, without a ``self``; it
    returns a dict of next values, of ``on_pre`` also what a spike sends, as ``"send"``.

    Args:
        rule: synapse text, or a class with ``states``, ``traces`` and ``signals`` (names, or a dict of what they start at), ``decay``
            (of each name a number, a parameter or a function of parameters, or a tuple of it and the value that it decays to)
            and functions ``on_pre``, ``on_post``, ``on_`` and a signal, and ``each_step``; ``docs/plasticity.md``.
        params: a number for each parameter of the rule, of a class all that it has; time constants are in steps.

    Raises:
        ValueError: for a text that cannot be read, with its line and column; for parameters that it does not have, and time
            constants that are not above 0; for a weight that starts at a number, and a signal that no event reads.
        TypeError: for functions that do what a rule cannot, with their line.
    """
    if rule is None:
        return lambda given: synapse(given, **params)
    text = rule
    if isinstance(rule, type):
        from spikeforge.trace.synapse import text_of

        text = text_of(rule, list(params))
    if not isinstance(text, str):
        raise TypeError(f"synapse: a rule is text or a class of functions, but this is a {type(rule).__name__}")
    try:
        read = torch.ops.spikeforge_simulation.read_synapse(text)
    except ValueError as error:
        if isinstance(rule, str):
            raise
        raise ValueError(
            f"{rule.__name__}: its functions are no legal rule: {str(error).removeprefix('synapse: ')}"
        ) from None
    name, states, traces, names, signals, of_states, of_traces, after, decay, post, printed = read
    if of_states[0] != 0:
        raise ValueError(
            f"synapse: {states[0]} of the rule {name} is its weight, which Plastic and Network are given, and cannot start at {of_states[0]:g}"
        )
    body = printed.partition("{")[2]
    for signal in signals:
        if not re.search(rf"\b{signal}\b", body):
            raise ValueError(
                f"synapse: no event of the rule {name} reads the signal {signal}: write on {signal} {{ ... }}, or leave it out"
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
    """Refuses numbers that a step would: a step of no connections does."""
    types = torch.float32, torch.int32, torch.int64
    none, no_indices, no_slots = (torch.zeros(0, dtype=dtype, device="cpu") for dtype in types)
    indptr = torch.zeros(1, dtype=torch.int64, device="cpu")
    states = [none] * len(rule.states) + [no_indices] * rule.states_decay
    try:
        _OPS.plastic_step_(
            rule.text, states, [none] * len(rule.traces), no_indices, indptr, [no_indices, indptr, no_slots] * rule.reads_columns,
            none, none, [], indptr[0], params=list(rule.params.values()), rows=0, cols=0,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"synapse: {str(error).splitlines()[0].removeprefix('plastic_step: ')}") from None
    return rule


def _numbers(rule: str, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, float]:
    for key in given:
        if key not in names:
            raise ValueError(f"synapse: the rule {rule} has no parameter {key}; it has {', '.join(names) or 'none'}")
    for key in names:
        if key not in given:
            raise ValueError(f"synapse: the parameter {key} of the rule {rule} is not given")
    return {key: _number(rule, key, given[key]) for key in names}


def _number(rule: str, key: str, value: Any) -> float:
    """Infinity may be a bound."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"synapse: the parameter {key} of the rule {rule} must be a number, but is {value!r}") from None
    if math.isnan(number):
        raise ValueError(f"synapse: the parameter {key} of the rule {rule} must be a number, but is nan")
    return number


class Plastic:
    """Connections from ``rows`` to ``cols`` neurons that learn by a rule, on the weights' device.

    A step's cost is that of the connections of the neurons that fired, and of a number for each trace of a neuron. Of a rule
    with ``each step``, and where a signal comes, it is that of all connections.

    Args:
        rule: of :func:`synapse` or :mod:`spikeforge.plasticity`.
        weights: [connections] of any floating type, which is copied.
        indices, indptr: the matrix, as event products take it; without ``indptr`` indices are [rows, connections a row], and
            without both weights are dense, [rows, cols].
        rows, cols: of the matrix, where its form does not say them; those that it says may be given if they are the same.
        states: what other states of the connections start at, by name, where not as the rule says: numbers or tensors.
    """

    @_ordinary()
    def __init__(
        self,
        rule: Synapse,
        weights: Tensor,
        indices: Tensor | None = None,
        indptr: Tensor | None = None,
        *,
        rows: int | None = None,
        cols: int | None = None,
        states: Mapping[str, float | Tensor] | None = None,
    ):
        if not isinstance(rule, Synapse):
            raise TypeError(
                f"Plastic: the rule must be what spikeforge.synapse or spikeforge.plasticity gave, but is {rule!r}"
            )
        if not isinstance(weights, Tensor):
            raise TypeError(f"Plastic: weights must be a tensor, but are a {type(weights).__name__}")
        if indices is None:
            if weights.dim() != 2:
                raise ValueError(f"Plastic: dense weights must have shape [rows, cols], but have {list(weights.shape)}")
            if indptr is not None:
                raise ValueError("Plastic: indptr is given, but no indices: dense weights have neither")
            rows, cols = _same("rows", rows, weights.shape[0]), _same("cols", cols, weights.shape[1])
            indices = torch.arange(cols, dtype=torch.int32, device=weights.device).repeat(rows, 1)
        if indptr is None:
            if indices.dim() != 2:
                raise ValueError(
                    f"Plastic: indices without indptr must have shape [rows, connections a row], but have {list(indices.shape)}"
                )
            rows = _same("rows", rows, indices.shape[0])
            indptr = torch.arange(rows + 1, device=indices.device) * indices.shape[1]
        if rows is None or cols is None:
            raise ValueError("Plastic: rows and cols of the matrix must be given")
        if weights.shape not in (indices.shape, indices.flatten().shape):
            raise ValueError(
                f"Plastic: weights must have one element a connection, as indices {list(indices.shape)}, but have {list(weights.shape)}"
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
                    f"Plastic: the rule {rule.name} has no state {key} besides the weights; it has {', '.join(names[1:]) or 'none'}"
                )
        own = weights.detach().flatten().clone()
        kind: Any = dict(dtype=torch.float64 if own.dtype == torch.float64 else torch.float32, device=own.device)
        rest = []
        for key in names[1:]:
            start = torch.as_tensor(given.get(key, rule.states[key]), **kind)
            if start.dim() > 0 and start.shape != self.shape:
                raise ValueError(
                    f"Plastic: the state {key} must be a number or have the shape of the weights, {list(self.shape)}, but has {list(start.shape)}"
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
        """Everything that steps change, as copies, and the rule's text."""
        with self._alone():
            return {
                "rule": self.rule.text,
                "states": [t.clone() for t in self._states],
                "traces": [t.clone() for t in self._traces],
                "step": int(self._step),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where connections of the same rule and matrix were. The numbers of the rule's parameters stay these connections'.

        Raises:
            ValueError: for what is no state of such connections, which stay as they are then.
            TypeError: for a state whose tensors or step are something else.
        """
        wrong = "Plastic: this is no state of such connections: "
        for key in ("states", "traces", "step"):
            if not isinstance(state, Mapping) or key not in state:
                raise ValueError(f"{wrong}it has no {key!r}")
        if state.get("rule", self.rule.text) != self.rule.text:
            header = str(state["rule"]).partition(" {")[0]
            raise ValueError(f"{wrong}its rule is another, {header}")
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
            raise RuntimeError("Plastic: another thread is in a step of these connections: one at a time can")
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
        """The weights, in the shape that they were given in. What is written there holds from the next step on.

        Where a state decays it is brought to the last step when it is asked for: then write to what was asked for after that step.
        """
        return self.states[next(iter(self.rule.states))]

    @property
    def states(self) -> dict[str, Tensor]:
        """The states of the connections by name, all brought to the last step, in the shape of the weights."""
        if self.rule.states_decay:
            with self._alone():
                if self._step > 0:
                    pre, post = (self._states[0].new_zeros(size, dtype=torch.bool) for size in (self.rows, self.cols))
                    self._call(pre, post, [], self._step - 1, refresh=True)
        return {key: t.view(self.shape) for key, t in zip(self.rule.states, self._states)}

    @property
    def traces(self) -> dict[str, Tensor]:
        """The traces of the neurons by name: [rows] of those before, [cols] of those after."""
        return dict(zip(self.rule.traces, self._traces))

    @torch.no_grad()
    def step(self, pre: Tensor, post: Tensor, /, **signals: float | Tensor) -> None:
        """One step: traces decay; spikes ``pre`` arrive; neurons ``post`` fire; signals come.

        Args:
            pre, post: bool or floating point, [rows] and [cols]: a spike where true, or above 0. With delays ``pre`` are those
                that arrive in this step.
            signals: numbers, or tensors [cols]; one that is 0, or not given, does not come. A number must be finite; in tensors
                nothing looks.
        """
        self._advance(pre, post, signals)

    @torch.no_grad()
    def send(self, pre: Tensor, post: Tensor, /, **signals: float | Tensor) -> Tensor:
        """As :meth:`step`, and returns what arrives at the neurons after the connections, [cols]."""
        return self._advance(pre, post, signals, sends=True)

    def _advance(self, pre: Tensor, post: Tensor, signals: Mapping[str, float | Tensor], **options: bool) -> Tensor:
        for name, spikes, length in (("pre", pre, "rows"), ("post", post, "cols")):
            if not isinstance(spikes, Tensor):
                raise TypeError(
                    f"Plastic: {name} must be a bool or floating-point tensor [{length}], but is {type(spikes).__name__}"
                )
        with self._alone():
            sent = self._call(pre, post, self._of(signals), self._step, **options)
            self._step += 1
            return sent

    def _of(self, signals: Mapping[str, float | Tensor]) -> list[Tensor | None]:
        for key in signals:
            if key not in self.rule.signals:
                raise ValueError(
                    f"Plastic: the rule {self.rule.name} has no signal {key}; it has {', '.join(self.rule.signals) or 'none'}"
                )
        return [self._signal(key, signals[key]) if key in signals else None for key in self.rule.signals]

    def _signal(self, key: str, value: float | Tensor) -> Tensor:
        """Of the type that states are computed in. Only what is no tensor, and so on the CPU, is looked at."""
        kind = torch.float64 if self._states[0].dtype == torch.float64 else torch.float32
        signal = torch.as_tensor(value, dtype=kind, device=None if isinstance(value, Tensor) else "cpu")
        if not isinstance(value, Tensor) and not signal.isfinite().all():
            raise ValueError(
                f"Plastic: the signal {key} must be finite in {str(kind).removeprefix('torch.')}, but is {value!r:.60}"
            )
        return signal.to(self._states[0].device)

    def _call(self, pre: Tensor, post: Tensor, signals: list[Tensor | None], step: Tensor, **options: bool) -> Tensor:
        return _OPS.plastic_step_(
            self.rule.text,
            self._states,
            self._traces,
            self._indices,
            self._indptr,
            self._by_columns,
            pre,
            post,
            signals,
            step,
            params=list(self.rule.params.values()),
            rows=self.rows,
            cols=self.cols,
            **options,
        )


def _same(name: str, given: int | None, own: int) -> int:
    if given is not None and given != own:
        raise ValueError(f"Plastic: {name} must be {own}, as the matrix is given, but is {given!r}")
    return own


# ---- rules ----


def pair_stdp(
    *,
    a_plus: float = 0.01,
    a_minus: float = 0.0105,
    tau_plus: float = 20.0,
    tau_minus: float = 20.0,
    w_min: float = 0.0,
    w_max: float = 1.0,
) -> Synapse:
    """Pairs of spikes, all with all: w changes by a_plus exp(-dt / tau_plus) where the spike after follows, else by -a_minus exp(dt / tau_minus).

    Song, Miller and Abbott, Nature Neuroscience 3 (2000). Time constants are in steps, as of all rules.
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
    *,
    a2_plus: float = 0.0,
    a2_minus: float = 7.1e-3,
    a3_plus: float = 6.5e-3,
    a3_minus: float = 0.0,
    tau_plus: float = 16.8,
    tau_minus: float = 33.7,
    tau_x: float = 101.0,
    tau_y: float = 114.0,
    w_min: float = 0.0,
    w_max: float = math.inf,
) -> Synapse:
    """Pairs and triplets of spikes, all with all.

    Pfister and Gerstner, Journal of Neuroscience 26 (2006). The defaults are its minimal model of visual cortex, for steps of 1 ms and
    weights of about 1.
    """
    numbers = dict(locals())
    return synapse(TRIPLET_STDP, **numbers)


TRIPLET_STDP = """
synapse triplet_stdp(w; r1, r2, o1, o2; a2_plus, a2_minus, a3_plus, a3_minus, tau_plus, tau_minus, tau_x, tau_y, w_min, w_max) {
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
    *,
    a_plus: float = 1.0,
    a_minus: float = 1.0,
    tau_plus: float = 20.0,
    tau_minus: float = 20.0,
    tau_c: float = 1000.0,
    rate: float = 0.001,
    w_min: float = 0.0,
    w_max: float = 1.0,
) -> Synapse:
    """Pairs of spikes leave an eligibility c in the connection, which decays; a ``reward`` makes weights of it.

    Izhikevich, Cerebral Cortex 17 (2007). A step with a reward costs all connections, others the spikes alone.
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
    """Weights grow or shrink by the same share until the neuron after fires ``target`` times a step.

    Turrigiano and others, Nature 391 (1998); van Rossum, Bi and Turrigiano, Journal of Neuroscience 20 (2000). ``scale`` is the signal:
    give it now and then, as the number of steps since the last time, for such a step costs all connections.
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
    """Short-term plasticity: a spike uses the share u of the resources x that are left, and sends w u x.

    Tsodyks, Pawelzik and Markram, Neural Computation 10 (1998). u decays by tau_f and grows by ``use`` (1 - u) at a spike; x recovers by
    tau_d. The weight itself stays.
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
