"""Reads tar archives: regular files and directories, nothing else.

Own code rather than `tarfile`: Python 3.11 ships versions whose extraction filter can be led out of the target by a
chain of symbolic links (CVE-2025-4517) and whose header parsing takes quadratic time (CVE-2024-6232). What is read is
ustar, GNU long names and pax headers; a header that means two things to two readers is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from services.snapshots.archive_budget import ArchiveBudget
from services.snapshots.building import TreeBuilder
from services.snapshots.errors import (
    ArchiveHardLinkError,
    ArchiveMalformedError,
    ArchiveSizeMismatchError,
    ArchiveSparseError,
    ArchiveSpecialFileError,
    ArchiveSymlinkError,
    ArchiveTruncatedError,
)
from services.snapshots.paths import shown

_BLOCK: Final = 512
_STEP: Final = 1 << 16
_ZEROS: Final = bytes(_BLOCK)
_MAX_EXTENSION: Final = 1 << 20  # extended attributes of honest archives take a few kB
_MAX_EXTENSIONS_IN_A_ROW: Final = 8  # a file has at most three in front of it: global, pax, long name

_REGULAR: Final = frozenset(b"0\x007")  # 7 is "contiguous", which every reader takes for regular
_DIRECTORY: Final = ord("5")
_REFUSED: Final = {
    ord("1"): (ArchiveHardLinkError, "a hard link"),
    ord("2"): (ArchiveSymlinkError, "a symbolic link"),
    ord("3"): (ArchiveSpecialFileError, "a character device"),
    ord("4"): (ArchiveSpecialFileError, "a block device"),
    ord("6"): (ArchiveSpecialFileError, "a named pipe"),
    ord("S"): (ArchiveSparseError, "a sparse file"),
}
_PAX_LENGTH: Final = re.compile(rb"([1-9][0-9]{0,6}) ")


class Readable(Protocol):
    """Something with `read`, which gives fewer bytes than asked for only at the end."""

    def read(self, count: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    size: int
    kind: int


@dataclass(slots=True)
class _Extensions:
    """What pax and GNU headers say about the member that follows them."""

    name: str | None = None
    size: int | None = None
    in_a_row: int = 0


class TarReader:
    """Puts the members of one tar stream into a tree."""

    def __init__(self, stream: Readable, builder: TreeBuilder, budget: ArchiveBudget) -> None:
        self._stream = stream
        self._builder = builder
        self._budget = budget
        self._position = 0

    def read(self) -> None:
        """Read to the end of the stream. Raises `ArchiveError`, `PathRefusedError` and the builder's errors."""
        extensions = _Extensions()
        while True:
            block = self._exactly(_BLOCK, "before its end marker")
            if block == _ZEROS:
                if extensions.in_a_row:
                    raise ArchiveMalformedError("an extended header has no member behind it")
                self._rest_is_zeros()
                return
            header = self._parse(block)
            if header.kind in b"xgLK":
                self._extend(header, extensions)
                continue
            self._member(self._extended(header, extensions))
            extensions = _Extensions()

    def _member(self, header: _Header) -> None:
        name = header.name
        refused = _REFUSED.get(header.kind)
        if refused is not None:
            kind_of_error, what = refused
            raise kind_of_error(f"{shown(name)} is {what}", member=shown(name))
        is_directory = header.kind == _DIRECTORY or (header.kind in _REGULAR and name.endswith("/"))
        if not is_directory and header.kind not in _REGULAR:
            raise ArchiveSpecialFileError(
                f"{shown(name)} has the unknown type {shown(chr(header.kind))}", member=shown(name)
            )
        self._budget.begin_member(name, header.size)
        if is_directory:
            if header.size:
                raise ArchiveMalformedError(f"the directory {shown(name)} has content", member=shown(name))
            self._builder.add_directory(name)
            return
        path = self._builder.admit(name, header.size)
        content = self._content(header.size, name)
        if path is not None:
            self._builder.add(path, content)

    def _extend(self, header: _Header, extensions: _Extensions) -> None:
        """Read the content of an extended header."""
        extensions.in_a_row += 1
        if extensions.in_a_row > _MAX_EXTENSIONS_IN_A_ROW:
            raise ArchiveMalformedError(f"more than {_MAX_EXTENSIONS_IN_A_ROW} extended headers in a row")
        if header.size > _MAX_EXTENSION:
            raise ArchiveMalformedError(f"an extended header declares {header.size:,} bytes")
        self._budget.check_clock()
        content = self._content(header.size, "an extended header")
        if header.kind == ord("L"):
            extensions.name = _text(content.rstrip(b"\0"))
        elif header.kind != ord("K"):
            self._pax(content, extensions, is_global=header.kind == ord("g"))

    def _pax(self, content: bytes, extensions: _Extensions, *, is_global: bool) -> None:
        for key, value in _pax_records(content):
            if key.startswith(b"GNU.sparse"):
                raise ArchiveSparseError("a pax header describes a sparse file")
            if key not in {b"path", b"size"}:
                continue
            if is_global:
                raise ArchiveMalformedError("a global pax header gives every member one name or size")
            if key == b"path":
                extensions.name = _text(value)
            elif value.isdigit() and len(value) <= 12:
                extensions.size = int(value)
            else:
                raise ArchiveMalformedError(f"a pax header gives the size {shown(_text(value))}")

    def _extended(self, header: _Header, extensions: _Extensions) -> _Header:
        name = header.name if extensions.name is None else extensions.name
        if extensions.size is not None and extensions.size != header.size:
            raise ArchiveSizeMismatchError(
                f"{shown(name)} has {header.size:,} bytes by one header and {extensions.size:,} by another",
                member=shown(name),
            )
        return _Header(name, header.size, header.kind)

    def _parse(self, block: bytes) -> _Header:
        stored = _octal(block[148:156], "checksum")
        summed = sum(block) - sum(block[148:156]) + 8 * ord(" ")
        # Some old writers summed signed characters.
        signed = summed - 256 * sum(1 for byte in block[:148] + block[156:] if byte > 127)
        if stored not in {summed, signed}:
            where = (
                "the first header" if self._position == _BLOCK else f"the header at byte {self._position - _BLOCK:,}"
            )
            raise ArchiveMalformedError(f"not a tar archive, or a damaged one: {where} has a wrong checksum")
        name = block[:100].split(b"\0", 1)[0]
        if block[257:263] == b"ustar\0":
            prefix = block[345:500].split(b"\0", 1)[0]
            name = prefix + b"/" + name if prefix else name
        return _Header(_text(name), _number(block[124:136], "size"), block[156])

    def _content(self, size: int, name: str) -> bytes:
        pieces = []
        missing = size
        while missing:
            piece = self._exactly(min(_STEP, missing), f"within {shown(name)}")
            missing -= len(piece)
            pieces.append(piece)
        padding = -size % _BLOCK
        if padding:
            self._exactly(padding, f"behind {shown(name)}")
        return b"".join(pieces)

    def _exactly(self, count: int, where: str) -> bytes:
        data = self._stream.read(count)
        self._position += len(data)
        if len(data) < count:
            raise ArchiveTruncatedError(f"the archive ends {where}")
        return data

    def _rest_is_zeros(self) -> None:
        """Read on to the end, so that a checksum behind it is verified and nothing hides there."""
        while data := self._stream.read(_STEP):
            if data.strip(b"\0"):
                raise ArchiveMalformedError("there is data behind the end of the archive")


def _pax_records(content: bytes) -> list[tuple[bytes, bytes]]:
    """The `length key=value\\n` records of a pax header, each of exactly its declared length."""
    records = []
    position = 0
    while position < len(content):
        match = _PAX_LENGTH.match(content, position)
        end = position + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(content) or content[end - 1 : end] != b"\n":
            raise ArchiveMalformedError("a pax header has a record of the wrong length")
        key, equals, value = content[match.end() : end - 1].partition(b"=")
        if not key or not equals:
            raise ArchiveMalformedError("a pax header has a record without a key")
        records.append((key, value))
        position = end
    return records


def _number(field: bytes, what: str) -> int:
    """An octal number, or GNU's binary one for large values."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return _octal(field, what)


def _octal(field: bytes, what: str) -> int:
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise ArchiveMalformedError(f"not a tar archive, or a damaged one: a header's {what} is no number")
    return int(digits or b"0", 8)


def _text(name: bytes) -> str:
    """UTF-8, with what is not UTF-8 kept as surrogates, which no accepted path may hold."""
    return name.decode("utf-8", "surrogateescape")
