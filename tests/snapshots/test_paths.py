"""What an accepted path promises, for any text whatever."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.snapshots.errors import PathRefusedError
from services.snapshots.paths import check_path, collision_key, file_left_out, shown

_NAMES = st.one_of(
    st.text(max_size=40),
    st.text("ab./\\ ~\0\n\u202e\udc80", max_size=12),
    st.lists(st.sampled_from(["a", "..", ".", "", "b.py", "-x", "C:"]), max_size=6).map("/".join),
)


@given(_NAMES)
@example("./" * 400 + "a")
@example("a/" * 70 + "b")
def test_an_accepted_path_stays_below_the_top_on_every_system(name: str) -> None:
    try:
        path = check_path(name)
    except PathRefusedError:
        return
    if path == "":
        return
    for pure in (PurePosixPath(path), PureWindowsPath(path)):
        assert ".." not in pure.parts
        assert not pure.root
    assert str(PurePosixPath(path)) == path
    assert len(path.encode("utf-8")) <= 1024
    assert all(unicodedata.category(character) != "Cc" for character in path)


@given(_NAMES)
def test_an_accepted_path_is_accepted_again_as_it_is(name: str) -> None:
    try:
        path = check_path(name)
    except PathRefusedError:
        return
    assert check_path(path) == path


@given(st.lists(st.from_regex(r"[\w][\w .-]{0,20}[\w]", fullmatch=True), min_size=1, max_size=6).map("/".join))
def test_ordinary_names_in_any_script_are_accepted(name: str) -> None:
    assert check_path(name) == name
    assert check_path(f"./{name}") == name


@given(st.text(max_size=300))
def test_a_shown_name_is_printable_and_short(name: str) -> None:
    text = shown(name)
    assert text.isprintable()
    assert text
    assert "\u202e" not in text
    assert text.encode("utf-8")


@given(st.text("aAäÄß\u017fKk\u212a\u0301é", max_size=8))
def test_names_that_differ_in_case_or_form_only_collide(name: str) -> None:
    for other in (name.casefold(), unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)):
        assert collision_key(other) == collision_key(name)


@pytest.mark.parametrize("path", ["a/.GIT/config", "A/__pycache__/x.py", "x/.git", "lib/Site-Packages/y.py", "z.pyo"])
def test_what_is_never_kept_is_never_kept_in_any_case(path: str) -> None:
    assert file_left_out(path) is not None


@pytest.mark.parametrize(
    "path", [".gitignore", ".github/ci.yml", "git/x.py", "data.bin", "a.so", "build/x.py", ".venv.py"]
)
def test_what_could_matter_to_an_import_is_kept(path: str) -> None:
    assert file_left_out(path) is None
