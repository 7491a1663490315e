"""Published neurons without an operator: their equations as neuron text, and their modules.

Each function writes the statements of a neuron from n: its constants as operands (a number, or the name of a parameter;
v_reset is None for soft reset), its options as values, and n.fire(e), a spike at the value e. The rules of
``accelerate/spikingjelly.py`` call the same functions, so the order of operations is SpikingJelly's.
"""

from __future__ import annotations

import math
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from spikeforge._numbers import check_whole
from spikeforge.nn import samples
from spikeforge.nn.constant import Learnable
from spikeforge.nn.neurons import Firing, Number, PredefinedNeuron, Surrogate, WithStates
from spikeforge.nn.stateful import States, shape_of

ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "softplus", "tanh")


def leak(n: Any, charge: str = "h", rate: str = "", v: str = "v") -> str:
    """LIF: H = V + (X - (V - Vr)) / tau, or without decay_input H = V - (V - Vr) / tau + X; Vr is v_reset, or 0."""
    lost, rate = v if n.v_reset in (None, "0.0") else f"({v} - {n.v_reset})", rate or f"/ {n.tau}"
    return f"  {charge} = {v} + (x - {lost}) {rate}" if n.decay_input else f"  {charge} = {v} - {lost} {rate} + x"


def spike_of_reset(n: Any, s: str = "s") -> str:
    return f"detach({s})" if n.detach_reset else s


def reset(n: Any, h: str = "h", threshold: str = "", s: str = "s") -> str:
    """Returns V after the spike s at the charge h."""
    if n.v_reset is None:
        return f"{h} - {spike_of_reset(n, s)} * {threshold or n.v_threshold}"
    return f"select({spike_of_reset(n, s)}, {n.v_reset}, {h})"


def firing(n: Any, charge: str, after: str = "", output: str = "s") -> str:
    """Returns the statements of a neuron that charges, fires at H >= v_threshold and resets."""
    return f"{charge}\n  e = h - {n.v_threshold}\n  s = {n.fire('e')}\n  return {output}\n  v' = {after or reset(n)}"


def klif(n: Any) -> str:
    """Jiang and Zhang, arXiv:2302.09238 (2023): H = relu(k C), where C is the charge of a LIF."""
    scaled = reset(n, f"h / {n.k}", f"({n.v_threshold} / {n.k})") if n.scale_reset else ""
    return firing(n, f"{leak(n, 'c')}\n  h = relu({n.k} * c)", scaled)


def clif(n: Any) -> str:
    """Huang et al., ICML 2024: H = V - V / tau + X, M' = sigmoid(H / tau) M + S, reset by v_threshold + sigmoid(M')."""
    return (
        f"  h = v - v / {n.tau} + x\n  e = h - {n.v_threshold}\n  s = {n.fire('e')}\n  return s\n"
        f"  c = m * sigmoid(h / {n.tau}) + s\n"
        f"  v' = h - {spike_of_reset(n)} * ({n.v_threshold} + sigmoid(c))\n  m' = c"
    )


def current_lif(n: Any) -> str:
    """A LIF charged by a current: I' = c_decay I + X, H = v_decay V + I'."""
    return firing(n, f"  i = c * {n.c_decay} + x\n  h = v * {n.v_decay} + i") + "\n  c' = i"


def ilif(n: Any) -> str:
    """Luo et al., ECCV 2024: C = round(clamp(H / v_threshold, 0, levels)), with the derivative of clamp."""
    return (
        f"  h = {n.charge}\n  e = h / {n.v_threshold}\n  passes = where(e >= {n.low} and e <= {n.high}, 1, 0)\n"
        f"  s = add_gradient(detach(round(clamp(e, 0, {n.levels}))), e, passes)\n"
        f"  return s\n  v' = h - {spike_of_reset(n)} * {n.v_threshold}"
    )


def ternary(n: Any) -> str:
    """Guo et al., AAAI 2024: 1 if H >= v_threshold, -1 if H <= -v_threshold, else 0."""
    fired = "s" if n.v_reset is None else "up + down"
    return (
        f"{leak(n) if hasattr(n, 'tau') else '  h = v + x'}\n  e = h - {n.v_threshold}\n  f = -h - {n.v_threshold}\n"
        f"  up = {n.fire('e')}\n  down = {n.fire('f')}\n  s = up - down\n  return s\n  v' = {reset(n, s=fired)}"
    )


def resonate(n: Any) -> str:
    """Izhikevich, Neural Networks 14 (2001): U + iH = exp(b + i omega) (U + iV), with X added to U."""
    c, s = n.cosine, n.sine
    return firing(n, f"  c = {n.decay} * (u * {c} - v * {s}) + x\n  h = {n.decay} * (u * {s} + v * {c})\n  u' = c")


def liaf(n: Any) -> str:
    """Wu et al., IEEE TNNLS (2021): a LIF whose output is activation(H) or activation(H - v_threshold)."""
    if n.activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, but is {n.activation!r}")
    return firing(n, leak(n), output=f"{n.activation}({'e' if n.threshold_related else 'h'})")


def gated(n: Any) -> str:
    """Yao et al., NeurIPS 2022, with the gain of the step t; the equations are those of :class:`GatedLIF`."""
    gains = n.conduct if isinstance(n.conduct, list) else [n.conduct]
    if len(gains) not in (1, n.steps):
        raise ValueError(f"conduct must have a value for each of {n.steps} steps, but has {len(gains)}")
    lines = [f"  g0 = {gains[0]}"]
    lines += [f"  g{i} = where(t >= {i}, {gains[i]}, g{i - 1})" for i in range(1, len(gains))]
    lines += [f"  {name} = sigmoid({getattr(n, constant)})" for name, constant in GATES.items()]
    current = f"x * (1 - b * (1 - sigmoid(g{len(gains) - 1})))"
    return "\n".join((*lines, gated_charge(n, current), "  t' = t + 1"))


def gated_charge(n: Any, current: str) -> str:
    """Returns the statements of the gated LIF from its gates, which have the names of GATES, and its current."""
    return (
        f"  kept = 1 - a * (1 - d)\n  c = kept * v - (1 - a) * l + {current}\n"
        "  h = c - kept * v * r * fired - (1 - r) * q * fired\n"
        f"  e = h - w\n  s = {n.fire('e')}\n  return s\n  v' = h\n  fired' = s"
    )


GATES = {
    "a": "alpha", "b": "beta", "r": "gamma", "d": "tau", "w": "v_threshold", "l": "linear_decay", "q": "v_subreset",
}  # fmt: skip


def compartments(n: Any) -> str:
    """Zhang et al., AAAI 2024: D' = D - sigmoid(beta1) V + X - gamma S, H = V + sigmoid(beta2) (D' + gamma S)."""
    return (
        f"  c = d - sigmoid({n.beta1}) * v + x\n  h = v + sigmoid({n.beta2}) * c\n  e = h - {n.v_threshold}\n"
        f"  s = {n.fire('e')}\n  return s\n  d' = c - {spike_of_reset(n)} * {n.gamma}\n  v' = {reset(n)}"
    )


def multi_level(n: Any) -> str:
    """Feng et al., IJCAI 2022: the sum of LIF with H = (1 - 1 / tau) V + X and several thresholds."""
    lines = [
        f"  h{i} = (1 - 1 / {n.tau}) * v{i} + x\n  e{i} = h{i} - ({n.v_threshold} + {i} * {n.spacing})\n"
        f"  s{i} = {n.fire(f'e{i}')}\n  v{i}' = select({spike_of_reset(n, f's{i}')}, 0, h{i})\n"
        for i in range(n.levels)
    ]
    return "".join(lines) + "  return " + " + ".join(f"s{i}" for i in range(n.levels))


def noisy(n: Any) -> str:
    """Ma et al., Patterns 4 (2023): S = 1 if H + noise >= v_threshold, and dS/dH is the noise's density."""
    density = f"exp(-0.5 * square(e / {n.sigma})) / ({n.sigma} * {math.sqrt(2 * math.pi)!r})"
    return (
        f"{leak(n)}\n  e = h - {n.v_threshold}\n  noise = {n.sigma} * normal()\n"
        f"  s = add_gradient(spike(e + noise, none), e, {density})\n  return s\n  v' = {reset(n)}"
    )


def sliding(n: Any) -> str:
    """Fang et al., NeurIPS 2023: H[t] = weight[k - 1] X[t] + ... + weight[0] X[t - k + 1] + bias."""
    weights = n.weight if isinstance(n.weight, list) else [n.weight] * n.k
    if len(weights) != n.k:
        raise ValueError(f"weight must have k = {n.k} values, but has {len(weights)}")
    terms = [f"{weight} * x{n.k - 1 - i or ''}" for i, weight in enumerate(weights)]
    shifts = "".join(f"\n  x{i}' = x{i - 1 or ''}" for i in range(1, n.k))
    return f"  h = {' + '.join(terms)} + {n.bias}\n  s = {n.fire('h')}\n  return s{shifts}"


# --- the modules ------------------------------------------------------------------------------------------------------


class KLIF(Firing):
    """LIF whose charge is scaled by a learned k and rectified: C is the charge of a :class:`LIF`, H = relu(k C). State:
    v.

    Source: Jiang and Zhang, KLIF, arXiv:2302.09238 (2023).

    Args:
        k: the slope, learned by default.
        scale_reset: V is H / k before the reset, and soft reset subtracts v_threshold / k.
    """

    _body = staticmethod(klif)
    _positive = ("tau",)

    tau: Number = 2.0
    k: Number = Learnable(1.0)
    decay_input: bool = True
    scale_reset: bool = False
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0


class CLIF(Firing):
    """Complementary LIF: H = V - V / tau + X, M' = sigmoid(H / tau) M + S, V' = H - S (v_threshold + sigmoid(M')).
    States: v, m.

    Source: Huang et al., CLIF, ICML 2024.
    """

    _body = staticmethod(clif)
    _positive = ("tau",)
    state_names = ("v", "m")

    tau: Number = 2.0
    v_threshold: Number = 1.0
    surrogate: Surrogate = "rect"


class ILIF(WithStates):
    """Integer LIF: H = (1 - 1 / tau) V + X, the output is the count C = round(H / v_threshold), from 0 to `levels`, and
    V' = H - C v_threshold. State: v.

    The derivative of C by H / v_threshold is 1 between 0 and `levels`, else 0. :func:`counts_to_spikes` turns counts
    into spikes. Source: Luo et al., Integer-Valued Training and Spike-Driven Inference, ECCV 2024.

    Args:
        tau: time constant in steps; 4 / 3 is the paper's decay of 0.25.
        v_threshold: the charge of one spike, above 0.
        levels: the largest count.
    """

    _body, _is_binary = staticmethod(ilif), False
    _derived = {"charge": "(1 - 1 / {tau}) * v + x", "low": "0", "high": "{levels}"}
    _positive = ("tau", "v_threshold")

    tau: Number = 4 / 3
    v_threshold: Number = 1.0
    levels: int = 4
    detach_reset: bool = False


class TernaryIF(Firing):
    """Ternary integrate-and-fire: H = V + X; the output is 1 if H >= v_threshold, -1 if H <= -v_threshold, else 0.
    State: v.

    Soft reset subtracts the output times v_threshold. Source: Guo et al., Ternary Spike, AAAI 2024.
    """

    _body, _is_binary = staticmethod(ternary), False
    _positive: tuple[str, ...] = ("v_threshold",)

    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0


class TernaryLIF(TernaryIF):
    """:class:`TernaryIF` with the charge of a :class:`LIF`. State: v."""

    _positive = ("tau", "v_threshold")

    tau: Number = 2.0
    decay_input: bool = True


class ResonateAndFire(Firing):
    """Resonate-and-fire: U + iH = exp(b + i omega) (U + iV), and then X is added to U; V is reset. States: v, u.

    Source: Izhikevich, Resonate-and-fire neurons, Neural Networks 14 (2001), which resets to V = 1 and U = 0. Here, as
    in SpikingJelly, U is not reset.

    Args:
        b: the growth of the oscillation per step; below 0 it decays.
        omega: its angle per step, in radians.
    """

    _body = staticmethod(resonate)
    _derived = {"decay": "exp({b})", "cosine": "cos({omega})", "sine": "sin({omega})"}
    state_names = ("v", "u")

    b: Number = -0.2
    omega: Number = 1.0
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0


class LIAF(Firing):
    """Leaky integrate and analog fire: V is that of a :class:`LIF`, and the output activation(H). State: v.

    Source: Wu et al., LIAF-Net, IEEE Transactions on Neural Networks and Learning Systems (2021).

    Args:
        activation: "relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "softplus" or "tanh".
        threshold_related: the output is activation(H - v_threshold).
    """

    _body, _is_binary = staticmethod(liaf), False
    _positive = ("tau",)

    activation: str = "relu"
    threshold_related: bool = False
    tau: Number = 2.0
    decay_input: bool = True
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0


class GatedLIF(WithStates):
    """Gated LIF: H = K V - (1 - a) l + (1 - b (1 - g)) X - S (K V r + (1 - r) q) with K = 1 - a (1 - d) and the spike S
    of the step before; V' = H. States: v, fired, t.

    Each letter is the sigmoid of a constant: a, b, r of the gates alpha, beta, gamma, d of tau, l of linear_decay, q of
    v_subreset, g of the conduct of the step. Constants that are None are learned, shared or per channel, from
    SpikingJelly's initial values; names and shapes of parameters are SpikingJelly's. Source: Yao et al., GLIF, NeurIPS
    2022.

    Args:
        steps: the steps of a sequence. Steps after them have the last conduct.
        channels: the number of channels, each with its own values.
        v_threshold: the neuron fires if H >= sigmoid(v_threshold).
        conduct: ``[steps]`` or ``[steps, channels]``, or one value.
    """

    _body = staticmethod(gated)
    _in_parts = ("conduct",)
    state_names = ("v", "fired", "t")

    steps: int
    channels: int | None = None
    alpha: Number | None = None
    beta: Number | None = None
    gamma: Number | None = None
    tau: Number | None = None
    v_threshold: Number | None = None
    linear_decay: Number | None = None
    v_subreset: Number | None = None
    conduct: Number | None = None
    surrogate: Surrogate = "sigmoid"
    strict: bool = False

    def _converted(self, constants: dict[str, Any]) -> dict[str, Any]:
        shape = () if self.channels is None else (self.channels,)
        starts = {"tau": 0.25, "v_threshold": 0.5, "linear_decay": 0.25 / self.steps, "v_subreset": 0.5, "conduct": 0.5}
        for name in [name for name, value in constants.items() if value is None]:
            start = starts.get(name)
            logit = 0.2 * (torch.rand(shape) - 0.5) if start is None else -math.log(1 / start - 1)
            constants[name] = Learnable(logit, shape=(self.steps, *shape) if name == "conduct" else shape)
        return constants


class TCLIF(Firing):
    """Two-compartment LIF: D + X - sigmoid(beta1) V charges the dendrite, and H = V + sigmoid(beta2) D the soma, which
    fires. A spike subtracts gamma from D, and resets V. States: v, d.

    Source: Zhang et al., TC-LIF, AAAI 2024, and the authors' code. v_reset is None in the paper.

    Args:
        beta1, beta2: learned by default.
    """

    _body = staticmethod(compartments)
    state_names = ("v", "d")

    beta1: Number = Learnable(0.0)
    beta2: Number = Learnable(0.0)
    gamma: Number = 0.5
    v_threshold: Number = 1.0
    v_reset: Number | None = None


class MultiLevelLIF(Firing):
    """Multi-level firing: several LIF with H = (1 - 1 / tau) V + X, a reset to 0, and the thresholds v_threshold,
    v_threshold + spacing, ...; the output is the sum of their spikes. States: v0, v1, ...

    Source: Feng et al., Multi-Level Firing with Spiking DS-ResNet, IJCAI 2022, whose code fires above the thresholds:
    ``strict=True``.

    Args:
        levels: the number of LIF.
        tau: time constant in steps; 4 / 3 is the code's decay of 0.25.
        spacing: the distance between thresholds.
    """

    _body, _is_binary = staticmethod(multi_level), False
    _positive = ("tau",)

    levels: int = 3
    tau: Number = 4 / 3
    v_threshold: Number = 0.6
    spacing: Number = 1.0
    surrogate: Surrogate = "rect"

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"v{i}" for i in range(self.levels))


class NoisyLIF(WithStates):
    """LIF with a noisy charge: it fires if H + noise >= v_threshold, with Gaussian noise of mean 0 in each step. State:
    v.

    The derivative of the spike by H is the density of the noise at H - v_threshold, that of the probability to fire. V
    does not contain the noise. Numbers are drawn from the default generator of x's device, in evaluation too. Source:
    Ma et al., Exploiting noise as a resource for computation and learning in spiking neural networks, Patterns 4
    (2023).

    Args:
        sigma: standard deviation of the noise, above 0.
    """

    _body, _draws = staticmethod(noisy), True
    _positive = ("tau", "sigma")

    tau: Number = 2.0
    sigma: Number = 0.4
    decay_input: bool = False
    v_threshold: Number = 1.0
    v_reset: Number | None = 0.0
    detach_reset: bool = False


class SlidingPSN(WithStates):
    """Sliding parallel spiking neuron: H[t] = weight[k - 1] X[t] + weight[k - 2] X[t - 1] + ... + bias, and it fires at
    H >= 0, without a reset. States: the last inputs x1, x2, ...

    Source: Fang et al., Parallel Spiking Neurons, NeurIPS 2023.

    Args:
        k: the number of inputs in H.
        weight: ``[k]``; by default learned, from 1, 1/2, 1/4, ... of the newest input and earlier ones.
        bias: learned by default.
    """

    _body = staticmethod(sliding)
    _in_parts = ("weight",)

    k: int = 2
    weight: Number | None = None
    bias: Number = Learnable(-1.0)
    surrogate: Surrogate = "atan"
    strict: bool = False

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"x{i}" for i in range(1, self.k))

    def _converted(self, constants: dict[str, Any]) -> dict[str, Any]:
        weight = Learnable(torch.tensor([0.5**i for i in reversed(range(self.k))]))
        return constants if constants["weight"] is not None else constants | {"weight": weight}


class PSN(PredefinedNeuron):
    """Parallel spiking neuron: H = weight X + bias, a product over the steps, and it fires at H >= 0. It has no state.

    A call takes all steps of a sequence. Source: Fang et al., Parallel Spiking Neurons, NeurIPS 2023.

    Args:
        steps: the steps of a sequence, T.
        weight: ``[T, T]``; by default learned, from torch's initial values of an ``nn.Linear``.
        bias: ``[T, 1]``, or one value; by default learned, from -1.
    """

    _body = staticmethod(lambda n: f"  s = {n.fire('x')}\n  return s")
    _outside: tuple[str, ...] = ("weight", "bias")
    state_names = ()

    steps: int
    weight: Number | None = None
    bias: Number | None = None
    surrogate: Surrogate = "atan"
    strict: bool = False

    fresh_outputs = True

    def _converted(self, constants: dict[str, Any]) -> dict[str, Any]:
        if constants["weight"] is None:
            weight = nn.init.kaiming_uniform_(torch.empty(self.steps, self.steps), a=math.sqrt(5))
            constants["weight"] = Learnable(weight)
        if constants["bias"] is None:
            constants["bias"] = Learnable(-1.0, shape=(self.steps, 1))
        return constants

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Returns the spikes ``[T, *shape]`` of x ``[T, *shape]``."""
        samples.refuse(self, self._memory.samples, "its product is over all steps")
        return self._forward((self._potential(x),), state, store_states)

    def _potential(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0:
            return x  # the operator raises the error
        if x.shape[0] != self.steps:
            raise ValueError(
                f"{self._title()}: x must have {self.steps} steps, all of a sequence, but is {shape_of(x)}; SlidingPSN "
                "runs step by step"
            )
        weight, bias = (torch.as_tensor(c, dtype=x.dtype, device=x.device) for c in (self._weight(), self.bias))
        return torch.addmm(bias, weight, x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)).view(x.shape)

    def _weight(self) -> Tensor:
        return self.weight


class MaskedPSN(PSN):
    """:class:`PSN` whose weights beyond the last k inputs are multiplied by 1 - lambda_: with lambda_ = 1 H[t] depends
    on X[t - k + 1] to X[t].

    Args:
        k: the number of inputs in H for lambda_ = 1.
        lambda_: from 0 to 1. Training raises it from 0 to 1.
    """

    _outside = ("weight", "bias", "lambda_")

    k: int = 2
    lambda_: Number = 0.0

    def _weight(self) -> Tensor:
        near = torch.ones_like(self.weight).tril().triu(1 - self.k)
        return (self.lambda_ * near + (1 - self.lambda_)) * self.weight


# --- integers as spikes -----------------------------------------------------------------------------------------------


def counts_to_spikes(x: Tensor, levels: int) -> Tensor:
    """Turns counts into spikes of virtual steps: the first C of the `levels` steps of a count C have a spike.

    A layer without bias between two :class:`ILIF` gives the same for counts, and for spikes summed again by
    :func:`sum_virtual_steps`.

    Args:
        x: counts from 0 to `levels`, ``[T, *shape]``.

    Returns:
        0 and 1, ``[T * levels, *shape]``, in the type of x.
    """
    steps = torch.arange(_levels("counts_to_spikes", levels), device=x.device)
    return (x.unsqueeze(1) > steps.view(-1, *(1,) * (x.dim() - 1))).to(x.dtype).flatten(0, 1)


def sum_virtual_steps(x: Tensor, levels: int) -> Tensor:
    """Sums x ``[T * levels, *shape]`` over the virtual steps of each step, to ``[T, *shape]``."""
    if x.shape[0] % _levels("sum_virtual_steps", levels):
        raise ValueError(f"sum_virtual_steps: x must have a multiple of {levels} steps, but is {shape_of(x)}")
    return x.unflatten(0, (-1, levels)).sum(1)


def _levels(name: str, levels: int) -> int:
    if check_whole(f"{name}: levels", levels) < 1:
        raise ValueError(f"{name}: levels must be 1 or more, but is {levels}")
    return levels
