"""Functions for spikes, resets, gradients and draws that torch does not have, of values and of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import functions
from .make import draw, once, op
from .place import fail
from .surrogates import Rule, resolve
from .value import Value


def _is_traced(*operands: Any) -> bool:
    return any(isinstance(x, Value) for x in operands)


def _resolve(surrogate: Any, traced: bool) -> Rule:
    try:
        return resolve(surrogate)
    except (TypeError, ValueError) as error:
        if traced:
            fail(str(error), type(error))
        raise


def spike(u: Any, surrogate: Any = "sigmoid") -> Any:
    """Returns 1 where u >= 0, else 0, with the derivative of the surrogate.

    Args:
        u: a value, or a floating-point tensor of any shape; in a neuron, the charge minus the threshold.
        surrogate: an object of `spikeforge.surrogate`, the name of one with its default parameters (`"atan"`), or a
            function that returns the derivative at u: `lambda u: 1 / (1 + torch.abs(u)) ** 2`.
    """
    return _spike("spike", u, surrogate)


def spike_strict(u: Any, surrogate: Any = "sigmoid") -> Any:
    """Returns 1 where u > 0, else 0; otherwise as `spike`."""
    return _spike("spike_strict", u, surrogate)


def _spike(kind: str, u: Any, surrogate: Any) -> Any:
    traced = _is_traced(u)
    rule = _resolve(surrogate, traced)
    if not traced:
        _check_tensor(kind, u)
        return _in_mode(_Spike, _TangentSpike).apply(u, kind == "spike_strict", rule)
    if rule.text is not None:
        return op(kind, u, surrogate=rule.text)
    return op("add_gradient", op(kind, u, surrogate="none"), u, rule.of_values(u))


def surrogate_gradient(u: Any, surrogate: Any) -> Any:
    """Returns a surrogate's derivative at u, as a constant, for `add_gradient` and `custom_gradient`."""
    traced = _is_traced(u)
    rule = _resolve(surrogate, traced)
    if not traced:
        return rule.gradient(u.detach())
    known = rule.text is not None
    return op("detach", op("surrogate_gradient", u, surrogate=rule.text or "") if known else rule.of_values(u))


def select(s: Any, a: Any, b: Any) -> Any:
    """Returns a where the spike s is 1, else b: a reset that is exact even at infinity.

    Its gradient through s is that of s * a + (1 - s) * b; `select(detach(s), a, b)` stops it.
    """
    if _is_traced(s, a, b):
        return op("select", s, a, b)
    _check_tensor("select", s)
    return _in_mode(_Select, _TangentSelect).apply(*_broadcast(s, (s, a, b)))


def where(condition: Any, a: Any, b: Any) -> Any:
    """Returns a where the condition is true, else b."""
    if _is_traced(condition, a, b):
        return functions.where(condition, a, b)
    if isinstance(condition, bool):
        return a if condition else b
    return torch.where(condition, a, b)


def detach(x: Any) -> Any:
    """Returns x as a constant for differentiation."""
    if isinstance(x, Value):
        return functions.detach(x)
    return x.detach() if isinstance(x, Tensor) else x


def add_gradient(f: Any, x: Any, d: Any) -> Any:
    """Returns f, and adds d to its derivative by x. d itself is not differentiated."""
    if _is_traced(f, x, d):
        return op("add_gradient", f, x, d)
    _check_tensor("add_gradient", x)
    return _in_mode(_AddGradient, _TangentAddGradient).apply(*_broadcast(x, (f, x, d)))


def custom_gradient(f: Any, x: Any, d: Any, *more: Any) -> Any:
    """Returns f with the derivative d by x, and 0 by anything else. More pairs x, d may follow.

    `custom_gradient(torch.round(x), x, 1)` is rounding with a straight-through gradient.
    """
    if len(more) % 2:
        raise TypeError("custom_gradient: arguments after f must be pairs of a value and the derivative by it")
    result = detach(f)
    pairs = (x, d, *more)
    for by, derivative in zip(pairs[::2], pairs[1::2]):
        result = add_gradient(result, by, derivative)
    return result


def normal() -> Value:
    """Draws a normal random number of mean 0 and standard deviation 1 for each neuron and step.

    Draws depend on the call's seed, are recomputed in the backward pass, and are constants for differentiation.
    `torch.randn_like(x)` of a value is the same draw.
    """
    return draw("normal")


def uniform() -> Value:
    """Draws a uniform random number, above 0 and below 1, for each neuron and step."""
    return draw("uniform")


def bernoulli(p: Any) -> Value:
    """Draws 1 with probability p, else 0, for each neuron and step; the gradient by p is 0.

    Args:
        p: a value or a number in [0, 1]; other values of a tensor give NaN.
    """
    return draw("bernoulli", p)


def poisson(rate: Any) -> Value:
    """Draws a Poisson random number for each neuron and step; the gradient by the rate is 0.

    Args:
        rate: a value or a number, finite and not negative; other values of a tensor give NaN.
    """
    return draw("poisson", rate)


def draw_once(x: Any) -> Value:
    """Draws x once for all steps: `draw_once(bernoulli(0.5))` is a constant mask."""
    return once(x)


def _broadcast(like: Tensor, operands: tuple) -> tuple[Tensor, ...]:
    return torch.broadcast_tensors(*(torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in operands))


def _check_tensor(function: str, x: Any) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            f"{function}: x must be a value of a neuron or a floating-point tensor, but is {type(x).__name__}"
        )


class _Function(torch.autograd.Function):
    """A function that supports the transforms of torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _save(ctx, *inputs)


def _save(ctx: Any, *tensors: Tensor) -> None:
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _in_mode(plain: type[_Function], with_tangents: type[_Function]) -> type[_Function]:
    """Returns the function without a jvp under torch.compile, which does not support a jvp."""
    return plain if torch.compiler.is_dynamo_compiling() else with_tangents


class _Spike(_Function):
    @staticmethod
    def forward(u: Tensor, strict: bool, rule: Rule) -> Tensor:
        return (u > 0 if strict else u >= 0).to(u.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        u, _, ctx.rule = inputs
        _save(ctx, u)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (u,) = ctx.saved_tensors
        return grad * ctx.rule.gradient(u), None, None


class _TangentSpike(_Spike):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return _Spike.backward(ctx, tangent)[0]


class _Select(_Function):
    @staticmethod
    def forward(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(s == 1, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        s, a, b = ctx.saved_tensors
        return grad * (a - b), grad * s, grad * (1 - s)


class _TangentSelect(_Select):
    @staticmethod
    def jvp(ctx: Any, of_s: Tensor | None, of_a: Tensor | None, of_b: Tensor | None) -> Tensor:
        s, a, b = ctx.saved_tensors
        parts = ((of_s, a - b), (of_a, s), (of_b, 1 - s))
        return sum(tangent * factor for tangent, factor in parts if tangent is not None)


class _AddGradient(_Function):
    @staticmethod
    def forward(f: Tensor, x: Tensor, d: Tensor) -> Tensor:
        return f.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _save(ctx, inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (d,) = ctx.saved_tensors
        return grad, grad * d, None


class _TangentAddGradient(_AddGradient):
    @staticmethod
    def jvp(ctx: Any, of_f: Tensor | None, of_x: Tensor | None, of_d: Tensor | None) -> Tensor:
        (d,) = ctx.saved_tensors
        return sum((t for t in (of_f, None if of_x is None else of_x * d) if t is not None), torch.zeros_like(d))
