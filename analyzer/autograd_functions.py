"""What a custom `torch.autograd.Function` promises: its inputs, what it saves, what its backward gives back.

Everything is read from one file. Where the file does not settle a question (a base class from elsewhere, a method put
in by an assignment, a context handed to another function) the answer is None, never a guess. This module must not
know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from analyzer.context import AUTOGRAD_FUNCTION_NAMES, FileContext
from analyzer.facts import operations
from analyzer.syntax import FunctionNode, dotted_name

_METHODS = ("forward", "backward", "vjp", "setup_context")
_SAVED = frozenset({"saved_tensors", "saved_variables"})


@dataclass(frozen=True, slots=True)
class Save:
    """One call of `ctx.save_for_backward`; `count` is None when a starred argument hides it."""

    call: ast.Call
    count: int | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unpack:
    """One place where `ctx.saved_tensors` is taken apart; `exact` is False when more may have been saved."""

    node: ast.AST
    count: int
    names: tuple[str, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one `return` of backward gives: `items` when it is told item by item, `is_list` for a list literal."""

    statement: ast.AST
    count: int
    items: tuple[ast.expr | None, ...]
    is_list: bool = False


class AutogradFunction:
    """One class; methods that it inherits from another class of the file count as its own."""

    def __init__(self, file: FileContext, node: ast.ClassDef) -> None:
        self.file = file
        self.node = node
        self._methods, self._complete = _methods(file, node)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def forward(self) -> FunctionNode | None:
        return self._methods.get("forward")

    @property
    def backward(self) -> FunctionNode | None:
        return self._methods.get("backward") or self._methods.get("vjp")

    @property
    def setup_context(self) -> FunctionNode | None:
        return self._methods.get("setup_context")

    @property
    def is_readable(self) -> bool:
        """Whether forward and backward are both in this file and nothing of the class comes from elsewhere."""
        return self._complete and self.forward is not None and self.backward is not None

    # --- inputs ------------------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> list[ast.arg]:
        """The positional parameters of forward that autograd counts as inputs (without the context)."""
        if self.forward is None:
            return []
        arguments = self.forward.args
        found = [*arguments.posonlyargs, *arguments.args]
        return found if self.setup_context is not None else found[1:]

    @property
    def input_names(self) -> list[str]:
        return [argument.arg for argument in self.inputs]

    @property
    def is_variadic(self) -> bool:
        """Whether forward takes `*args`, so that its inputs can't be counted."""
        return self.forward is None or self.forward.args.vararg is not None

    @property
    def required_inputs(self) -> int:
        """How many inputs have no default."""
        defaults = len(self.forward.args.defaults) if self.forward is not None else 0
        return max(len(self.inputs) - defaults, 0)

    # --- the context -------------------------------------------------------------------------------------------

    def context_name(self, function: FunctionNode) -> str | None:
        """The name of the context parameter of one of the methods."""
        if function is self.forward and self.setup_context is not None:
            return None
        arguments = [*function.args.posonlyargs, *function.args.args]
        return arguments[0].arg if arguments else None

    @property
    def saver(self) -> FunctionNode | None:
        """The method that fills the context: `setup_context` where there is one, else forward."""
        return self.setup_context or self.forward

    @cached_property
    def saves(self) -> list[Save] | None:
        """Every `ctx.save_for_backward(…)`; None when the context is handed on, so that others could save too."""
        function = self.saver
        if function is None:
            return None
        context = self.context_name(function)
        found: list[Save] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                if _is_context_attribute(node.func, context, {"save_for_backward"}):
                    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
                    names = tuple(ast.unparse(argument) for argument in node.args)
                    found.append(Save(node, None if starred or node.keywords else len(node.args), names))
                    continue
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                if any(isinstance(argument, ast.Name) and argument.id == context for argument in given):
                    return None
            elif isinstance(node, ast.Attribute) and node.attr in {"to_save", "save_for_backward"}:
                parent = self.file.parent(node)
                if not (isinstance(parent, ast.Call) and parent.func is node):
                    return None
        return found

    @cached_property
    def unpacks(self) -> list[Unpack]:
        """Every place in backward that says how many tensors it expects."""
        function = self.backward
        if function is None:
            return []
        context = self.context_name(function)
        bound: dict[str, int] = {}
        found: list[Unpack] = []
        statements = [node for node in own_nodes(function) if isinstance(node, ast.Assign)]
        for statement in sorted(statements, key=lambda node: (node.lineno, node.col_offset)):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    is_saved = _is_context_attribute(statement.value, context, _SAVED)
                    bound[target.id] = bound.get(target.id, 0) + (1 if is_saved else 2)
                    continue
                named = isinstance(statement.value, ast.Name) and bound.get(statement.value.id) == 1
                if named or _is_context_attribute(statement.value, context, _SAVED):
                    unpack = _unpack(statement, target)
                    if unpack is not None:
                        found.append(unpack)
        for node in own_nodes(function):
            if isinstance(node, ast.Subscript) and _is_context_attribute(node.value, context, _SAVED):
                index = node.slice
                if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value >= 0:
                    found.append(Unpack(node, index.value + 1, (), exact=False))
        return found

    # --- gradients ---------------------------------------------------------------------------------------------

    @cached_property
    def gradients(self) -> list[Gradients]:
        """Every `return` of backward whose gradients can be counted."""
        function = self.backward
        if function is None:
            return []
        reader = _Returns(self.file, function)
        found = [
            item
            for node in own_nodes(function)
            if isinstance(node, ast.Return) and (item := reader.gradients(node)) is not None
        ]
        return sorted(found, key=lambda item: getattr(item.statement, "lineno", 0))

    @cached_property
    def returns(self) -> list[ast.Return]:
        """Every `return` of backward."""
        function = self.backward
        return [] if function is None else [node for node in own_nodes(function) if isinstance(node, ast.Return)]

    def receives_gradient(self, position: int) -> bool | None:
        """Whether backward gives the input at this position a gradient: None when its returns do not tell."""
        if len(self.gradients) != len(self.returns) or not self.gradients:
            return None
        for item in self.gradients:
            if item.is_list or item.count != len(item.items):
                return None
            if position < item.count and not _is_none(item.items[position]):
                return True
        return False


def autograd_functions(file: FileContext) -> list[AutogradFunction]:
    """The custom autograd Functions of a file."""
    return [AutogradFunction(file, node) for node in file.autograd_functions]


def own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """The nodes of a function's body without those of functions, lambdas and classes inside it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        stack.extend(ast.iter_child_nodes(node))


def _methods(file: FileContext, node: ast.ClassDef) -> tuple[dict[str, FunctionNode], bool]:
    """(methods by name, whether the whole class is known): nearest definition first, through bases in the file."""
    found: dict[str, FunctionNode] = {}
    complete = True
    local = {item.name: item for item in file.autograd_functions}
    chain, seen = [node], {node.name}
    while chain:
        current = chain.pop(0)
        for statement in current.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name in _METHODS:
                found.setdefault(statement.name, statement)
            elif isinstance(statement, ast.Assign):
                names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
                complete = complete and not names & set(_METHODS)
        for base in current.bases:
            name = dotted_name(base)
            if file.qualified_name(base) in AUTOGRAD_FUNCTION_NAMES:
                continue
            if name in local and name not in seen:
                seen.add(name)
                chain.append(local[name])
            else:
                complete = False
    return found, complete


def _is_context_attribute(expression: ast.AST, context: str | None, names: set[str] | frozenset[str]) -> bool:
    return (
        isinstance(expression, ast.Attribute)
        and expression.attr in names
        and isinstance(expression.value, ast.Name)
        and expression.value.id == context
    )


def _unpack(statement: ast.Assign, target: ast.expr) -> Unpack | None:
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None
    starred = [item for item in target.elts if isinstance(item, ast.Starred)]
    names = tuple(ast.unparse(item) for item in target.elts)
    if starred:
        return Unpack(statement, len(target.elts) - 1, names, exact=False)
    return Unpack(statement, len(target.elts), names, exact=True)


def _is_none(expression: ast.expr | None) -> bool:
    return expression is None or (isinstance(expression, ast.Constant) and expression.value is None)


class _Returns:
    """Counts what the `return` statements of one backward give, through local names that are assigned once."""

    def __init__(self, file: FileContext, function: FunctionNode) -> None:
        self._file = file
        self._function = function
        self._values: dict[str, list[ast.expr | None]] = {}
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            # A gradient that comes in is one tensor (or None): the name stands for itself.
            self._values[argument.arg] = []
        for argument in (arguments.vararg, arguments.kwarg):
            if argument is not None:
                self._values[argument.arg] = [None]
        for node in own_nodes(function):
            self._collect(node)

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._values.setdefault(target.id, []).append(node.value)
                else:
                    self._collect_parts(target, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self._values.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = ast.BinOp(left=node.value, op=node.op, right=node.value)
            self._values.setdefault(node.target.id, []).append(value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._collect_unknown(node.target)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self._collect_unknown(item.optional_vars)
        elif isinstance(node, ast.NamedExpr):
            self._values.setdefault(node.target.id, []).append(node.value)

    def _collect_parts(self, target: ast.expr, value: ast.expr) -> None:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        values: list[ast.expr | None] = [None] * len(parts)
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(parts):
            values = list(value.elts)
        from_saved = isinstance(value, ast.Attribute) and value.attr in _SAVED
        for part, item in zip(parts, values, strict=True):
            if isinstance(part, ast.Name):
                known = self._values.setdefault(part.id, [])
                if not from_saved:
                    known.append(item)
            else:
                self._collect_unknown(part)

    def _collect_unknown(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._values.setdefault(node.id, []).append(None)

    def gradients(self, statement: ast.Return) -> Gradients | None:
        value = statement.value
        if value is None:
            return Gradients(statement, 1, (None,))
        if isinstance(value, ast.List) and not any(isinstance(item, ast.Starred) for item in value.elts):
            return Gradients(statement, 1, (value,), is_list=True)
        items = self._items(value, depth=0)
        if items is not None:
            return Gradients(statement, len(items), items)
        if self._is_one(value, depth=0):
            return Gradients(statement, 1, (value,))
        return None

    def _items(self, value: ast.expr, depth: int) -> tuple[ast.expr | None, ...] | None:
        """The items of an expression that is certainly a tuple; None when it is not, or can't be counted."""
        if depth > 4:
            return None
        if isinstance(value, ast.Tuple):
            found: list[ast.expr | None] = []
            for item in value.elts:
                if not isinstance(item, ast.Starred):
                    found.append(item)
                    continue
                inner = self._items(item.value, depth + 1)
                if inner is None:
                    return None
                found.extend(inner)
            return tuple(found)
        if isinstance(value, ast.BinOp):
            return self._combined(value, depth)
        if isinstance(value, ast.Name):
            values = self._values.get(value.id)
            if values is not None and len(values) == 1 and values[0] is not None:
                return self._items(values[0], depth + 1)
        return None

    def _combined(self, value: ast.BinOp, depth: int) -> tuple[ast.expr | None, ...] | None:
        if isinstance(value.op, ast.Add):
            left, right = self._items(value.left, depth + 1), self._items(value.right, depth + 1)
            return (*left, *right) if left is not None and right is not None else None
        if isinstance(value.op, ast.Mult):
            for repeated, times in ((value.left, value.right), (value.right, value.left)):
                items = self._items(repeated, depth + 1)
                if items is not None and isinstance(times, ast.Constant) and isinstance(times.value, int):
                    return items * times.value
        return None

    def _is_one(self, value: ast.expr | None, depth: int) -> bool:
        """Whether an expression is certainly one tensor or None, not a tuple of several."""
        if value is None or depth > 6:
            return False
        match value:
            case ast.Constant():
                return True
            case ast.BinOp(op=ast.Add() | ast.Mult()):
                # A tuple can be added to a tuple or multiplied by a number, never by or to a tensor.
                sides = (value.left, value.right)
                return any(not isinstance(side, ast.Constant) and self._is_one(side, depth + 1) for side in sides)
            case ast.BinOp() | ast.Compare():
                return True
            case ast.UnaryOp(op=ast.USub()):
                return True
            case ast.IfExp():
                return self._is_one(value.body, depth + 1) and self._is_one(value.orelse, depth + 1)
            case ast.Subscript():
                return self._is_one(value.value, depth + 1)
            case ast.Name():
                values = self._values.get(value.id)
                return values is not None and all(self._is_one(item, depth + 1) for item in values)
            case ast.Call():
                return self._call_gives_one(value, depth)
        return False

    def _call_gives_one(self, value: ast.Call, depth: int) -> bool:
        qualified = self._file.qualified_name(value.func)
        if qualified is not None:
            return operations().returns_one_tensor(qualified)
        if isinstance(value.func, ast.Attribute):
            return operations().returns_one_tensor(f"torch.Tensor.{value.func.attr}") and self._is_one(
                value.func.value, depth + 1
            )
        return False

    def is_certainly_not_none(self, value: ast.expr | None, depth: int = 0) -> bool:
        """Whether an expression is certainly a tensor."""
        if value is None or depth > 6 or _is_none(value):
            return False
        if isinstance(value, ast.Name):
            values = self._values.get(value.id)
            return bool(values) and all(self.is_certainly_not_none(item, depth + 1) for item in values)
        if isinstance(value, ast.IfExp):
            return self.is_certainly_not_none(value.body, depth + 1) and self.is_certainly_not_none(
                value.orelse, depth + 1
            )
        return isinstance(value, (ast.BinOp, ast.UnaryOp)) or (
            isinstance(value, ast.Call) and self._call_gives_one(value, depth)
        )


def certainly_given(function: AutogradFunction, item: ast.expr | None) -> bool:
    """Whether one item of a `return` of backward is certainly a tensor, not None."""
    if function.backward is None:
        return False
    return _Returns(function.file, function.backward).is_certainly_not_none(item)
