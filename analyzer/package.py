"""What a file may know of the other files of its snapshot: the value that a helper defined there returns.

A helper is found through the imports, re-exports included; its file is read when somebody asks and kept for a while,
and its value (which does not depend on the arguments) is remembered for good. What was looked at on the way is
written down, so that a cached result can be told stale. This module must not know rules, and must never raise for
what a file contains: what can't be read is unknown.
"""

from __future__ import annotations

import ast
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from analyzer.context import DeadlineError, FileContext
from analyzer.modules import ModuleLayout
from analyzer.source import InvalidSyntaxError, UnreadableSourceError, decode, parse
from analyzer.values.domain import UNKNOWN, Value

# A tree of 1,000 lines takes about 4 MiB; the helpers of a package live in few files.
_KEPT_FILES = 8
_MAX_REEXPORTS = 4
_SECONDS_PER_QUESTION = 2.0
_MAX_BYTES = 1024 * 1024


class Package:
    """The files of one snapshot, as sources of helpers. `paths` are relative to `root`, with forward slashes."""

    def __init__(self, root: Path, paths: Sequence[str], layout: ModuleLayout) -> None:
        self._root = root
        self._paths = paths
        self._layout = layout
        self._files: OrderedDict[str, FileContext] = OrderedDict()
        self._values: dict[tuple[str, str], tuple[Value, frozenset[str]]] = {}
        self._asked: list[set[str]] = []
        self._pending: set[tuple[str, str]] = set()

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """Collects the module names that are looked up meanwhile, whether they exist or not."""
        asked: set[str] = set()
        self._asked.append(asked)
        try:
            yield asked
        finally:
            self._asked.pop()

    def path_of(self, module: str) -> str | None:
        """The file of a module of this snapshot."""
        return self._modules.get(module)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file of this snapshot; None when it can't be read or is too large for helpers."""
        try:
            file = self._root / path
            return file.read_bytes() if file.stat().st_size <= _MAX_BYTES else None
        except OSError:
            return None

    def value(self, qualified: str, importer: str) -> Value:
        """What `qualified` (dotted; leading dots are relative to the importing module) returns when it is called."""
        found = self._locate(absolute_name(qualified, self._module_name(importer), is_package=_is_package(importer)))
        if found is None or found[0] == importer:
            return UNKNOWN
        return self._value(*found, _MAX_REEXPORTS)

    def release(self) -> None:
        """Lets go of the files that are kept."""
        for file in self._files.values():
            file.release()
        self._files.clear()

    # --- finding -----------------------------------------------------------------------------------------------

    @cached_property
    def _modules(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for path in self._paths:
            if path.endswith(".py"):
                table.setdefault(self._module_name(path), path)
        return table

    def _module_name(self, path: str) -> str:
        return self._layout.locate(path)[1]

    def _locate(self, dotted: str | None) -> tuple[str, str] | None:
        """(path, name) of a function of a module, by its full dotted name."""
        module, _, name = (dotted or "").rpartition(".")
        if not module:
            return None
        for asked in self._asked:
            asked.add(module)
        path = self._modules.get(module)
        return (path, name) if path is not None else None

    def _value(self, path: str, name: str, reexports: int) -> Value:
        key = (path, name)
        if key in self._pending:
            return UNKNOWN
        known = self._values.get(key)
        if known is None:
            self._pending.add(key)
            try:
                with self.noting() as asked:
                    value = self._computed(path, name, reexports)
            finally:
                self._pending.discard(key)
            # Nodes of another file mean nothing in this one.
            known = self._values[key] = (replace(value, origin=None), frozenset(asked))
        for outer in self._asked:
            outer.update(known[1])
        return known[0]

    def _computed(self, path: str, name: str, reexports: int) -> Value:
        file = self._file(path)
        if file is None:
            return UNKNOWN
        file.extend_deadline(time.monotonic() + _SECONDS_PER_QUESTION)
        try:
            for function in file.functions_by_name.get(name, ()):
                if isinstance(file.parent(function), (ast.Module, ast.If, ast.Try)):
                    return file.values.returned(function)
            elsewhere = file.imports.get(name)
            if elsewhere is None or reexports == 0:
                return UNKNOWN
            found = self._locate(absolute_name(elsewhere, self._module_name(path), is_package=_is_package(path)))
            return self._value(*found, reexports - 1) if found is not None else UNKNOWN
        except (DeadlineError, RecursionError):
            return UNKNOWN

    def _file(self, path: str) -> FileContext | None:
        known = self._files.get(path)
        if known is not None:
            self._files.move_to_end(path)
            return known
        data = self.read(path)
        if data is None:
            return None
        try:
            text = decode(data, max_bytes=_MAX_BYTES)
            tree = parse(text)
        except (UnreadableSourceError, InvalidSyntaxError):
            return None
        in_use = {other for other, _ in self._pending}
        for old in [other for other in self._files if other not in in_use][: len(self._files) + 1 - _KEPT_FILES]:
            self._files.pop(old).release()
        context = FileContext(path=path, module=self._module_name(path), text=text, tree=tree, package=self)
        self._files[path] = context
        return context


def absolute_name(qualified: str, module: str, *, is_package: bool) -> str | None:
    """A dotted name without leading dots, seen from the module that imports it; None above the topmost package."""
    name = qualified.lstrip(".")
    level = len(qualified) - len(name)
    if level == 0:
        return qualified
    parts = module.split(".")
    drop = level - 1 if is_package else level
    if drop > len(parts) or (drop == len(parts) and not name):
        return None
    return ".".join([*parts[: len(parts) - drop], name] if name else parts[: len(parts) - drop])


def _is_package(path: str) -> bool:
    return path.rpartition("/")[2] == "__init__.py"
