"""Parameters of a model that are written between a call of the model and the backward of what it returned.

Through `.data` autograd does not see the write: the gradient mixes the old values and the new ones. This module must
not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.training_steps import Act, Event, exclusive, of_act, path_of, training_events


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`write` changes the parameters of `model`, which `call` has run and `backward` differentiates."""

    write: ast.AST
    model: str
    call: ast.Call
    backward: Event


def rewritten_weights(file: FileContext) -> Iterator[Rewritten]:
    """Every loop over the parameters of a model that writes their data before the backward of the model's result."""
    for call in file.calls("parameters", "named_parameters"):
        loop = file.parent(call)
        if not isinstance(loop, ast.For) or loop.iter is not call or not isinstance(call.func, ast.Attribute):
            continue
        write = _write_to_data(loop)
        if write is not None:
            found = _between(file, loop, write, call.func.value)
            if found is not None:
                yield found


def _write_to_data(loop: ast.For) -> ast.AST | None:
    """`p.data.clamp_(…)`, `p.data += …`, `p.data[…] = …` in the body of a loop over parameters."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for statement in loop.body:
        for node in ast.walk(statement):
            written: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
                written = node.func.value
            elif isinstance(node, ast.AugAssign):
                written = node.target
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                written = node.targets[0].value
            if (
                isinstance(written, ast.Attribute)
                and written.attr == "data"
                and isinstance(written.value, ast.Name)
                and written.value.id in names
            ):
                return node
    return None


def _between(file: FileContext, loop: ast.For, write: ast.AST, model: ast.expr) -> Rewritten | None:
    """The call of a model before a place and the backward after it, when nothing else lies between them."""
    function = file.enclosing_function(loop)
    if function is None:
        return None
    backwards = of_act(training_events(file).get(function, ()), Act.BACKWARD)
    path, name = path_of(file, loop, function), ast.unparse(model)
    calls = [
        node
        for node in file.nodes_in(function, ast.Call)
        if ast.unparse(node.func) == name and not exclusive(path_of(file, node, function), path)
    ]
    before = [node for node in calls if node.lineno < loop.lineno and not file.grad_disabled(node)]
    later = [event for event in backwards if event.call.lineno > loop.lineno and event.path == path]
    if not before or not later:
        return None
    run, backward = max(before, key=lambda node: node.lineno), later[0]
    spent = any(run.lineno < event.call.lineno < loop.lineno for event in backwards)
    again = any(loop.lineno < node.lineno <= backward.call.lineno for node in calls)
    in_same_turn = path_of(file, run, function) == path
    return None if spent or again or not in_same_turn else Rewritten(write, name, run, backward)
