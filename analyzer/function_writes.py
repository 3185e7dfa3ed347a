"""Every in-place change that a node makes, with those that the generated table of operations does not list.

This module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from analyzer.context import FileContext
from analyzer.syntax import terminal_name
from analyzer.tensor_writes import Write, writes_of

# Collectives of torch.distributed that put their result into the tensor they are given.
_COLLECTIVES = frozenset({"all_reduce", "broadcast", "reduce"})


def writes_in(file: FileContext, nodes: Iterator[ast.AST]) -> list[Write]:
    """The writes among these nodes, in source order; of a chain of methods, the first one first."""
    found = [write for node in nodes for write in (*writes_of(file, node), *_further(file, node))]
    return sorted(found, key=lambda write: (getattr(write.node, "lineno", 0), getattr(write.node, "end_col_offset", 0)))


def is_collective(write: Write) -> bool:
    """Whether several processes work together in this write, which is hardly done by accident."""
    return write.how.removesuffix("()") in _COLLECTIVES


def _further(file: FileContext, node: ast.AST) -> Iterator[Write]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy_":
        if not any(isinstance(write.node, ast.Call) and write.node is node for write in writes_of(file, node)):
            yield Write(node, node.func.value, "copy_()")
    elif isinstance(node, ast.Call) and node.args and terminal_name(node.func) in _COLLECTIVES:
        qualified = file.qualified_name(node.func) or ""
        if qualified.startswith("torch.distributed."):
            yield Write(node, node.args[0], f"{terminal_name(node.func)}()")
