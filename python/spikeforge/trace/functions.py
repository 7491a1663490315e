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


# --- functions of one value

_UNARY = """sign reciprocal square sqrt rsqrt exp expm1 exp2 log log1p log2 sin cos tan asin acos atan sinh cosh tanh
erf sigmoid relu silu floor ceil trunc""".split()
_UNARY_ALIASES = dict(
    sgn="sign", arcsin="asin", arccos="acos", arctan="atan", expit="sigmoid", fix="trunc", swish="silu"
)


def _unary(name: str) -> Callable[..., Value]:
    def function(input: Any) -> Value:
        return op(name, input)

    return function


for _name in _UNARY:
    TABLE[_name] = _unary(_name)
for _alias, _name in _UNARY_ALIASES.items():
    TABLE[_alias] = TABLE[_name]


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


# --- arithmetic -------------------------------------------------------------------------------------------------------


@taken_as("add")
def _add(input: Any, other: Any, alpha: Any = 1) -> Value:
    if is_boolean(input) and is_boolean(other):
        return op("logical_or", input, other, what="+")
    return op("add", input, other if alpha == 1 else op("multiply", other, alpha), what="+")


@taken_as("sub", "subtract")
def _sub(input: Any, other: Any, alpha: Any = 1) -> Value:
    if is_boolean(input) and is_boolean(other):
        fail("-: two booleans have no difference: write ^ or != for exclusive or")
    return op("subtract", input, other if alpha == 1 else op("multiply", other, alpha), what="-")


@taken_as("mul", "multiply")
def _mul(input: Any, other: Any) -> Value:
    if is_boolean(input) and is_boolean(other):
        return op("logical_and", input, other, what="*")
    return op("multiply", input, other, what="*")


@taken_as("div", "divide", "true_divide")
def _div(input: Any, other: Any, rounding_mode: str | None = None) -> Value:
    quotient = op("divide", input, other, what="/")
    return quotient if rounding_mode is None else op(rounding_mode, quotient)


@taken_as("pow", "float_power")
def _pow(input: Any, exponent: Any) -> Value:
    if not isinstance(exponent, Value) and not is_boolean(exponent) and exponent in _POWERS:
        return _POWERS[exponent](input)
    return op("pow", input, exponent, what="**")


_POWERS: dict[float, Callable[[Any], Value]] = {
    0: lambda x: constant(1), 1: lambda x: _same(x), 2: lambda x: op("square", x),
    3: lambda x: op("multiply", op("square", x), x), 4: lambda x: op("square", op("square", x)),
    -1: lambda x: op("reciprocal", x), -2: lambda x: op("reciprocal", op("square", x)), 0.5: lambda x: op("sqrt", x),
    -0.5: lambda x: op("rsqrt", x),
}  # fmt: skip


@taken_as("clamp", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Value:
    if min is None and max is None:
        fail("clamp: needs min, max or both")
    return op("clamp", input, -math.inf if min is None else min, math.inf if max is None else max)


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


@taken_as("bitwise_xor")
def _bitwise_xor(input: Any, other: Any) -> Value:
    boolean("^", input), boolean("^", other)
    return op("not_equal", input, other, what="^")


def _truth(x: Any) -> Any:
    return x if is_boolean(x) else op("not_equal", x, 0)


@taken_as("where")
def where(condition: Any, input: Any, other: Any) -> Value:
    if is_boolean(input) and is_boolean(other):
        otherwise = op("logical_and", op("logical_not", condition), other)
        return op("logical_or", op("logical_and", condition, input), otherwise)
    return op("where", condition, input, other)


def where_method(input: Any, condition: Any, other: Any) -> Value:
    return where(condition, input, other)


# --- types, shapes and gradients --------------------------------------------------------------------------------------


def _filled(fill: float) -> Callable[..., Value]:
    def function(input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Value:
        return _truth(constant(fill)) if dtype is torch.bool else constant(fill)

    return function


TABLE["zeros_like"], TABLE["ones_like"] = _filled(0), _filled(1)


@taken_as("full_like")
def _full_like(input: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Value:
    return Value(number("full_like", fill_value), recording_for("full_like"))


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
                f"to({target}): a neuron computes in the floating-point dtype of its inputs: write torch.trunc or "
                "torch.round"
            )
    return _alike(input)


@taken_as("float", "double")
def _float(input: Any) -> Value:
    return Value(number("float", input), recording_for("float"))


@taken_as("detach", "data")
def detach(input: Any) -> Value:
    return _alike(input) if is_boolean(input) else op("detach", input)


# --- functions of one expression

# Arguments are named as in torch.
TABLE.update(
    dict(
        bernoulli=lambda input: draw("bernoulli", input),
        poisson=lambda input: draw("poisson", input),
        abs=lambda input: op("abs", input),
        absolute=lambda input: op("abs", input),
        leaky_relu=lambda input, negative_slope=0.01: op("leaky_relu", input, negative_slope),
        elu=lambda input, alpha=1.0: op("elu", input, alpha),
        log10=lambda input: op("log2", input) * math.log10(2),
        erfc=lambda input: 1 - op("erf", input),
        frac=lambda input: input - op("trunc", input),
        softsign=lambda input: input / (1 + op("abs", input)),
        tanhshrink=lambda input: input - op("tanh", input),
        logsigmoid=lambda input: -op("softplus", -input),
        log_sigmoid=lambda input: -op("softplus", -input),
        mish=lambda input: input * op("tanh", op("softplus", input)),
        hardtanh=lambda input, min_val=-1.0, max_val=1.0: op("clamp", input, min_val, max_val),
        relu6=lambda input: op("clamp", input, 0, 6),
        hardsigmoid=lambda input: op("clamp", input / 6 + 0.5, 0, 1),
        threshold=lambda input, threshold, value: op("where", op("greater", input, threshold), input, value),
        rsub=lambda input, other, alpha=1: op(
            "subtract", other, input if alpha == 1 else op("multiply", input, alpha), what="-"
        ),
        floor_divide=lambda input, other: op("floor", op("divide", input, other, what="//")),
        remainder=lambda input, other: op("remainder", input, other, what="%"),
        addcmul=lambda input, tensor1, tensor2, value=1: (
            input + (tensor1 * tensor2 if value == 1 else value * tensor1 * tensor2)
        ),
        addcdiv=lambda input, tensor1, tensor2, value=1: (
            input + (tensor1 / tensor2 if value == 1 else value * tensor1 / tensor2)
        ),
        atan2=lambda input, other: op("atan2", input, other),
        arctan2=lambda input, other: op("atan2", input, other),
        fmod=lambda input, other: op("fmod", input, other),
        maximum=lambda input, other: op("maximum", input, other),
        max=lambda input, other: op("maximum", input, other),
        minimum=lambda input, other: op("minimum", input, other),
        min=lambda input, other: op("minimum", input, other),
        clamp_min=lambda input, min: _clamp(input, min=min),
        clamp_max=lambda input, max: _clamp(input, max=max),
        lerp=lambda input, end, weight: op("lerp", input, end, weight),
        bitwise_and=lambda input, other: op("logical_and", input, other, what="&"),
        bitwise_or=lambda input, other: op("logical_or", input, other, what="|"),
        bitwise_not=lambda input: op("logical_not", input, what="~"),
        logical_and=lambda input, other: op("logical_and", _truth(input), _truth(other)),
        logical_or=lambda input, other: op("logical_or", _truth(input), _truth(other)),
        logical_xor=lambda input, other: _bitwise_xor(_truth(input), _truth(other)),
        logical_not=lambda input: op("logical_not", _truth(input)),
        isnan=lambda input: op("not_equal", input, input),
        isinf=lambda input: op("equal", op("abs", input), math.inf),
        isfinite=lambda input: op("less", op("abs", input), math.inf),
        masked_fill=lambda input, mask, value: op("where", mask, value, input),
        expand_as=lambda input, other: _alike(input),
        view_as=lambda input, other: _alike(input),
        reshape_as=lambda input, other: _alike(input),
        bool=lambda input: _alike(_truth(input)),
    )
)
