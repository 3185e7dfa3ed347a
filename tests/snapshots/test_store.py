"""A stored snapshot is whole, read-only, the same for every writer, and nothing but plain files."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from services.snapshots import Snapshot, SnapshotStore, Source, SourceTree, read_archive, read_directory
from services.snapshots.errors import SnapshotDamagedError, SnapshotNotFoundError, SnapshotStoreError
from tests.snapshots.making import FILES, stream, zip_of

# Names whose order differs from that of their directories: '-' and '.' come before '/'.
ORDER = {"a/b.py": b"1", "a-b/c.py": b"2", "a.py": b"3", "a/b/c/d.py": b"4", "a0.py": b"5", "b/a.py": b"6", "a/bb": b""}


@pytest.fixture
def tree() -> Iterator[SourceTree]:
    with read_archive(stream(zip_of({f"repo-1/{name}": data for name, data in FILES.items()})), "a.zip") as read:
        yield read


def entries(directory: Path) -> list[str]:
    """What lies in a store, its lock apart."""
    return sorted(entry.name for entry in directory.iterdir() if entry.name != ".lock")


def age(directory: Path, seconds: float) -> None:
    """What time does to a snapshot that nobody stores again."""
    when = directory.stat().st_mtime - seconds
    os.utime(directory, (when, when))


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_a_snapshot_is_a_directory_of_the_same_files(tmp_path: Path, tree: SourceTree) -> None:
    store = SnapshotStore(tmp_path / "deep" / "store")
    snapshot = store.put(tree)
    assert snapshot == Snapshot(tree.digest, len(FILES), 4, Source("archive"), stripped="repo-1", left_out={})
    assert contents(store.path(snapshot.digest)) == FILES
    assert store.files(snapshot.digest) == tuple(sorted(FILES))
    store.verify(snapshot.digest)


@pytest.mark.parametrize("order", [sorted(ORDER), sorted(ORDER, reverse=True)])
def test_directories_whose_names_begin_alike_are_kept_apart(tmp_path: Path, order: list[str]) -> None:
    store = SnapshotStore(tmp_path)
    with read_archive(stream(zip_of({name: ORDER[name] for name in order})), "a.zip") as tree:
        assert contents(store.path(store.put(tree).digest)) == ORDER


def test_everybody_may_read_a_snapshot_and_nobody_may_write_whatever_the_umask(
    tmp_path: Path, tree: SourceTree
) -> None:
    store = SnapshotStore(tmp_path)
    before = os.umask(0o077)
    try:
        top = store.path(store.put(tree).digest)
    finally:
        os.umask(before)
    for path in (top, *top.rglob("*")):
        expected = 0o555 if path.is_dir() else 0o444
        assert stat.S_IMODE(path.lstat().st_mode) == expected, path


def test_storing_twice_stores_once(tmp_path: Path, tree: SourceTree) -> None:
    store = SnapshotStore(tmp_path)
    first = store.put(tree)
    inode = store.path(first.digest).stat().st_ino
    assert store.put(tree) == first
    assert store.path(first.digest).stat().st_ino == inode
    assert len(entries(tmp_path)) == 1


def _put_in_another_process(directory: str, source: str) -> str:
    with read_directory(Path(source)) as tree:
        return SnapshotStore(Path(directory)).put(tree).digest


def test_writers_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(200):
        (source / f"m{number}.py").write_text(f"x = {number}\n")
    store = SnapshotStore(tmp_path / "store")
    with ThreadPoolExecutor(4) as threads, get_context("spawn").Pool(2) as processes:
        jobs = [processes.apply_async(_put_in_another_process, (str(tmp_path / "store"), str(source))) for _ in "ab"]
        digests = set(threads.map(_put_in_another_process, [str(tmp_path / "store")] * 6, [str(source)] * 6))
        digests |= {job.get(60) for job in jobs}
    (digest,) = digests
    store.verify(digest)
    assert entries(tmp_path / "store") == [digest.removeprefix("sha256:")]


def test_a_snapshot_appears_whole_or_not_at_all(tmp_path: Path, tree: SourceTree) -> None:
    class Failing(SourceTree):
        def __getitem__(self, path: str) -> bytes:
            if path == "pyproject.toml":
                raise OSError(28, "No space left on device")
            return super().__getitem__(path)

    failing = Failing(tree._contents, tree._spool, source=tree.source)
    store = SnapshotStore(tmp_path)
    with pytest.raises(SnapshotStoreError, match="No space left on device"):
        store.put(failing)
    assert entries(tmp_path) == []
    with pytest.raises(SnapshotNotFoundError):
        store.path(tree.digest)


def test_a_store_that_is_no_directory_is_named(tmp_path: Path, tree: SourceTree) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(SnapshotStoreError, match=r"can't be stored in .*store"):
        SnapshotStore(tmp_path / "store").put(tree)


def test_what_a_killed_writer_left_is_removed_once_it_is_old(tmp_path: Path, tree: SourceTree) -> None:
    for name, age in ((".staging-old", 7200), (".staging-young", 60)):
        inside = tmp_path / name / "pkg"
        inside.mkdir(parents=True)
        (inside / "a.py").write_text("")
        inside.chmod(0o555)
        when = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (when, when))
    digest = SnapshotStore(tmp_path).put(tree).digest
    assert entries(tmp_path) == [".staging-young", digest.removeprefix("sha256:")]


def test_only_what_was_not_stored_for_a_while_is_discarded(tmp_path: Path, tree: SourceTree) -> None:
    store = SnapshotStore(tmp_path)
    assert store.digests() == ()
    digest = store.put(tree).digest
    assert store.digests() == (digest,)
    assert not store.discard(digest, unused_for=timedelta(hours=1))
    age(store.path(digest), 3700)
    store.put(tree)
    assert not store.discard(digest, unused_for=timedelta(hours=1))
    age(store.path(digest), 3700)
    assert store.discard(digest, unused_for=timedelta(hours=1))
    assert not store.discard(digest, unused_for=timedelta(hours=1))
    assert entries(tmp_path) == []
    store.verify(store.put(tree).digest)


def test_who_stores_while_another_discards_has_the_snapshot_afterwards(
    tmp_path: Path, tree: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `put` has seen is not taken away any more: it waits while it is judged, and then writes it anew."""
    store = SnapshotStore(tmp_path)
    digest = store.put(tree).digest
    age(store.path(digest), 3700)
    storing = Thread(target=store.put, args=[tree])

    def clock() -> float:
        """Asked for the time, while it judges the age: now somebody stores the same."""
        if not storing.ident:
            storing.start()
            storing.join(0.3)
        return time.time()

    monkeypatch.setattr("services.snapshots.store.time", SimpleNamespace(time=clock))
    assert store.discard(digest, unused_for=timedelta(hours=1))
    storing.join()
    store.verify(digest)
    assert entries(tmp_path) == [digest.removeprefix("sha256:")]


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, "sha256:../../etc", "", "0" * 64, "sha256:" + "A" * 64])
def test_an_unknown_digest_is_not_found_and_never_a_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(SnapshotNotFoundError):
        SnapshotStore(tmp_path).path(digest)


def _change(top: Path) -> None:
    (top / "README.md").chmod(0o644)
    (top / "README.md").write_text("changed")


def _add(top: Path) -> None:
    top.chmod(0o755)
    (top / "more.py").write_text("")


def _link(top: Path) -> None:
    top.chmod(0o755)
    (top / "link.py").symlink_to("README.md")


def _lose(top: Path) -> None:
    top.chmod(0o755)
    (top / "README.md").unlink()


@pytest.mark.parametrize("damage", [_change, _add, _link, _lose])
def test_any_damage_is_noticed(tmp_path: Path, tree: SourceTree, damage: object) -> None:
    store = SnapshotStore(tmp_path)
    digest = store.put(tree).digest
    damage(store.path(digest))  # type: ignore[operator]
    with pytest.raises(SnapshotDamagedError):
        store.verify(digest)
