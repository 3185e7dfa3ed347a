"""What a condition says about whether a backward can follow.

This module must not know runs.
"""

from __future__ import annotations

import ast

from analyzer.syntax import dotted_name


def without_gradients(test: ast.expr) -> tuple[bool, bool]:
    """Whether the block under a condition, and the one under its `else`, run only where no backward follows.

    `self.training`, `torch.is_grad_enabled()` and `x.requires_grad` say so, and a flag called `inplace…`, by which an
    author says that writing is allowed here.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        body, orelse = without_gradients(test.operand)
        return orelse, body
    if isinstance(test, ast.BoolOp):
        parts = [without_gradients(value) for value in test.values]
        bodies, orelses = [part[0] for part in parts], [part[1] for part in parts]
        return (any(bodies), all(orelses)) if isinstance(test.op, ast.And) else (all(bodies), any(orelses))
    name = (dotted_name(test.func if isinstance(test, ast.Call) else test) or "").rpartition(".")[2]
    if name in {"training", "is_grad_enabled", "requires_grad"}:
        return False, True
    return ("inplace" in name or "in_place" in name), False
