"""Whose memory an expression inside a custom Function shares: an incoming gradient, a saved tensor, an input.

Views share memory for certain; `contiguous()`, `reshape()` and the like do when there was nothing to rearrange. This
module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from analyzer.autograd_functions import SAVED_ATTRIBUTES, AutogradFunction
from analyzer.facts import operations
from analyzer.syntax import FunctionNode, parameters
from analyzer.values.bindings import Binding

_VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data"})
# `copy_` writes its tensor and gives it back, like all methods with an underscore; the generated table lacks it.
_VIEW_METHODS = frozenset({"detach", "view_as", "expand_as", "narrow", "copy_"})
# The same tensor when nothing has to be rearranged or converted, which is the usual case.
_OFTEN_THE_SAME = frozenset(
    {
        *("contiguous", "reshape", "reshape_as", "flatten", "ravel"),
        *("to", "float", "double", "half", "bfloat16", "type", "type_as", "cuda", "cpu"),
    }
)
_PARTS = frozenset({"chunk", "split", "unbind", "tensor_split"})
_DEPTH = 12


class Role(Enum):
    """What a tensor was when the method got it."""

    GRADIENT = "incoming gradient"
    SAVED = "saved tensor"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class Origin:
    """`name` is what the tensor was first called; `certain` is False when a copy may lie between, or on a branch."""

    role: Role
    name: str
    certain: bool = True
    index: int | None = None

    def doubtful(self) -> Origin:
        return replace(self, certain=False)


class Memory:
    """The origins of what one method of a Function names."""

    def __init__(self, function: AutogradFunction, method: FunctionNode) -> None:
        self._file = function.file
        self._method = method
        self._context = function.context_name(method)
        role = Role.GRADIENT if method is function.backward else Role.INPUT
        given = [argument.arg for argument in parameters(method) if argument.arg != self._context]
        vararg = method.args.vararg.arg if method.args.vararg is not None else None
        self._given = {name: Origin(role, name) for name in given if name != vararg}
        self._several = {vararg: Origin(role, vararg)} if vararg is not None else {}

    def origin(self, expression: ast.expr, depth: int = 0) -> Origin | None:
        """Where the memory of an expression came in; None when it is the method's own, or not known."""
        if depth > _DEPTH:
            return None
        found: Origin | None = None
        match expression:
            case ast.Name():
                found = self._of_name(expression, depth)
            case ast.Attribute(attr=attribute, value=value) if attribute in _VIEW_ATTRIBUTES:
                found = self.origin(value, depth + 1)
            case ast.Subscript(value=value, slice=index):
                found = self._of_item(value, index, depth)
            case ast.Call():
                found = self._of_call(expression, depth)
            case ast.IfExp(body=body, orelse=other):
                found = _joined([self.origin(body, depth + 1), self.origin(other, depth + 1)])
            case ast.NamedExpr(value=value):
                found = self.origin(value, depth + 1)
        return found

    def _of_name(self, name: ast.Name, depth: int) -> Origin | None:
        if self._file.enclosing_function(name) is not self._method:
            return None
        looped = self._of_comprehension(name, depth)
        if looped is not None:
            return looped
        bindings, may_be_given = self._file.values.bindings(self._method).reaching(name.id, self._file.statement(name))
        found = [self._of_binding(binding, depth) for binding in bindings]
        if not bindings or may_be_given:
            found.append(self._given.get(name.id))
        return _joined(found)

    def _of_binding(self, binding: Binding, depth: int) -> Origin | None:
        statement = binding.statement
        if binding.operator is not None and isinstance(statement, ast.AugAssign):
            return self.origin(statement.target, depth + 1)
        if binding.index is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            places = [target.value for target in targets if isinstance(target, ast.Subscript)]
            return self.origin(places[0], depth + 1) if places else None
        if binding.value is None:
            is_loop = isinstance(statement, ast.For) and isinstance(statement.target, ast.Name)
            several = self._several_of(statement.iter, depth + 1) if is_loop else None  # type: ignore[attr-defined]
            return replace(several, name=binding.name, index=None) if several is not None else None
        if binding.element is None:
            return self.origin(binding.value, depth + 1)
        several = self._several_of(binding.value, depth + 1)
        return replace(several, name=binding.name, index=binding.element) if several is not None else None

    def _of_comprehension(self, name: ast.Name, depth: int) -> Origin | None:
        """The origin of a loop variable of a comprehension around a name."""
        for outer in self._file.ancestors(name):
            if isinstance(outer, ast.stmt):
                return None
            for part in getattr(outer, "generators", ()):
                if isinstance(part.target, ast.Name) and part.target.id == name.id:
                    several = self._several_of(part.iter, depth + 1)
                    return replace(several, name=name.id, index=None) if several is not None else None
        return None

    def _of_item(self, value: ast.expr, index: ast.expr, depth: int) -> Origin | None:
        several = self._several_of(value, depth + 1)
        if several is not None:
            number = index.value if isinstance(index, ast.Constant) and isinstance(index.value, int) else None
            return replace(several, name=self._file.source(value), index=number)
        return self.origin(value, depth + 1) if is_basic_index(index) else None

    def _of_call(self, call: ast.Call, depth: int) -> Origin | None:
        qualified = self._file.qualified_name(call.func)
        if qualified is not None:
            if not call.args or not qualified.startswith("torch."):
                return None
            return self._through(qualified.rpartition(".")[2], qualified, call.args[0], depth)
        if isinstance(call.func, ast.Attribute):
            return self._through(call.func.attr, f"torch.Tensor.{call.func.attr}", call.func.value, depth)
        return None

    def _through(self, name: str, qualified: str, operand: ast.expr, depth: int) -> Origin | None:
        """What an operation on `operand` gives back, as far as memory goes."""
        known = operations()
        if known.views(qualified) or known.writes(qualified) or name in _VIEW_METHODS:
            return self.origin(operand, depth + 1)
        if name in _OFTEN_THE_SAME:
            found = self.origin(operand, depth + 1)
            return found.doubtful() if found is not None else None
        return None

    def _several_of(self, value: ast.expr, depth: int) -> Origin | None:
        """The origin of every item of a sequence of tensors."""
        if depth > _DEPTH:
            return None
        match value:
            case ast.Attribute(attr=attribute, value=ast.Name(id=owner)):
                saved = attribute in SAVED_ATTRIBUTES and owner == self._context
                return Origin(Role.SAVED, attribute) if saved else None
            case ast.Name(id=name):
                bindings, _ = self._file.values.bindings(self._method).reaching(name, self._file.statement(value))
                if not bindings:
                    return self._several.get(name)
                only = bindings[0].value if len(bindings) == 1 and bindings[0].element is None else None
                return self._several_of(only, depth + 1) if only is not None else None
            case ast.Call(func=ast.Attribute(attr=attribute, value=operand), args=arguments) if attribute in _PARTS:
                is_method = self._file.qualified_name(value.func) is None
                source = operand if is_method else arguments[0] if arguments else None
                return self.origin(source, depth + 1) if source is not None else None
        return None


def is_basic_index(index: ast.expr) -> bool:
    """Whether an index is made of numbers and slices alone, so that it gives a view."""
    if isinstance(index, ast.Tuple):
        return all(is_basic_index(item) for item in index.elts)
    if isinstance(index, ast.UnaryOp):
        return isinstance(index.operand, ast.Constant)
    return isinstance(index, (ast.Slice, ast.Constant))


def _joined(found: Iterable[Origin | None]) -> Origin | None:
    """One origin of several that may apply: certain when all agree."""
    every = list(found)
    known = [origin for origin in every if origin is not None]
    if not known:
        return None
    agreed = len(known) == len(every) and all(origin.certain and origin.role is known[0].role for origin in known)
    return known[0] if agreed else known[0].doubtful()
