"""Recognises gradient accumulation: a loop whose backward runs for every batch, and whose step only for every n-th.

This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.training_steps import Act, Event, of_act

_COUNTED = re.compile(r"accum", re.IGNORECASE)
# Accelerate and its kin divide, hold back the step and leave the clearing out by themselves.
_AUTOMATIC = re.compile(r"sync_gradients|\.accumulate\(")


@dataclass(frozen=True, slots=True)
class Accumulation:
    """`test` is the condition of the step; `divisor` is the expression for the number of batches, if it is written.

    `loop` is None in a method that takes one batch and counts its calls.
    """

    loop: ast.AST | None
    backward: Event
    step: Event
    test: ast.expr
    divisor: ast.expr | None


def accumulation_of(file: FileContext, events: Sequence[Event]) -> Accumulation | None:
    """The accumulation that the events of one function show; None when every batch has its step."""
    if _AUTOMATIC.search(file.text):
        return None
    backwards = of_act(events, Act.BACKWARD)
    steps = [event for event in events if event.steps_parameters]
    for step in steps:
        loop = step.loop
        if not step.path or step.path[-1][0] is loop:
            continue
        conditional, field = step.path[-1]
        if not isinstance(conditional, ast.If) or field != "body" or not _counts(conditional.test):
            continue
        if loop is None and not _counts_calls(file, step, conditional.test):
            continue
        outside = step.path[:-1]
        backward = next((b for b in backwards if b.path == outside), None)
        # A step of every batch, or a backward of its own for the rare step: these are two networks, no accumulation.
        others = [b for b in backwards if conditional in (owner for owner, _ in b.path)]
        if backward is None or others or any(other.path == outside for other in steps):
            continue
        return Accumulation(loop, backward, step, conditional.test, _divisor(conditional.test))
    return None


def _counts_calls(file: FileContext, step: Event, test: ast.expr) -> bool:
    """Whether a condition asks for the remainder of an attribute that the same method adds one to."""
    if isinstance(step.scope, ast.Module):
        return False
    counted = {ast.unparse(n.left) for n in ast.walk(test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)}
    return any(ast.unparse(added.target) in counted for added in file.nodes_in(step.scope, ast.AugAssign))


def _counts(test: ast.expr) -> bool:
    if _divisor(test) is not None:
        return True
    return isinstance(test, ast.Compare) and _COUNTED.search(ast.unparse(test)) is not None


def _divisor(test: ast.expr) -> ast.expr | None:
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return node.right
        if isinstance(node, ast.Compare) and len(node.comparators) == 1 and _named_count(node.comparators[0]):
            return node.comparators[0]
    return None


def _named_count(expression: ast.expr) -> bool:
    return isinstance(expression, (ast.Name, ast.Attribute)) and _COUNTED.search(ast.unparse(expression)) is not None
