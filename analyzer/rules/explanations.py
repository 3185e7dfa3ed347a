"""How numerical rules explain themselves: the path of a value, and what a runtime check should aim at.

This module must not decide whether something is a finding.
"""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.fingerprints import normalised_source
from analyzer.singularities import Judgement, Singular
from analyzer.values.surroundings import Surroundings

_SHOWN_CHARACTERS = 60


def shown(file: FileContext, expression: ast.AST) -> str:
    """The source of an expression on one line, shortened for a message."""
    source = " ".join(normalised_source(expression, file.text).split())
    return source if len(source) <= _SHOWN_CHARACTERS else source[: _SHOWN_CHARACTERS - 1] + "…"


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
    """Where the operand was defined, and where the zero comes from, when these are other lines."""
    steps: list[tuple[ast.AST, str]] = [
        (binding.statement, f"`{binding.name}` is assigned here, and nothing keeps it from zero")
        for binding in file.values.definitions(singular.operand)
    ]
    origin = judgement.value.origin
    if origin is not None and origin is not singular.node:
        because = judgement.value.zero_because
        steps.append((origin, f"`{shown(file, origin)}` is zero {because}"))
    return tuple(steps)


def place(judgement: Judgement) -> str:
    """The half sentence that says which results are at stake."""
    if judgement.surroundings is Surroundings.UNRECORDED:
        return "the value is inf or NaN"
    return "the value and the gradient are inf or NaN"
