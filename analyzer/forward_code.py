"""Which classes are modules, and which of their methods run when the module is called.

Within one file only: a method that another file calls from a `forward` is not known to run there. This module must
not know rules.
"""

from __future__ import annotations

import ast
from functools import cached_property

from analyzer.context import FileContext
from analyzer.layers import Attribute, module_attributes
from analyzer.syntax import FunctionNode, dotted_name, is_self, parameters, terminal_name

_ENTRIES = ("forward", "__call__", "training_step")


def forward_code(file: FileContext) -> ForwardCode:
    """The modules of a file, worked out once for all rules."""
    return file.once(ForwardCode)


class ForwardCode:
    """The modules of one file."""

    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._reached: dict[ast.ClassDef, dict[str, FunctionNode]] = {}
        self._attributes: dict[ast.ClassDef, dict[str, Attribute]] = {}

    @cached_property
    def modules(self) -> list[ast.ClassDef]:
        """Classes derived from a class of `torch.nn`, or that have a `forward` of their own, custom Functions apart."""
        found: list[ast.ClassDef] = []
        functions = set(self._file.autograd_functions)
        for node in sorted(self._file.nodes(ast.ClassDef), key=lambda item: item.lineno):
            if node not in functions and (self._derives(node, found) or self._has_forward(node)):
                found.append(node)
        return found

    @cached_property
    def _module_set(self) -> frozenset[ast.ClassDef]:
        return frozenset(self.modules)

    def module_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost module class around a node, if the innermost class is one."""
        owner = self._file.enclosing_class(node)
        return owner if owner in self._module_set else None

    def runs_in_forward(self, function: FunctionNode) -> bool:
        """Whether a method of a module is its `forward`, or is called by it through `self`."""
        owner = self._file.parent(function)
        if not isinstance(owner, ast.ClassDef) or owner not in self._module_set:
            return False
        return function in self.reached(owner).values()

    def reached(self, owner: ast.ClassDef) -> dict[str, FunctionNode]:
        """The methods of a module that run when it is called, by name."""
        known = self._reached.get(owner)
        if known is not None:
            return known
        methods = {s.name: s for s in owner.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))}
        reached: dict[str, FunctionNode] = {}
        pending = [name for name in _ENTRIES if name in methods]
        while pending:
            name = pending.pop()
            if name in reached:
                continue
            reached[name] = methods[name]
            pending.extend(own for own, _ in self._uses.get(methods[name], ()) if own in methods)
        self._reached[owner] = reached
        return reached

    @cached_property
    def _uses(self) -> dict[ast.AST, list[tuple[str, ast.Attribute]]]:
        """Method → the attributes of `self` that it names, in source order."""
        table: dict[ast.AST, list[tuple[str, ast.Attribute]]] = {}
        for attribute in self._file.nodes(ast.Attribute):
            if is_self(attribute.value):
                method = self.method_of(attribute)
                if method is not None:
                    table.setdefault(method, []).append((attribute.attr, attribute))
        for uses in table.values():
            uses.sort(key=lambda use: (use[1].lineno, use[1].col_offset))
        return table

    def all_own_uses(self, function: FunctionNode) -> list[ast.Attribute]:
        """The places where a method reads or writes any attribute of `self`."""
        return [attribute for _, attribute in self._uses.get(function, ())]

    def own_uses(self, function: FunctionNode, name: str) -> list[ast.Attribute]:
        """The places where a method reads or writes `self.<name>`."""
        return [attribute for own, attribute in self._uses.get(function, ()) if own == name]

    def method_of(self, node: ast.AST) -> FunctionNode | None:
        """The method around a node, functions inside it passed over."""
        child: ast.AST = node
        for outer in self._file.ancestors(node):
            if isinstance(outer, ast.ClassDef):
                return child if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
            child = outer
        return None

    def attributes(self, owner: ast.ClassDef) -> dict[str, Attribute]:
        """What the attributes of a module hold, where the class tells."""
        known = self._attributes.get(owner)
        if known is None:
            known = self._attributes[owner] = module_attributes(self._file, owner)
        return known

    def _derives(self, node: ast.ClassDef, found: list[ast.ClassDef]) -> bool:
        names = {module.name for module in found}
        for base in node.bases:
            qualified = self._file.qualified_name(base)
            if qualified is not None and qualified.startswith("torch.nn."):
                return True
            if isinstance(base, ast.Name) and base.id in names:
                return True
        return False

    def _has_forward(self, node: ast.ClassDef) -> bool:
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == "forward":
                named = [parameter.arg for parameter in parameters(statement)]
                return named[:1] == ["self"] and bool(node.bases)
        return False


def own_attribute(expression: ast.AST) -> str | None:
    """`x` for `self.x`; None for anything else."""
    if isinstance(expression, ast.Attribute) and is_self(expression.value):
        return expression.attr
    return None


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """The value of the first of these keywords that a call passes."""
    for item in call.keywords:
        if item.arg in names:
            return item.value
    return None


def is_constant(expression: ast.AST | None, value: object) -> bool:
    """Whether an expression is this literal."""
    return isinstance(expression, ast.Constant) and expression.value is value


def mentions(expression: ast.AST, *names: str) -> bool:
    """Whether any name or attribute in an expression is one of these."""
    return any(terminal_name(node) in names for node in ast.walk(expression))


def dotted(expression: ast.AST) -> str:
    """`a.b.c`, or the empty string."""
    return dotted_name(expression) or ""
