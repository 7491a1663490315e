"""torch's functions of values: the operations of neuron text, and functions composed of them.

TABLE maps the name of a torch function to a function of the same arguments. It is used for torch.exp(x), x.exp(),
x.exp_(), torch.special.expit(x) and torch.nn.functional.silu(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .make import boolean, constant, draw, is_boolean, number, op, operand, recording_for
from .place import fail
from .value import FLOATING, Value

TABLE: dict[str, Callable[..., Value]] = {}


def taken_as(*names: str) -> Callable:
    def add(function: Callable) -> Callable:
        for name in names:
            TABLE[name] = function
        return function

    return add


# --- draws, with torch's functions of a tensor ---


@taken_as("randn_like")
def _randn_like(input: Any) -> Value:
    number("randn_like", input)
    return draw("normal", what="randn_like")


@taken_as("rand_like")
def _rand_like(input: Any) -> Value:
    number("rand_like", input)
    return draw("uniform", what="rand_like")


@taken_as("bernoulli")
def _bernoulli(input: Any) -> Value:
    return draw("bernoulli", input)


@taken_as("poisson")
def _poisson(input: Any) -> Value:
    return draw("poisson", input)


# --- functions of one value
# -----------------------------------------------------------------------------------------------------

_UNARY = [
    "sign",
    "reciprocal",
    "square",
    "sqrt",
    "rsqrt",
    "exp",
    "expm1",
    "exp2",
    "log",
    "log1p",
    "log2",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "erf",
    "sigmoid",
    "relu",
    "silu",
    "floor",
    "ceil",
    "trunc",
]
_UNARY_ALIASES = {
    "sgn": "sign",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "expit": "sigmoid",
    "fix": "trunc",
    "swish": "silu",
}


def _unary(name: str) -> Callable[..., Value]:
    def function(input: Any) -> Value:
        return op(name, input)

    return function


for _name in _UNARY:
    TABLE[_name] = _unary(_name)
for _alias, _name in _UNARY_ALIASES.items():
    TABLE[_alias] = TABLE[_name]


@taken_as("abs", "absolute")
def _abs(input: Any) -> Value:
    return op("abs", input)


@taken_as("neg", "negative")
def _neg(input: Any) -> Value:
    if is_boolean(input):
        fail("-: a boolean has no negative: write ~ for not")
    return op("neg", input)


@taken_as("positive", "clone", "contiguous", "alias")
def _same(input: Any, *, memory_format: Any = None) -> Value:
    return _alike(input)


def _alike(x: Any) -> Value:
    """Returns another value of the same node, which an in-place operation on the first does not change."""
    return Value(operand("clone", x), recording_for("clone"))


@taken_as("round")
def _round(input: Any, decimals: int | None = 0) -> Value:
    if decimals:
        fail("round: takes no decimals: write torch.round(x * 10**n) / 10**n")
    return op("round", input)


@taken_as("softplus")
def _softplus(input: Any, beta: float = 1, threshold: float = 20) -> Value:
    if threshold != 20:
        fail(f"softplus: threshold must be 20 in neuron text, but is {threshold}")
    return op("softplus", input) if beta == 1 else op("divide", op("softplus", op("multiply", input, beta)), beta)


@taken_as("gelu")
def _gelu(input: Any, approximate: str = "none") -> Value:
    if approximate == "none":
        return op("gelu", input)
    cubic = input + 0.044715 * (op("square", input) * input)
    return 0.5 * input * (1 + op("tanh", math.sqrt(2 / math.pi) * cubic))


@taken_as("leaky_relu")
def _leaky_relu(input: Any, negative_slope: Any = 0.01) -> Value:
    return op("leaky_relu", input, negative_slope)


@taken_as("elu")
def _elu(input: Any, alpha: Any = 1.0) -> Value:
    return op("elu", input, alpha)


@taken_as("log10")
def _log10(input: Any) -> Value:
    return op("log2", input) * math.log10(2)


@taken_as("erfc")
def _erfc(input: Any) -> Value:
    return 1 - op("erf", input)


@taken_as("frac")
def _frac(input: Any) -> Value:
    return input - op("trunc", input)


@taken_as("softsign")
def _softsign(input: Any) -> Value:
    return input / (1 + op("abs", input))


@taken_as("tanhshrink")
def _tanhshrink(input: Any) -> Value:
    return input - op("tanh", input)


@taken_as("logsigmoid", "log_sigmoid")
def _logsigmoid(input: Any) -> Value:
    return -op("softplus", -input)


@taken_as("mish")
def _mish(input: Any) -> Value:
    return input * op("tanh", op("softplus", input))


@taken_as("hardtanh")
def _hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    return op("clamp", input, min_val, max_val)


@taken_as("relu6")
def _relu6(input: Any) -> Value:
    return op("clamp", input, 0, 6)


@taken_as("hardsigmoid")
def _hardsigmoid(input: Any) -> Value:
    return op("clamp", input / 6 + 0.5, 0, 1)


@taken_as("threshold")
def _threshold(input: Any, threshold: float, value: float) -> Value:
    return op("where", op("greater", input, threshold), input, value)


# --- arithmetic -------------------------------------------------------------------------------------------------------


@taken_as("add")
def _add(input: Any, other: Any, alpha: Any = 1) -> Value:
    if is_boolean(input) and is_boolean(other):
        return op("logical_or", input, other, what="+")
    return op("add", input, other if alpha == 1 else op("multiply", other, alpha), what="+")


@taken_as("sub", "subtract")
def _sub(input: Any, other: Any, alpha: Any = 1) -> Value:
    if is_boolean(input) and is_boolean(other):
        fail("-: two booleans have no difference: write ^ or != for one or the other")
    return op("subtract", input, other if alpha == 1 else op("multiply", other, alpha), what="-")


@taken_as("rsub")
def _rsub(input: Any, other: Any, alpha: Any = 1) -> Value:
    return op("subtract", other, input if alpha == 1 else op("multiply", input, alpha), what="-")


@taken_as("mul", "multiply")
def _mul(input: Any, other: Any) -> Value:
    if is_boolean(input) and is_boolean(other):
        return op("logical_and", input, other, what="*")
    return op("multiply", input, other, what="*")


@taken_as("div", "divide", "true_divide")
def _div(input: Any, other: Any, rounding_mode: str | None = None) -> Value:
    quotient = op("divide", input, other, what="/")
    return quotient if rounding_mode is None else op(rounding_mode, quotient)


@taken_as("floor_divide")
def _floor_divide(input: Any, other: Any) -> Value:
    return op("floor", op("divide", input, other, what="//"))


@taken_as("remainder")
def _remainder(input: Any, other: Any) -> Value:
    return op("remainder", input, other, what="%")


@taken_as("pow", "float_power")
def _pow(input: Any, exponent: Any) -> Value:
    if not isinstance(exponent, Value) and not is_boolean(exponent) and exponent in _POWERS:
        return _POWERS[exponent](input)
    return op("pow", input, exponent, what="**")


_POWERS: dict[float, Callable[[Any], Value]] = {
    0: lambda x: constant(1),
    1: lambda x: _same(x),
    2: lambda x: op("square", x),
    3: lambda x: op("multiply", op("square", x), x),
    4: lambda x: op("square", op("square", x)),
    -1: lambda x: op("reciprocal", x),
    -2: lambda x: op("reciprocal", op("square", x)),
    0.5: lambda x: op("sqrt", x),
    -0.5: lambda x: op("rsqrt", x),
}


@taken_as("addcmul")
def _addcmul(input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Value:
    return input + (tensor1 * tensor2 if value == 1 else value * tensor1 * tensor2)


@taken_as("addcdiv")
def _addcdiv(input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Value:
    return input + (tensor1 / tensor2 if value == 1 else value * tensor1 / tensor2)


@taken_as("atan2", "arctan2")
def _atan2(input: Any, other: Any) -> Value:
    return op("atan2", input, other)


@taken_as("fmod")
def _fmod(input: Any, other: Any) -> Value:
    return op("fmod", input, other)


@taken_as("maximum", "max")
def _maximum(input: Any, other: Any) -> Value:
    return op("maximum", input, other)


@taken_as("minimum", "min")
def _minimum(input: Any, other: Any) -> Value:
    return op("minimum", input, other)


@taken_as("clamp", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Value:
    if min is None and max is None:
        fail("clamp: needs min, max or both")
    return op("clamp", input, -math.inf if min is None else min, math.inf if max is None else max)


@taken_as("clamp_min")
def _clamp_min(input: Any, min: Any) -> Value:
    return _clamp(input, min=min)


@taken_as("clamp_max")
def _clamp_max(input: Any, max: Any) -> Value:
    return _clamp(input, max=max)


@taken_as("lerp")
def _lerp(input: Any, end: Any, weight: Any) -> Value:
    return op("lerp", input, end, weight)


# --- comparisons and booleans -----------------------------------------------------------------------------------------

_COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}


def _comparison(name: str) -> Callable[..., Value]:
    def function(input: Any, other: Any) -> Value:
        return op(name, input, other)

    return function


for _short, _long in _COMPARISONS.items():
    TABLE[_short] = _comparison(_long)
    if _long != "equal":  # torch.equal compares whole tensors
        TABLE[_long] = TABLE[_short]


@taken_as("bitwise_and")
def _bitwise_and(input: Any, other: Any) -> Value:
    return op("logical_and", input, other, what="&")


@taken_as("bitwise_or")
def _bitwise_or(input: Any, other: Any) -> Value:
    return op("logical_or", input, other, what="|")


@taken_as("bitwise_not")
def _bitwise_not(input: Any) -> Value:
    return op("logical_not", input, what="~")


@taken_as("bitwise_xor")
def _bitwise_xor(input: Any, other: Any) -> Value:
    boolean("^", input), boolean("^", other)
    return op("not_equal", input, other, what="^")


def _truth(x: Any) -> Any:
    return x if is_boolean(x) else op("not_equal", x, 0)


@taken_as("logical_and")
def _logical_and(input: Any, other: Any) -> Value:
    return op("logical_and", _truth(input), _truth(other))


@taken_as("logical_or")
def _logical_or(input: Any, other: Any) -> Value:
    return op("logical_or", _truth(input), _truth(other))


@taken_as("logical_xor")
def _logical_xor(input: Any, other: Any) -> Value:
    return _bitwise_xor(_truth(input), _truth(other))


@taken_as("logical_not")
def _logical_not(input: Any) -> Value:
    return op("logical_not", _truth(input))


@taken_as("isnan")
def _isnan(input: Any) -> Value:
    return op("not_equal", input, input)


@taken_as("isinf")
def _isinf(input: Any) -> Value:
    return op("equal", op("abs", input), math.inf)


@taken_as("isfinite")
def _isfinite(input: Any) -> Value:
    return op("less", op("abs", input), math.inf)


@taken_as("where")
def where(condition: Any, input: Any, other: Any) -> Value:
    if is_boolean(input) and is_boolean(other):
        otherwise = op("logical_and", op("logical_not", condition), other)
        return op("logical_or", op("logical_and", condition, input), otherwise)
    return op("where", condition, input, other)


def where_method(input: Any, condition: Any, other: Any) -> Value:
    return where(condition, input, other)


@taken_as("masked_fill")
def _masked_fill(input: Any, mask: Any, value: Any) -> Value:
    return op("where", mask, value, input)


# --- types, shapes and gradients --------------------------------------------------------------------------------------


def _filled(fill: float) -> Callable[..., Value]:
    def function(input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Value:
        return _truth(constant(fill)) if dtype is torch.bool else constant(fill)

    return function


TABLE["zeros_like"], TABLE["ones_like"] = _filled(0), _filled(1)


@taken_as("full_like")
def _full_like(input: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Value:
    return Value(number("full_like", fill_value), recording_for("full_like"))


@taken_as("expand_as", "view_as", "reshape_as")
def _of_shape(input: Any, other: Any) -> Value:
    return _alike(input)


@taken_as("to", "type", "type_as")
def _to(
    input: Any, *targets: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, copy: bool = False
) -> Value:
    for target in (*targets, dtype):
        wanted = getattr(target, "dtype", None) if isinstance(target, Value) else target
        if wanted is torch.bool:
            return _alike(_truth(input))
        if wanted in FLOATING:
            return _float(input)
        if isinstance(wanted, torch.dtype):
            fail(
                f"to({target}): a neuron's numbers have the floating-point type of its call: write torch.trunc or "
                "torch.round"
            )
    return _alike(input)


@taken_as("float", "double")
def _float(input: Any) -> Value:
    return Value(number("float", input), recording_for("float"))


@taken_as("bool")
def _bool(input: Any) -> Value:
    return _alike(_truth(input))


@taken_as("detach", "data")
def detach(input: Any) -> Value:
    return _alike(input) if is_boolean(input) else op("detach", input)
