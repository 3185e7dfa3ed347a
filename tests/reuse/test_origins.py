"""What one run leaves behind is for runs of the same origin: no fork writes for the repository it was made from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from services.reuse.origins import Origin, origin_of_analysis, origin_of_directory


def analysis(
    project: str | None = "p", url: str | None = "https://forge/a/r", ref: str | None = None, snapshot: str = "s1"
) -> Origin:
    return origin_of_analysis(project, url=url, ref=ref, snapshot=snapshot)


def test_a_repository_shares_with_its_later_commits_alone() -> None:
    assert analysis() == analysis(snapshot="s2")
    assert len({analysis(), analysis(url="https://forge/b/r"), analysis(project="q"), analysis(project=None)}) == 4


def test_a_branch_reads_what_the_default_branch_left_and_writes_for_itself() -> None:
    default, pull = analysis(), analysis(ref="refs/pull/7/head")
    assert pull.base == default.own
    assert pull.own not in (default.own, analysis(ref="refs/pull/8/head").own)
    assert default.base is None


def test_uploads_share_with_the_very_same_content_of_the_same_project_alone() -> None:
    first = analysis(url=None)
    assert first == analysis(url=None)
    assert first.base is None
    assert first.own not in {analysis(url=None, snapshot="s2").own, analysis(url=None, project="q").own}


def test_a_directory_shares_with_itself_as_long_as_the_same_branch_is_checked_out(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(repository)], check=True)
    (repository / "package").mkdir()
    main = origin_of_directory(repository)
    assert main == origin_of_directory(repository / "package" / "..")
    assert main != origin_of_directory(tmp_path)
    inside = origin_of_directory(repository / "package")
    subprocess.run(["git", "-C", str(repository), "checkout", "--quiet", "-b", "theirs"], check=True)
    assert origin_of_directory(repository) != main
    assert origin_of_directory(repository / "package") != inside
