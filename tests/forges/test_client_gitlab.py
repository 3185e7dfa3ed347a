"""The same client protocol against a GitLab with state, over real HTTP."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.forges.client import ForgeClient
from services.forges.errors import (
    ForgeAuthenticationError,
    ForgeNotFoundError,
    ForgeRejectedError,
    ForgeUnavailableError,
    NotSupportedByForgeError,
    PermissionMissingError,
    RateLimitedError,
)
from services.forges.gitlab import GitlabForge, GitlabSettings
from services.forges.values import (
    CheckOutput,
    CheckReport,
    MinimiseReason,
    Permission,
    Person,
    ReviewComment,
    ReviewDraft,
    SarifUpload,
)
from tests.forges.clocks import ForgeClock
from tests.forges.scripted import Heard, Said, ScriptedForge, StoodClock
from tools.fake_forge.failures import cut_after, gitlab_limit, server_error
from tools.fake_forge.forge import FakeForge
from tools.fake_forge.gitlab.state import MergeRequest, Project

NUMBERS = itertools.count(1)
BEFORE = "".join(f"line {number}\n" for number in range(1, 31))
AFTER = BEFORE.replace("line 10\n", "line ten\nline ten and a half\n")
SUBGROUP = "acme/research"


@dataclass(frozen=True)
class Scene:
    forge: FakeForge
    project: Project
    request: MergeRequest
    client: ForgeClient
    clock: ForgeClock

    @property
    def name(self) -> str:
        return self.project.path

    @property
    def number(self) -> int:
        return self.request.iid


@pytest.fixture(scope="module")
def served() -> Iterator[FakeForge]:
    with FakeForge() as forge:
        forge.clock.freeze()
        yield forge


@pytest.fixture
def scene(served: FakeForge) -> Iterator[Scene]:
    served.heal()
    project = served.gitlab.create_project(
        f"{SUBGROUP}/models-{next(NUMBERS)}", {"pkg/a.py": BEFORE, "README.md": "x\n", "old.py": "1\n2\n3\n"}
    )
    request = served.gitlab.open_merge_request(project, {"pkg/a.py": AFTER, "pkg/new.py": "a\nb\n", "README.md": None})
    clock = ForgeClock(served)
    client = GitlabForge(GitlabSettings(served.gitlab.token, web_url=served.url), clock).client()
    before = len(served.violations)
    yield Scene(served, project, request, client, clock)
    client.close()
    assert served.violations[before:] == []


def report(scene: Scene, **changes: Any) -> CheckReport:
    values: dict[str, Any] = {
        "name": "Gradproof",
        "head_sha": scene.request.head_sha,
        "external_id": "01jc",
        "status": "queued",
        "details_url": "https://gradproof.example/a/01jc",
    }
    return CheckReport(**values | changes)


def test_a_merge_request_is_read(scene: Scene) -> None:
    pull = scene.client.pull_request(scene.name, scene.number)
    assert (pull.number, pull.state, pull.is_draft, pull.is_fork) == (scene.number, "open", False, False)
    assert (pull.head_sha, pull.base_ref, pull.author.login) == (scene.request.head_sha, "main", "ada")
    assert pull.merge_base_sha == pull.base_sha == scene.project.branches["main"]
    assert scene.client.pull_request(str(scene.project.id), scene.number) == pull
    assert scene.client.merge_base(scene.name, "main", pull.head_sha) == pull.merge_base_sha
    scene.forge.gitlab.close_merge_request(scene.request)
    assert scene.client.pull_request(scene.name, scene.number).state == "closed"


def test_a_branch_is_where_it_is_now(scene: Scene) -> None:
    other = scene.forge.gitlab.open_merge_request(scene.project, {"x.py": "1\n"}, branch="team/next")
    assert scene.client.branch_tip(scene.name, "team/next") == other.head_sha
    assert scene.client.branch_tip(scene.name, "main") == scene.project.branches["main"] != other.head_sha
    with pytest.raises(ForgeNotFoundError):
        scene.client.branch_tip(scene.name, "gone")


def test_a_fork_is_told(scene: Scene) -> None:
    forked = scene.forge.gitlab.open_merge_request(scene.project, {"x.py": "1\n"}, by="eve", fork=True, branch="t")
    assert scene.client.pull_request(scene.name, forked.iid).is_fork


def test_what_changed(scene: Scene) -> None:
    files = {file.path: file for file in scene.client.changed_files(scene.name, scene.number)}
    assert {path: file.status for path, file in files.items()} == {
        "pkg/a.py": "modified",
        "pkg/new.py": "added",
        "README.md": "removed",
    }
    assert "+line ten" in (files["pkg/a.py"].patch or "")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (50, Permission.ADMIN),
        (40, Permission.WRITE),
        (30, Permission.WRITE),
        (20, Permission.READ),
        (10, Permission.NONE),
        (0, Permission.NONE),
    ],
)
def test_who_may_write(scene: Scene, level: int, expected: Permission) -> None:
    scene.forge.gitlab.set_access(scene.project, "grace", level)
    grace = Person(str(scene.forge.gitlab.user_id("grace")), "grace")
    assert scene.client.permission(scene.name, grace) is expected
    assert scene.client.permission(scene.name, Person("", "nobody")) is Permission.NONE


def test_a_check_is_a_commit_status(scene: Scene) -> None:
    created = scene.client.create_check(scene.name, report(scene))
    assert created.status == "queued"
    scene.client.update_check(scene.name, created.identifier, report(scene, status="in_progress"))
    done = scene.client.update_check(
        scene.name,
        created.identifier,
        report(scene, status="completed", conclusion="failure", output=CheckOutput("1 new finding\n" * 40, "s")),
    )
    assert (done.status, done.conclusion) == ("completed", "failure")
    status = scene.forge.gitlab.statuses(scene.project, scene.request.head_sha)[-1]
    assert (status.state, status.name) == ("failed", "Gradproof")
    assert status.description is not None
    assert "\n" not in status.description
    assert len(status.description) <= 255
    found = scene.client.find_check(scene.name, head_sha=scene.request.head_sha, name="Gradproof", external_id="01jc")
    assert found is not None
    assert (found.external_id, found.conclusion) == ("01jc", "failure")
    assert scene.client.find_check(scene.name, head_sha=scene.request.head_sha, name="Other", external_id="1") is None


@pytest.mark.parametrize(
    ("conclusion", "state"),
    [("success", "success"), ("neutral", "success"), ("cancelled", "canceled"), ("timed_out", "failed")],
)
def test_advice_does_not_fail_a_pipeline(scene: Scene, conclusion: Any, state: str) -> None:
    scene.client.create_check(scene.name, report(scene, status="completed", conclusion=conclusion))
    assert scene.forge.gitlab.statuses(scene.project, scene.request.head_sha)[-1].state == state


def test_a_status_that_is_there_already_is_no_error(scene: Scene) -> None:
    scene.client.create_check(scene.name, report(scene, status="in_progress"))
    assert scene.client.create_check(scene.name, report(scene, status="in_progress")).status == "in_progress"


def test_a_note_is_written_and_edited_and_one_that_a_person_deleted_is_not_found(scene: Scene) -> None:
    before = scene.forge.writes()
    scene.forge.gitlab.comment(scene.request, "<!-- marker -->", by="eve")
    ours = scene.client.create_comment(scene.name, scene.number, "<!-- marker --> one")
    assert ours.by_us
    scene.client.edit_comment(scene.name, scene.number, ours.identifier, "<!-- marker --> two")
    listed = list(scene.client.list_comments(scene.name, scene.number))
    assert [(comment.by_us, comment.body) for comment in listed] == [
        (False, "<!-- marker -->"),
        (True, "<!-- marker --> two"),
    ]
    (note,) = (note for note in scene.forge.gitlab.notes(scene.request) if str(note.id) == ours.identifier)
    scene.forge.gitlab.delete_note(note)
    with pytest.raises(ForgeNotFoundError):
        scene.client.edit_comment(scene.name, scene.number, ours.identifier, "three")
    assert dict(scene.forge.writes() - before) == {"note.create": 1, "note.update": 1}


def draft(scene: Scene, *comments: ReviewComment, body: str = "2 findings") -> ReviewDraft:
    return ReviewDraft(scene.client.pull_request(scene.name, scene.number).head_sha, body, comments)


def test_a_review_is_written_comment_by_comment(scene: Scene) -> None:
    outside = ReviewComment("nowhere.py", 3, "not in the diff")
    posted = scene.client.create_review(
        scene.name,
        scene.number,
        draft(scene, ReviewComment("pkg/a.py", 11, "one"), outside, ReviewComment("pkg/new.py", 1, "two")),
    )
    assert posted.rejected == (outside,)
    assert posted.identifier
    threads = scene.client.list_threads(scene.name, scene.number)
    assert [(thread.path, thread.line, thread.by_us, thread.has_reply) for thread in threads] == [
        ("pkg/a.py", 11, True, False),
        ("pkg/new.py", 1, True, False),
    ]
    (note,) = scene.client.list_comments(scene.name, scene.number)
    assert note.identifier == posted.identifier
    assert note.body.split("\n")[1:] == ["2 findings"]


def test_a_review_that_was_cut_off_among_its_comments_has_one_note(scene: Scene) -> None:
    one, two = ReviewComment("pkg/a.py", 11, "one"), ReviewComment("pkg/new.py", 1, "two")
    scene.forge.fail(gitlab_limit(), "POST", "/discussions$")
    with pytest.raises(RateLimitedError):
        scene.client.create_review(scene.name, scene.number, draft(scene, one, two))
    scene.forge.clock.advance(hours=1)
    assert len(list(scene.client.list_comments(scene.name, scene.number))) == 1
    posted = scene.client.create_review(scene.name, scene.number, draft(scene, one, two))
    notes = list(scene.client.list_comments(scene.name, scene.number))
    assert [note.identifier for note in notes if note.by_us] == [posted.identifier]
    assert len(scene.client.list_threads(scene.name, scene.number)) == 2
    # Of the next head there is a note of its own.
    scene.forge.gitlab.push(scene.request, {"pkg/new.py": "c\n"})
    scene.client.create_review(scene.name, scene.number, draft(scene))
    assert sum(note.by_us for note in scene.client.list_comments(scene.name, scene.number)) == 2


def test_a_review_of_another_head_is_not_written(scene: Scene) -> None:
    late = draft(scene, ReviewComment("pkg/a.py", 11, "one"))
    scene.forge.gitlab.push(scene.request, {"pkg/new.py": "c\n"})
    before = scene.forge.writes()
    with pytest.raises(ForgeRejectedError):
        scene.client.create_review(scene.name, scene.number, late)
    assert not scene.forge.writes() - before


def test_threads_are_resolved_and_a_reply_is_seen(scene: Scene) -> None:
    scene.client.create_review(scene.name, scene.number, draft(scene, ReviewComment("pkg/new.py", 1, "one"), body=""))
    (thread,) = scene.client.list_threads(scene.name, scene.number)
    scene.client.resolve_thread(scene.name, scene.number, thread.identifier)
    assert scene.client.list_threads(scene.name, scene.number)[0].is_resolved
    scene.client.unresolve_thread(scene.name, scene.number, thread.identifier)
    assert not scene.client.list_threads(scene.name, scene.number)[0].is_resolved
    discussion = next(each for each in scene.forge.gitlab.discussions(scene.request) if each.position is not None)
    scene.forge.gitlab.reply(discussion, "why?", by="ada")
    (thread,) = scene.client.list_threads(scene.name, scene.number)
    assert thread.has_reply


def test_what_gitlab_lacks_is_said_beforehand(scene: Scene) -> None:
    features = scene.client.features
    assert not any((features.annotations, features.actions, features.minimise, features.sarif))
    with pytest.raises(NotSupportedByForgeError):
        scene.client.minimise_comment("1", MinimiseReason.RESOLVED)
    with pytest.raises(NotSupportedByForgeError):
        scene.client.upload_sarif(scene.name, SarifUpload("a" * 40, "refs/heads/main", b"{}"))


def test_a_clone_takes_a_header(scene: Scene, tmp_path: Path) -> None:
    secure = GitlabForge(GitlabSettings(scene.forge.gitlab.token, web_url=scene.forge.secure_url), scene.clock).client()
    access = secure.clone_access(scene.name, scene.number)
    secure.close()
    assert scene.forge.gitlab.token not in repr(access)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    header = f"http.extraHeader=Authorization: {access.headers['Authorization']}"
    subprocess.run(
        ["git", "-c", header, "fetch", "-q", "--depth", "1", access.url, str(access.pull_request_ref)],
        cwd=tmp_path,
        check=True,
        env=os.environ | {"GIT_SSL_CAINFO": str(scene.forge.authority)},
    )
    assert (tmp_path / ".git" / "FETCH_HEAD").read_text().split()[0] == scene.request.head_sha


def test_a_write_is_sent_once(scene: Scene) -> None:
    scene.client.identity()
    before = scene.forge.writes()
    for failure in (server_error(502), cut_after()):
        scene.forge.fail(failure, "POST", "/notes$")
        with pytest.raises(ForgeUnavailableError) as caught:
            scene.client.create_comment(scene.name, scene.number, "one")
        assert caught.value.outcome_unknown
    assert dict(scene.forge.writes() - before) == {"note.create": 1}


def test_a_limit_is_kept(scene: Scene) -> None:
    scene.client.identity()
    scene.forge.fail(gitlab_limit(30), "GET", "/merge_requests/")
    with pytest.raises(RateLimitedError) as caught:
        scene.client.pull_request(scene.name, scene.number)
    assert (caught.value.retry_at - scene.clock.now()).total_seconds() == 31
    asked = len(scene.forge.requests)
    with pytest.raises(RateLimitedError):
        scene.client.pull_request(scene.name, scene.number)
    assert len(scene.forge.requests) == asked
    scene.clock.sleep(31)
    assert scene.client.pull_request(scene.name, scene.number).number == scene.number


def test_a_token_that_is_not_taken_or_may_not_write_is_told(scene: Scene) -> None:
    token = scene.forge.gitlab.new_token()
    client = GitlabForge(GitlabSettings(token, web_url=scene.forge.url), scene.clock).client()
    scene.forge.gitlab.set_access(scene.project, scene.forge.gitlab.bot, 20)
    with pytest.raises(PermissionMissingError):
        client.create_check(scene.name, report(scene))
    scene.forge.gitlab.revoke(token)
    with pytest.raises(ForgeAuthenticationError) as caught:
        client.pull_request(scene.name, scene.number)
    assert token not in repr(caught.value)
    client.close()


def test_a_project_that_is_not_there(scene: Scene) -> None:
    with pytest.raises(ForgeNotFoundError):
        scene.client.pull_request("acme/nothing", 1)
    asked = len(scene.forge.requests)
    for name in ("", "models", "acme/../x", "acme//x"):
        with pytest.raises(ForgeNotFoundError):
            scene.client.pull_request(name, 1)
    assert len(scene.forge.requests) == asked


def test_a_merge_request_that_gitlab_has_not_prepared_yet_is_asked_for_again() -> None:
    def script(_heard: Heard) -> Said:
        body = {"iid": 1, "state": "opened", "source_branch": "a", "target_branch": "b", "target_project_id": 1}
        return Said(body=body | {"diff_refs": None, "sha": None})

    with ScriptedForge(script=script) as forge:
        client = GitlabForge(GitlabSettings("glpat-x", web_url=forge.url), StoodClock()).client()
        with pytest.raises(ForgeUnavailableError, match="not prepared"):
            client.pull_request("a/b", 1)
        client.close()


def test_settings_do_not_show_the_token() -> None:
    assert "glpat" not in repr(GitlabSettings("glpat-secret"))
    with pytest.raises(ForgeAuthenticationError):
        GitlabSettings("")
    with pytest.raises(ForgeAuthenticationError):
        GitlabSettings("glpat-x", web_url="gitlab.com")
