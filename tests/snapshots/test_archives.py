"""Honest archives come in whole, whatever made them."""

from __future__ import annotations

import gzip
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.snapshots import DEFAULT_LIMITS, Source, read_archive
from services.snapshots.errors import (
    ArchiveUnsupportedError,
    EmptyTreeError,
    PathRefusedError,
    PythonFileTooLargeError,
    SnapshotRefusedError,
    TooManyFilesError,
)
from tests.snapshots.making import FILES, KINDS, Entry, raw_zip, stream, tar_of, zip_of


@pytest.mark.parametrize(("filename", "make"), KINDS.items())
def test_every_file_of_an_archive_is_kept_byte_by_byte(
    filename: str, make: Callable[[Mapping[str, bytes]], bytes]
) -> None:
    with read_archive(stream(make(FILES)), filename) as tree:
        assert dict(tree) == FILES
        assert list(tree) == sorted(FILES)
        assert tree.source == Source("archive")
        assert tree.lines == 4  # the last line has no line feed


def test_the_same_files_have_the_same_digest_in_any_archive_and_order() -> None:
    backwards = dict(reversed(FILES.items()))
    digests = set()
    for filename, make in KINDS.items():
        for files in (FILES, backwards, {f"repo-0a1b2c/{name}": data for name, data in FILES.items()}):
            with read_archive(stream(make(files)), filename) as tree:
                digests.add(tree.digest)
    assert len(digests) == 1
    assert digests.pop().startswith("sha256:")


def test_the_digest_changes_with_every_content_and_every_name() -> None:
    variants = [
        FILES,
        {**FILES, "README.md": b"other"},
        {**FILES, "empty": b""},
        {("READ.ME" if name == "README.md" else name): data for name, data in FILES.items()},
    ]
    digests = {read_archive(stream(tar_of(files)), "a.tar").digest for files in variants}
    assert len(digests) == len(variants)


def test_archives_made_by_git_and_tar_are_read(tmp_path: Path) -> None:
    long = "pkg/" + "d" * 120 + "/" + "n" * 150 + ".py"
    for name, data in {**FILES, long: b"y = 2\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)

    def run(*command: str) -> bytes:
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout

    made = {
        "gnu.tar.gz": run("tar", "-czf", "-", "--exclude=./.git", "."),
        "posix.tar": run(
            "tar", "--format=posix", "-cf", "-", "--transform=s,^,repo/,", "pkg", "pyproject.toml", "README.md"
        ),
        "ustar.tar": run("tar", "--format=gnu", "-cf", "-", "pkg", "pyproject.toml", "README.md"),
    }
    run("git", "init", "-q")
    run("git", "add", "-A")
    run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "x")
    made["git.zip"] = run("git", "archive", "--format=zip", "--prefix=repo-1/", "HEAD")
    made["git.tar.gz"] = run("git", "archive", "--format=tar.gz", "--prefix=repo-1/", "HEAD")
    for filename, data in made.items():
        with read_archive(stream(data), filename) as tree:
            assert dict(tree) == {**FILES, long: b"y = 2\n"}, filename


def test_a_zip_that_was_streamed_and_one_without_compression_are_read(tmp_path: Path) -> None:
    class Pipe:
        """A file that can't seek, so that sizes follow the data."""

        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            self.data += data
            return len(data)

        def flush(self) -> None:
            pass

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        for name, data in FILES.items():
            archive.writestr(name, data)
    for made in (pipe.data, zip_of(FILES, zipfile.ZIP_STORED)):
        with read_archive(stream(made), "a.zip") as tree:
            assert dict(tree) == FILES


@given(size=st.integers(0, 300_000), step=st.integers(1, 251))
@settings(max_examples=40, deadline=None)
def test_any_content_survives_any_compression(size: int, step: int) -> None:
    data = bytes((index * step) % 251 for index in range(min(size, 997))) * (size // 997 + 1)
    files = {"a.bin": data[:size], "b.py": b"b"}
    for filename, make in KINDS.items():
        with read_archive(stream(make(files)), filename) as tree:
            assert dict(tree) == files


def test_output_that_the_last_byte_still_holds_back_is_not_lost() -> None:
    # Zeros: one byte of deflate holds some 2,000 bytes of output, here across the limit of one step.
    for size in range(65_500, 68_500, 75):
        with read_archive(stream(zip_of({"a.bin": bytes(size), "b.py": b""})), "a.zip") as tree:
            assert tree.size("a.bin") == size


def test_the_directory_that_forges_put_around_a_repository_is_taken_off_and_recorded() -> None:
    with read_archive(stream(zip_of({f"model-3f2a/{name}": data for name, data in FILES.items()})), "a.zip") as tree:
        assert dict(tree) == FILES
        assert tree.stripped == "model-3f2a"


def test_a_package_that_was_packed_alone_keeps_its_name() -> None:
    files = {"pkg/__init__.py": b"", "pkg/a.py": b"from pkg import x\n"}
    with read_archive(stream(zip_of(files)), "a.zip") as tree:
        assert dict(tree) == files
        assert tree.stripped is None


def test_a_forge_s_directory_is_taken_off_even_if_the_repository_itself_is_a_package() -> None:
    with read_archive(stream(zip_of({"nodes-main/__init__.py": b"", "nodes-main/a.py": b""})), "a.zip") as tree:
        assert set(tree) == {"__init__.py", "a.py"}


def test_caches_environments_links_of_systems_and_version_control_are_left_out_and_counted() -> None:
    files = {
        "repo-1/a.py": b"",
        "repo-1/.git/config": b"",
        "repo-1/__pycache__/a.pyc": b"",
        "repo-1/b.pyc": b"",
        "repo-1/env/pyvenv.cfg": b"",
        "repo-1/env/lib/python3.11/x.py": b"",
        "repo-1/lib/site-packages/y.py": b"",
        "repo-1/node_modules/z.py": b"",
        "__MACOSX/._a.py": b"",
        "repo-1/.DS_Store": b"",
        "repo-1/weights.bin": bytes(6_000_000),
    }
    with read_archive(stream(zip_of(files)), "a.zip") as tree:
        assert set(tree) == {"a.py"}
        assert tree.left_out == {
            "version control": 1,
            "cache": 1,
            "compiled Python": 1,
            "installed packages": 4,
            "file of an operating system": 2,
            "larger than a kept file may be": 1,
        }


def test_an_environment_is_left_out_wherever_it_lies_but_for_the_top_itself() -> None:
    files = {"repo-1/a.py": b"", "repo-1/pyvenv.cfg": b""}
    with read_archive(stream(zip_of(files)), "a.zip") as tree:
        assert set(tree) == {"a.py", "pyvenv.cfg"}
    with read_archive(stream(zip_of({"repo-1/a.py": b"", "env/pyvenv.cfg": b"", "env/b.py": b""})), "a.zip") as tree:
        assert (set(tree), tree.stripped) == ({"a.py"}, "repo-1")


def test_an_upload_that_is_spooled_to_disk_is_read_like_any_stream() -> None:
    for filename, make in KINDS.items():
        with tempfile.SpooledTemporaryFile(max_size=100) as upload:
            upload.write(make(FILES))
            with read_archive(upload, filename) as tree:  # type: ignore[arg-type]
                assert dict(tree) == FILES


@pytest.mark.parametrize(("filename", "make"), KINDS.items())
def test_a_python_file_of_fifty_megabytes_is_refused_by_name(
    filename: str, make: Callable[[Mapping[str, bytes]], bytes]
) -> None:
    with pytest.raises(SnapshotRefusedError, match=r"huge\.py has 50 MB"):
        read_archive(stream(make({"huge.py": b"#" * 50_000_000})), filename)
    with pytest.raises(PythonFileTooLargeError, match=r"pkg/large.py has 6.0 MB; a Python file may have 5.0 MB"):
        read_archive(stream(make({"pkg/large.py": b"#" * 6_000_000})), filename)


def test_a_single_python_file_is_a_tree_of_one() -> None:
    with read_archive(stream(b"import torch\n"), "model.py") as tree:
        assert dict(tree) == {"model.py": b"import torch\n"}
    with pytest.raises(PythonFileTooLargeError, match=r"model.py has more than 5.0 MB"):
        read_archive(stream(b"#" * 50_000_000), "model.py")


@pytest.mark.parametrize("filename", ["../model.py", "/etc/model.py", "a/b.py", "..\\model.py", "a\0.py", "a\nb.py"])
def test_a_single_file_must_not_bring_a_path(filename: str) -> None:
    with pytest.raises(PathRefusedError):
        read_archive(stream(b"x = 1\n"), filename)


@pytest.mark.parametrize("filename", ["a.rar", "a.tar.bz2", "a.tar.xz", "a", "", "a.zip.exe", "a.whl"])
def test_other_kinds_of_files_are_named_as_unsupported(filename: str) -> None:
    with pytest.raises(ArchiveUnsupportedError, match=r"does not end in \.zip, \.tar, \.tar\.gz or \.py"):
        read_archive(stream(zip_of(FILES)), filename)


@pytest.mark.parametrize(("filename", "make"), KINDS.items())
def test_an_archive_without_files_is_refused(filename: str, make: Callable[[Mapping[str, bytes]], bytes]) -> None:
    with pytest.raises(EmptyTreeError):
        read_archive(stream(make({})), filename)
    with pytest.raises(EmptyTreeError):
        read_archive(stream(make({".git/config": b""})), filename)


def test_directories_without_files_do_not_matter() -> None:
    entries = [Entry(b"empty/", data=b"", method=0, mode=stat.S_IFDIR | 0o755), Entry(b"empty/"[:-1] + b"2/a.py")]
    with read_archive(stream(raw_zip(entries)), "a.zip") as tree:
        assert set(tree) == {"a.py"}


def test_directories_that_are_only_implied_count_as_members_too() -> None:
    limits = replace(DEFAULT_LIMITS, members=10)
    with pytest.raises(TooManyFilesError, match="more than 10 files and directories"):
        read_archive(stream(tar_of({"/".join("abcdefghijk") + "/x.py": b""})), "a.tar", limits=limits)


def test_names_in_any_script_are_kept() -> None:
    files = {"modèle.py": b"1", "模型.py": b"2", "a b.py": b"3", "👩‍🔬.py": b"4"}
    for filename, make in KINDS.items():
        with read_archive(stream(make(files)), filename) as tree:
            assert dict(tree) == files


_HONEST = {filename: make(FILES) for filename, make in KINDS.items()}


@given(filename=st.sampled_from(sorted(_HONEST)), at=st.floats(0, 1), value=st.binary(max_size=3), cut=st.booleans())
@settings(max_examples=400, deadline=None)
def test_a_damaged_archive_is_refused_by_name_or_read_never_a_crash(
    filename: str, at: float, value: bytes, cut: bool
) -> None:
    honest = _HONEST[filename]
    place = int(at * len(honest))
    damaged = honest[:place] + value + (b"" if cut else honest[place + len(value) :])
    try:
        tree = read_archive(stream(damaged), filename)
    except SnapshotRefusedError:
        return
    with tree:
        assert not filename.endswith("gz") or dict(tree) == FILES  # gzip has a checksum over everything


def test_what_goes_in_can_be_read_from_many_threads() -> None:
    files = {f"m{number}.py": bytes([number]) * 5000 for number in range(100)}
    data = gzip.compress(tar_of(files, form=tarfile.USTAR_FORMAT))
    with read_archive(stream(data), "a.tar.gz") as tree, ThreadPoolExecutor(8) as pool:
        assert dict(zip(files, pool.map(tree.__getitem__, files), strict=True)) == files
