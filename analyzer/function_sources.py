"""What a value inside a custom Function is computed from, counting only ways along which a derivative flows.

Comparisons, roundings, shapes and detached values carry no derivative. What goes through a call that is not known
counts as possible, not as certain. This module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.syntax import FunctionNode, parameters, terminal_name
from analyzer.values.bindings import Binding

_FLAT = frozenset({"sign", "sgn", "round", "floor", "ceil", "trunc", "heaviside", "fix", "signbit"})
_CUTTING = frozenset(
    {
        *(
            "detach",
            "item",
            "tolist",
            "numpy",
            "size",
            "dim",
            "numel",
            "stride",
            "type",
            "element_size",
            "is_floating_point",
        ),
        *(
            "is_floating_point",
            "is_contiguous",
            "data_ptr",
            "get_device",
            "nelement",
            "long",
            "int",
            "bool",
            "argmax",
            "argmin",
            "argsort",
        ),
    }
)
_CUTTING_ATTRIBUTES = frozenset(
    {
        *(
            "shape",
            "dtype",
            "device",
            "ndim",
            "data",
            "layout",
            "requires_grad",
            "is_cuda",
            "grad",
            "itemsize",
            "nbytes",
        ),
        *("nbytes", "grad_fn", "is_leaf", "is_sparse"),
    }
)
_PLAIN = frozenset({"len", "isinstance", "float", "int", "bool", "str", "range", "type", "getattr", "hasattr", "print"})
_ARITHMETIC = frozenset({"sum", "max", "min", "abs", "pow"})
_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Sources:
    """Names of parameters: those that a derivative certainly reaches, and those that it may reach."""

    certain: frozenset[str] = frozenset()
    possible: frozenset[str] = frozenset()

    def __or__(self, other: Sources) -> Sources:
        return Sources(self.certain | other.certain, self.possible | other.possible)

    def doubtful(self) -> Sources:
        return Sources(frozenset(), self.certain | self.possible)


NOTHING = Sources()


class SourceFinder:
    """The sources of the expressions of one function."""

    def __init__(self, file: FileContext, function: FunctionNode) -> None:
        self._file = file
        self._function = function
        self._parameters = frozenset(argument.arg for argument in parameters(function))
        self._known: dict[ast.expr, Sources] = {}
        self._pending: set[ast.expr] = set()

    def sources(self, expression: ast.expr) -> Sources:
        """The parameters that an expression is computed from."""
        known = self._known.get(expression)
        if known is not None:
            return known
        if expression in self._pending or len(self._pending) > _DEPTH:
            return NOTHING
        self._pending.add(expression)
        try:
            result = self._of(expression)
        finally:
            self._pending.discard(expression)
        self._known[expression] = result
        return result

    def _all(self, expressions: Iterable[ast.expr]) -> Sources:
        result = NOTHING
        for expression in expressions:
            result |= self.sources(expression)
        return result

    def _of(self, expression: ast.expr) -> Sources:
        result = NOTHING
        match expression:
            case ast.Name():
                result = self._of_name(expression.id, expression)
            case ast.Attribute():
                result = self._of_attribute(expression)
            case ast.BinOp(op=ast.FloorDiv()):
                pass
            case ast.BinOp(left=left, right=right):
                result = self._all((left, right))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                result = self.sources(operand)
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                result = self._all(values)
            case ast.IfExp(body=body, orelse=other):
                result = self._all((body, other))
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value):
                result = self.sources(value)
            case ast.Call():
                result = self._of_call(expression)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
                result = self._all((element, *(part.iter for part in expression.generators))).doubtful()
        return result

    def _of_name(self, name: str, node: ast.expr) -> Sources:
        statement = self._file.statement(node)
        bindings, may_be_given = self._file.values.bindings(self._function).reaching(name, statement)
        result = NOTHING
        if (not bindings or may_be_given) and name in self._parameters:
            result = Sources(frozenset({name}))
        for binding in bindings:
            result |= self._of_binding(name, binding)
        return result

    def _of_binding(self, name: str, binding: Binding) -> Sources:
        statement = binding.statement
        result = self.sources(binding.value) if binding.value is not None else NOTHING
        if isinstance(statement, ast.AugAssign) or binding.index is not None:
            place = statement.target if isinstance(statement, ast.AugAssign) else None
            before = place if isinstance(place, ast.Name) else None
            result |= self._of_name(name, before) if before is not None else NOTHING
        elif isinstance(statement, (ast.For, ast.AsyncFor)) and binding.value is None:
            result = self.sources(statement.iter).doubtful()
        return result

    def _of_attribute(self, attribute: ast.Attribute) -> Sources:
        if attribute.attr in _CUTTING_ATTRIBUTES:
            return NOTHING
        if isinstance(attribute.value, ast.Name):
            key = f"{attribute.value.id}.{attribute.attr}"
            if self._file.values.bindings(self._function).all(key):
                return self._of_name(key, attribute)
        return self.sources(attribute.value)

    def _of_call(self, call: ast.Call) -> Sources:
        given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg != "out")]
        qualified = self._file.qualified_name(call.func)
        name = terminal_name(call.func) or ""
        if name in _CUTTING or name in _FLAT:
            return NOTHING
        if qualified is not None:
            full, operands = qualified, given
        elif isinstance(call.func, ast.Attribute):
            full, operands = f"torch.Tensor.{name}", [call.func.value, *given]
        else:
            if name in _PLAIN:
                return NOTHING
            found = self._all(given)
            return found if name in _ARITHMETIC else found.doubtful()
        if operations().never_differentiable(full):
            return NOTHING
        choosing = _CHOOSING.get(name, {}).get("function" if qualified is not None else "method")
        if choosing is not None:
            operands = [operand for place, operand in enumerate(operands) if place != choosing]
        found = self._all(operands)
        return found if _is_known(full) else found.doubtful()


# Operations with an operand that only chooses: its position among the operands, the tensor of a method being the first.
_SECOND = {"function": 1, "method": 1}
_THIRD = {"function": 2, "method": 2}
_CHOOSING: dict[str, dict[str, int]] = {
    "where": {"function": 0, "method": 1},
    "embedding": {"function": 0},
    **dict.fromkeys(("masked_fill", "masked_fill_", "masked_select", "take", "take_along_dim", "index_put"), _SECOND),
    **dict.fromkeys(
        ("gather", "index_select", "scatter", "scatter_add", "index_add", "index_copy", "index_fill"), _THIRD
    ),
    **dict.fromkeys(("scatter_", "scatter_add_", "index_add_", "index_copy_", "index_fill_", "scatter_reduce"), _THIRD),
}


def _is_known(full: str) -> bool:
    known = operations()
    return (
        known.known(full)
        or known.returns_one_tensor(full)
        or known.views(full)
        or known.writes(full)
        or bool(known.results(full))
        or full.rpartition(".")[2] in _KNOWN_OTHERWISE
    )


# Differentiable, and in none of the generated tables because their results vary with their arguments.
_KNOWN_OTHERWISE = frozenset(
    {
        *(
            "to",
            "float",
            "double",
            "half",
            "bfloat16",
            "type_as",
            "contiguous",
            "softmax",
            "log_softmax",
            "mean",
            "sum",
        ),
        *(
            "sum",
            "max",
            "min",
            "norm",
            "chunk",
            "split",
            "unbind",
            "where",
            "std",
            "var",
            "narrow",
            "view_as",
            "expand_as",
        ),
    }
)
