"""Keeps what reading a file brought, so that a run over unchanged files costs their hashing.

An entry is named by everything its result depends on: the analyzer's own code and facts, the Python that parsed, the
options, the file's path, module and bytes. What its helpers in other files brought in is written into the entry and
compared when it is read. Entries are data (JSON), never code, and a damaged one is as good as none: the worst that a
manipulated cache can do is lie about findings. This module must not know rules.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analyzer.codec import CodecError, decode, encode
from analyzer.entries import EntryDirectory
from analyzer.file_analysis import FileResult
from analyzer.options import AnalyzerOptions
from analyzer.package import Package

# 30,000 entries are the files of five packages as large as transformers; each has 2 KiB on average.
_MAX_ENTRIES = 30_000


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a snapshot with its content."""

    path: str
    module: str
    data: bytes


class ResultCache:
    """Results in a directory. Several processes may use it at the same time."""

    def __init__(self, directory: Path, options: AnalyzerOptions) -> None:
        self._entries = EntryDirectory(directory, _MAX_ENTRIES)
        self._options = json.dumps(encode(options), sort_keys=True)
        self._digests: dict[str, str | None] = {}

    def load(self, file: SourceFile, package: Package) -> FileResult | None:
        """What is kept for a file, unless a file that it was computed from has changed since."""
        try:
            document = self._entries.load(self._name(file))
            asked, kept = document["asked"], document["result"]
            if any(self._digest_of(name, package) != digest for name, digest in asked.items()):
                return None
            return decode(kept, FileResult)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def store(self, file: SourceFile, package: Package, asked: frozenset[str], result: FileResult) -> None:
        """Keeps a result that was computed with the help of the `asked` modules."""
        if result.outline is None:
            return  # it took too long or could not be read: that may be different next time
        try:
            looked_up = {name: self._digest_of(name, package) for name in sorted(asked)}
            text = json.dumps({"asked": looked_up, "result": encode(result)}, separators=(",", ":"))
        except (CodecError, ValueError):
            return
        self._entries.store(self._name(file), text)

    def clear_old(self) -> None:
        """Takes away the entries that were not used for longest, when there are too many."""
        self._entries.clear_old()

    def _name(self, file: SourceFile) -> str:
        material = "\0".join((analyzer_digest(), self._options, file.path, file.module, _digest(file.data)))
        return _digest(material.encode("utf-8", "surrogateescape"))

    def _digest_of(self, module: str, package: Package) -> str | None:
        """Names the content of a module of the snapshot; None when there is none of that name."""
        path = package.path_of(module)
        if path is None:
            return None
        if path not in self._digests:
            data = package.read(path)
            self._digests[path] = None if data is None else _digest(path.encode("utf-8", "surrogateescape") + data)
        return self._digests[path]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def analyzer_digest() -> str:
    """Names the analyzer itself: every file of this package, facts included, and the Python that runs it (3 ms)."""
    digest = hashlib.sha256(sys.version.encode())
    top = Path(__file__).parent
    for file in sorted(top.rglob("*")):
        if file.suffix in (".py", ".json"):
            digest.update(str(file.relative_to(top)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
