"""Which torch layer a call runs: `self.soft(x)`, `criterion(out, y)`, `nn.Softmax(dim=-1)(x)`.

Looks at where the called name was made, in its function, its class or its module. This module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.layers import Attribute, Content, describe


def called_layer(file: FileContext, call: ast.Call) -> Attribute | None:
    """The torch layer that a call runs; None when it is none, or when the file does not tell."""
    made = maker_of(file, call.func)
    layer = describe(file, made) if made is not None else None
    return layer if layer is not None and layer.content in (Content.LAYER, Content.CHAIN) else None


def maker_of(file: FileContext, called: ast.expr) -> ast.expr | None:
    """The one expression that made what is called: the call of a class, mostly."""
    if isinstance(called, ast.Call):
        return called
    if isinstance(called, ast.Attribute):
        values = file.values.attribute_values(called)
        return values[0] if len(values) == 1 else None
    if not isinstance(called, ast.Name):
        return None
    definition = file.values.single_definition(called)
    if definition is not None or file.values.definitions(called):
        return definition
    outer = _outer_bindings(file, called)
    return outer[0] if len(outer) == 1 else None


def _outer_bindings(file: FileContext, name: ast.Name) -> list[ast.expr | None]:
    """What a name of an enclosing function or of the module was assigned."""
    scope = file.enclosing_function(name)
    while scope is not None:
        if name.id in {parameter.arg for parameter in ast.walk(scope.args) if isinstance(parameter, ast.arg)}:
            return []
        outer = file.enclosing_function(scope)
        bindings = file.values.bindings(outer if outer is not None else file.tree).all(name.id)
        if bindings:
            return [binding.value if binding.element is None else None for binding in bindings]
        scope = outer
    bindings = file.values.bindings(file.tree).all(name.id)
    return [binding.value if binding.element is None else None for binding in bindings]


def names_given(file: FileContext, classes: Iterable[str]) -> frozenset[str]:
    """The names and attributes that instances of some classes are assigned to in a file, so that few calls are read."""
    names: set[str] = set()
    for made in file.calls(*classes):
        statement = file.statement(made)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Attribute):
                names.add(target.attr)
            elif isinstance(target, ast.Name):
                names.add(target.id)
    return frozenset(names)
