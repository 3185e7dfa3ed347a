"""What the code of a file rests on in its snapshot, as one digest over the contents: equal digests, equal code.

Imports count wherever they stand, in functions and under conditions too. What a file asks for by name counts whole.
What is loaded beside that, because a package around it imports it, counts with what it does at import (`effects`), or
whole if it then calls anything of the snapshot. A file that imports by computed names may load anything. This module
must not know targets or rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from analyzer.import_effects import OWN
from analyzer.outline import Outline
from analyzer.snapshot import SnapshotOutline

# Packages are not nested deeper; a name that is would take time that grows with its square.
_DEEPEST: Final = 50


def closures_of(snapshot: SnapshotOutline, wanted: Iterable[str]) -> Mapping[str, str]:
    """By path: the digest of everything of the snapshot that the code of the file rests on.

    A file that loads one whose content is not known, because it could not be read, has none.
    """
    files = _Files(snapshot)
    asked = _Digests(files, files.asked_for, lambda outline: outline.digest)
    loaded = _Digests(files, files.loaded, files.at_import)
    found: dict[str, str] = {}
    for path in sorted(set(wanted)):
        parts = (asked.of(path), loaded.of(path))
        if parts[0] is not None and parts[1] is not None:
            found[path] = _digest((f"asked\0{parts[0]}", f"loaded\0{parts[1]}"))
    return found


def files_loaded_by(snapshot: SnapshotOutline, outlines: Iterable[Outline]) -> list[str]:
    """The files of the snapshot that these load themselves, with the packages around them."""
    files = _Files(snapshot)
    return list(dict.fromkeys(path for outline in outlines for path in files.loaded(outline.path)))


class _Files:
    """Which files of the snapshot a file needs."""

    def __init__(self, snapshot: SnapshotOutline) -> None:
        self._snapshot = snapshot
        self.outlines = {outline.path: outline for outline in snapshot.outlines}
        self._paths: dict[str, str] = {}
        for path in snapshot.paths:
            if path.endswith(".py"):
                outline = self.outlines.get(path)
                module = snapshot.located(outline)[1] if outline is not None else snapshot.layout.locate(path)[1]
                self._paths.setdefault(module, path)
        self._named: dict[str, tuple[str, ...]] = {}
        self.everything = self._of_everything()

    def loaded(self, path: str) -> list[str]:
        """The files that a file loads itself, with the packages around them."""
        outline = self.outlines.get(path)
        if outline is None:
            return []
        found = dict.fromkeys(self._modules(f"{self._snapshot.located(outline)[1]}.x"))
        for name in outline.loads:
            for modules in self._meant(outline, name):
                found.update(dict.fromkeys(modules))
        found.pop(path, None)
        return list(found)

    def asked_for(self, path: str) -> list[str]:
        """Those of them that it names: of `from a.b import c` the module a.b, not the package a."""
        outline = self.outlines.get(path)
        if outline is None:
            return []
        found: dict[str, None] = {}
        for name in outline.loads:
            for modules in self._meant(outline, name):
                found.update(dict.fromkeys(modules if name in outline.spelled else modules[-1:]))
        found.pop(path, None)
        return list(found)

    def at_import(self, outline: Outline) -> str:
        """What of a file matters to others when it is loaded beside them."""
        calls = outline.effects.calls
        if OWN in calls or any(any(self._meant(outline, name)) for name in calls):
            return outline.digest
        return outline.effects.digest

    def _meant(self, outline: Outline, name: str) -> tuple[tuple[str, ...], ...]:
        """The files of what a dotted name may stand for, the packages around it first; none if not of the snapshot.

        A script's neighbours are found by their bare names, whatever the script is called from elsewhere.
        """
        absolute = self._modules(self._snapshot.absolute(outline, name))
        package = self._snapshot.located(outline)[1].rpartition(".")[0]
        if not package or name.startswith("."):
            return (absolute,)
        beside = self._modules(f"{package}.{name}")
        return (absolute, beside) if len(beside) > len(self._modules(package)) else (absolute,)

    def _modules(self, name: str) -> tuple[str, ...]:
        """The packages around the module of this name and the module, as far as they are of the snapshot."""
        known = self._named.get(name)
        if known is None:
            parts = name.split(".", _DEEPEST)
            names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
            known = self._named[name] = tuple(path for full in names if (path := self._paths.get(full)) is not None)
        return known

    def _of_everything(self) -> str | None:
        if any(path.endswith(".py") and path not in self.outlines for path in self._snapshot.paths):
            return None
        return _digest({f"{outline.path}\0{outline.digest}" for outline in self._snapshot.outlines})


class _Digests:
    """By path the digest of the contents of all files that are come to from there, over `following`."""

    def __init__(self, files: _Files, following: Callable[[str], list[str]], content: Callable[[Outline], str]) -> None:
        self._files = files
        self._following = following
        self._content = content
        self._digests: dict[str, str | None] = {}

    def of(self, path: str) -> str | None:
        """None where a content is not known."""
        if path not in self._digests:
            self._settle(path)
        return self._digests[path]

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
                loads[path] = self._following(path)
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
            outline = self._files.outlines.get(member)
            if outline is None or (outline.dynamic and self._files.everything is None):
                known = False
                break
            parts.add(f"{member}\0{self._content(outline)}")
            if outline.dynamic:
                parts.add(f"everything\0{self._files.everything}")
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


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(parts)).encode("utf-8", "surrogateescape")).hexdigest()
