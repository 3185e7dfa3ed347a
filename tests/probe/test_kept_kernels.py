"""Archives of what inductor compiled: only regular files go in, and what this probe did not write does not come out."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from gradproof_probe.compiling import kept_kernels
from gradproof_probe.compiling.kept_kernels import RefusedArchiveError, hand_out, unpack


def packed(home: Path, monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    """What a sandbox whose cache is `home` hands out."""
    monkeypatch.setattr(kept_kernels, "_home", lambda: home)
    descriptor = os.open(archive, os.O_WRONLY | os.O_CREAT)
    hand_out(descriptor)
    os.close(descriptor)


def written(archive: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(archive, "w:gz") as file:
        for member, content in members:
            member.size = len(content) or member.size
            file.addfile(member, io.BytesIO(content))
    return archive


def member(name: str, **values: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for attribute, value in values.items():
        setattr(info, attribute, value)
    return info


def test_files_come_out_as_they_went_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    content = {"fxgraph/ab/fabc/def": b"graph" * 50_000, "24/c2.main.so": os.urandom(70_000), "24/empty.py": b""}
    for name, data in content.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(data)
    packed(home, monkeypatch, tmp_path / "archive")
    place.mkdir()
    unpack(tmp_path / "archive", place)
    assert {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()} == content


def test_links_pipes_and_foreign_names_are_not_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, place, secret = tmp_path / "home", tmp_path / "place", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    for directory in ("ab", "precompiled_headers", "a b"):
        (home / directory).mkdir(parents=True)
    (home / "ab/real.py").write_text("real")
    (home / "ab/link.py").symlink_to(secret / "key")
    (home / "linked").symlink_to(secret)
    os.mkfifo(home / "ab/pipe")
    (home / "precompiled_headers/x.gch").write_text("made for all repositories")
    (home / "a b/c.py").write_text("not inductor's name")
    packed(home, monkeypatch, tmp_path / "archive")
    place.mkdir()
    unpack(tmp_path / "archive", place)
    assert [p.relative_to(place).as_posix() for p in place.rglob("*") if not p.is_dir()] == ["ab/real.py"]


def test_what_does_not_fit_is_left_out_and_the_rest_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_kernels, "_ARCHIVE", 100_000)
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    for number in range(10):
        (home / f"k{number}").write_bytes(os.urandom(30_000))
    packed(home, monkeypatch, tmp_path / "archive")
    assert (tmp_path / "archive").stat().st_size < 150_000, "compressed bytes come late: those of one file may be over"
    unpack(tmp_path / "archive", place)
    assert 2 <= len(list(place.iterdir())) < 10


def test_nothing_new_is_nothing_to_hand_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/k").write_text("k")
    monkeypatch.setattr(kept_kernels, "_taken_over", frozenset({"k"}))
    packed(tmp_path / "home", monkeypatch, tmp_path / "archive")
    assert (tmp_path / "archive").stat().st_size == 0


@pytest.mark.parametrize(
    "hostile",
    [
        member("../outside.py"),
        member("ab/../../outside.py"),
        member("/tmp/outside.py"),
        member("precompiled_headers/x.gch"),
        member("ab/link.py", type=tarfile.SYMTYPE, linkname="../../outside.py"),
        member("ab/link.py", type=tarfile.LNKTYPE, linkname="/etc/hostname"),
        member("ab/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("ab/pipe", type=tarfile.FIFOTYPE),
        member("ab", type=tarfile.DIRTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type.decode()}",
)
def test_only_files_below_the_place_come_out(tmp_path: Path, hostile: tarfile.TarInfo) -> None:
    place = tmp_path / "below" / "place"
    place.mkdir(parents=True)
    archive = written(tmp_path / "archive", (hostile, b"x" if hostile.isreg() else b""))
    with pytest.raises(RefusedArchiveError):
        unpack(archive, place)
    assert not list(place.rglob("*"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive", "below", "place"]


def test_a_name_that_comes_twice_is_not_written_twice(tmp_path: Path) -> None:
    archive = written(tmp_path / "archive", (member("ab/a.py"), b"first"), (member("ab/a.py"), b"second"))
    (tmp_path / "place").mkdir()
    with pytest.raises(FileExistsError):
        unpack(archive, tmp_path / "place")


def _many(path: Path) -> None:
    with tarfile.open(path, "w:gz") as file:
        for number in range(40):
            file.addfile(member(f"k{number}"), io.BytesIO())


def _long(path: Path) -> None:
    written(path, *((member(f"k{number}"), bytes(90_000)) for number in range(4)))


def _header(path: Path) -> None:
    """Eight megabytes of a header, in eight kilobytes."""
    with gzip.open(path, "wb") as file:
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, 8 * 2**20
        file.write(info.tobuf(tarfile.USTAR_FORMAT) + bytes(8 * 2**20))


@pytest.mark.parametrize("bomb", [_many, _long, _header])
def test_bombs_end_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: Callable[[Path], None]) -> None:
    monkeypatch.setattr(kept_kernels, "_BYTES", 300_000)
    monkeypatch.setattr(kept_kernels, "_FILES", 30)
    bomb(tmp_path / "archive")
    (tmp_path / "place").mkdir()
    with pytest.raises(RefusedArchiveError):
        unpack(tmp_path / "archive", tmp_path / "place")


@pytest.mark.parametrize("cut", [0, 10, -9, -2])
def test_a_damaged_archive_is_refused(tmp_path: Path, cut: int) -> None:
    whole = written(tmp_path / "whole", (member("ab/a.py"), os.urandom(5000))).read_bytes()
    (tmp_path / "archive").write_bytes(whole[:cut])
    (tmp_path / "place").mkdir()
    with pytest.raises((EOFError, OSError, tarfile.TarError)):
        unpack(tmp_path / "archive", tmp_path / "place")
