"""Conditions that ask what the machine has, or where a tensor lies. This module must not know rules."""

from __future__ import annotations

import ast

from analyzer.context import FileContext
from analyzer.forward_code import mentions

_AVAILABILITY = ("is_available", "is_bf16_supported", "get_device_capability", "device_count", "is_built")
_DEVICE_WORDS = (
    *_AVAILABILITY,
    "is_cuda",
    "device",
    "device_type",
    "use_cuda",
    "cuda",
    "CUDA",
    "USE_CUDA",
    "gpu",
    "is_xpu",
)

_DEVICE_NAMES = frozenset({"cpu", "cuda", "mps", "xpu"})


def asks_for_machine(test: ast.expr) -> bool:
    """Whether a condition depends on the hardware of the machine: `torch.cuda.is_available()`."""
    return mentions(test, *_AVAILABILITY)


def asks_for_device(test: ast.expr) -> bool:
    """Whether a condition depends on a device, of the machine or of a tensor."""
    named = (part.value for part in ast.walk(test) if isinstance(part, ast.Constant))
    return mentions(test, *_DEVICE_WORDS) or any(isinstance(value, str) and value in _DEVICE_NAMES for value in named)


def under_device_test(file: FileContext, node: ast.AST) -> bool:
    """Whether a node only runs after a test of the machine or of a device, a `try` counted as one."""
    child: ast.AST = node
    for outer in file.ancestors(node):
        if (
            isinstance(outer, (ast.If, ast.IfExp, ast.While))
            and child is not outer.test
            and asks_for_device(outer.test)
        ):
            return True
        if isinstance(outer, ast.Try) and child in outer.body and outer.handlers:
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _leaves_on_device(outer, child)
        child = outer
    return False


def _leaves_on_device(function: ast.FunctionDef | ast.AsyncFunctionDef, before: ast.AST) -> bool:
    """`if not torch.cuda.is_available(): return` before a statement of the function's body, or an assertion."""
    for statement in function.body:
        if statement is before:
            return False
        if isinstance(statement, ast.Assert) and asks_for_device(statement.test):
            return True
        if isinstance(statement, ast.If) and asks_for_device(statement.test):
            last = statement.body[-1]
            if isinstance(last, (ast.Return, ast.Raise)):
                return True
    return False
