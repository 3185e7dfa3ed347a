"""Every place of a file that names something under `torch`: imports, chains of attributes, names that were imported.

Found once a file and shared by the rules on names. This module must not know rules or which names exist.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from analyzer.context import FileContext


class TorchNames:
    """`imports`: what import statements name. `chains`: attributes, the longest chain of plain names that each ends
    in. `uses`: chains, and the single names that imports bind, where they are read.
    """

    def __init__(self, file: FileContext) -> None:
        self.imports: list[tuple[ast.AST, str]] = list(_imports(file))
        self.chains: list[tuple[ast.expr, str]] = list(_chains(file))
        self.uses: list[tuple[ast.expr, str]] = [*self.chains, *_names(file)]


def torch_names(file: FileContext) -> TorchNames:
    """The names of this file; found on the first call."""
    kept = vars(file)
    if "_torch_names" not in kept:
        kept["_torch_names"] = TorchNames(file)
    found: TorchNames = kept["_torch_names"]
    return found


def _imports(file: FileContext) -> Iterator[tuple[ast.AST, str]]:
    for statement in file.nodes(ast.Import):
        for alias in statement.names:
            if alias.name.startswith("torch."):
                yield alias, alias.name
    for source in file.nodes(ast.ImportFrom):
        if source.level or source.module is None or source.module.partition(".")[0] != "torch":
            continue
        for alias in source.names:
            yield alias, source.module if alias.name == "*" else f"{source.module}.{alias.name}"


def _chains(file: FileContext) -> Iterator[tuple[ast.expr, str]]:
    for node in file.nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Load):
            # The longest chain of plain names that the attribute ends in.
            chain: ast.expr = node
            if isinstance(file.parent(node), ast.Attribute):
                continue
        else:
            # A chain that is assigned to or called upon further: `torch.backends.cudnn.enabled = True`.
            chain = node.value
        dotted = file.qualified_name(chain)
        if dotted is not None and dotted.startswith("torch."):
            yield chain, dotted


def _names(file: FileContext) -> Iterator[tuple[ast.expr, str]]:
    aliases = {alias for alias, target in file.imports.items() if target.startswith("torch.")}
    if not aliases:
        return
    for name in file.nodes(ast.Name):
        if name.id not in aliases or not isinstance(name.ctx, ast.Load):
            continue
        if isinstance(file.parent(name), ast.Attribute):
            continue
        dotted = file.qualified_name(name)
        if dotted is not None:
            yield name, dotted
