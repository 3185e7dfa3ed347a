"""Where minus infinity is written into a tensor, and what decides which places get it.

Scores are masked by filling (`masked_fill`, `where`, an indexed assignment) or by adding a mask that holds 0 and -inf.
The two differ in their gradients (measured, trap T30): a filled place sends nothing back, an added one does. This
module must not know rules.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.syntax import terminal_name

_INFINITE_NAMES = frozenset({"inf", "infty", "Inf", "Infinity", "NINF", "PINF"})
_INFINITE_STRINGS = frozenset({"inf", "infinity", "+inf", "+infinity", "-inf", "-infinity"})
_FILLED_FACTORIES = {"full": 0, "full_like": 0, "new_full": 0, "tensor": None, "scalar_tensor": None, "as_tensor": None}
# Operations that hand on an infinite element where it is, or (a logarithm of a softmax) as another infinite one.
_HANDS_ON = frozenset(
    {
        *("view", "reshape", "unsqueeze", "squeeze", "expand", "expand_as", "permute", "transpose", "flatten", "t"),
        *("contiguous", "to", "type", "type_as", "float", "double", "half", "bfloat16", "clone", "repeat", "unflatten"),
        *("repeat_interleave", "rearrange", "cuda", "cpu", "log_softmax", "tril", "triu"),
    }
)
_MAX_STEPS = 60


@dataclass(frozen=True, slots=True)
class InfiniteFill:
    """One place where -inf is written. `literal` is the infinity itself, `node` the operation that writes it.

    `filled` is the tensor that is written into (None when that is not told), `mask` what selects the places.
    `added`: it is written into a mask of zeros, which is then added to something else.
    """

    node: ast.expr | ast.stmt
    literal: ast.expr
    mask: ast.expr
    filled: ast.expr | None
    added: bool = False


def infinity(file: FileContext, expression: ast.expr, *, depth: int = 3) -> float | None:
    """`inf` or `-inf` when an expression is that in every element, None otherwise."""
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        inner = infinity(file, expression.operand, depth=depth)
        return -inner if inner is not None else None
    if isinstance(expression, ast.Call):
        return _infinite_call(file, expression, depth)
    if isinstance(expression, ast.Constant):
        value = expression.value
        return value if isinstance(value, float) and math.isinf(value) else None
    if isinstance(expression, ast.Attribute) and expression.attr in _INFINITE_NAMES:
        qualified = file.qualified_name(expression)
        if qualified is not None:
            return -math.inf if expression.attr == "NINF" else math.inf
    if isinstance(expression, ast.Name) and file.imports.get(expression.id) in ("math.inf", "torch.inf", "numpy.inf"):
        return math.inf
    definition = _definition(file, expression) if depth else None
    return infinity(file, definition, depth=depth - 1) if definition is not None else None


def _infinite_call(file: FileContext, call: ast.Call, depth: int) -> float | None:
    name = terminal_name(call.func)
    if name == "float" and isinstance(call.func, ast.Name) and call.args and isinstance(call.args[0], ast.Constant):
        text = call.args[0].value
        if isinstance(text, str) and text.strip().lower() in _INFINITE_STRINGS:
            return float(text)
        return None
    if name not in _FILLED_FACTORIES:
        return None
    operation = file.values.operation(call)
    if operation is None:
        return None
    position = _FILLED_FACTORIES[name]
    filling = operation.operand if position is None else operation.argument(position, "fill_value")
    return infinity(file, filling, depth=depth) if filling is not None else None


def _definition(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """The one expression that a name stands for, in its function or at the top of the module."""
    if not isinstance(expression, (ast.Name, ast.Attribute)):
        return None
    found = file.values.single_definition(expression)
    if found is None and isinstance(expression, ast.Name):
        bindings = file.values.bindings(file.tree).all(expression.id)
        if len(bindings) == 1 and not file.values.definitions(expression):
            found = bindings[0].value
    return found


def infinite_fills(file: FileContext, expression: ast.expr) -> list[InfiniteFill]:
    """Every place where -inf may have been written into a value, followed back through its function."""
    return list(_Search(file).run(expression))


class _Search:
    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._seen: set[ast.AST] = set()

    def run(self, expression: ast.expr) -> Iterator[InfiniteFill]:
        pending: list[tuple[ast.expr, bool]] = [(expression, False)]
        while pending and len(self._seen) < _MAX_STEPS:
            node, added = pending.pop()
            if node in self._seen:
                continue
            self._seen.add(node)
            if isinstance(node, ast.Call):
                yield from self._call(node, pending, added=added)
            elif isinstance(node, ast.BinOp):
                self._arithmetic(node, pending, added=added)
            elif isinstance(node, ast.IfExp):
                pending.extend([(node.body, added), (node.orelse, added)])
            elif isinstance(node, (ast.Subscript, ast.NamedExpr)):
                pending.append((node.value, added))
            elif isinstance(node, (ast.Name, ast.Attribute)):
                yield from self._assigned(node, pending, added=added)

    def _call(self, call: ast.Call, pending: list[tuple[ast.expr, bool]], *, added: bool) -> Iterator[InfiniteFill]:
        operation = self._file.values.operation(call)
        if operation is None or operation.operand is None:
            return
        name = operation.name
        if name in ("masked_fill", "masked_fill_"):
            mask, value = operation.argument(0, "mask"), operation.argument(1, "value")
            if mask is not None and value is not None and self._is_negative(value):
                yield InfiniteFill(call, value, mask, operation.operand, added and self._is_blank(operation.operand))
            pending.append((operation.operand, added))
        elif name == "where" and operation.qualified:
            condition, branches = operation.operand, [operation.argument(0, "input"), operation.argument(1, "other")]
            for branch, other in (branches, branches[::-1]):
                if branch is not None and other is not None and self._is_negative(branch):
                    yield InfiniteFill(call, branch, condition, other, added and self._is_blank(other))
            pending.extend((branch, added) for branch in branches if branch is not None)
        elif name in _HANDS_ON:
            pending.append((operation.operand, added))
        elif name in ("add", "add_", "sub"):
            other = operation.argument(0, "other")
            pending.append((operation.operand, added))
            if other is not None:
                pending.append((other, True))

    def _arithmetic(self, node: ast.BinOp, pending: list[tuple[ast.expr, bool]], *, added: bool) -> None:
        if isinstance(node.op, ast.Add):
            pending.extend([(node.left, True), (node.right, True)])
        elif isinstance(node.op, (ast.Sub, ast.Mult, ast.Div)):
            pending.extend([(node.left, added), (node.right, added)])

    def _assigned(self, name: ast.expr, pending: list[tuple[ast.expr, bool]], *, added: bool) -> Iterator[InfiniteFill]:
        for binding in self._file.values.definitions(name):
            if binding.value is None or binding.element is not None:
                continue
            if binding.index is not None:
                if isinstance(binding.statement, ast.Assign) and self._is_negative(binding.value):
                    yield InfiniteFill(binding.statement, binding.value, binding.index, name, added)
                continue
            if binding.operator is not None and isinstance(binding.statement, ast.AugAssign):
                if isinstance(binding.operator, ast.Add):
                    pending.append((binding.value, True))
                if isinstance(binding.statement.target, (ast.Name, ast.Attribute)):
                    pending.append((binding.statement.target, added))
                continue
            pending.append((binding.value, added))

    def _is_negative(self, expression: ast.expr) -> bool:
        return infinity(self._file, expression) == -math.inf

    def _is_blank(self, expression: ast.expr) -> bool:
        """Whether a tensor holds one number everywhere: the ground of a mask that is added."""
        return self._file.values.value(expression).constant is not None
