"""A recipe as a short script that a person can paste: it builds and calls the target with torch and the repository.

The names that the expressions use are imported from the target's own module, where they were evaluated. The script is
shown, never run by Gradproof; it must stay within twenty lines.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from typing import Final

from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.request import Target

_MOST_LINES: Final = 6  # of inputs, so that all of it stays within twenty; more of them stand in the call


def as_code(
    target: Target,
    recipe: Recipe,
    *,
    seed: int,
    outputs: Sequence[tuple[str, bool]],
    leaves: Sequence[int] = (),
    names: frozenset[str] = frozenset(),
) -> str:
    """The script. `outputs`: path and whether complex, of each differentiable output; `leaves`: the numbers of the
    inputs that are floating tensors; `names`: what the target's module holds.
    """
    calls = _calls(target, recipe)
    imported = _imports(target, [calls, *recipe.inputs], names)
    lines = ["import torch", *_path(target)]
    if imported:
        lines.append(f"from {target.module} import {', '.join(imported)}")
    lines.append("")
    if target.kind == "module":
        lines += [f"torch.manual_seed({seed})", f"model = {calls}"]
        calls = "model"
    lines.append(f"torch.manual_seed({seed + 1})")
    given = list(recipe.inputs)
    for number, position in enumerate(leaves if len(leaves) <= _MOST_LINES else (), start=1):
        keyword, value = _split(given[position])
        name = f"x{number}" if len(leaves) > 1 else "x"
        name = f"given_{name}" if name in imported else name
        lines.append(f"{name} = {value}.requires_grad_()")
        given[position] = f"{keyword}={name}" if keyword else name
    lines.append(f"output = {calls}({', '.join(given)})")
    if outputs:
        lines.append(f"{_total(outputs)}.backward()")
    return "\n".join(lines) + "\n"


def _calls(target: Target, recipe: Recipe) -> str:
    if target.kind == "module":
        return recipe.constructor or f"{target.qualname}()"
    return f"{target.qualname}.apply" if target.kind == "autograd_function" else target.qualname


def _path(target: Target) -> list[str]:
    """Where the package lies, unless at the root of the repository."""
    if target.import_root in ("", "."):
        return []
    return ["import sys", f"sys.path.insert(0, {target.import_root!r})  # from the root of the repository"]


def _imports(target: Target, expressions: Sequence[str], names: frozenset[str]) -> list[str]:
    """The names that have to come from the target's module, the target's own first."""
    used: dict[str, None] = {}
    for expression in expressions:
        try:
            tree = ast.parse(f"_({expression}\n)", mode="eval")
        except (SyntaxError, ValueError, RecursionError):
            continue
        bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        bound |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in bound and node.id not in ("_", "torch"):
                used[node.id] = None
    own = target.qualname.partition(".")[0]
    return [name for name in dict.fromkeys([own, *used]) if name in used and (name in names or not _is_builtin(name))]


def _is_builtin(name: str) -> bool:
    return hasattr(builtins, name)


def _split(expression: str) -> tuple[str, str]:
    """`("mask", "torch.ones(2)")` of `mask=torch.ones(2)`; no name for a positional one."""
    try:
        call = ast.parse(f"_({expression}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return "", expression
    assert isinstance(call, ast.Call)
    if len(call.keywords) == 1 and not call.args and call.keywords[0].arg:
        return call.keywords[0].arg, expression.partition("=")[2].strip()
    return "", expression.strip()


def _total(outputs: Sequence[tuple[str, bool]]) -> str:
    """The sum of everything that has a gradient; of many outputs the first four are enough to be seen at work."""
    terms = [f"output{path}{'.abs()' if is_complex else ''}.sum()" for path, is_complex in outputs[:4]]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"
