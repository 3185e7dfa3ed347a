"""What importing a file loads of its snapshot, as one digest over the contents: equal digests, equal code.

Imports count wherever they stand, in functions and under conditions too, and so do the packages around a module. A
file that imports by computed names may load anything. This module must not know targets or rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from analyzer.snapshot import SnapshotOutline

# Packages are not nested deeper; a name that is would take time that grows with its square.
_DEEPEST: Final = 50


def closures_of(snapshot: SnapshotOutline, wanted: Iterable[str]) -> Mapping[str, str]:
    """By path: the digest of everything of the snapshot that importing the file loads.

    A file that loads one whose content is not known, because it could not be read, has none.
    """
    graph = _Imports(snapshot)
    return {path: digest for path in sorted(set(wanted)) if (digest := graph.digest(path)) is not None}


class _Imports:
    def __init__(self, snapshot: SnapshotOutline) -> None:
        self._snapshot = snapshot
        self._outlines = {outline.path: outline for outline in snapshot.outlines}
        self._paths: dict[str, str] = {}
        for path in snapshot.paths:
            if path.endswith(".py"):
                outline = self._outlines.get(path)
                module = snapshot.located(outline)[1] if outline is not None else snapshot.layout.locate(path)[1]
                self._paths.setdefault(module, path)
        self._named: dict[str, tuple[str, ...]] = {}
        self._digests: dict[str, str | None] = {}
        self._everything = self._of_everything()

    def digest(self, path: str) -> str | None:
        if path not in self._digests:
            self._settle(path)
        return self._digests[path]

    def loaded(self, path: str) -> list[str]:
        """The files that a file loads itself."""
        outline = self._outlines.get(path)
        if outline is None:
            return []
        found: dict[str, None] = {}
        module = self._snapshot.located(outline)[1]
        # A script's neighbours are found by their bare names, whatever the script is called from elsewhere.
        beside = module.rpartition(".")[0]
        self._note(f"{module}.x", found)
        for name in outline.loads:
            absolute = self._snapshot.absolute(outline, name)
            self._note(absolute, found)
            if beside and not name.startswith("."):
                self._note(f"{beside}.{absolute}", found)
        found.pop(path, None)
        return list(found)

    def _note(self, name: str, found: dict[str, None]) -> None:
        """The module of this name and the packages around it."""
        known = self._named.get(name)
        if known is None:
            parts = name.split(".", _DEEPEST)
            names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
            known = self._named[name] = tuple(path for full in names if (path := self._paths.get(full)) is not None)
        found.update(dict.fromkeys(known))

    def _settle(self, start: str) -> None:
        """Digests of `start` and of all that it loads, circles at once: Tarjan's algorithm, without recursion."""
        number: dict[str, int] = {}
        low: dict[str, int] = {}
        open_files: list[str] = []
        is_open: set[str] = set()
        loads: dict[str, list[str]] = {}
        work: list[tuple[str, int]] = [(start, 0)]
        while work:
            path, position = work.pop()
            if path not in number:
                number[path] = low[path] = len(number)
                open_files.append(path)
                is_open.add(path)
                loads[path] = self.loaded(path)
            descended = False
            following = loads[path]
            while position < len(following):
                other = following[position]
                if other in self._digests:
                    position += 1
                elif other not in number:
                    work.append((path, position))
                    work.append((other, 0))
                    descended = True
                    break
                else:
                    if other in is_open:
                        low[path] = min(low[path], low[other])
                    position += 1
            if descended:
                continue
            if low[path] == number[path]:
                members: list[str] = []
                while True:
                    member = open_files.pop()
                    is_open.discard(member)
                    members.append(member)
                    if member == path:
                        break
                self._close(members, loads)

    def _close(self, members: list[str], loads: Mapping[str, list[str]]) -> None:
        """The digest of files that load each other: their contents, and the digests of what else they load."""
        inside = set(members)
        parts: set[str] = set()
        known = True
        for member in members:
            outline = self._outlines.get(member)
            if outline is None or (outline.dynamic and self._everything is None):
                known = False
                break
            parts.add(f"{member}\0{outline.digest}")
            if outline.dynamic:
                parts.add(f"everything\0{self._everything}")
            for other in loads[member]:
                if other in inside:
                    continue
                digest = self._digests[other]
                if digest is None:
                    known = False
                else:
                    parts.add(f"{other}\0{digest}")
        result = _digest(parts) if known else None
        for member in members:
            self._digests[member] = result

    def _of_everything(self) -> str | None:
        if any(path.endswith(".py") and path not in self._outlines for path in self._snapshot.paths):
            return None
        return _digest({f"{outline.path}\0{outline.digest}" for outline in self._snapshot.outlines})


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(parts)).encode("utf-8", "surrogateescape")).hexdigest()
