"""How numerical rules explain themselves: the path of a value, and what a runtime check should aim at.

This module must not decide whether something is a finding.
"""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.findings import Severity
from analyzer.fingerprints import normalised_source
from analyzer.singularities import Judgement, Singular
from analyzer.values.bindings import Binding
from analyzer.values.domain import Gradient
from analyzer.values.guards import value_names
from analyzer.values.surroundings import Surroundings

_SHOWN_CHARACTERS = 60
_LONGEST_PATH = 6


def shown(file: FileContext, expression: ast.AST) -> str:
    """The source of an expression on one line, shortened for a message."""
    return _shortened(normalised_source(expression, file.text))


def quoted(file: FileContext, expression: ast.expr) -> str:
    """The same as its author wrote it, with quotes and parentheses: for advice on that very text."""
    return _shortened(file.source(expression))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"


def hypothesis(file: FileContext, singular: Singular) -> dict[str, object]:
    """What a runtime check should try: bring the operand into the singular set, inside this function."""
    return {
        "operand": normalised_source(singular.operand, file.text),
        "singular_set": singular.singular_set,
        "operation": singular.name or singular.form.value,
        "symbol": file.symbol(singular.node),
        "line": singular.operand.lineno,
    }


def path_of(file: FileContext, singular: Singular, judgement: Judgement) -> tuple[tuple[ast.AST, str], ...]:
    """Where the zero comes from, the assignments that brought it here, and that nothing stands between.

    In the order in which the program goes: the origin first, the operand last.
    """
    origin, because = judgement.value.origin, judgement.value.zero_because
    steps: list[tuple[ast.AST, str]] = []
    expression: ast.expr = singular.operand
    for _ in range(_LONGEST_PATH):
        if origin is not None and _holds(file, expression, origin):
            break
        binding = _carrier(file, expression, origin)
        if binding is None or binding.value is None or binding.statement is file.statement(singular.node):
            break
        expression = binding.value
        if origin is None or not _holds(file, binding.statement, origin):
            steps.append((binding.statement, f"`{binding.name}` carries it on from here"))
    if origin is not None and origin is not singular.node:
        steps.append((origin, f"`{shown(file, origin)}` is zero {because}"))
    if steps:
        missing = "no `clamp(min=...)`, no eps and no test keeps it from zero on the way here"
        return (*reversed(steps), (singular.operand, missing))
    return ()


def _holds(file: FileContext, expression: ast.AST, inner: ast.AST) -> bool:
    return expression is inner or any(outer is expression for outer in file.ancestors(inner))


def _carrier(file: FileContext, expression: ast.expr, origin: ast.AST | None) -> Binding | None:
    """The assignment through which a zero of this origin reaches an expression."""
    for _, node in value_names(expression):
        if origin is not None and file.values.value(node).origin is not origin:
            continue
        bindings = file.values.definitions(node)
        for binding in bindings:
            if binding.value is not None and (origin is None or file.values.value(binding.value).origin is origin):
                return binding
    return None


def note_without_gradient(judgement: Judgement) -> Severity | None:
    """Without a gradient only the value is at stake: worth a note. None: as the rule says."""
    unrecorded = judgement.surroundings is Surroundings.UNRECORDED
    return Severity.NOTE if unrecorded or judgement.value.gradient is Gradient.NO else None


def place(judgement: Judgement) -> str:
    """The half sentence that says which results are at stake."""
    if judgement.surroundings is Surroundings.UNRECORDED:
        return "the value is inf or NaN"
    return "the value and the gradient are inf or NaN"
