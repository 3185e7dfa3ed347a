"""Which names under `torch` a file uses although the listed torch lacks them, and nothing shows that it knows.

Shared by the rules that tell names that never existed from those that are gone. This module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.facts import names
from analyzer.facts.loader import MissingName
from analyzer.torch_names import torch_names
from analyzer.version_guards import asked_names, is_guarded, is_unread_annotation

# For so many names of a file is looked what may have been meant: one takes 20 ms, and a file that was made up has
# thousands.
_MOST_SUGGESTIONS = 20


@dataclass(frozen=True, slots=True)
class MissingUse:
    """`full` is the part of the name that does not exist; `whole`: nothing is read from it further."""

    node: ast.AST
    full: str
    suggestion: str | None
    whole: bool


def missing_uses(file: FileContext) -> tuple[MissingUse, ...]:
    """The places, imports first; found on the first call."""
    kept = vars(file)
    if "_missing_uses" not in kept:
        kept["_missing_uses"] = tuple(_find(file))
    found: tuple[MissingUse, ...] = kept["_missing_uses"]
    return found


def _find(file: FileContext) -> Iterator[MissingUse]:
    found = torch_names(file)
    uses = [*found.imports, *found.chains]
    if not uses:
        return
    missed = list(_missed(uses))
    if not missed:
        return
    asked = asked_names(file)
    stored = [node for node in file.nodes(ast.Attribute) if isinstance(node.ctx, (ast.Store, ast.Del))]
    settled = {file.qualified_name(node) for node in stored}
    devices = {device for _, dotted in uses if (device := _foreign_device(dotted)) is not None}
    for node, dotted, missing in missed:
        if missing.name in asked:
            continue
        full = f"{missing.parent}.{missing.name}"
        if full in settled or full in devices or is_unread_annotation(file, node):
            continue
        if isinstance(node, ast.alias):
            # What an import says, or guards, need not be said again where the name is used.
            settled.add(full)
        if not is_guarded(file, node):
            yield MissingUse(node, full, missing.suggestion, whole=full == dotted)


def _missed(uses: list[tuple[ast.AST, str]]) -> Iterator[tuple[ast.AST, str, MissingName]]:
    """The uses of names that do not exist, with what may have been meant for the first ones."""
    looked_for: set[str] = set()
    for node, dotted in uses:
        suggests = len(looked_for) < _MOST_SUGGESTIONS or dotted in looked_for
        missing = names().missing(dotted, suggests=suggests)
        if missing is None:
            continue
        if suggests:
            looked_for.add(dotted)
        yield node, dotted, missing


def _foreign_device(dotted: str) -> str | None:
    """`torch.npu` of `torch.npu.empty_cache`: a package adds it, with functions of the names of `torch.cuda`."""
    parts = dotted.split(".")
    if len(parts) == 3 and not names().has("torch", parts[1]) and names().has("torch.cuda", parts[2]):
        return f"torch.{parts[1]}"
    return None
