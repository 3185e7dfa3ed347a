"""Listing a directory without reading it, and what the paths on a command line mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.snapshots.directories import list_directory, read_directory
from services.snapshots.errors import DirectoryNotFoundError
from services.snapshots.places import PathsError, local_place

SUFFIXES = (".py", ".ipynb")


def configured(*places: Path) -> Callable[[Path], bool]:
    return lambda place: place in places


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.py", "n.ipynb", "data.bin", "src/pkg/__init__.py", "src/pkg/b.py", "ignored/c.py", "venv/lib/d.py"):
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    top = tmp_path / "root"
    (top / ".gitignore").write_text("ignored/\n")
    (top / "venv/pyvenv.cfg").write_text("")
    (top / "link.py").symlink_to(top / "a.py")
    os.mkfifo(top / "pipe.py")
    return top.resolve()


def test_a_listing_names_what_a_tree_would_hold(root: Path) -> None:
    names = list_directory(root, SUFFIXES)
    assert names == ("a.py", "n.ipynb", "src/pkg/__init__.py", "src/pkg/b.py")
    with read_directory(root) as tree:
        assert set(names) == {name for name in tree if name.endswith(SUFFIXES)}


def test_a_directory_is_its_own_top(root: Path) -> None:
    place = local_place([str(root)], SUFFIXES, configured())
    assert (place.top, place.base, place.only) == (root, root, None)
    assert place.asked == place.names == list_directory(root, SUFFIXES)


def test_a_package_keeps_its_name(root: Path) -> None:
    place = local_place([str(root / "src/pkg")], SUFFIXES, configured())
    assert (place.top, place.base) == (root / "src/pkg", root / "src")
    assert place.names == ("pkg/__init__.py", "pkg/b.py")


def test_a_lone_file_stands_alone(root: Path) -> None:
    place = local_place([str(root / "src/pkg/b.py")], SUFFIXES, configured())
    assert (place.base, place.names, place.asked) == (root / "src/pkg", ("b.py",), ("b.py",))


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["src/pkg/b.py"], {"src/pkg/b.py"}),
        (["src"], {"src/pkg/__init__.py", "src/pkg/b.py"}),
        (["src/pkg", "a.py"], {"src/pkg/__init__.py", "src/pkg/b.py", "a.py"}),
        (["ignored/c.py", "data.bin", "a.py"], {"ignored/c.py", "a.py"}),
        (["n.ipynb", "n.ipynb"], {"n.ipynb"}),
    ],
)
def test_a_configuration_further_up_is_where_names_begin(root: Path, words: list[str], asked: set[str]) -> None:
    place = local_place([str(root / word) for word in words], SUFFIXES, configured(root))
    assert (place.top, place.base) == (root, root)
    assert set(place.asked) == asked
    assert set(place.names) >= set(list_directory(root, SUFFIXES))


def test_the_nearest_configuration_counts_and_none_above_the_repository(root: Path) -> None:
    near, far = root / "src", root.parent
    assert local_place([str(root / "src/pkg/b.py")], SUFFIXES, configured(near, root)).top == near
    (root / ".git").mkdir()
    assert local_place([str(root / "src/pkg/b.py")], SUFFIXES, configured(far)).top == root / "src/pkg"


def test_a_root_is_believed_over_any_configuration(root: Path) -> None:
    place = local_place([str(root / "src/pkg/b.py")], SUFFIXES, configured(root / "src"), root=root)
    assert (place.top, place.asked) == (root, ("src/pkg/b.py",))


def test_paths_that_do_not_fit_are_refused_by_name(root: Path) -> None:
    with pytest.raises(DirectoryNotFoundError, match=r"missing\.py"):
        local_place([str(root / "a.py"), str(root / "missing.py")], SUFFIXES, configured())
    with pytest.raises(DirectoryNotFoundError, match=r"data\.bin"):
        local_place([str(root / "data.bin")], SUFFIXES, configured())
    with pytest.raises(PathsError, match="does not lie below it"):
        local_place([str(root / "a.py")], SUFFIXES, configured(), root=root / "src")
    with pytest.raises(PathsError, match="no directory in common"):
        local_place([str(root), "/dev"], SUFFIXES, configured())
