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
        self.chains: list[tuple[ast.expr, str]] = []
        names: list[tuple[ast.expr, str]] = []
        called: dict[ast.AST, str] = {}
        for name in file.nodes(ast.Name) if self._aliases else ():
            if name.id in self._aliases:
                self._note(name, names, called)
        self.uses: list[tuple[ast.expr, str]] = [*self.chains, *names]
        self.calls: list[tuple[ast.Call, str]] = [
            (call, called[call]) for call in (file.nodes(ast.Call) if called else ()) if call in called
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

    def _note(self, name: ast.Name, names: list[tuple[ast.expr, str]], called: dict[ast.AST, str]) -> None:
        """The chain that starts at a name: most names of a file start none, so the few that may are climbed from."""
        chain: ast.expr = name
        outer = self._file.parent(name)
        while isinstance(outer, ast.Attribute):
            chain, outer = outer, self._file.parent(outer)
        is_name = chain is name
        if isinstance(chain, ast.Attribute) and not isinstance(chain.ctx, ast.Load):
            # A chain that is assigned to: `torch.backends.cudnn.enabled = True`.
            chain = chain.value
        elif is_name and not isinstance(name.ctx, ast.Load):
            return
        dotted = self.name_of(chain)
        if dotted is not None:
            (names if is_name else self.chains).append((chain, dotted))
            if isinstance(outer, ast.Call) and outer.func is chain:
                called[outer] = dotted


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
