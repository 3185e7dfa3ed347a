"""The client against a GitHub with state, over real HTTP; both are held to GitHub's published OpenAPI."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from services.forges.errors import (
    ForgeNotFoundError,
    ForgeRejectedError,
    ForgeUnavailableError,
    InstallationSuspendedError,
    PermissionMissingError,
    RateLimitedError,
)
from services.forges.github import GithubApp, GithubClient, GithubSettings
from services.forges.values import (
    Annotation,
    CheckAction,
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
from tools.fake_forge.failures import (
    cut_after,
    error_after,
    expired_token,
    graphql_limit,
    primary_limit,
    secondary_limit,
    server_error,
)
from tools.fake_forge.forge import FakeForge
from tools.fake_forge.world import PullRequest, Repository

NUMBERS = itertools.count(1)
BEFORE = "".join(f"line {number}\n" for number in range(1, 31))
AFTER = BEFORE.replace("line 10\n", "line ten\nline ten and a half\n")


@dataclass(frozen=True)
class Scene:
    forge: FakeForge
    repository: Repository
    pull: PullRequest
    app: GithubApp
    client: GithubClient
    clock: ForgeClock


@pytest.fixture(scope="module")
def served() -> Iterator[FakeForge]:
    with FakeForge() as forge:
        forge.clock.freeze()
        yield forge


@pytest.fixture(scope="module")
def clock(served: FakeForge) -> ForgeClock:
    return ForgeClock(served)


@pytest.fixture(scope="module")
def app(served: FakeForge, clock: ForgeClock) -> Iterator[GithubApp]:
    settings = GithubSettings(str(served.app_id), served.private_key, api_url=served.url, web_url=served.secure_url)
    ours = GithubApp(settings, clock)
    yield ours
    ours.close()


@pytest.fixture
def scene(served: FakeForge, app: GithubApp, clock: ForgeClock) -> Iterator[Scene]:
    """A repository of its own with an open pull request, and a client for its installation."""
    served.heal()
    owner = f"acme-{next(NUMBERS)}"
    repository = served.create_repository(f"{owner}/models", {"pkg/a.py": BEFORE, "README.md": "x\n"})
    pull = served.open_pull_request(repository, {"pkg/a.py": AFTER, "pkg/new.py": "a\nb\n", "README.md": None})
    client = app.client(str(served.installation(owner).id), repository_id=str(repository.id))
    before = len(served.violations)
    yield Scene(served, repository, pull, app, client, clock)
    client.close()
    # Of webhooks the fake has to answer for itself.
    assert [said for said in served.violations[before:] if not said.startswith("webhook ")] == []


def report(scene: Scene, **changes: Any) -> CheckReport:
    values: dict[str, Any] = {
        "name": "Gradproof",
        "head_sha": scene.pull.head_sha,
        "external_id": "01jc",
        "status": "queued",
        "details_url": "https://gradproof.example/a/01jc",
    }
    return CheckReport(**values | changes)


def annotation(line: int, **changes: Any) -> Annotation:
    values: dict[str, Any] = {
        "path": "pkg/a.py",
        "start_line": line,
        "end_line": line,
        "level": "warning",
        "title": "GP101",
        "message": "x may be zero",
    }
    return Annotation(**values | changes)


def test_who_we_are_is_asked_once(scene: Scene) -> None:
    assert scene.client.identity().login == scene.forge.bot
    asked = len(scene.forge.requests)
    assert scene.client.identity().is_bot
    assert len(scene.forge.requests) == asked


def test_a_pull_request_is_read(scene: Scene) -> None:
    pull = scene.client.pull_request(scene.repository.full_name, scene.pull.number)
    assert (pull.number, pull.state, pull.is_draft, pull.is_fork) == (scene.pull.number, "open", False, False)
    assert (pull.head_sha, pull.base_ref) == (scene.pull.head_sha, "main")
    assert pull.author.login == "ada"
    scene.forge.close_pull_request(scene.pull)
    assert scene.client.pull_request(scene.repository.full_name, scene.pull.number).state == "closed"


def test_a_fork_is_told(scene: Scene) -> None:
    forked = scene.forge.open_pull_request(scene.repository, {"x.py": "1\n"}, by="eve", fork=True, branch="theirs")
    pull = scene.client.pull_request(scene.repository.full_name, forked.number)
    assert pull.is_fork
    assert pull.head_repository == f"eve/{scene.repository.name}"


def test_what_changed_and_where_it_branched_off(scene: Scene) -> None:
    name = scene.repository.full_name
    base = scene.repository.branches["main"]
    scene.forge.push_to(scene.repository, "main", {"other.py": "1\n"})
    assert scene.client.merge_base(name, "main", scene.pull.head_sha) == base
    files = {file.path: file for file in scene.client.changed_files(name, scene.pull.number)}
    assert {path: file.status for path, file in files.items()} == {
        "pkg/a.py": "modified",
        "pkg/new.py": "added",
        "README.md": "removed",
    }
    assert "+line ten" in (files["pkg/a.py"].patch or "")
    assert files["pkg/new.py"].blob_sha == "422c2b7ab3b3c668038da977e4e93a5fc623169c"  # of `a\nb\n`


def test_a_branch_is_where_it_is_now(scene: Scene) -> None:
    name = scene.repository.full_name
    for branch in ("main", "team/next"):
        pushed = scene.forge.push_to(scene.repository, branch, {"other.py": "1\n"})
        assert scene.client.branch_tip(name, branch) == pushed
    with pytest.raises(ForgeNotFoundError):
        scene.client.branch_tip(name, "gone")


def test_lists_are_read_to_their_end(scene: Scene) -> None:
    files = {f"pkg/many_{number}.py": "x\n" for number in range(230)}
    pull = scene.forge.open_pull_request(scene.repository, files, branch="many")
    assert len(scene.client.changed_files(scene.repository.full_name, pull.number)) == 230
    for number in range(205):
        scene.forge.comment(pull, f"comment {number}", by="ada")
    listed = [comment.body for comment in scene.client.list_comments(scene.repository.full_name, pull.number)]
    assert listed == [f"comment {number}" for number in range(205)]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("admin", Permission.ADMIN),
        ("maintain", Permission.WRITE),
        ("write", Permission.WRITE),
        ("triage", Permission.READ),
        ("read", Permission.READ),
        (None, Permission.NONE),
    ],
)
def test_who_may_write(scene: Scene, role: Any, expected: Permission) -> None:
    scene.forge.set_role(scene.repository, "grace", role)
    permission = scene.client.permission(scene.repository.full_name, Person("1", "grace"))
    assert permission is expected
    assert permission.may_write is (role in {"admin", "maintain", "write"})
    assert scene.client.permission(scene.repository.full_name, Person("1", "nobody/../..")) is Permission.NONE


def test_a_check_goes_from_queued_to_completed_and_keeps_its_annotations(scene: Scene) -> None:
    name = scene.repository.full_name
    created = scene.client.create_check(name, report(scene))
    assert (created.status, created.annotations, created.external_id) == ("queued", 0, "01jc")
    scene.client.update_check(name, created.identifier, report(scene, status="in_progress"))
    pages = [tuple(annotation(1 + line % 30) for line in range(50)), (annotation(5),)]
    for number, page in enumerate(pages):
        output = CheckOutput("1 new finding", "summary", "text", page)
        last = number == len(pages) - 1
        done = scene.client.update_check(
            name,
            created.identifier,
            report(
                scene,
                status="completed" if last else "in_progress",
                conclusion="neutral" if last else None,
                started_at=scene.clock.now(),
                completed_at=scene.clock.now() if last else None,
                output=output,
                actions=(CheckAction("rerun", "Re-run", "Analyse this commit again"),) if last else (),
            ),
        )
    assert (done.status, done.conclusion, done.annotations) == ("completed", "neutral", 51)
    (run,) = scene.forge.check_runs(scene.pull)
    assert run.history == ["queued", "in_progress", "completed"]
    assert run.actions[0]["identifier"] == "rerun"
    assert len(run.annotations) == 51


def test_columns_are_sent_for_a_single_line_only(scene: Scene) -> None:
    output = CheckOutput(
        "title",
        "summary",
        annotations=(annotation(3, start_column=2, end_column=9), annotation(3, end_line=5, start_column=2)),
    )
    scene.client.create_check(scene.repository.full_name, report(scene, output=output))
    (run,) = scene.forge.check_runs(scene.pull)
    assert run.annotations[0]["start_column"] == 2
    assert run.annotations[1].get("start_column") is None


def test_a_check_is_found_by_our_own_name_of_it(scene: Scene) -> None:
    name = scene.repository.full_name
    scene.client.create_check(name, report(scene, external_id="another"))
    wanted = {"head_sha": scene.pull.head_sha, "name": "Gradproof", "external_id": "01jc"}
    assert scene.client.find_check(name, **wanted) is None
    scene.forge.fail(error_after(502), "POST", "/check-runs$")
    with pytest.raises(ForgeUnavailableError) as caught:
        scene.client.create_check(name, report(scene))
    assert caught.value.outcome_unknown
    found = scene.client.find_check(name, **wanted)
    assert found is not None
    assert found.external_id == "01jc"
    assert len(scene.forge.check_runs(scene.pull)) == 2


def test_what_became_of_a_lost_page_of_annotations_can_be_seen(scene: Scene) -> None:
    name = scene.repository.full_name
    created = scene.client.create_check(name, report(scene))
    with_page = report(scene, status="in_progress", output=CheckOutput("t", "s", annotations=(annotation(1),)))
    scene.forge.fail(cut_after(), "PATCH", "/check-runs/")
    with pytest.raises(ForgeUnavailableError):
        scene.client.update_check(name, created.identifier, with_page)
    found = scene.client.find_check(name, head_sha=scene.pull.head_sha, name="Gradproof", external_id="01jc")
    assert found is not None
    assert found.annotations == 1


def test_a_comment_is_written_and_edited_once(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    before = scene.forge.writes()
    scene.forge.comment(scene.pull, "<!-- marker -->", by="eve")
    ours = scene.client.create_comment(name, number, "<!-- marker --> one")
    assert ours.by_us
    scene.client.edit_comment(name, number, ours.identifier, "<!-- marker --> two")
    listed = list(scene.client.list_comments(name, number))
    assert [(comment.by_us, comment.body) for comment in listed] == [
        (False, "<!-- marker -->"),
        (True, "<!-- marker --> two"),
    ]
    assert dict(scene.forge.writes() - before) == {"comment.create": 1, "comment.update": 1}


def test_a_comment_that_a_person_deleted_is_not_found(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    ours = scene.client.create_comment(name, number, "one")
    scene.forge.delete_comment(scene.forge.comments(scene.pull)[0])
    with pytest.raises(ForgeNotFoundError):
        scene.client.edit_comment(name, number, ours.identifier, "two")


def draft(scene: Scene, *comments: ReviewComment) -> ReviewDraft:
    return ReviewDraft(scene.pull.head_sha, "2 findings", comments)


def test_a_review_is_written_whole_or_not_at_all(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    good = ReviewComment("pkg/a.py", 11, "two lines", start_line=10)
    outside = ReviewComment("pkg/a.py", 29, "not in the diff")
    with pytest.raises(ForgeRejectedError) as caught:
        scene.client.create_review(name, number, draft(scene, good, outside))
    assert caught.value.status == 422
    assert caught.value.problems
    assert scene.client.list_threads(name, number) == ()
    posted = scene.client.create_review(name, number, draft(scene, good, ReviewComment("pkg/new.py", 1, "one")))
    assert posted.identifier
    assert posted.rejected == ()
    threads = scene.client.list_threads(name, number)
    assert [(thread.path, thread.line, thread.by_us, thread.has_reply) for thread in threads] == [
        ("pkg/a.py", 11, True, False),
        ("pkg/new.py", 1, True, False),
    ]


def test_threads_are_resolved_and_a_reply_is_seen(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.client.create_review(name, number, draft(scene, ReviewComment("pkg/new.py", 1, "one")))
    (thread,) = scene.client.list_threads(name, number)
    scene.client.resolve_thread(name, number, thread.identifier)
    assert scene.client.list_threads(name, number)[0].is_resolved
    scene.client.unresolve_thread(name, number, thread.identifier)
    assert not scene.client.list_threads(name, number)[0].is_resolved
    scene.forge.reply(scene.forge.threads(scene.pull)[0], "why?", by="ada")
    (thread,) = scene.client.list_threads(name, number)
    assert thread.has_reply
    assert [comment.by_us for comment in thread.comments] == [True, False]


def test_comments_at_lines_are_folded_away(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.client.create_review(name, number, draft(scene, ReviewComment("pkg/new.py", 1, "one")))
    (thread,) = scene.client.list_threads(name, number)
    scene.client.minimise_comment(thread.comments[0].node_id, MinimiseReason.RESOLVED)
    assert scene.forge.threads(scene.pull)[0].comments[0].minimized is not None
    with pytest.raises(ForgeNotFoundError):
        scene.client.resolve_thread(name, number, "PRRT_nothing")


def test_a_sarif_log_is_handed_in(scene: Scene) -> None:
    scene.forge.set_permissions(scene.repository.owner.login, security_events="write")
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [
        {"tool": {"driver": {"name": "Gradproof", "rules": []}}, "results": []}
    ]}  # fmt: skip
    upload = SarifUpload(
        scene.pull.head_sha, f"refs/pull/{scene.pull.number}/head", json.dumps(log).encode(), scene.clock.now()
    )
    identifier = scene.client.upload_sarif(scene.repository.full_name, upload)
    (sarif,) = [each for each in scene.forge.sarifs() if each.id == identifier]
    assert sarif.document == log
    with pytest.raises(ForgeRejectedError) as caught:  # 11 MB that can't be packed
        scene.client.upload_sarif(
            scene.repository.full_name, replace(upload, sarif=random.Random(1).randbytes(11 * 10**6))
        )
    assert caught.value.status == 413


def test_a_clone_takes_a_header_and_no_address_holds_the_token(scene: Scene, tmp_path: Path) -> None:
    access = scene.client.clone_access(scene.repository.full_name, scene.pull.number)
    assert access.pull_request_ref == f"refs/pull/{scene.pull.number}/head"
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    header = f"http.extraHeader=Authorization: {access.headers['Authorization']}"
    subprocess.run(
        ["git", "-c", header, "fetch", "-q", "--depth", "1", access.url, access.pull_request_ref],
        cwd=tmp_path,
        check=True,
        env=os.environ | {"GIT_SSL_CAINFO": str(scene.forge.authority)},
    )
    fetched = (tmp_path / ".git" / "FETCH_HEAD").read_text().split()[0]
    assert fetched == scene.pull.head_sha
    assert "ghs_" not in (tmp_path / ".git" / "config").read_text()


def test_a_renamed_repository_is_followed(scene: Scene) -> None:
    name = scene.repository.full_name
    scene.forge.rename(scene.repository, "other")
    assert scene.client.pull_request(name, scene.pull.number).number == scene.pull.number
    assert scene.client.create_comment(name, scene.pull.number, "moved along").by_us


def test_what_has_not_changed_costs_nothing(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.client.pull_request(name, number)
    scene.client.pull_request(name, number)
    statuses = [asked.status for asked in scene.forge.requests if asked.path.endswith(f"/pulls/{number}")]
    assert statuses[-2:] == [200, 304]
    scene.forge.push(scene.pull, {"pkg/new.py": "c\n"})
    assert scene.client.pull_request(name, number).head_sha == scene.pull.head_sha


def test_a_token_that_ended_is_renewed_in_the_middle(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.client.pull_request(name, number)
    scene.forge.fail(expired_token(), "POST", "/comments$")
    before = scene.forge.writes()
    scene.client.create_comment(name, number, "one")
    assert dict(scene.forge.writes() - before) == {"comment.create": 1}


@pytest.mark.parametrize(
    ("failure", "secondary", "wait"), [(secondary_limit(30), True, 31), (secondary_limit(None), True, 60)]
)
def test_a_secondary_limit_stops_everything_until_it_ends(
    scene: Scene, failure: Any, secondary: bool, wait: int
) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.client.pull_request(name, number)
    scene.forge.fail(failure, "POST", "/comments$")
    with pytest.raises(RateLimitedError) as caught:
        scene.client.create_comment(name, number, "one")
    assert caught.value.secondary is secondary
    assert (caught.value.retry_at - scene.clock.now()).total_seconds() == wait
    asked = len(scene.forge.requests)
    other = scene.app.client(str(scene.forge.installation(scene.repository.owner.login).id))
    with pytest.raises(RateLimitedError):
        other.pull_request(name, number)
    other.close()
    assert len(scene.forge.requests) == asked
    scene.clock.sleep(wait)
    assert scene.client.create_comment(name, number, "one").by_us


def test_the_hourly_limit_says_when_it_is_whole_again(scene: Scene) -> None:
    scene.forge.fail(primary_limit(), "GET", "/pulls/")
    with pytest.raises(RateLimitedError) as caught:
        scene.client.pull_request(scene.repository.full_name, scene.pull.number)
    assert not caught.value.secondary
    assert scene.clock.now() < caught.value.retry_at


def test_a_limit_of_graphql_says_when_it_is_whole_again(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.forge.fail(graphql_limit(), "POST", "/graphql$")
    with pytest.raises(RateLimitedError) as caught:
        scene.client.list_threads(name, number)
    assert not caught.value.secondary
    assert caught.value.retry_at > scene.clock.now()
    asked = len(scene.forge.requests)
    with pytest.raises(RateLimitedError):
        scene.client.pull_request(name, number)
    assert len(scene.forge.requests) == asked
    scene.clock.sleep((caught.value.retry_at - scene.clock.now()).total_seconds())
    assert scene.client.list_threads(name, number) == ()


def test_a_read_survives_a_bad_gateway_and_a_write_is_sent_once(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.forge.fail(server_error(502), "GET", "/pulls/", times=2)
    assert scene.client.pull_request(name, number).number == number
    before = scene.forge.writes()
    for failure in (server_error(502), error_after(502), cut_after()):
        scene.forge.fail(failure, "POST", "/comments$")
        with pytest.raises(ForgeUnavailableError) as caught:
            scene.client.create_comment(name, number, "one")
        assert caught.value.outcome_unknown
    assert dict(scene.forge.writes() - before) == {"comment.create": 2}
    assert len(list(scene.client.list_comments(name, number))) == 2


def test_a_missing_permission_is_named(scene: Scene) -> None:
    scene.forge.set_permissions(scene.repository.owner.login, checks=None)
    with pytest.raises(PermissionMissingError) as caught:
        scene.client.create_check(scene.repository.full_name, report(scene))
    assert "checks" in caught.value.permission


def test_a_suspended_and_a_removed_installation_are_told(scene: Scene) -> None:
    name, number = scene.repository.full_name, scene.pull.number
    scene.client.pull_request(name, number)
    scene.forge.suspend(scene.repository.owner.login)
    with pytest.raises(InstallationSuspendedError):
        scene.client.create_comment(name, number, "one")
    scene.forge.unsuspend(scene.repository.owner.login)
    scene.forge.uninstall(scene.repository.owner.login)
    with pytest.raises(ForgeNotFoundError, match="uninstalled"):
        scene.client.create_comment(name, number, "one")


@pytest.mark.parametrize("name", ["", "acme", "acme/..", "../x", "a/b/c", "acme/x?y=1", "acme/é"])
def test_a_name_that_is_none_is_not_sent(scene: Scene, name: str) -> None:
    asked = len(scene.forge.requests)
    with pytest.raises(ForgeNotFoundError):
        scene.client.pull_request(name, 1)
    assert len(scene.forge.requests) == asked
