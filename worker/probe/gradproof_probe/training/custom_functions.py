"""Which custom Function a line belongs to, and whether its methods say how they run under autocast. Reads text only."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from gradproof_probe.gradients.attribution import Place


@dataclass(frozen=True, slots=True)
class Decorated:
    """`forward` and `backward`: whether the method has its decorator, custom_fwd or custom_bwd."""

    name: str
    forward: bool
    backward: bool


def decorated_at(place: Place, source_root: Path) -> Decorated | None:
    """The Function whose forward or backward holds the line; None if none does."""
    try:
        tree = ast.parse((source_root / place.path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or not any("Function" in ast.unparse(base) for base in node.bases):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        around = [item for item in methods.values() if item.lineno <= place.line <= (item.end_lineno or item.lineno)]
        if around and {"forward", "backward"} <= methods.keys():
            return Decorated(node.name, _has(methods["forward"], "custom_fwd"), _has(methods["backward"], "custom_bwd"))
    return None


def _has(method: ast.FunctionDef, decorator: str) -> bool:
    return any(decorator in ast.unparse(item) for item in method.decorator_list)
