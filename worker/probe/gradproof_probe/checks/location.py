"""What stands at the place that a check names: the text of the line and the definition around it.

Whoever compares two analyses recognises a failure by these, since lines move. This module must not judge.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gradproof_probe.checks.base import CheckResult


def located(result: CheckResult, source_root: Path) -> CheckResult:
    """The result, with what stands at its place and at those of the further faults in its evidence."""
    if result.verdict != "fail":
        return result
    evidence: dict[str, Any] = dict(result.evidence)
    source = _source(source_root, result.path, result.line)
    if source is not None:
        evidence["source"] = source
    also = evidence.get("also")
    if isinstance(also, list):
        evidence["also"] = [_with_source(record, source_root) for record in also]
    return replace(result, evidence=evidence)


def _with_source(record: Any, source_root: Path) -> Any:
    if not isinstance(record, Mapping):
        return record
    birth = record.get("birth")
    place = birth if isinstance(birth, Mapping) else record
    source = _source(source_root, place.get("path"), place.get("line"))
    return record if source is None else {**record, "source": source}


def _source(source_root: Path, path: str | None, line: int | None) -> dict[str, str] | None:
    if path is None or line is None:
        return None
    lines, tree = _read(source_root / path)
    if not 1 <= line <= len(lines):
        return None
    return {"text": lines[line - 1].strip(), "symbol": ".".join(_around(tree, line))}


@cache
def _read(file: Path) -> tuple[tuple[str, ...], ast.Module | None]:
    try:
        text = file.read_text(encoding="utf-8")
        return tuple(text.splitlines()), ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return (), None


def _around(tree: ast.AST | None, line: int) -> list[str]:
    """The names of the classes and functions around a line, the outermost first."""
    for node in ast.iter_child_nodes(tree) if tree is not None else ():
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            own = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
            return [*own, *_around(node, line)]
    return []
