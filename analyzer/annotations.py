"""What an annotation says in names: which identifiers are in it, and which of them are tensors.

This module must not know files or functions.
"""

from __future__ import annotations

import ast

_TENSOR_SUFFIXES = ("Tensor", "Tensors", "TensorType")


def annotation_names(annotation: ast.expr) -> frozenset[str]:
    """Every last identifier in an annotation, also inside strings: {Optional, Tensor}; "None" for None."""
    names: set[str] = set()
    pending: list[ast.AST] = [annotation]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and node.value is None:
            names.add("None")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            try:
                pending.append(ast.parse(node.value, mode="eval").body)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
        else:
            pending.extend(ast.iter_child_nodes(node))
    return frozenset(names)


def is_tensor_name(name: str) -> bool:
    """Whether an identifier of an annotation is a kind of tensor: `Tensor`, `FloatTensor`, `OptTensor`."""
    return name.endswith(_TENSOR_SUFFIXES)
