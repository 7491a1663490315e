"""An expression of neuron text, as a surrogate of one's own has it, of values."""

from __future__ import annotations

import ast
import math
from typing import Any, Mapping

from . import primitives
from .functions import where
from .make import fail, op

_BINARY = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_COMPARISONS = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal", ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
_WORDS = {"inf": math.inf, "nan": math.nan, "true": True, "false": False}
_DEFAULTS = {"leaky_relu": 0.01, "elu": 1.0}


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The expression's value; `names` has what its names stand for."""
    try:
        tree = ast.parse(f"({text})", mode="eval").body
    except SyntaxError as error:
        fail(f"the expression {text!r} is not legal: {error.msg}", ValueError)
    return _value(tree, {**_WORDS, **names}, text)


def _value(tree: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    def of(part: ast.expr) -> Any:
        return _value(part, names, text)

    match tree:
        case ast.Constant(value=float() | int() as number):
            return number
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            fail(f"the expression {text!r} has the name {name}, which stands for nothing", ValueError)
        case ast.BinOp(left=a, op=kind, right=b) if type(kind) in _BINARY:
            return op(_BINARY[type(kind)], of(a), of(b))
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return op("neg", of(a))
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return op("logical_not", of(a))
        case ast.BoolOp(op=kind, values=[first, *rest]):
            result = of(first)
            for part in rest:
                result = op("logical_and" if isinstance(kind, ast.And) else "logical_or", result, of(part))
            return result
        case ast.Compare(left=a, ops=[kind], comparators=[b]) if type(kind) in _COMPARISONS:
            return op(_COMPARISONS[type(kind)], of(a), of(b))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(name, args, names, text)
    fail(f"the expression {text!r} has {ast.unparse(tree)!r}, which neuron text does not", ValueError)


def _call(name: str, args: list[ast.expr], names: Mapping[str, Any], text: str) -> Any:
    if name == "surrogate_gradient" and len(args) == 2:
        return primitives.surrogate_gradient(_value(args[0], names, text), _surrogate(args[1], names, text))
    operands = [_value(arg, names, text) for arg in args]
    if name in _DEFAULTS and len(operands) == 1:
        operands.append(_DEFAULTS[name])
    return where(*operands) if name == "where" else op(name, *operands)


def _surrogate(tree: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    from .surrogates import named

    match tree:
        case ast.Name(id=name):
            return named(name)
        case ast.Call(func=ast.Name(id=name), args=args):
            return named(name, tuple(float(ast.literal_eval(arg)) for arg in args))
    fail(f"the expression {text!r} has no surrogate at {ast.unparse(tree)!r}", ValueError)
