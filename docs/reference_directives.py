"""Directives of the reference: operators as ops.pyi has them, and the table of surrogates' classes."""

import ast
import re
from pathlib import Path

from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective

SHAPE = re.compile(r"`{0,2}(\[[\w.,*/()+\s-]*\])`{0,2}(?!\()")
STUBS = Path(__file__).resolve().parents[1] / "python/spikeforge/ops.pyi"


def with_literal_shapes(lines):
    """Docstrings write shapes such as [T, *shape] as they are, where reStructuredText would begin to emphasise."""
    literal = lambda shape: f"``{' '.join(shape[1].split())}``" if "*" in shape[1] else shape[0]
    return SHAPE.sub(literal, "\n".join(lines)).split("\n")


def read_stubs():
    """The signatures and the docstring of each operator. Of overloads the last alone is kept: it takes what all others take."""
    operators = {}
    for node in ast.parse(STUBS.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            signature = f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
            _, docstring = operators.get(node.name, (None, None))
            operators[node.name] = signature, docstring or ast.get_docstring(node)
    return operators


class Operators(SphinxDirective):
    """`.. operators:: lif plif` describes these operators, in this order."""

    has_content = False
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        self.env.note_dependency(str(STUBS))
        operators, lines = read_stubs(), []
        for name in self.arguments[0].split():
            signature, docstring = operators[name]
            lines += [f".. py:function:: {signature}", ""]
            lines += [f"   {line}" for line in with_literal_shapes(GoogleDocstring(docstring, Config()).lines())] + [""]
        return self.parse_text_to_nodes("\n".join(lines), offset=self.lineno)


class Surrogates(SphinxDirective):
    """All surrogates of spikeforge.surrogate, in the order of their table."""

    def run(self):
        from spikeforge import surrogate

        lines = []
        for kind in surrogate.SURROGATES.values():
            lines += [f".. autoclass:: spikeforge.surrogate.{kind.__name__}", ""]
        return self.parse_text_to_nodes("\n".join(lines), offset=self.lineno)


def read_docstring(app, what, name, object_, options, lines):
    lines[:] = with_literal_shapes(lines)


def setup(app):
    app.connect("autodoc-process-docstring", read_docstring, priority=900)  # after napoleon
    app.add_directive("operators", Operators)
    app.add_directive("surrogates", Surrogates)
    return {"parallel_read_safe": True}
