"""Targets that a repository declares and that reading did not find: private ones, ones made at run time.

What a team writes down is never dropped without a word: it is run as declared, or the report says why it can't be.
Whether it is a module or a function is only known once it is imported; until then its name tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from analyzer.findings import TargetDeclaration, TargetKind
from services.configuration import Configuration
from services.configuration.model import DeclaredTarget

# Beyond this a file is data; the name is then run all the same, without a line.
_MOST_BYTES: Final = 4 * 2**20


class Undiscovered:
    """The declared targets that are not among `known`. `paths` are all modules of the snapshot at `root`."""

    def __init__(
        self, root: Path, paths: Iterable[str], configuration: Configuration, known: Sequence[TargetDeclaration]
    ) -> None:
        self._root = root
        self._roots = {target.import_root for target in known}
        names = {target.name for target in known}
        missing = [target for target in configuration.targets if target.target not in names]
        files = _by_last_name(paths) if missing else {}
        self.found: list[TargetDeclaration] = []
        self.absent: dict[str, str] = {}
        for target in missing:
            self._add(target, files)

    def _add(self, target: DeclaredTarget, files: dict[str, list[PurePosixPath]]) -> None:
        module, _, qualname = target.target.partition(":")
        located = self._locate(module, files)
        if located is None:
            self.absent[target.target] = (
                f"{target.provenance} declares {target.target}, but no file of the source is the module {module}"
            )
            file, _, said_at = target.provenance.rpartition(":")
            self.found.append(_declaration(target.target, TargetKind.FUNCTION, file, int(said_at), ""))
            return
        root, path = located
        keyword, line = self._definition(path, qualname)
        name = qualname.rpartition(".")[2]
        is_class = keyword == "class" if keyword else name.lstrip("_")[:1].isupper()
        kind = TargetKind.MODULE if is_class else TargetKind.FUNCTION
        self.found.append(_declaration(target.target, kind, path, line, root))

    def _locate(self, module: str, files: dict[str, list[PurePosixPath]]) -> tuple[str, str] | None:
        """(import root, path) of the file that is the module; roots of other targets go first."""
        parts = module.split(".")
        candidates = []
        for file in files.get(parts[-1], []):
            inside = list(file.parent.parts if file.name == "__init__.py" else file.with_suffix("").parts)
            if inside[-len(parts) :] == parts:
                candidates.append(("/".join(inside[: -len(parts)]), file.as_posix()))
        return min(candidates, key=lambda item: (item[0] not in self._roots, len(item[0]), item), default=None)

    def _definition(self, path: str, qualname: str) -> tuple[str, int]:
        """(`class` or `def`, line) of what has this name; nothing and 1 where no statement defines it."""
        try:
            with (self._root / path).open("rb") as file:
                text = file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return "", 1
        name = re.escape(qualname.rpartition(".")[2])
        found = re.search(rf"^[ \t]*(?:async[ \t]+)?(class|def)[ \t]+{name}\b", text, re.MULTILINE)
        return (found[1], text.count("\n", 0, found.start()) + 1) if found else ("", 1)


def _by_last_name(paths: Iterable[str]) -> dict[str, list[PurePosixPath]]:
    """The modules by the last part of their names, so that a thousand declarations don't look at each file each."""
    found: dict[str, list[PurePosixPath]] = {}
    for path in map(PurePosixPath, paths):
        if path.suffix == ".py":
            found.setdefault(path.parent.name if path.name == "__init__.py" else path.stem, []).append(path)
    return found


def _declaration(name: str, kind: TargetKind, path: str, line: int, root: str) -> TargetDeclaration:
    module, _, qualname = name.partition(":")
    return TargetDeclaration(
        name=name, kind=kind, path=path, line=line, end_line=line, import_root=root, module=module, qualname=qualname
    )
