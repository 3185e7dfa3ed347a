"""The outlines of all files of a snapshot together: what a dotted name means, and from what a class derives.

This module must not know targets or rules, and must not read files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from analyzer.modules import ModuleLayout
from analyzer.outline import ClassOutline, FunctionOutline, Outline
from analyzer.references import DefinitionOutline

# Further ones say nothing more; following thousands for each of thousands of classes would take hours.
_MOST_ANCESTORS: Final = 64
# A name re-exported ten times over is a loop.
_MOST_REEXPORTS: Final = 10

Place = tuple[Outline, ClassOutline]


class SnapshotOutline:
    """Classes, functions and definitions by their dotted names. `paths` are all files of the snapshot."""

    def __init__(self, outlines: Iterable[Outline], paths: Iterable[str]) -> None:
        self.outlines = tuple(outlines)
        self.paths = tuple(paths)
        imported = {name for outline in self.outlines for name in outline.imports}
        self.layout = ModuleLayout(self.paths, imported)
        self._located = {outline.path: self.layout.locate(outline.path, outline.imports) for outline in self.outlines}
        self._lineages: dict[int, list[Place]] = {}

    def located(self, outline: Outline) -> tuple[str, str]:
        """Import root and module of a file."""
        return self._located[outline.path]

    def absolute(self, outline: Outline, name: str) -> str:
        """A dotted name with its leading dots resolved against the module of the file."""
        stripped = name.lstrip(".")
        level = len(name) - len(stripped)
        if level == 0:
            return name
        package = self._located[outline.path][1].split(".")
        is_package = outline.path.rpartition("/")[2] == "__init__.py"
        keep = len(package) - level + (1 if is_package else 0)
        return ".".join([*package[: max(keep, 0)], *([stripped] if stripped else [])])

    @cached_property
    def modules(self) -> dict[str, Outline]:
        """The file of each module, by its dotted name."""
        return {self._located[outline.path][1]: outline for outline in reversed(self.outlines)}

    @cached_property
    def _classes(self) -> dict[str, Place]:
        table: dict[str, Place] = {}
        for outline in self.outlines:
            module = self._located[outline.path][1]
            for item in outline.classes:
                table.setdefault(f"{module}.{item.qualname}", (outline, item))
        return table

    @cached_property
    def _functions(self) -> dict[str, tuple[Outline, FunctionOutline]]:
        table: dict[str, tuple[Outline, FunctionOutline]] = {}
        for outline in self.outlines:
            module = self._located[outline.path][1]
            for function in outline.functions:
                table.setdefault(f"{module}.{function.name}", (outline, function))
        return table

    @cached_property
    def _definitions(self) -> dict[str, tuple[Outline, DefinitionOutline]]:
        table: dict[str, tuple[Outline, DefinitionOutline]] = {}
        for outline in self.outlines:
            module = self._located[outline.path][1]
            for definition in outline.definitions:
                table.setdefault(f"{module}.{definition.qualname}", (outline, definition))
        return table

    @cached_property
    def _reexports(self) -> dict[str, str]:
        """`package.Name` → where it was imported from, for every import of every file."""
        table: dict[str, str] = {}
        for outline in self.outlines:
            module = self._located[outline.path][1]
            for name, target in outline.names:
                absolute = self.absolute(outline, target)
                if absolute != f"{module}.{name}":
                    table.setdefault(f"{module}.{name}", absolute)
        return table

    def _names_of(self, outline: Outline, name: str) -> Iterable[str]:
        """The full names that a name of a file may stand for, through re-exports."""
        candidates = [self.absolute(outline, name)]
        if not name.startswith("."):
            candidates.append(f"{self._located[outline.path][1]}.{name}")
        for candidate in candidates:
            following: str | None = candidate
            for _ in range(_MOST_REEXPORTS):
                if following is None:
                    break
                yield following
                following = self._onward(following)

    def _onward(self, name: str) -> str | None:
        """Where a name was imported from, or a name that its beginning was imported as: `a.b.C.f` by `a.b.C`."""
        found = self._reexports.get(name)
        if found is not None:
            return found
        beginning, _, rest = name.rpartition(".")
        found = self._reexports.get(beginning)
        return f"{found}.{rest}" if found is not None and found != beginning else None

    def find_class(self, outline: Outline, name: str) -> Place | None:
        """The class of the snapshot that a name in a file means."""
        return next((found for full in self._names_of(outline, name) if (found := self._classes.get(full))), None)

    def find_function(self, outline: Outline, name: str) -> tuple[Outline, FunctionOutline] | None:
        """The function of the snapshot, one of those that may be targets, that a name in a file means."""
        return next((found for full in self._names_of(outline, name) if (found := self._functions.get(full))), None)

    def find_definition(self, outline: Outline, name: str) -> tuple[Outline, DefinitionOutline] | None:
        """The function, method or class of the snapshot that a name in a file means."""
        return next((found for full in self._names_of(outline, name) if (found := self._definitions.get(full))), None)

    def definition(self, place: Place, method: str | None = None) -> DefinitionOutline | None:
        """A method of a class (None: what stands in the class beside its methods)."""
        outline, item = place
        name = f"{self._located[outline.path][1]}.{item.qualname}"
        found = self._definitions.get(name if method is None else f"{name}.{method}")
        return found[1] if found is not None and found[0] is outline else None

    def class_at(self, name: str) -> Place | None:
        """The class of exactly this full name."""
        return self._classes.get(name)

    def definition_at(self, name: str) -> tuple[Outline, DefinitionOutline] | None:
        """The definition of exactly this full name."""
        return self._definitions.get(name)

    def lineage(self, place: Place) -> list[Place]:
        """The class and its ancestors inside the snapshot, nearest first."""
        known = self._lineages.get(id(place[1]))
        if known is not None:
            return known
        lineage: dict[int, Place] = {}
        pending = deque([place])
        while pending and len(lineage) < _MOST_ANCESTORS:
            current = pending.popleft()
            if id(current[1]) in lineage:
                continue
            lineage[id(current[1])] = current
            for base in current[1].bases:
                found = self.find_class(current[0], base)
                if found is not None:
                    pending.append(found)
        ancestors = self._lineages[id(place[1])] = list(lineage.values())
        return ancestors

    def outside_bases(self, lineage: Iterable[Place]) -> set[str]:
        """The bases that are not of the snapshot."""
        return {
            self.absolute(outline, base)
            for outline, item in lineage
            for base in item.bases
            if self.find_class(outline, base) is None
        }
