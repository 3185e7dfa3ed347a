"""A directory is read as git and a person see it, and nothing outside it ever is."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.snapshots import DEFAULT_LIMITS, Source, read_archive, read_directory
from services.snapshots.errors import (
    DirectoryNotFoundError,
    DirectoryTooSlowError,
    EmptyTreeError,
    PythonFileTooLargeError,
    TooManyFilesError,
    TreeTooLargeError,
)
from tests.snapshots.making import FILES, stream, tar_of


def write(top: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, data in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return top


def names(top: Path) -> set[str]:
    with read_directory(top) as tree:
        return set(tree)


def test_every_file_of_a_directory_is_kept_with_the_digest_that_its_archive_has(tmp_path: Path) -> None:
    with (
        read_directory(write(tmp_path, FILES)) as tree,
        read_archive(stream(tar_of(FILES)), "a.tar") as archived,
    ):
        assert dict(tree) == FILES
        assert tree.source == Source("directory")
        assert tree.digest == archived.digest


def test_ignored_files_are_left_out_by_git_s_rules(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".git/HEAD": "",
            ".git/info/exclude": "private.py\nnotes/\n",
            ".gitignore": "*.log\n/build/\ndata/*\n!data/keep.py\n!shown.log\n\n# a comment\n!\n\\\n",
            "a.py": "",
            "x.log": "",
            "shown.log": "",
            "private.py": "",
            "notes/n.py": "",
            "build/b.py": "",
            "deep/build/b.py": "",
            "data/drop.py": "",
            "data/keep.py": "",
            "sub/.gitignore": "*.py\n!keep.py\n!y.log\n",
            "sub/drop.py": "",
            "sub/keep.py": "",
            "sub/y.log": "",
            "sub/z.log": "",
            "sub/deeper/drop.py": "",
            "sub/deeper/.gitignore": "!drop.py\n",
        },
    )
    assert names(tmp_path) == {
        ".gitignore",
        "a.py",
        "shown.log",
        "deep/build/b.py",
        "data/keep.py",
        "sub/.gitignore",
        "sub/keep.py",
        "sub/y.log",
        "sub/deeper/.gitignore",
        "sub/deeper/drop.py",
    }


_PATTERNS = st.lists(
    st.sampled_from(
        [
            "*.py",
            "!a.py",
            "a",
            "/a",
            "a/",
            "!a/",
            "b/*",
            "!b/a.py",
            "**/b",
            "a/**",
            "!/b/a/a.py",
            "[ab].py",
            "*",
            "!*/",
            "b/a",
            "?.py",
            "[!a].py",
            "[[:alpha:]].*",
            "a*",
            "*a*.p?",
            "\\a.py",
            "b/**/a.py",
            "**/a/**",
            "a.py ",
            "[a-",
            "a\\",
        ]
    ),
    max_size=4,
)


@given(top=_PATTERNS, below=_PATTERNS)
@settings(max_examples=60, deadline=None)
def test_what_is_ignored_is_what_git_ignores(
    tmp_path_factory: pytest.TempPathFactory, top: list[str], below: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("ignored")
    try:
        files = [f"{place}{name}" for place in ("", "a/", "b/", "b/a/", "b/b/a/") for name in ("a.py", "c.txt", "b.py")]
        write(directory, dict.fromkeys(files, "x") | {"z.py": ""})
        write(directory, {".gitignore": "\n".join([*top, "!z.py"]), "b/.gitignore": "\n".join(below)})
        subprocess.run(["git", "init", "-q", "--template="], cwd=directory, check=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--others", "--exclude-standard"], cwd=directory, check=True, capture_output=True
        )
        assert names(directory) == set(listed.stdout.decode().split("\0")) - {""}
    finally:
        shutil.rmtree(directory)


def test_rules_from_above_count_up_to_the_top_of_the_repository(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*\n", "repo/.git/HEAD": "", "repo/.gitignore": "*.txt\n/src/gen/\n"})
    write(tmp_path / "repo", {"src/a.py": "", "src/a.txt": "", "src/gen/g.py": ""})
    assert names(tmp_path / "repo" / "src") == {"a.py"}


def test_an_ignored_directory_is_read_when_it_is_named_itself(tmp_path: Path) -> None:
    write(tmp_path, {".git/HEAD": "", ".gitignore": "/build/\n*.txt\n", "build/out/a.py": "", "build/out/a.txt": ""})
    assert names(tmp_path / "build" / "out") == {"a.py", "a.txt"}


def test_environments_caches_and_version_control_are_left_out_and_counted(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.py": "",
            "my env/pyvenv.cfg": "",
            "my env/lib/python3.11/site-packages/torch/__init__.py": "",
            "lib/site-packages/x.py": "",
            "node_modules/y.py": "",
            "pkg/__pycache__/a.cpython-311.pyc": "",
            "pkg/b.pyc": "",
            ".git/config": "",
            ".hg/store": "",
            ".mypy_cache/x.json": "",
        },
    )
    with read_directory(tmp_path) as tree:
        assert set(tree) == {"a.py"}
        assert tree.left_out == {"installed packages": 3, "cache": 2, "compiled Python": 1, "version control": 2}


def test_a_directory_that_is_an_environment_itself_is_read(tmp_path: Path) -> None:
    assert names(write(tmp_path, {"pyvenv.cfg": "", "a.py": ""})) == {"pyvenv.cfg", "a.py"}


def test_an_unpacked_wheel_inside_site_packages_is_read(tmp_path: Path) -> None:
    wheel = write(
        tmp_path / "site-packages", {"vit/__init__.py": "", "vit/vit.py": "", "vit-1.0.dist-info/METADATA": ""}
    )
    assert names(wheel) == {"vit/__init__.py", "vit/vit.py", "vit-1.0.dist-info/METADATA"}


def test_a_package_that_is_named_itself_keeps_its_name_in_the_paths(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/a.py": "", "my-nodes/__init__.py": ""})
    with read_directory(tmp_path / "pkg") as tree:
        assert set(tree) == {"pkg/__init__.py", "pkg/a.py"}
        assert tree.prefix == "pkg"
    assert names(tmp_path / "my-nodes") == {"__init__.py"}


def test_links_are_never_followed_and_are_counted(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"secret.py": "password"})
    top = write(tmp_path / "top", {"a.py": ""})
    (top / "file.py").symlink_to(outside / "secret.py")
    (top / "directory").symlink_to(outside)
    (top / "inside.py").symlink_to("a.py")
    (top / "loop").symlink_to(".")
    (top / "broken.py").symlink_to("nowhere")
    (top / ".gitignore").symlink_to(outside / "secret.py")
    with read_directory(top) as tree:
        assert dict(tree) == {"a.py": b""}
        assert tree.left_out == {"symbolic link": 6}


def test_the_top_itself_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real", {"a.py": ""})
    (tmp_path / "link").symlink_to("real")
    assert names(tmp_path / "link") == {"a.py"}


def test_pipes_and_sockets_neither_block_nor_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": ""})
    os.mkfifo(tmp_path / "pipe.py")
    os.mkfifo(tmp_path / ".gitignore")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s.py"))
        with read_directory(tmp_path) as tree:
            assert set(tree) == {"a.py"}
            assert tree.left_out == {"not a regular file": 2, "unreadable": 1}


def test_names_that_can_not_be_kept_are_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "b\\c.py": "", "Icon\r": "", "A.py": "", "d\u202ey.py": ""})
    (tmp_path / os.fsdecode(b"caf\xe9.py")).write_bytes(b"")
    with read_directory(tmp_path) as tree:
        assert set(tree) == {"A.py"}
        assert tree.left_out == {"unusable name": 5}


def test_a_deep_tree_ends_somewhere(tmp_path: Path) -> None:
    place = write(tmp_path, {"a.py": ""})
    descriptor = os.open(place, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    with read_directory(tmp_path) as tree:
        assert set(tree) == {"a.py"}
        assert tree.left_out == {"unusable name": 1}
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_single_python_file_is_a_tree_of_one(tmp_path: Path) -> None:
    write(tmp_path, {"model.py": "import torch\n", "other.py": ""})
    with read_directory(tmp_path / "model.py") as tree:
        assert dict(tree) == {"model.py": b"import torch\n"}


@pytest.mark.parametrize("name", ["nothing", "notes.txt", "pipe"])
def test_what_is_neither_directory_nor_python_file_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"notes.txt": ""})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DirectoryNotFoundError, match=name):
        read_directory(tmp_path / name)


def test_a_directory_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyTreeError):
        read_directory(tmp_path)


def test_too_much_is_refused_with_advice(tmp_path: Path) -> None:
    write(tmp_path, {f"{number}.py": "x" * 100 for number in range(12)})
    with pytest.raises(TooManyFilesError, match=r"more than 10 files and directories .*\.gitignore"):
        read_directory(tmp_path, limits=replace(DEFAULT_LIMITS, members=10))
    with pytest.raises(TreeTooLargeError, match=r"more than 1,000 bytes together .*\.gitignore"):
        read_directory(tmp_path, limits=replace(DEFAULT_LIMITS, total=1000))
    with pytest.raises(DirectoryTooSlowError):
        read_directory(tmp_path, limits=replace(DEFAULT_LIMITS, seconds=0.0))


def test_a_large_python_file_is_refused_and_large_data_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "weights.pt": bytes(6_000_000)})
    assert names(tmp_path) == {"a.py"}
    write(tmp_path, {"huge.py": b"#" * 50_000_000})
    for path in (tmp_path, tmp_path / "huge.py"):
        with pytest.raises(PythonFileTooLargeError, match=r"huge\.py has 50 MB"):
            read_directory(path)


def test_a_file_that_may_not_be_read_is_left_out() -> None:
    with tempfile.TemporaryDirectory() as place:
        top = write(Path(place), {"a.py": "", "locked.py": "", "closed/b.py": ""})
        top.chmod(0o755)
        (top / "locked.py").chmod(0)
        (top / "closed").chmod(0)
        read, written = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if os.geteuid() == 0:  # root may read everything
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                with read_directory(top) as tree:
                    os.write(written, repr((list(tree), dict(tree.left_out))).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(written)
        answer = os.read(read, 1000).decode()
        os.close(read)
        (top / "closed").chmod(0o755)
    assert answer == repr((["a.py"], {"unreadable": 2}))
