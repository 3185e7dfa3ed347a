"""Which functions of a file run under `torch.compile`, as far as the file itself shows.

A region starts where the file says so (`@torch.compile`, `torch.compile(function)`, `torch.compile(Model())`,
`model.compile()`) and goes on into the functions and methods that are called from there. This module must not know
rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.syntax import FunctionNode, terminal_name

if TYPE_CHECKING:
    from analyzer.context import FileContext

_COMPILE = frozenset({"torch.compile", "torch._dynamo.optimize"})
_DISABLE = frozenset(
    {
        *("torch.compiler.disable", "torch._dynamo.disable", "torch._dynamo.disallow_in_graph"),
        *("torch.compiler.allow_in_graph", "torch._dynamo.allow_in_graph", "torch.compiler.assume_constant_result"),
        *("torch.compiler.nonstrict_trace", "torch._dynamo.nonstrict_trace"),
    }
)
_ASKS_FOR_COMPILING = frozenset({"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling", "is_exporting"})
_WITHOUT_COMPILING = _ASKS_FOR_COMPILING | {"is_scripting", "is_tracing"}


@dataclass(frozen=True, slots=True)
class Region:
    """Where compiling is asked for. `whole`: with `fullgraph=True`, so that a broken graph is an error."""

    node: ast.AST
    whole: bool
    mode: str | None = None


class CompiledRegions:
    """The functions of one file that are compiled, each with the place that says so."""

    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._regions: dict[ast.AST, Region] = {}
        if "compile" in file.text:
            self._collect()

    def __bool__(self) -> bool:
        return bool(self._regions)

    def of(self, node: ast.AST) -> Region | None:
        """The region that a place belongs to; None where nothing in the file says that it is compiled.

        Places that ask whether they are being compiled have been thought about, and count as not compiled.
        """
        if not self._regions:
            return None
        for outer in [node, *self._file.ancestors(node)]:
            region = self._regions.get(outer)
            if region is not None:
                return None if asks_for_compiling(self._file, node) else region
        return None

    # --- where compiling starts --------------------------------------------------------------------------------

    def _collect(self) -> None:
        file = self._file
        pending: list[tuple[FunctionNode, Region]] = []
        for function in file.functions:
            for decorator in function.decorator_list:
                region = self._of_decorator(decorator)
                if region is not None:
                    pending.append((function, region))
        for call in file.calls("compile", "optimize"):
            if file.qualified_name(call.func) in _COMPILE:
                region = _region(call)
                if call.args:
                    pending.extend((function, region) for function in self._functions_of(call.args[0]))
            elif isinstance(call.func, ast.Attribute) and call.func.attr == "compile" and _is_bare(call):
                pending.extend((function, _region(call)) for function in self._forward_of(call.func.value))
        while pending:
            function, region = pending.pop()
            if function in self._regions or self._is_disabled(function):
                continue
            file.check_deadline()
            self._regions[function] = region
            pending.extend((callee, region) for callee in self._called_from(function))

    def _of_decorator(self, decorator: ast.expr) -> Region | None:
        file = self._file
        if file.qualified_name(decorator) in _COMPILE:
            return Region(decorator, whole=False)
        if isinstance(decorator, ast.Call):
            if file.qualified_name(decorator.func) in _COMPILE:
                return _region(decorator)
            if terminal_name(decorator.func) == "partial" and decorator.args:
                return _region(decorator) if file.qualified_name(decorator.args[0]) in _COMPILE else None
        return None

    def _functions_of(self, expression: ast.expr) -> list[FunctionNode]:
        """The functions that run when the compiled object is called."""
        file = self._file
        if isinstance(expression, ast.Name):
            named = [f for f in file.functions_by_name.get(expression.id, ()) if not _is_method(file, f)]
            return named or self._forward_of(expression)
        if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            if expression.value.id == "self":
                owner = file.enclosing_class(expression)
                methods = _methods(owner, expression.attr) if owner is not None else []
                return methods or self._forward_of(expression)
            return [m for owner in self._classes_of(expression.value) for m in _methods(owner, expression.attr)]
        return self._forward_of(expression)

    def _forward_of(self, expression: ast.expr) -> list[FunctionNode]:
        return [method for owner in self._classes_of(expression) for method in _methods(owner, "forward")]

    def _classes_of(self, expression: ast.expr) -> list[ast.ClassDef]:
        """The classes of this file that an expression may be an instance of."""
        match expression:
            case ast.Call():
                return self._built(expression)
            case ast.Name(id="self"):
                owner = self._file.enclosing_class(expression)
                return [owner] if owner is not None else []
            case ast.Name():
                return [found for value in self._assigned(expression) for found in self._classes_of(value)]
            case ast.Attribute(value=ast.Name(id="self")):
                owner = self._file.enclosing_class(expression)
                values = self._assigned_to_self(owner, expression.attr) if owner is not None else ()
                return [found for value in values for found in self._classes_of(value)]
        return []

    def _built(self, call: ast.Call) -> list[ast.ClassDef]:
        """The class that `Model(...)` or `Model(...).to(device)` is an instance of."""
        name = terminal_name(call.func)
        own = [node for node in self._file.nodes(ast.ClassDef) if node.name == name]
        if not own and isinstance(call.func, ast.Attribute):
            return self._classes_of(call.func.value) if isinstance(call.func.value, ast.Call) else []
        return own

    def _assigned(self, name: ast.Name) -> list[ast.Call]:
        """The calls that a variable was assigned in its own function, or at the top of the module."""
        file = self._file
        for scope in (file.enclosing_function(name), file.tree):
            if scope is not None:
                bindings = file.values.bindings(scope).all(name.id)
                if bindings:
                    return [b.value for b in bindings if isinstance(b.value, ast.Call) and b.element is None]
        return []

    def _assigned_to_self(self, owner: ast.ClassDef, attribute: str) -> Iterator[ast.Call]:
        for assignment in self._file.nodes_in(owner, ast.Assign):
            for target in assignment.targets:
                named = isinstance(target, ast.Attribute) and target.attr == attribute
                if named and terminal_name(target.value) == "self" and isinstance(assignment.value, ast.Call):  # type: ignore[attr-defined]
                    yield assignment.value

    # --- where it goes on --------------------------------------------------------------------------------------

    def _called_from(self, function: FunctionNode) -> Iterator[FunctionNode]:
        file = self._file
        owner = file.enclosing_class(function)
        for call in file.nodes_in(function, ast.Call):
            if isinstance(call.func, ast.Name):
                yield from (f for f in file.functions_by_name.get(call.func.id, ()) if not _is_method(file, f))
            elif isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and owner is not None:
                if call.func.value.id != "self":
                    continue
                methods = _methods(owner, call.func.attr)
                yield from methods or self._forward_of(call.func)

    def _is_disabled(self, function: FunctionNode) -> bool:
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self._file.qualified_name(target) in _DISABLE or "disable" in (terminal_name(target) or ""):
                return True
        return False


def compiled_regions(file: FileContext) -> CompiledRegions:
    """The regions of this file; found on the first call."""
    kept = vars(file)
    if "_compiled_regions" not in kept:
        kept["_compiled_regions"] = CompiledRegions(file)
    found: CompiledRegions = kept["_compiled_regions"]
    return found


def asks_for_compiling(file: FileContext, node: ast.AST) -> bool:
    """Whether a condition around the place asks if the code is being compiled, scripted or traced."""
    for outer in file.ancestors(node):
        if isinstance(outer, (ast.If, ast.IfExp, ast.BoolOp)):
            tested = outer.values if isinstance(outer, ast.BoolOp) else [outer.test]
            for test in tested:
                if any(isinstance(n, ast.Call) and terminal_name(n.func) in _WITHOUT_COMPILING for n in ast.walk(test)):
                    return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _left_when_compiling(file, outer, node)
    return False


def _left_when_compiling(file: FileContext, function: FunctionNode, node: ast.AST) -> bool:
    """`if torch.compiler.is_compiling(): return …` before the place."""
    statement = file.statement(node)
    if statement is None:
        return False
    for candidate in file.nodes_in(function, ast.If):
        if candidate.lineno >= statement.lineno or not isinstance(candidate.body[-1], (ast.Return, ast.Raise)):
            continue
        if any(
            isinstance(n, ast.Call) and terminal_name(n.func) in _ASKS_FOR_COMPILING for n in ast.walk(candidate.test)
        ):
            return True
    return False


def _region(call: ast.Call) -> Region:
    whole, mode = False, None
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Constant):
            if keyword.arg in ("fullgraph", "nopython"):
                whole = keyword.value.value is True
            elif keyword.arg == "mode" and isinstance(keyword.value.value, str):
                mode = keyword.value.value
    return Region(call, whole, mode)


def _is_bare(call: ast.Call) -> bool:
    """`model.compile()` of torch takes keywords only; `re.compile(text)` and Keras's do not look like that."""
    known = {"fullgraph", "dynamic", "backend", "mode", "options", "disable"}
    return not call.args and all(keyword.arg in known for keyword in call.keywords)


def _is_method(file: FileContext, function: FunctionNode) -> bool:
    return isinstance(file.parent(function), ast.ClassDef)


def _methods(owner: ast.ClassDef, name: str) -> list[FunctionNode]:
    return [
        node for node in owner.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
