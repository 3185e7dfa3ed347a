"""Check runs with their annotations, and the suites they are in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tools.fake_forge.clock import stamp
from tools.fake_forge.exchange import Call, Operations, Reply, invalid, not_found
from tools.fake_forge.github.repositories import resolved
from tools.fake_forge.world import CheckRun, CheckSuite

operations: Final = Operations()
_LONGEST_ANNOTATION: Final = 64 * 1024  # bytes, of the message and of the raw details
_LONGEST_TITLE: Final = 255  # characters


@operations.add("POST /repos/{owner}/{repo}/check-runs", ("checks", "write"), wrote="check_run.create")
def create(call: Call) -> Reply:
    hub, sha = call.hub, call.repository.git.sha(call.body["head_sha"])
    if sha is None or sha != call.body["head_sha"]:
        raise invalid("CheckRun", "head_sha", f"No commit found for SHA: {call.body['head_sha']}")
    suite = hub.world.suite(call.repository, sha)
    run = CheckRun(hub.world.new_id("check_run", 30_001), suite, call.body["name"])
    _check(call.body)
    suite.runs.append(run)
    hub.world.runs[run.id] = run
    _apply(call, run, call.body | {"status": call.body.get("status", "queued")})
    hub.announce_run("created", run, hub.app.bot)
    if run.status == "completed":
        hub.announce_run("completed", run, hub.app.bot)
    return Reply(201, hub.shapes.check_run(run))


@operations.add("PATCH /repos/{owner}/{repo}/check-runs/{check_run_id}", ("checks", "write"), wrote="check_run.update")
def update(call: Call) -> Reply:
    """Annotations are added to those that are there: sent twice, they stand twice."""
    run = _run(call)
    was_completed = run.status == "completed"
    _check(call.body)
    _apply(call, run, call.body)
    if run.status == "completed" and not was_completed:
        call.hub.announce_run("completed", run, call.hub.app.bot)
    return Reply(200, call.hub.shapes.check_run(run))


@operations.add("GET /repos/{owner}/{repo}/check-runs/{check_run_id}", ("checks", "read"))
def check_run(call: Call) -> Reply:
    return Reply(200, call.hub.shapes.check_run(_run(call)))


@operations.add("GET /repos/{owner}/{repo}/check-runs/{check_run_id}/annotations", ("checks", "read"))
def listed_annotations(call: Call) -> Reply:
    run = _run(call)
    return call.page(run.annotations, lambda each: call.hub.shapes.annotation(run, each))


@operations.add("GET /repos/{owner}/{repo}/check-suites/{check_suite_id}", ("checks", "read"))
def check_suite(call: Call) -> Reply:
    suite = call.hub.world.suites.get(call.number("check_suite_id"))
    if suite is None or suite.repository is not call.repository:
        raise not_found()
    return Reply(200, call.hub.shapes.check_suite_in_answer(suite))


@operations.add("GET /repos/{owner}/{repo}/commits/{ref}/check-runs", ("checks", "read"))
def runs_of_commit(call: Call) -> Reply:
    """The latest of each name, or with `filter=all` every one."""
    query, runs = call.query, [run for suite in _suites(call) for run in suite.runs]
    if query.get("filter", "latest") == "latest":
        runs = list({run.name: run for run in sorted(runs, key=lambda run: run.id)}.values())
    runs = [
        run
        for run in sorted(runs, key=lambda run: run.id, reverse=True)
        if query.get("check_name", run.name) == run.name and query.get("status", run.status) == run.status
    ]
    return call.page(runs, call.hub.shapes.check_run, wrapped_as="check_runs")


@operations.add("GET /repos/{owner}/{repo}/commits/{ref}/check-suites", ("checks", "read"))
def suites_of_commit(call: Call) -> Reply:
    return call.page(list(_suites(call)), call.hub.shapes.check_suite_in_answer, wrapped_as="check_suites")


def _suites(call: Call) -> Iterable[CheckSuite]:
    sha = resolved(call.repository, call.path["ref"])
    if call.query.get("app_id", str(call.hub.app.app_id)) != str(call.hub.app.app_id):
        return []
    return [
        suite
        for suite in call.hub.world.suites.values()
        if suite.repository is call.repository and suite.head_sha == sha
    ]


def _run(call: Call) -> CheckRun:
    run = call.hub.world.runs.get(call.number("check_run_id"))
    if run is None or run.suite.repository is not call.repository:
        raise not_found()
    return run


def _check(body: dict[str, Any]) -> None:
    """The rules that GitHub states in prose; numbers and lengths of the schema are checked already."""
    if body.get("status") == "completed" and not body.get("conclusion"):
        raise invalid("CheckRun", "conclusion", "conclusion is required when status is completed", "missing_field")
    if body.get("conclusion") == "stale":
        raise invalid("CheckRun", "conclusion", "stale is set by GitHub alone")
    for place, each in enumerate(body.get("output", {}).get("annotations", [])):
        name = f"output.annotations[{place}]"
        start, end = each["start_line"], each["end_line"]
        if start < 1 or end < start:
            raise invalid("CheckAnnotation", name, "end_line must not be before start_line, and lines begin at 1")
        if start != end and ("start_column" in each or "end_column" in each):
            raise invalid("CheckAnnotation", name, "columns can't be used when start_line and end_line differ")
        if "start_column" in each and each.get("end_column", each["start_column"]) < each["start_column"]:
            raise invalid("CheckAnnotation", name, "end_column must not be before start_column")
        if len(each.get("title", "")) > _LONGEST_TITLE:
            raise invalid("CheckAnnotation", name, f"title is too long (maximum is {_LONGEST_TITLE} characters)")
        if not each["message"] or each["path"].startswith(("/", "./")):
            raise invalid("CheckAnnotation", name, "message can't be empty, and path is relative to the repository")
        if any(len(each.get(text, "").encode()) > _LONGEST_ANNOTATION for text in ("message", "raw_details")):
            raise invalid("CheckAnnotation", name, "message and raw_details are 64 KB at most")


def _apply(call: Call, run: CheckRun, body: dict[str, Any]) -> None:
    now = stamp(call.hub.world.clock.now())
    for name in ("name", "external_id", "details_url", "started_at", "completed_at", "actions"):
        if name in body:
            setattr(run, name, body[name])
    if "conclusion" in body:
        # A conclusion completes a run, says GitHub, also one whose status isn't sent.
        run.status, run.conclusion, run.completed_at = "completed", body["conclusion"], body.get("completed_at", now)
    elif "status" in body:
        run.status, run.conclusion, run.completed_at = body["status"], None, None
    if run.started_at is None:
        run.started_at = now  # also of a queued one, as GitHub has it
    if not run.history or run.history[-1] != run.status:
        run.history.append(run.status)
    output = body.get("output")
    if output is not None:
        run.title, run.summary = output.get("title", run.title), output["summary"]
        run.text = output.get("text", run.text)
        run.annotations += output.get("annotations", [])
