"""Predicates that a user writes down, read as if they stood in a backward.

`g` and names that begin with "grad" are incoming gradients; every other name is an argument.
"""

from __future__ import annotations

import ast
import builtins
import math
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812

from gradproof_probe.gradients.reading.clue import Clues
from gradproof_probe.gradients.reading.interpreter import Interpreter
from gradproof_probe.gradients.reading.meanings import Context, Meaning, Quantity

_COTANGENTS: Final = frozenset({"g", "go", "gy", "dy", "cotangent"})


def read_expression(text: str) -> Clues:
    """What an expression says; nothing if it can't be parsed."""
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Clues()
    variables: dict[str, Meaning] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in _SCOPE and not hasattr(builtins, node.id):
            cotangent = node.id in _COTANGENTS or node.id.startswith("grad")
            variables[node.id] = Quantity("cotangent", "0") if cotangent else Quantity("value", node.id)
    variables["ctx"] = Context()
    reader = Interpreter(_scope, "a hint")
    reader.expression(tree.body, variables, text)
    return reader.finished()


def _scope() -> tuple[object, ...]:
    """The names that a hint may use without giving them a meaning of its own."""
    return torch, F, math


_SCOPE: Final = frozenset({"torch", "F", "math", "ctx"})
