"""Reads ZIP archives: stored and deflated regular files and directories, nothing else.

Own code rather than `zipfile`: that builds an object per directory entry before anything can be counted, believes
one of two names and two sizes, and (before 3.11.8) lets members overlap. Here the central directory decides, every
local header must agree with it, and nothing may lie twice under one byte.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from services.snapshots.archive_budget import ArchiveBudget
from services.snapshots.building import TreeBuilder
from services.snapshots.errors import (
    ArchiveChecksumError,
    ArchiveCompressionError,
    ArchiveEncryptedError,
    ArchiveMalformedError,
    ArchiveOverlapError,
    ArchiveSizeMismatchError,
    ArchiveSpecialFileError,
    ArchiveSymlinkError,
    ArchiveTooLargeError,
    ArchiveTooManyMembersError,
    ArchiveTruncatedError,
    ArchiveZip64Error,
)
from services.snapshots.limits import size_text
from services.snapshots.paths import shown

_END: Final = struct.Struct("<4s4H2LH")  # signature, disks, entries here and in all, size, offset, comment length
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_END_SIGNATURE: Final = b"PK\5\6"
_ENTRY_SIGNATURE: Final = b"PK\1\2"
_LOCAL_SIGNATURE: Final = b"PK\3\4"
_ZIP64_LOCATOR: Final = b"PK\6\7"
_ZIP64_LOCATOR_SIZE: Final = 20
_MAX_COMMENT: Final = 0xFFFF
_ALL_ONES_16: Final = 0xFFFF
_ALL_ONES_32: Final = 0xFFFFFFFF

_ENCRYPTED: Final = 0x0001 | 0x0040 | 0x2000  # password, strong encryption, encrypted directory
_PATCHED: Final = 0x0020
_UTF8_NAME: Final = 0x0800
_STORED: Final = 0
_DEFLATED: Final = 8
_DOS_DIRECTORY: Final = 0x10
_STEP: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class _Member:
    raw_name: bytes
    name: str
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    attributes: int
    offset: int


class ZipReader:
    """Puts the members of one ZIP file into a tree. The stream must be seekable."""

    def __init__(self, stream: BinaryIO, builder: TreeBuilder, budget: ArchiveBudget) -> None:
        self._stream = stream
        self._builder = builder
        self._budget = budget
        self._length = stream.seek(0, 2)

    def read(self) -> None:
        """Read every member. Raises `ArchiveError`, `PathRefusedError` and the builder's errors."""
        members, directory_start = self._members()
        files = [member for member in members if self._is_file(member)]
        declared = sum(member.size for member in files)
        if declared > self._budget.limits.total:
            raise ArchiveTooLargeError(
                f"the members declare {size_text(declared)}; {size_text(self._budget.limits.total)} are accepted",
                size=declared,
                limit=self._budget.limits.total,
            )
        for member, start in self._places(members, directory_start):
            self._budget.begin_member(member.name, member.size)
            if self._is_file(member):
                self._file(member, start)
            else:
                self._builder.add_directory(member.name)

    def _places(self, members: list[_Member], directory_start: int) -> list[tuple[_Member, int]]:
        """Each member with the place where its data starts, in the order of the file; no two share a byte."""
        places = []
        end = 0
        previous = ""
        for member in sorted(members, key=lambda member: member.offset):
            self._budget.check_clock()
            start = self._data_start(member)
            if member.offset < end or start + member.compressed > directory_start:
                other = shown(previous) if member.offset < end else "the directory"
                raise ArchiveOverlapError(f"{shown(member.name)} shares bytes with {other}", member=shown(member.name))
            places.append((member, start))
            end, previous = start + member.compressed, member.name
        return places

    def _file(self, member: _Member, start: int) -> None:
        path = self._builder.admit(member.name, member.size)
        content = self._content(member, start)
        if path is not None:
            self._builder.add(path, content)

    def _content(self, member: _Member, start: int) -> bytes:
        """The bytes of a member, which must be as many as declared and have the declared checksum."""
        self._stream.seek(start)
        packed = self._packed(member)
        unpacked = packed if member.method == _STORED else _inflated(packed, member)
        pieces: list[bytes] = []
        size = checksum = 0
        for piece in unpacked:
            size += len(piece)
            if size > member.size:
                break
            self._budget.produce(len(piece))
            checksum = zlib.crc32(piece, checksum)
            pieces.append(piece)
        if size != member.size:
            raise ArchiveSizeMismatchError(
                f"{shown(member.name)} does not have the {member.size:,} bytes that the archive declares",
                member=shown(member.name),
                declared=member.size,
            )
        if checksum != member.crc:
            raise ArchiveChecksumError(
                f"the checksum of {shown(member.name)} does not match", member=shown(member.name)
            )
        return b"".join(pieces)

    def _packed(self, member: _Member) -> Iterator[bytes]:
        missing = member.compressed
        while missing:
            piece = self._exactly(min(_STEP, missing), member.name)
            missing -= len(piece)
            self._budget.consume(len(piece))
            yield piece

    def _is_file(self, member: _Member) -> bool:
        """True for a regular file, False for a directory; anything else is refused."""
        name = member.name
        kind = stat.S_IFMT(member.attributes >> 16)
        if kind == stat.S_IFLNK:
            raise ArchiveSymlinkError(f"{shown(name)} is a symbolic link", member=shown(name))
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            raise ArchiveSpecialFileError(f"{shown(name)} is a device, a pipe or a socket", member=shown(name))
        is_directory = name.endswith("/")
        looks_like_directory = kind == stat.S_IFDIR or (kind == 0 and bool(member.attributes & _DOS_DIRECTORY))
        if (looks_like_directory and not is_directory) or (is_directory and kind == stat.S_IFREG):
            raise ArchiveMalformedError(f"{shown(name)} is a file by one mark and a directory by another")
        if is_directory and member.size:
            raise ArchiveMalformedError(f"the directory {shown(name)} has content", member=shown(name))
        return not is_directory

    def _members(self) -> tuple[list[_Member], int]:
        """The entries of the central directory, and where it starts."""
        end_position, count, size, start = self._end()
        if count > self._budget.limits.members:
            raise ArchiveTooManyMembersError(
                f"{count:,} members; {self._budget.limits.members:,} are accepted",
                members=count,
                limit=self._budget.limits.members,
            )
        if start + size != end_position:
            raise ArchiveMalformedError("the directory of the archive is not where the archive says")
        self._stream.seek(start)
        directory = self._stream.read(size)
        members = []
        position = 0
        for _ in range(count):
            member, position = _entry(directory, position)
            members.append(member)
        if position != len(directory):
            raise ArchiveMalformedError("the directory of the archive has more entries than the archive says")
        return members, start

    def _end(self) -> tuple[int, int, int, int]:
        """Position of the end record, number of entries, size and start of the central directory."""
        tail_start = max(0, self._length - _END.size - _MAX_COMMENT)
        self._stream.seek(tail_start)
        tail = self._stream.read()
        position = tail.rfind(_END_SIGNATURE)
        while position >= 0:
            if position + _END.size <= len(tail):
                _, disk, first_disk, here, count, size, start, comment = _END.unpack_from(tail, position)
                if position + _END.size + comment == len(tail):
                    break
            position = tail.rfind(_END_SIGNATURE, 0, position)
        else:
            self._stream.seek(0)
            if self._stream.read(4) == _LOCAL_SIGNATURE:
                raise ArchiveTruncatedError("the ZIP archive is cut short: it has no directory")
            raise ArchiveMalformedError("not a ZIP archive")
        locator = tail[max(0, position - _ZIP64_LOCATOR_SIZE) : position]
        if locator.startswith(_ZIP64_LOCATOR) or _ALL_ONES_16 in {here, count} or _ALL_ONES_32 in {size, start}:
            raise ArchiveZip64Error("the archive uses ZIP64, which no archive within the limits needs")
        if disk or first_disk or here != count:
            raise ArchiveMalformedError("the archive is one volume of several")
        return tail_start + position, count, size, start

    def _data_start(self, member: _Member) -> int:
        """Where the bytes of a member begin; its local header must tell the same story as the directory."""
        name = shown(member.name)
        self._stream.seek(member.offset)
        header = self._exactly(_LOCAL.size, member.name)
        signature, _, flags, method, _, _, crc, compressed, size, name_length, extra = _LOCAL.unpack(header)
        if signature != _LOCAL_SIGNATURE:
            raise ArchiveMalformedError(f"there is no member where the directory places {name}", member=name)
        if self._exactly(name_length, member.name) != member.raw_name:
            raise ArchiveMalformedError(f"{name} has another name in its own header", member=name)
        if method != member.method or (flags ^ member.flags) & (_ENCRYPTED | _PATCHED):
            raise ArchiveMalformedError(f"{name} is packed in another way by its own header", member=name)
        # Writers that stream leave zeros here (the figures follow the data), and ZIP64 ones leave ones.
        if (compressed not in {0, _ALL_ONES_32, member.compressed}) or size not in {0, _ALL_ONES_32, member.size}:
            raise ArchiveSizeMismatchError(f"{name} has another size in its own header", member=name)
        if crc not in {0, member.crc}:
            raise ArchiveChecksumError(f"{name} has another checksum in its own header", member=name)
        return member.offset + _LOCAL.size + len(member.raw_name) + int(extra)

    def _exactly(self, count: int, name: str) -> bytes:
        data = self._stream.read(count)
        if len(data) < count:
            raise ArchiveTruncatedError(f"the archive ends within {shown(name)}", member=shown(name))
        return data


def _entry(directory: bytes, position: int) -> tuple[_Member, int]:
    """One entry of the central directory, and where the next one begins."""
    if position + _ENTRY.size > len(directory):
        raise ArchiveMalformedError("the directory of the archive has fewer entries than the archive says")
    fields = _ENTRY.unpack_from(directory, position)
    signature, _, _, flags, method, _, _, crc, compressed, size = fields[:10]
    name_length, extra_length, comment_length, disk, _, attributes, offset = fields[10:]
    end = position + _ENTRY.size + name_length + extra_length + comment_length
    if signature != _ENTRY_SIGNATURE or end > len(directory):
        raise ArchiveMalformedError("the directory of the archive is damaged")
    raw_name = directory[position + _ENTRY.size : position + _ENTRY.size + name_length]
    name = _decoded(raw_name, flags)
    if flags & _ENCRYPTED:
        raise ArchiveEncryptedError(f"{shown(name)} is encrypted", member=shown(name))
    if method not in {_STORED, _DEFLATED} or flags & _PATCHED:
        raise ArchiveCompressionError(
            f"{shown(name)} is compressed by method {method}; stored (0) and deflated (8) are read",
            member=shown(name),
            method=method,
        )
    if _ALL_ONES_32 in {compressed, size, offset} or disk == _ALL_ONES_16:
        raise ArchiveZip64Error(
            f"{shown(name)} uses ZIP64, which no member within the limits needs", member=shown(name)
        )
    if method == _STORED and compressed != size:
        raise ArchiveSizeMismatchError(f"{shown(name)} is stored and has two sizes", member=shown(name))
    return _Member(raw_name, name, flags, method, crc, compressed, size, attributes, offset), end


def _inflated(packed: Iterator[bytes], member: _Member) -> Iterator[bytes]:
    """The uncompressed bytes, at most `_STEP` at a time; the compressed ones must end where the deflate stream does."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for waiting in packed:
            if inflater.eof:
                break
            yield inflater.decompress(waiting, _STEP)
            while inflater.unconsumed_tail:
                yield inflater.decompress(inflater.unconsumed_tail, _STEP)
        # The last input may leave output behind in the inflater.
        while not inflater.eof and (piece := inflater.decompress(b"", _STEP)):
            yield piece
    except zlib.error as error:
        raise ArchiveMalformedError(
            f"the compressed data of {shown(member.name)} is damaged ({error})", member=shown(member.name)
        ) from error
    if member.compressed and not inflater.eof:
        raise ArchiveTruncatedError(
            f"the compressed data of {shown(member.name)} is cut short", member=shown(member.name)
        )
    if inflater.unused_data or next(packed, b""):
        raise ArchiveMalformedError(f"there is data behind the compressed data of {shown(member.name)}")


def _decoded(raw_name: bytes, flags: int) -> str:
    """A name as text: UTF-8 where marked or where it is (macOS does not mark it), else code page 437."""
    if flags & _UTF8_NAME:
        return raw_name.decode("utf-8", "surrogateescape")
    try:
        return raw_name.decode("utf-8")
    except UnicodeDecodeError:
        return raw_name.decode("cp437")
