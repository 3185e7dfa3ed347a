"""Where submitted source records a target: `torch.jit.trace(Net(), x)`, `torch.export.export`, `torch.onnx.export`.

Only what the text shows within one file counts: the target itself in the call, or a name that it was assigned to.
Scripting is no recording: it compiles branches and loops as they are written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.source_texts import source_texts

_RECORDS: Final = re.compile(r"\b(jit\.trace(_module)?|(onnx|torch)\.export(\.export)?|export\.export)$")
_WORDS: Final = re.compile(r"\btrace(_module)?\(|\bexport\(")


@dataclass(frozen=True, slots=True)
class Recorded:
    """`exported`: by torch.export, which refuses most of what a trace would take for constant.

    `fixed_sizes`: for ONNX without dynamic axes, where no other size is meant to go.
    """

    place: Place
    exported: bool
    fixed_sizes: bool


@cache
def recording_calls(name: str, source_root: Path) -> tuple[Recorded, ...]:
    """The calls that record the class or function of this name."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    found: list[Recorded] = []
    for item in source_texts(source_root).python:
        if not (_WORDS.search(item.text) and word.search(item.text)):
            continue
        try:
            tree = ast.parse(item.text)
        except (ValueError, SyntaxError, RecursionError):
            continue
        found += _calls(tree, name, item.path)
    return tuple(found)


def _calls(tree: ast.Module, name: str, path: str) -> Iterator[Recorded]:
    bound = {name, *_bound_to(tree, name)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func)
        if _RECORDS.search(called) and bound & _names(node.args[0]):
            onnx = "onnx" in called
            dynamic = any(keyword.arg in (None, "dynamic_axes", "dynamic_shapes") for keyword in node.keywords)
            exported = not onnx and "jit" not in called
            yield Recorded(Place(path, node.lineno), exported, fixed_sizes=onnx and not dynamic)


def _bound_to(tree: ast.Module, name: str) -> set[str]:
    """What the file assigns the target, or an instance of it, to: by name, as an attribute, in a loop."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.For | ast.comprehension):
            targets, value = [node.target], node.iter
        else:
            continue
        if name in _names(value):
            found |= {item for target in targets for item in _names(target)}
    return found - {"self"}


def _names(node: ast.AST) -> set[str]:
    """Names as they stand, and attributes by their last word."""
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} | {
        item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute)
    }
