"""Each trick that an archive can play is refused, with a name for the trick and the name of the member."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from services.snapshots import DEFAULT_LIMITS, read_archive
from services.snapshots.errors import (
    ArchiveChecksumError,
    ArchiveCompressionError,
    ArchiveEncryptedError,
    ArchiveError,
    ArchiveHardLinkError,
    ArchiveMalformedError,
    ArchiveMemberTooLargeError,
    ArchiveOverlapError,
    ArchiveRatioError,
    ArchiveSizeMismatchError,
    ArchiveSparseError,
    ArchiveSpecialFileError,
    ArchiveSymlinkError,
    ArchiveTooLargeError,
    ArchiveTooManyMembersError,
    ArchiveTooSlowError,
    ArchiveTruncatedError,
    ArchiveZip64Error,
    PathAbsoluteError,
    PathConflictError,
    PathDuplicateError,
    PathRefusedError,
    PathTraversalError,
    SnapshotRefusedError,
)
from services.snapshots.limits import Limits
from tests.snapshots.making import (
    FILES,
    KINDS,
    TAR_END,
    Entry,
    pax_record,
    raw_zip,
    stream,
    tar_block,
    tar_header,
    tar_link,
    tar_members,
    tar_of,
    zip_of,
)

Refusal = TypeVar("Refusal", bound=SnapshotRefusedError)


def refused(kind: type[Refusal], data: bytes, filename: str, limits: Limits = DEFAULT_LIMITS) -> Refusal:
    with pytest.raises(kind) as caught:
        read_archive(stream(data), filename, limits=limits)
    assert type(caught.value) is kind
    assert caught.value.http_status in {415, 422}
    return caught.value


def both_kinds(name: str, data: bytes = b"x") -> list[tuple[str, bytes]]:
    """A member of that name behind an honest one, as tar and as ZIP."""
    return [
        ("a.tar", tar_of({"ok.py": b"", name: data})),
        ("a.zip", raw_zip([Entry(b"ok.py"), Entry(name.encode("utf-8", "surrogateescape"), data, flags=0x800)])),
    ]


# Names


@pytest.mark.parametrize("name", ["../x.py", "a/../../x.py", "a/..", "..", "./../x.py", "a/../b.py"])
def test_a_name_that_leads_upwards(name: str) -> None:
    for filename, data in both_kinds(name):
        error = refused(PathTraversalError, data, filename)
        assert error.code == "path-traversal"
        assert error.details["member"] == name


@pytest.mark.parametrize("name", ["/etc/passwd", "//x.py", "C:/x.py", "./c:x.py", "C:\\x.py"])
def test_a_name_that_is_absolute(name: str) -> None:
    for filename, data in both_kinds(name):
        refused(PathAbsoluteError, data, filename)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a\\b.py", "a backslash"),
        ("..\\b.py", "a backslash"),
        ("a\nb.py", "a control character"),
        ("a\x1b[31mb.py", "a control character"),
        ("a\x7fb.py", "a control character"),
        ("a\u0085b.py", "a control character"),
        ("a\u2028b.py", "a control character"),
        ("a\u202egnp.py", "a bidirectional control character"),
        ("a\u2066b.py", "a bidirectional control character"),
        ("a\udcffb.py", "bytes that are not UTF-8"),
        ("d/" + "x" * 241, "a part of more than 240 bytes"),
        ("ü" * 121, "a part of more than 240 bytes"),
        ("/".join(["p" * 100] * 11), "more than 1024 bytes"),
        ("/".join(["p"] * 65), "more than 64 parts"),
        ("a//b.py", "an empty or '.' part"),
        ("a/./b.py", "an empty or '.' part"),
    ],
)
def test_a_name_that_no_file_should_have(name: str, reason: str) -> None:
    for filename, data in both_kinds(name):
        error = refused(PathRefusedError, data, filename)
        assert error.details["reason"] == reason
        assert error.message.isprintable()
        assert "\u202e" not in error.message


def test_a_nul_in_a_name_can_not_hide_its_end() -> None:
    error = refused(PathRefusedError, raw_zip([Entry(b"a.py\0.txt")]), "a.zip")
    assert error.details["reason"] == "a NUL character"
    pax = pax_record(b"path", b"a.py\0.txt")
    data = tar_header(b"x", len(pax), b"x") + tar_block(pax) + tar_header(b"short", 0) + TAR_END
    assert refused(PathRefusedError, data, "a.tar").details["reason"] == "a NUL character"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a.py", "a.py"),
        ("a.py", "A.py"),
        ("pkg/a.py", "PKG/b.py"),
        ("stra\u00dfe.py", "STRASSE.py"),
        ("caf\u00e9.py", "cafe\u0301.py"),
        ("./a.py", "a.py"),
    ],
)
def test_two_names_that_are_one_on_some_file_system(first: str, second: str) -> None:
    members = [tarfile.TarInfo(first), tarfile.TarInfo(second)]
    refused(PathDuplicateError, tar_members(members), "a.tar")
    refused(
        PathDuplicateError, raw_zip([Entry(first.encode(), flags=0x800), Entry(second.encode(), flags=0x800)]), "a.zip"
    )


@pytest.mark.parametrize("names", [("a", "a/b.py"), ("a/b.py", "a")])
def test_a_name_for_a_file_and_a_directory(names: tuple[str, str]) -> None:
    refused(PathConflictError, tar_members(map(tarfile.TarInfo, names)), "a.tar")
    refused(PathConflictError, raw_zip([Entry(name.encode()) for name in names]), "a.zip")


# Members that are no files


def test_a_symbolic_link_even_a_harmless_one() -> None:
    for target in ("/etc/passwd", "../../x", "a.py"):
        error = refused(ArchiveSymlinkError, tar_members([tarfile.TarInfo("a.py"), tar_link("l", target)]), "a.tar")
        assert (error.code, error.details["member"]) == ("archive-symlink", "l")
    linked = Entry(b"link", data=b"/etc/passwd", mode=stat.S_IFLNK | 0o777)
    assert refused(ArchiveSymlinkError, raw_zip([Entry(b"a.py"), linked]), "a.zip").details["member"] == "link"


def test_a_chain_of_long_links_that_leads_the_standard_library_out_of_the_target(tmp_path: Path) -> None:
    # The way of CVE-2025-4517: links so long that resolving them gives up, then a hard link through them.
    long = "d" * 240
    members = []
    path = ""
    for step in "abcdefghijklmnop":
        directory = tarfile.TarInfo(f"{path}{long}")
        directory.type = tarfile.DIRTYPE
        members += [directory, tar_link(f"{path}{step}", long)]
        path += f"{step}/"
    members += [
        tar_link(f"{path}{'l' * 254}", "../" * 16),
        tar_link("escape", f"{path}{'l' * 254}/../outside"),
        tar_link("overwrite", "escape/victim", tarfile.LNKTYPE),
        tarfile.TarInfo("overwrite"),
    ]
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    error = refused(ArchiveSymlinkError, gzip.compress(tar_members(members)), "a.tar.gz")
    assert error.details["member"] == "a"
    assert victim.read_text() == "untouched"


def test_a_hard_link() -> None:
    members = [tarfile.TarInfo("a.py"), tar_link("b.py", "a.py", tarfile.LNKTYPE)]
    assert refused(ArchiveHardLinkError, tar_members(members), "a.tar").details["member"] == "b.py"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"V", b"\xff"])
def test_a_device_a_pipe_or_something_unknown(kind: bytes) -> None:
    refused(ArchiveSpecialFileError, tar_header(b"dev", 0, kind) + TAR_END, "a.tar")


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_a_device_a_pipe_or_a_socket_in_a_zip(kind: int) -> None:
    refused(ArchiveSpecialFileError, raw_zip([Entry(b"dev", mode=kind | 0o644)]), "a.zip")


def test_a_sparse_file_by_either_way_of_writing_it() -> None:
    refused(ArchiveSparseError, tar_header(b"s", 512, b"S") + tar_block(b"x") + TAR_END, "a.tar")
    for key in (b"GNU.sparse.major", b"GNU.sparse.realsize", b"GNU.sparse.map"):
        pax = pax_record(key, b"1")
        data = tar_header(b"x", len(pax), b"x") + tar_block(pax) + tar_header(b"s", 0) + TAR_END
        refused(ArchiveSparseError, data, "a.tar")


# Too much


def test_thirty_thousand_members() -> None:
    files = {f"m{number}.py": b"" for number in range(30_000)}
    tar = tar_of(files)
    for filename, data in (("a.tar", tar), ("a.tar.gz", gzip.compress(tar, 1)), ("a.zip", zip_of(files))):
        error = refused(ArchiveTooManyMembersError, data, filename)
        assert (error.code, error.details["limit"]) == ("archive-too-many-members", 20_000)
    assert error.details["members"] == 30_000  # a ZIP says so itself, before anything is read


def test_a_directory_of_a_zip_that_counts_fewer_members_than_it_has() -> None:
    entries = [Entry(b"m%d.py" % number) for number in range(30)]
    refused(ArchiveMalformedError, raw_zip(entries, count=10), "a.zip")
    refused(ArchiveMalformedError, raw_zip(entries, count=40), "a.zip")


def test_a_tar_of_headers_without_end() -> None:
    pax = pax_record(b"comment", b"x")
    header = tar_header(b"x", len(pax), b"x") + tar_block(pax)
    refused(ArchiveMalformedError, header * 10_000, "a.tar")


def test_a_zip_bomb_that_declares_what_it_holds() -> None:
    data = zip_of({f"{number}.bin": bytes(19_000_000) for number in range(11)})
    assert len(data) < 300_000
    assert refused(ArchiveTooLargeError, data, "a.zip").details["size"] == 209_000_000
    refused(ArchiveRatioError, zip_of({f"{number}.bin": bytes(19_000_000) for number in range(5)}), "a.zip")


def test_a_zip_bomb_that_declares_little() -> None:
    bomb = Entry(b"a.py", data=bytes(50_000_000), size=100, local_size=100)
    assert refused(ArchiveSizeMismatchError, raw_zip([bomb]), "a.zip").details["declared"] == 100


def test_a_gzip_bomb_inside_and_behind_the_archive() -> None:
    refused(ArchiveMemberTooLargeError, gzip.compress(tar_of({"a.bin": bytes(21_000_000)})), "a.tar.gz")
    inside = tar_of({f"{number}.bin": bytes(19_000_000) for number in range(3)})
    refused(ArchiveRatioError, gzip.compress(inside), "a.tar.gz")
    refused(ArchiveRatioError, gzip.compress(tar_of(FILES) + bytes(100_000_000)), "a.tar.gz")


def test_more_bytes_than_are_accepted_even_without_compression() -> None:
    limits = replace(DEFAULT_LIMITS, total=100_000)
    files = {f"{number}.bin": bytes(20_000) for number in range(6)}
    refused(ArchiveTooLargeError, tar_of(files), "a.tar", limits)
    refused(ArchiveTooLargeError, zip_of(files), "a.zip", limits)


def test_a_member_that_is_larger_than_is_accepted() -> None:
    for filename in ("a.zip", "a.tar"):
        data = KINDS[filename]({"pkg/big.bin": bytes(21_000_000)})
        error = refused(ArchiveMemberTooLargeError, data, filename)
        assert error.details == {"member": "pkg/big.bin", "size": 21_000_000, "limit": 20_000_000}


@pytest.mark.parametrize("filename", KINDS)
def test_reading_ends_when_the_time_is_over(filename: str) -> None:
    refused(ArchiveTooSlowError, KINDS[filename](FILES), filename, replace(DEFAULT_LIMITS, seconds=0.0))


# Lies in headers


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\x80" + bytes(6) + b"\xff" * 5])
def test_a_tar_member_that_claims_to_be_enormous(size: bytes) -> None:
    refused(ArchiveMemberTooLargeError, tar_header(b"a.py", 0, size_field=size) + TAR_END, "a.tar")


@pytest.mark.parametrize("size", [b"-0000000001\0", b"\xff" * 12, b"0x000000001\0", b"9999999999 \0"])
def test_a_tar_size_that_is_no_number(size: bytes) -> None:
    refused(ArchiveMalformedError, tar_header(b"a.py", 0, size_field=size) + TAR_END, "a.tar")


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_an_extended_header_that_is_enormous(kind: bytes) -> None:
    data = tar_header(b"long", 100_000_000, kind) + bytes(100_000_512)
    refused(ArchiveMalformedError, data, "a.tar")


def test_a_pax_header_that_gives_another_size() -> None:
    pax = pax_record(b"size", b"0")
    hidden = tar_link("link", "/etc/passwd").tobuf()
    data = tar_header(b"x", len(pax), b"x") + tar_block(pax) + tar_header(b"a.py", 512) + hidden + TAR_END
    refused(ArchiveSizeMismatchError, data, "a.tar")


@pytest.mark.parametrize(
    "pax",
    [
        b"9999 path=a\n",
        b"5 path=a\n",
        b"0 path=a\n",
        b"-1 path=a\n",
        b"path=a\n",
        b"10 path a\n\n",
        b"99999999999 path=a\n",
        pax_record(b"size", b"-1"),
        pax_record(b"size", b"1e9"),
    ],
)
def test_a_pax_header_whose_records_are_wrong(pax: bytes) -> None:
    data = tar_header(b"x", len(pax), b"x") + tar_block(pax) + tar_header(b"a.py", 0) + TAR_END
    refused(ArchiveMalformedError, data, "a.tar")


def test_a_pax_header_takes_no_time_that_grows_with_the_square_of_its_length() -> None:
    # CVE-2024-6232: a megabyte of digits kept the standard library busy for minutes.
    data = tar_header(b"x", 1_000_000, b"x") + tar_block(b"1" * 1_000_000) + tar_header(b"a.py", 0) + TAR_END
    refused(ArchiveMalformedError, data, "a.tar", replace(DEFAULT_LIMITS, seconds=10.0))


def test_a_global_header_that_renames_every_member() -> None:
    pax = pax_record(b"path", b"../../x")
    data = tar_header(b"x", len(pax), b"g") + tar_block(pax) + tar_header(b"a.py", 0) + TAR_END
    refused(ArchiveMalformedError, data, "a.tar")


def test_a_long_name_is_judged_like_a_short_one() -> None:
    long = b"../" * 100 + b"x.py\0"
    data = tar_header(b"././@LongLink", len(long), b"L") + tar_block(long) + tar_header(b"a.py", 0) + TAR_END
    refused(PathTraversalError, data, "a.tar")


def test_an_extended_header_without_a_member() -> None:
    pax = pax_record(b"path", b"a.py")
    data = tar_header(b"a.py", 0) + tar_header(b"x", len(pax), b"x") + tar_block(pax) + TAR_END
    refused(ArchiveMalformedError, data, "a.tar")


def test_data_behind_the_end_of_a_tar() -> None:
    refused(ArchiveMalformedError, tar_of(FILES) + tar_of({"hidden.py": b""}), "a.tar")


def test_a_zip_member_under_two_names() -> None:
    refused(ArchiveMalformedError, raw_zip([Entry(b"a.py", local_name=b"b.py")]), "a.zip")


def test_a_zip_member_with_two_sizes() -> None:
    refused(ArchiveSizeMismatchError, raw_zip([Entry(b"a.py", local_size=7)]), "a.zip")
    refused(ArchiveSizeMismatchError, raw_zip([Entry(b"a.py", method=0, compressed=3)]), "a.zip")


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_zip_member_that_is_shorter_or_longer_than_declared(difference: int) -> None:
    size = len(Entry(b"").data) + difference
    refused(ArchiveSizeMismatchError, raw_zip([Entry(b"a.py", size=size)]), "a.zip")


def test_overlapping_zip_members() -> None:
    # Two entries for one body; and a body that runs on over the next member's, as in Fifield's bomb.
    refused(ArchiveOverlapError, raw_zip([Entry(b"a.py"), Entry(b"a.py", offset=0)]), "a.zip")
    body = b"y" * 200
    quoting = Entry(b"a.py", data=body, method=0, packed=b"", compressed=200)
    error = refused(ArchiveOverlapError, raw_zip([quoting, Entry(b"b.py", data=body * 2, method=0)]), "a.zip")
    assert error.details["member"] == "b.py"


def test_a_zip_member_that_reaches_into_the_directory() -> None:
    entry = Entry(b"a.py", data=b"z" * 100, method=0, packed=b"z" * 60, compressed=100)
    refused(ArchiveOverlapError, raw_zip([entry]), "a.zip")


def test_a_zip_member_that_is_not_where_the_directory_says() -> None:
    refused(ArchiveMalformedError, raw_zip([Entry(b"a.py"), Entry(b"b.py", offset=3)]), "a.zip")


@pytest.mark.parametrize("flags", [0x01, 0x41, 0x2000])
def test_an_encrypted_zip(flags: int) -> None:
    refused(ArchiveEncryptedError, raw_zip([Entry(b"a.py", flags=flags)]), "a.zip")


@pytest.mark.parametrize("method", [1, 9, 12, 14, 93, 99])
def test_a_compression_method_other_than_deflate(method: int) -> None:
    assert (
        refused(ArchiveCompressionError, raw_zip([Entry(b"a.py", method=method)]), "a.zip").details["method"] == method
    )


def test_zip64_in_each_place_that_announces_it() -> None:
    locator = b"PK\6\7" + bytes(16)
    refused(ArchiveZip64Error, raw_zip([Entry(b"a.py")], before_end=locator), "a.zip")
    refused(ArchiveZip64Error, raw_zip([Entry(b"a.py")], count=0xFFFF), "a.zip")
    refused(ArchiveZip64Error, raw_zip([Entry(b"a.py", compressed=0xFFFFFFFF)]), "a.zip")


def test_a_wrong_checksum() -> None:
    assert refused(ArchiveChecksumError, raw_zip([Entry(b"a.py", crc=1)]), "a.zip").details["member"] == "a.py"
    packed = bytearray(gzip.compress(tar_of(FILES)))
    packed[-8] ^= 1
    refused(ArchiveChecksumError, bytes(packed), "a.tar.gz")


def test_a_member_that_is_both_file_and_directory_by_its_marks() -> None:
    refused(ArchiveMalformedError, raw_zip([Entry(b"a/", data=b"", method=0)]), "a.zip")
    refused(ArchiveMalformedError, raw_zip([Entry(b"a", mode=stat.S_IFDIR | 0o755)]), "a.zip")
    refused(ArchiveMalformedError, raw_zip([Entry(b"a/", data=b"x", method=0, mode=stat.S_IFDIR)]), "a.zip")
    refused(ArchiveMalformedError, tar_header(b"a", 512, b"5") + bytes(512) + TAR_END, "a.tar")


def test_data_behind_the_compressed_data_of_a_member() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(b"x = 1\n") + packer.flush()
    refused(ArchiveMalformedError, raw_zip([Entry(b"a.py", packed=packed + b"hidden")]), "a.zip")


def test_a_comment_that_contains_the_end_of_another_archive() -> None:
    inner = raw_zip([Entry(b"evil.py")])[-22:]
    with read_archive(stream(raw_zip([Entry(b"a.py")], comment=inner + b"!")), "a.zip") as tree:
        assert set(tree) == {"a.py"}


# Damage


@pytest.mark.parametrize("filename", KINDS)
def test_an_archive_that_is_cut_short_anywhere(filename: str) -> None:
    whole = KINDS[filename]({f"m{number}.py": bytes([number]) * 700 for number in range(5)})
    ends = {len(whole) * part // 97 for part in range(97)}
    if filename == "a.tar":
        ends = {end for end in ends if end < 5 * 1536}  # behind it is padding only
    for end in sorted(ends):
        with pytest.raises(ArchiveMalformedError):
            read_archive(stream(whole[:end]), filename)


def test_a_cut_archive_is_called_so() -> None:
    for filename, make in KINDS.items():
        whole = make({"a.py": bytes(range(256)) * 20})
        refused(ArchiveTruncatedError, whole[: len(whole) * 2 // 5], filename)


@pytest.mark.parametrize("filename", KINDS)
@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(2000), b"#!/bin/sh\n" * 400])
def test_what_is_no_archive(filename: str, data: bytes) -> None:
    with pytest.raises(ArchiveMalformedError):
        read_archive(stream(data), filename)


def test_one_kind_of_archive_under_the_name_of_another() -> None:
    for filename in KINDS:
        for other, make in KINDS.items():
            both_gzip = {"a.tar.gz", "a.TGZ"} == {filename, other}
            if filename != other and not both_gzip:
                with pytest.raises(ArchiveError):
                    read_archive(stream(make(FILES)), filename)


def test_a_program_in_front_of_a_zip() -> None:
    refused(ArchiveMalformedError, b"#!/bin/sh\n" + zip_of(FILES), "a.zip")
    refused(ArchiveMalformedError, raw_zip([Entry(b"a.py")], before_end=b"something"), "a.zip")


def test_one_volume_of_several() -> None:
    data = bytearray(zip_of(FILES))
    struct.pack_into("<H", data, len(data) - 18, 1)
    refused(ArchiveMalformedError, bytes(data), "a.zip")


def test_a_refused_archive_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for filename, data in [*both_kinds("../x.py"), ("a.tar.gz", gzip.compress(tar_of(FILES))[:-9])]:
        with pytest.raises(SnapshotRefusedError):
            read_archive(stream(data), filename)
    with read_archive(io.BytesIO(zip_of(FILES)), "a.zip"):
        assert list(tmp_path.iterdir()) == []
