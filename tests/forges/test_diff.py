"""Lines are told to be added when, and only when, git says so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.forges.diff import FileLines, computed_patch, patched, read_diff, read_patch
from services.forges.values import ChangedFile

TRICKY = ["a", "b", "", "+x", "-- y", "++ b/z", "@@ -1 +1 @@", "\\ no", "\r", "é\u2028f\x0c"]
LINES = st.lists(st.sampled_from(TRICKY), max_size=30)
SIXTY = b"".join(b"%d\n" % number for number in range(60))
MOVED = b"".join(b"%d\n" % (number + number // 30) for number in range(60))


def content(lines: list[str], *, ends: bool = True) -> bytes:
    text = "\n".join(lines)
    return (text + "\n" if ends and lines else text).encode()


def git_patch(before: bytes, after: bytes, where: Path) -> str:
    """The patch that git makes of two contents, from its first hunk on, as a forge gives it."""
    old, new = where / "old", where / "new"
    old.write_bytes(before)
    new.write_bytes(after)
    made = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "diff", "--no-index", "--text", "old", "new"],
        cwd=where,
        capture_output=True,
        check=False,
    )
    text = made.stdout.decode()
    return text[text.index("@@") :].removesuffix("\n") if "@@" in text else ""


def applied(before: bytes, patch: str) -> bytes:
    """What a patch makes of a content: each old line it names has to be there."""
    old = before.decode().split("\n")
    old = [f"{line}\n" for line in old[:-1]] + ([old[-1]] if old[-1] else [])
    new: list[str] = []
    place = 0
    for header, body in hunks(patch):
        start, _, length = header.split()[1][1:].partition(",")
        begin = int(start) - (int(length or 1) > 0)
        new, place = new + old[place:begin], begin
        for line in body:
            if line[0] in " -":
                assert old[place] == line[1:]
                place += 1
            if line[0] in " +":
                new.append(line[1:])
    return "".join(new + old[place:]).encode()


def hunks(patch: str) -> list[tuple[str, list[str]]]:
    """Headers with their lines (with their ends), told from one another by the counts in the headers."""
    found: list[tuple[str, list[str]]] = []
    lines = patch.split("\n")
    while lines and lines[0]:
        header = lines.pop(0)
        old, new = (int((part + ",1").split(",")[1]) for part in header.split("@@")[1].split())
        body: list[str] = []
        while old or new or (lines and lines[0].startswith("\\")):
            line = lines.pop(0)
            if line.startswith("\\"):
                body[-1] = body[-1].removesuffix("\n")
                continue
            old, new = old - (line[0] in " -"), new - (line[0] in " +")
            body.append(line + "\n")
        found.append((header, body))
    return found


@settings(deadline=None, derandomize=True, max_examples=30)
@given(before=LINES, after=LINES, ends=st.booleans())
def test_gits_own_patches_are_read_as_git_means_them(
    before: list[str], after: list[str], ends: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    patch = git_patch(content(before), content(after, ends=ends), tmp_path_factory.mktemp("diff"))
    lines = read_patch(patch)
    new = content(after, ends=ends).decode().split("\n")
    body = [line.removesuffix("\n") for _, part in hunks(patch) for line in part]
    # What is shown of the new side are its lines, at their numbers.
    assert [new[number - 1] for number in sorted(lines.added | lines.context)] == [
        line[1:] for line in body if line[0] in "+ "
    ]
    assert [new[number - 1] for number in sorted(lines.added)] == [line[1:] for line in body if line[0] == "+"]
    spanned = [line for first, last in lines.hunks for line in range(first, last + 1)]
    assert spanned == sorted(lines.added | lines.context)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(before=LINES, after=LINES, old_ends=st.booleans(), ends=st.booleans())
def test_a_computed_patch_leads_from_one_content_to_the_other(
    before: list[str], after: list[str], old_ends: bool, ends: bool
) -> None:
    old, new = content(before, ends=old_ends), content(after, ends=ends)
    patch = computed_patch(old, new)
    assert patch is not None
    assert (patch == "") == (old == new)
    assert applied(old, patch) == new


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (b"", b"a\n"),
        (b"a\n", b""),
        (b"a", b"a\n"),
        (b"a\n", b"a"),
        (b"a\nb", b"a\nb\nc"),
        (SIXTY, MOVED),
    ],
)
def test_git_applies_a_computed_patch(before: bytes, after: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(before)
    patch = computed_patch(before, after)
    assert patch is not None
    head = "--- a/f\n+++ b/f\n"
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(
        ["git", "apply", "--unidiff-zero", "-"], cwd=tmp_path, input=(head + patch + "\n").encode(), check=True
    )
    assert (tmp_path / "f").read_bytes() == after
    # The lines that git's own diff adds are those that ours adds.
    assert read_patch(patch).added == read_patch(git_patch(before, after, tmp_path)).added


def test_what_looks_like_a_header_is_a_line() -> None:
    patch = "@@ -1,2 +1,4 @@ def f():\n a\n+++ b/evil.py\n+@@ -1,99 +1,99 @@\n b\n"
    lines = read_patch(patch)
    assert lines.added == {2, 3}
    assert lines.context == {1, 4}
    assert lines.hunks == ((1, 4),)


@pytest.mark.parametrize(
    "patch",
    [
        "",
        "Binary files a/x and b/x differ",
        "GIT binary patch\nliteral 12\nzcmZ",
        "@@ -1 +1 @@",
        "@@ nonsense @@\n+a",
        "@@ -1,1 +999999999999,1 @@\n+a",
        "similarity index 100%\nrename from a\nrename to b",
        "@@ -1 +0,0 @@\n-a",
        "@@ -0,0 +1,2 @@\n?a\n+b",
    ],
)
def test_what_cannot_be_read_adds_no_lines(patch: str) -> None:
    assert read_patch(patch).added == frozenset()


def test_a_hunk_that_is_cut_off_keeps_what_it_has() -> None:
    lines = read_patch("@@ -1,0 +5,9 @@\n+a\n+b")
    assert lines.added == {5, 6}
    assert lines.hunks == ((5, 6),)


def test_no_line_feed_at_the_end_is_no_line() -> None:
    patch = "@@ -1 +1,2 @@\n-a\n\\ No newline at end of file\n+a\n+b\n\\ No newline at end of file"
    assert read_patch(patch).added == {1, 2}


def test_a_comment_spans_added_lines_of_one_hunk_only() -> None:
    lines = FileLines(frozenset({4, 5, 10}), frozenset({3, 6, 9, 11}), ((3, 6), (9, 11)))
    assert lines.all_added(4, 5)
    assert lines.all_added(10, 10)
    assert not lines.all_added(4, 6)
    assert not lines.all_added(5, 10)
    assert lines.first_added(1, 4) == 4
    assert lines.first_added(6, 9) is None


def test_files_without_a_patch_are_told_with_the_reason() -> None:
    diff = read_diff(
        [
            ChangedFile("a.py", "modified", patch="@@ -0,0 +1 @@\n+x"),
            ChangedFile("large.py", "modified"),
            ChangedFile("gone.py", "removed"),
        ]
    )
    assert diff.of("a.py").added == {1}
    assert diff.of("large.py").added == frozenset()
    assert diff.of("nowhere.py").added == frozenset()
    assert set(diff.unknown) == {"large.py"}


def test_large_and_binary_files_are_not_compared() -> None:
    assert computed_patch(b"\0", b"a") is None
    assert computed_patch(b"a", b"a" * (2 * 2**20 + 1)) is None
    assert computed_patch(None, b"\n" * 10_001) is None


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_what_the_forge_left_out_is_filled_in(tmp_path: Path) -> None:
    base = write(tmp_path / "base", {"large.py": b"1\n", "old.py": b"1\n2\n"})
    head = write(tmp_path / "head", {"large.py": b"1\n2\n", "renamed.py": b"1\n2\n3\n", "new.py": b"n\n"})
    (head / "link.py").symlink_to("/etc/passwd")
    (head / "inner.py").symlink_to("new.py")
    files = patched(
        [
            ChangedFile("given.py", "modified", patch="as given"),
            ChangedFile("large.py", "modified"),
            ChangedFile("renamed.py", "renamed", previous_path="old.py"),
            ChangedFile("new.py", "added"),
            ChangedFile("elsewhere.py", "modified"),
            ChangedFile("../base/old.py", "added"),
            ChangedFile("link.py", "added"),
            ChangedFile("inner.py", "added"),
        ],
        base=base,
        head=head,
    )
    assert files[0].patch == "as given"
    added = [read_patch(file.patch).added if file.patch else None for file in files[1:]]
    assert added == [{2}, {3}, {1}, None, None, None, None]
