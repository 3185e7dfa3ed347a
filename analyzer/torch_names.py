"""Every place of a file that names something under `torch`: imports, chains of attributes, names that were imported.

Found once a file and shared by the rules on names. This module must not know rules or which names exist.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from analyzer.context import FileContext


class TorchNames:
    """`imports`: what import statements name. `chains`: attributes, the longest chain of plain names that each ends
    in. `uses`: chains, and the single names that imports bind, where they are read. `calls`: what is called by its
    name.
    """

    def __init__(self, file: FileContext) -> None:
        self._aliases = {alias for alias, target in file.imports.items() if target.partition(".")[0] == "torch"}
        self._file = file
        self.imports: list[tuple[ast.AST, str]] = list(_imports(file))
        self.chains: list[tuple[ast.expr, str]] = list(self._chains())
        self.uses: list[tuple[ast.expr, str]] = [*self.chains, *self._names()]
        self.calls: list[tuple[ast.Call, str]] = [
            (call, name) for call in file.nodes(ast.Call) if (name := self.name_of(call.func)) is not None
        ]

    def name_of(self, expression: ast.expr) -> str | None:
        """The full name under torch of a chain of names; None for anything else.

        Most chains of a file start at a variable: these are seen to before a name is put together.
        """
        root = expression
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id not in self._aliases:
            return None
        dotted = self._file.qualified_name(expression)
        return dotted if dotted is not None and dotted.startswith("torch.") else None

    def _chains(self) -> Iterator[tuple[ast.expr, str]]:
        for node in self._file.nodes(ast.Attribute) if self._aliases else ():
            chain: ast.expr = node
            if not isinstance(node.ctx, ast.Load):
                # A chain that is assigned to or called upon further: `torch.backends.cudnn.enabled = True`.
                chain = node.value
            elif isinstance(self._file.parent(node), ast.Attribute):
                continue  # part of a longer chain
            dotted = self.name_of(chain)
            if dotted is not None:
                yield chain, dotted

    def _names(self) -> Iterator[tuple[ast.expr, str]]:
        for name in self._file.nodes(ast.Name) if self._aliases else ():
            if name.id not in self._aliases or not isinstance(name.ctx, ast.Load):
                continue
            dotted = self.name_of(name) if not isinstance(self._file.parent(name), ast.Attribute) else None
            if dotted is not None:
                yield name, dotted


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
