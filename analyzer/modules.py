"""Where a file stands in its package: the directory that must be importable, and its dotted name from there.

This module must not read files; it works on the paths of a snapshot alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

# Directories that hold an importable tree without being part of its name.
SOURCE_DIRECTORIES = frozenset({"src", "lib", "python"})


class ModuleLayout:
    """Import roots and module names of the files of one snapshot.

    The topmost directory of an unbroken chain with `__init__.py` is the package, its parent the import root. A file in
    no package is importable from its own directory, unless another file imports it by a name from the snapshot's top
    or a source directory (`imported`: every absolute dotted name that is imported anywhere), or unless it imports
    others by names that exist only from further up.
    """

    def __init__(self, paths: Iterable[str], imported: Iterable[str] = ()) -> None:
        files = [PurePosixPath(path) for path in paths]
        self._packages = {str(file.parent) for file in files if file.name == "__init__.py"}
        self._imported = frozenset(imported)
        self._importable = {str(file.with_suffix("")) for file in files if file.name != "__init__.py"}
        for file in files:
            self._importable.update(str(parent) for parent in file.parents if str(parent) != ".")

    def locate(self, path: str, imports: Iterable[str] = ()) -> tuple[str, str]:
        """(import root, module name) of a file; the root is relative to the snapshot, `""` for its top.

        `imports` are the absolute dotted names that the file itself imports.
        """
        file = PurePosixPath(path)
        inside = [] if file.name == "__init__.py" else [file.stem]
        directory = file.parent
        in_package = False
        while str(directory) in self._packages and str(directory) != ".":
            inside.insert(0, directory.name)
            directory = directory.parent
            in_package = True
        roots = self._roots_above(directory)
        for root in roots:
            name = self._name(directory, root, inside)
            if name in self._imported:
                return _text(root), name
        if not in_package:
            wanted = [name for name in imports if name]
            best = max([directory, *roots], key=lambda root: self._resolved(root, wanted))
            return _text(best), self._name(directory, best, inside) or file.stem
        return _text(directory), ".".join(inside)

    def _roots_above(self, directory: PurePosixPath) -> list[PurePosixPath]:
        """The snapshot's top and the source directories between it and `directory`, outermost first."""
        return [root for root in reversed(directory.parents) if str(root) == "." or root.name in SOURCE_DIRECTORIES]

    @staticmethod
    def _name(directory: PurePosixPath, root: PurePosixPath, inside: list[str]) -> str:
        return ".".join([*directory.relative_to(root).parts, *inside])

    def _resolved(self, root: PurePosixPath, names: list[str]) -> int:
        return sum(str(root / name.replace(".", "/")) in self._importable for name in names)


def _text(root: PurePosixPath) -> str:
    return "" if str(root) == "." else str(root)
