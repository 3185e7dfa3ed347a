"""Makes archives, honest and hostile, byte by byte where no library would write them."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

FILES = {
    "pkg/__init__.py": b"",
    "pkg/losses.py": b"import torch\n\nclass Focal:\n    pass",
    "pkg/data/weights.bin": bytes(range(256)),
    "pyproject.toml": b"[project]\nname = 'x'\n",
    "README.md": "Größe\n".encode(),
}


def tar_of(files: Mapping[str, bytes], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def tar_members(members: Iterable[tarfile.TarInfo]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return stream.getvalue()


def tar_link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member


def tar_header(name: bytes, size: int, kind: bytes = b"0", *, size_field: bytes | None = None) -> bytes:
    """One ustar header with a right checksum, whatever else is wrong with it."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:108] = b"0000644\0"
    header[124:136] = size_field or b"%011o\0" % size
    header[156:157] = kind
    header[257:265] = b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def tar_block(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def pax_record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 != length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


TAR_END = bytes(1024)


def zip_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


@dataclass
class Entry:
    """A ZIP member; what is None is told truthfully."""

    name: bytes
    data: bytes = b"x = 1\n"
    method: int = 8
    flags: int = 0
    mode: int = stat.S_IFREG | 0o644
    size: int | None = None
    crc: int | None = None
    packed: bytes | None = None
    compressed: int | None = None
    offset: int | None = None
    local_name: bytes | None = None
    local_size: int | None = None


def raw_zip(
    entries: Sequence[Entry], *, count: int | None = None, comment: bytes = b"", before_end: bytes = b""
) -> bytes:
    """A ZIP file of exactly these members, lies included."""
    body = b""
    directory = b""
    for entry in entries:
        packed = entry.packed
        if packed is None:
            packed = _deflated(entry.data) if entry.method == 8 else entry.data
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        size = len(entry.data) if entry.size is None else entry.size
        compressed = len(packed) if entry.compressed is None else entry.compressed
        local_size = size if entry.local_size is None else entry.local_size
        local_name = entry.name if entry.local_name is None else entry.local_name
        offset = len(body) if entry.offset is None else entry.offset
        fields = (20, entry.flags, entry.method, 0, 0, crc, compressed)
        if entry.offset is None:
            body += struct.pack("<4s5H3L2H", b"PK\3\4", *fields, local_size, len(local_name), 0) + local_name + packed
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 0x0314, *fields, size, len(entry.name), 0, 0, 0, 0, entry.mode << 16, offset
        )
        directory += entry.name
    number = len(entries) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(directory), len(body), len(comment))
    return body + directory + before_end + end + comment


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def stream(data: bytes) -> BinaryIO:
    return io.BytesIO(data)


KINDS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "a.zip": zip_of,
    "a.tar": tar_of,
    "a.tar.gz": lambda files: gzip.compress(tar_of(files)),
    "a.TGZ": lambda files: gzip.compress(tar_of(files, form=tarfile.GNU_FORMAT)),
}
