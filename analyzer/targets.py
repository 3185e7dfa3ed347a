"""Which things of a snapshot can be run: modules, autograd Functions, differentiable functions.

Classes are resolved through imports and base classes across the files of the snapshot. This module must not know
rules, and must not decide whether a target will run: that is for the probe to find out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from analyzer.context import AUTOGRAD_FUNCTION_NAMES, FileContext
from analyzer.findings import TargetDeclaration, TargetKind
from analyzer.modules import ModuleLayout
from analyzer.outline import ClassOutline, Outline, outline_of
from analyzer.source import InvalidSyntaxError, UnreadableSourceError, decode, parse

_MAX_BYTES = 4 * 1024 * 1024
# Further ones say nothing more; following thousands for each of thousands of classes would take hours.
_MOST_ANCESTORS = 64
_NO_TARGETS_IN_DIRECTORIES = frozenset({"test", "tests", "testing", "doc", "docs"})
_NO_TARGETS_IN_FILES = frozenset({"setup.py", "conftest.py", "noxfile.py", "__main__.py"})
# Names of torch.nn that look like module classes and are none.
_NOT_MODULES = frozenset(
    {"Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer", "ParameterList", "ParameterDict"}
)
# Module bases of other packages, by their last name: nobody calls anything else so.
_FOREIGN_MODULES = frozenset({"LightningModule", "PreTrainedModel"})
# Containers of torch.nn have a forward of their own or none at all; all other classes have one.
_WITHOUT_FORWARD = frozenset({"torch.nn.Module", "torch.nn.ModuleList", "torch.nn.ModuleDict"})


def declare_targets(root: Path, paths: Sequence[str]) -> tuple[TargetDeclaration, ...]:
    """Reads the files and declares what can be run, in the order of path and line. Unreadable files yield nothing."""
    outlines: list[Outline] = []
    for path in sorted(set(paths)):
        try:
            text = decode((root / path).read_bytes(), max_bytes=_MAX_BYTES)
            tree = parse(text)
        except (OSError, UnreadableSourceError, InvalidSyntaxError):
            continue
        outlines.append(outline_of(FileContext(path=path, module="", text=text, tree=tree)))
    return targets_of(outlines, paths)


def targets_of(outlines: Iterable[Outline], paths: Iterable[str]) -> tuple[TargetDeclaration, ...]:
    """The targets of files that were outlined; `paths` are all files of the snapshot."""
    return _Snapshot(tuple(outlines), tuple(paths)).targets()


class _Snapshot:
    """The outlines of all files, and the classes found by their dotted names."""

    def __init__(self, outlines: tuple[Outline, ...], paths: tuple[str, ...]) -> None:
        self._outlines = outlines
        imported = {name for outline in outlines for name in outline.imports}
        layout = ModuleLayout(paths, imported)
        self._located = {outline.path: layout.locate(outline.path, outline.imports) for outline in outlines}

    def targets(self) -> tuple[TargetDeclaration, ...]:
        found: list[TargetDeclaration] = []
        for outline in self._outlines:
            if not _may_hold_targets(outline.path):
                continue
            for item in outline.classes:
                kind = self._kind(outline, item)
                if kind is not None:
                    found.append(self._declare(outline, kind, item.qualname, item.line, item.end_line))
            found.extend(
                self._declare(outline, TargetKind.FUNCTION, function.name, function.line, function.end_line)
                for function in outline.functions
                if not function.name.startswith("_") and function.name != "main"
            )
        return tuple(sorted(found, key=lambda target: (target.path, target.line)))

    def _declare(
        self, outline: Outline, kind: TargetKind, qualname: str, line: int, end_line: int
    ) -> TargetDeclaration:
        root, module = self._located[outline.path]
        return TargetDeclaration(
            name=f"{module}:{qualname}",
            kind=kind,
            path=outline.path,
            line=line,
            end_line=end_line,
            import_root=root,
            module=module,
            qualname=qualname,
        )

    def _kind(self, outline: Outline, item: ClassOutline) -> TargetKind | None:
        lineage = self._lineage(outline, item)
        outside = {name for where, cls in lineage for name in self._outside_bases(where, cls)}
        if outside & AUTOGRAD_FUNCTION_NAMES:
            # Functions are often private but matter all the same; a base without a forward is for others to fill.
            defined = self._defined(lineage)
            return TargetKind.AUTOGRAD_FUNCTION if {"forward", "backward"} <= defined else None
        if item.nested or item.qualname.startswith("_") or not any(map(_is_module_class, outside)):
            return None
        if item.declared_abstract or self._abstract_methods(lineage):
            return None
        runnable = {"forward", "__call__"} & self._defined(lineage) or outside - _WITHOUT_FORWARD - {"abc.ABC"}
        return TargetKind.MODULE if runnable else None

    # --- classes across files ---------------------------------------------------------------------------------

    @cached_property
    def _classes(self) -> dict[str, tuple[Outline, ClassOutline]]:
        table: dict[str, tuple[Outline, ClassOutline]] = {}
        for outline in self._outlines:
            module = self._located[outline.path][1]
            for item in outline.classes:
                table.setdefault(f"{module}.{item.qualname}", (outline, item))
        return table

    @cached_property
    def _reexports(self) -> dict[str, str]:
        """`package.Name` → where it was imported from, for every import of every file."""
        table: dict[str, str] = {}
        for outline in self._outlines:
            module = self._located[outline.path][1]
            for name, target in outline.names:
                absolute = self._absolute(outline, target)
                if absolute != f"{module}.{name}":
                    table.setdefault(f"{module}.{name}", absolute)
        return table

    def _absolute(self, outline: Outline, name: str) -> str:
        """A dotted name with its leading dots resolved against the module of the file."""
        stripped = name.lstrip(".")
        level = len(name) - len(stripped)
        if level == 0:
            return name
        package = self._located[outline.path][1].split(".")
        is_package = outline.path.rpartition("/")[2] == "__init__.py"
        keep = len(package) - level + (1 if is_package else 0)
        return ".".join([*package[: max(keep, 0)], stripped])

    def _find(self, outline: Outline, base: str) -> tuple[Outline, ClassOutline] | None:
        """The class of the snapshot that a base name means, following re-exports."""
        module = self._located[outline.path][1]
        candidates = [self._absolute(outline, base)]
        if not base.startswith("."):
            candidates.append(f"{module}.{base}")
        for candidate in candidates:
            name = candidate
            # A name re-exported ten times over is a loop.
            for _ in range(10):
                found = self._classes.get(name)
                if found is not None:
                    return found
                following = self._reexports.get(name)
                if following is None:
                    break
                name = following
        return None

    def _lineage(self, outline: Outline, item: ClassOutline) -> list[tuple[Outline, ClassOutline]]:
        """The class and its ancestors inside the snapshot, nearest first."""
        lineage: dict[int, tuple[Outline, ClassOutline]] = {}
        pending = deque([(outline, item)])
        while pending and len(lineage) < _MOST_ANCESTORS:
            current = pending.popleft()
            if id(current[1]) in lineage:
                continue
            lineage[id(current[1])] = current
            pending.extend(found for base in current[1].bases if (found := self._find(current[0], base)) is not None)
        return list(lineage.values())

    def _outside_bases(self, outline: Outline, item: ClassOutline) -> set[str]:
        return {self._absolute(outline, base) for base in item.bases if self._find(outline, base) is None}

    @staticmethod
    def _defined(lineage: list[tuple[Outline, ClassOutline]]) -> frozenset[str]:
        return frozenset().union(*(item.methods for _, item in lineage))

    @staticmethod
    def _abstract_methods(lineage: list[tuple[Outline, ClassOutline]]) -> set[str]:
        """Abstract methods that no nearer class defines for real."""
        concrete: set[str] = set()
        missing: set[str] = set()
        for _, item in lineage:
            missing |= item.abstract_methods - concrete
            concrete |= item.methods - item.abstract_methods
        return missing


def _is_module_class(name: str) -> bool:
    last = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and not name.startswith("torch.nn.functional."):
        return last[:1].isupper() and last not in _NOT_MODULES
    return last in _FOREIGN_MODULES


def _may_hold_targets(path: str) -> bool:
    file = PurePosixPath(path)
    if file.name in _NO_TARGETS_IN_FILES or file.stem.startswith("test_") or file.stem.endswith("_test"):
        return False
    return not any(part in _NO_TARGETS_IN_DIRECTORIES for part in file.parent.parts)
