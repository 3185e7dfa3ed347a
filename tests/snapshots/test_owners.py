"""Whom a repository's CODEOWNERS names for a file: GitHub's rules, GitLab's sections, and text that means harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.database import Database
from services.snapshots import SnapshotStore, read_archive
from services.snapshots.owners import MOST_BYTES, MOST_LINES, PLACES, CodeOwners, owner_lines
from services.snapshots.repository import code_owners, record_snapshot
from tests.snapshots.making import stream, tar_of

# The examples of GitHub's documentation, and what it says of each.
GITHUB = """
# This is a comment.
*       @global-owner1 @global-owner2
*.js    @js-owner #This is an inline comment.
*.go docs@example.com
*.txt @octo-org/octocats
/build/logs/ @doctocat
docs/* docs@example.com
apps/ @octocat
/docs/ @doctocat
/scripts/ @doctocat @octocat
**/logs @octocat
/apps/ @octocat
/apps/github
/apps/github @doctocat
"""
GITLAB = """
* @everybody
[Documentation] @docs-team
docs/
README.md
*.rst @writer
^[Database][2] @database-team
model/db/
config/db/database-setup.md @docs-team
!model/db/generated/
"""


def owners(text: str, path: str) -> tuple[str, ...]:
    return CodeOwners(owner_lines({"CODEOWNERS": text.encode()})).of(path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.py", ("@global-owner1", "@global-owner2")),
        ("deep/down/a.py", ("@global-owner1", "@global-owner2")),
        ("deep/a.js", ("@js-owner",)),
        ("a.go", ("docs@example.com",)),
        ("deep/a.txt", ("@octo-org/octocats",)),
        ("docs/a.md", ("@doctocat",)),
        ("docs/sub/a.md", ("@doctocat",)),
        ("other/docs/a.md", ("@global-owner1", "@global-owner2")),
        ("build/logs/a.py", ("@octocat",)),
        ("deep/logs/a/b.py", ("@octocat",)),
        ("deep/apps/a/b.py", ("@octocat",)),
        ("scripts/a.py", ("@doctocat", "@octocat")),
        ("apps/github/a.py", ("@doctocat",)),
        ("apps/a.py", ("@octocat",)),
    ],
)
def test_the_last_line_that_names_a_file_says_who_owns_it(path: str, expected: tuple[str, ...]) -> None:
    assert owners(GITHUB, path) == expected


def test_a_star_at_the_end_takes_the_files_of_a_directory_and_none_below() -> None:
    assert owners("docs/* @a", "docs/a.md") == ("@a",)
    assert owners("docs/* @a", "docs/sub/a.md") == ()
    assert owners("docs/ @a", "docs/sub/a.md") == ("@a",)
    assert owners("docs/** @a", "docs/sub/a.md") == ("@a",)


def test_a_line_without_owners_takes_them_away() -> None:
    assert owners("* @a\n/generated/", "generated/a.py") == ()
    assert owners("* @a\n/generated/", "a.py") == ("@a",)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.py", ("@everybody",)),
        ("README.md", ("@everybody", "@docs-team")),
        ("docs/a.md", ("@everybody", "@docs-team")),
        ("a.rst", ("@everybody", "@writer")),
        ("model/db/a.py", ("@everybody", "@database-team")),
        ("model/db/generated/a.py", ("@everybody",)),
        ("config/db/database-setup.md", ("@everybody", "@docs-team")),
    ],
)
def test_each_section_has_its_own_last_line_and_its_own_owners(path: str, expected: tuple[str, ...]) -> None:
    assert owners(GITLAB, path) == expected


@pytest.mark.parametrize(
    "line",
    ["* nobody", "* @", "* @a b", "* <script>@x", "* @a\u202eb", "!", "[ @a", f"{'a' * 130} @a", "a\\", "** @a, @b"],
)
def test_a_line_that_is_none_is_passed_over(line: str) -> None:
    assert owners(f"* @before\n{line}", "a" * 130) == ("@before",)


def test_the_first_file_that_forges_look_at_counts() -> None:
    tree = {place: f"* @{number}".encode() for number, place in enumerate(PLACES)}
    for number, place in enumerate(PLACES):
        assert CodeOwners(owner_lines(tree)).of("a.py") == (f"@{number}",)
        del tree[place]
    assert owner_lines(tree) == ()


def test_what_is_kept_of_a_file_is_bounded() -> None:
    assert owner_lines({"CODEOWNERS": b"* @a\n" + b"#" * MOST_BYTES}) == ()
    assert len(owner_lines({"CODEOWNERS": b"*.py @a\n" * (MOST_LINES + 1)})) == MOST_LINES
    (line,) = owner_lines({"CODEOWNERS": f"* {' '.join(f'@u{number}' for number in range(50))}".encode()})
    assert len(line.owners) == 10


def test_lines_that_would_be_slow_to_match_are_passed_over() -> None:
    slow = "\n".join(f"{number}*a*a @a" for number in range(100))
    assert len(owner_lines({"CODEOWNERS": slow.encode()})) == 20
    assert owner_lines({"CODEOWNERS": b"*" + b"a*" * 30 + b" @a"}) == ()
    assert owners("* @a", "/".join("a" * 22)) == ()
    assert owners("* @a", "a" * 301) == ()


def test_a_snapshot_keeps_its_owners(database: Database, tmp_path: Path) -> None:
    with read_archive(
        stream(tar_of({"a.py": b"1", "CODEOWNERS": "*.py @ann zoë@example.org\n".encode()})), "a.tar"
    ) as tree:
        snapshot = SnapshotStore(tmp_path).put(tree)

    def record(**more: object) -> None:
        with database.unit_of_work() as uow:
            record_snapshot(uow.session, digest=snapshot.digest, files=2, lines=1, **more)  # type: ignore[arg-type]

    def told() -> tuple[str, ...]:
        with database.reading() as session:
            return code_owners(session, snapshot.digest).of("a.py")

    record()  # as it was stored before owners were read
    assert told() == ()
    record(owners=snapshot.owners)
    assert told() == ("@ann", "zoë@example.org")
    record()  # an analysis that runs again
    assert told() == ("@ann", "zoë@example.org")
    with database.reading() as session:
        assert code_owners(session, "sha256:" + "0" * 64).of("a.py") == ()
