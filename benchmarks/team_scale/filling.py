"""Fills a database with what a team leaves behind in years: analyses, findings, results, decisions.

Rows go in as they are, without the use cases that would make them: this is about reading. Every value is drawn by one
seeded generator, so that both databases hold the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Engine, insert, select
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow
from services.analyses.totals import count_totals
from services.database import Base, new_id
from services.snapshots.model import Snapshot

Row = dict[str, Any]

START = datetime(2025, 1, 1, tzinfo=UTC)
AT_ONCE = 5_000
CHECKS = ("gradcheck", "gradgradcheck", "nan_gradient", "finding_search", "compile_equivalence", "batch_consistency")
RULES = (("GP101", "unprotected-division"), ("GP102", "unprotected-log"), ("GP201", "saved-on-context"))
SEVERITIES = ("error", "warning", "note")
STATES = ("open", "open", "open", "accepted", "false_positive", "fixed", "regressed")
FILES = 100
LINES = 60


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is. `large_*` is one analysis of its own beside the others."""

    projects: int = 20
    analyses: int = 1_000
    findings: int = 100_000
    targets_each: int = 40
    large_targets: int = 5_000
    large_findings: int = 2_000
    known_each: int = 400
    pull_requests_each: int = 50
    audit_events: int = 20_000
    deliveries: int = 10_000
    users: int = 50


@dataclass(slots=True)
class Filled:
    """Ids that addresses are made of, of things in the middle of everything; `rows` counts the rows by table."""

    project: str = ""
    project_name: str = ""
    analysis: str = ""
    base: str = ""
    large: str = ""
    fingerprint: str = ""
    large_fingerprint: str = ""
    target: str = ""
    pull_request: str = ""
    user: str = ""
    hook: str = ""
    share: str = ""
    badge: str = ""
    rows: dict[str, int] = field(default_factory=dict)


def sources() -> dict[str, bytes]:
    """The files that findings point into."""
    text = "import torch\n\n\n" + "".join(f"def norm_{n}(x):\n    return x / x.norm()\n\n\n" for n in range(LINES // 4))
    return {f"pkg/module_{number}.py": text.encode() for number in range(FILES)}


class Filler:
    """Writes everything into an empty, migrated database."""

    def __init__(self, engine: Engine, snapshot: Snapshot, size: Size) -> None:
        self._engine = engine
        self._snapshot = snapshot
        self._size = size
        self._random = random.Random(7)
        self.filled = Filled()

    def fill(self) -> Filled:
        """All rows."""
        size, filled = self._size, self.filled
        self._put("snapshots", [_snapshot_row(self._snapshot)])
        users = [_user(number) for number in range(size.users)]
        filled.user = users[0]["id"]
        self._put("users", users)
        self._put("memberships", [_member(user, number) for number, user in enumerate(users)])
        projects = [self._project(number) for number in range(size.projects)]
        middle = projects[size.projects // 2]
        filled.project, filled.project_name = middle["id"], middle["name"]
        self._put("projects", projects)
        each = size.analyses // size.projects
        for project in projects:
            analyses = [self._analysis(project, number) for number in range(each)]
            self._put("analyses", analyses)
            self._put("project_findings", self._known(project, analyses))
            for analysis in analyses:
                self._of_analysis(analysis, size.findings // size.analyses, size.targets_each)
            if project is middle:
                filled.analysis, filled.base = analyses[-1]["id"], analyses[-2]["id"]
                filled.fingerprint = _fingerprint(3)
                filled.target = "pkg.module_3:Norm3"
        large = self._analysis(middle, each)
        filled.large, filled.large_fingerprint = large["id"], _fingerprint(size.large_findings // 2)
        self._put("analyses", [large])
        self._of_analysis(large, size.large_findings, size.large_targets)
        self._count()
        self._forge(projects)
        self._hook(middle, analyses=size.analyses)
        self._put("audit_events", (self._audit(projects, users) for _ in range(size.audit_events)))
        self._put("api_tokens", (self._token(number, users) for number in range(2 * size.users)))
        return filled

    # ------------------------------------------------------------------------------------------ parts

    def _put(self, table: str, rows: Iterable[Row]) -> None:
        target = Base.metadata.tables[table]
        pending = iter(rows)
        while batch := list(islice(pending, AT_ONCE)):
            with self._engine.begin() as connection:
                connection.execute(insert(target), batch)
            self.filled.rows[table] = self.filled.rows.get(table, 0) + len(batch)

    def _project(self, number: int) -> Row:
        return {
            "id": new_id(),
            "organisation_id": "default",
            "name": f"project-{number:02}",
            "repository_url": f"https://forge.example/team/project-{number:02}",
            "settings": {},
            "created_at": START,
        }

    def _analysis(self, project: Row, number: int) -> Row:
        at = START + timedelta(hours=7 * number)
        failed = number % 3 == 0
        conditions = [{"name": "no new error", "passed": not failed, "explanation": "2 new: GP101 at pkg/module_1.py"}]
        return {
            "id": new_id(),
            "project_id": project["id"],
            "base_id": None,
            "snapshot_digest": self._snapshot.digest,
            "status": "finished",
            "options": {},
            "configuration": {},
            "source_kind": "git",
            "source_url": project["repository_url"],
            "source_commit": f"{number:040x}",
            "created_at": at,
            "started_at": at,
            "static_finished_at": at + timedelta(seconds=4),
            "finished_at": at + timedelta(minutes=3),
            "gate": {"passed": not failed, "conditions": conditions},
            "tool": {"torch": "2.13.0", "devices": ["cpu"], "sandbox": "root"},
            "examples": [],
            "purpose": "main" if number % 2 else "proposal",
            "branch": "main",
        }

    def _of_analysis(self, analysis: Row, findings: int, targets: int) -> None:
        rows = [_target(analysis, position) for position in range(targets)]
        jobs = [_job(analysis, target) for target in rows]
        self._put("targets", rows)
        self._put("jobs", jobs)
        self._put("check_results", self._results(analysis, rows, jobs))
        self._put("findings", (self._finding(analysis, position) for position in range(findings)))

    def _results(self, analysis: Row, targets: list[Row], jobs: list[Row]) -> Iterator[Row]:
        for target, job in zip(targets, jobs, strict=True):
            for check in CHECKS:
                verdict = self._random.choices(("pass", "fail", "inconclusive", "skipped"), (80, 5, 5, 10))[0]
                yield {
                    "id": new_id(),
                    "analysis_id": analysis["id"],
                    "target_id": target["id"],
                    "job_id": job["id"],
                    "check_name": check,
                    "verdict": verdict,
                    "device": "cpu",
                    "summary": f"{check} {verdict}: the largest difference is 1.3e-7 of the scale, at coordinate 4",
                    "diagnosis": {"cause": "scaled_gradient", "text": "by a factor of 2", "numbers": {"factor": 2.0}}
                    if verdict == "fail"
                    else None,
                    "path": target["path"] if verdict == "fail" else None,
                    "line": 5 if verdict == "fail" else None,
                    "evidence": {"seed": 0, "numbers": {"difference": 1.3e-7}, "notes": ["x" * 80] * 6},
                    "repro": "import torch\n" * 30 if verdict == "fail" else None,
                    "duration_s": 0.12,
                    "created_at": analysis["created_at"],
                }

    def _finding(self, analysis: Row, position: int) -> Row:
        rule, name = RULES[position % len(RULES)]
        line = 5 + 4 * (position % (LINES // 4 - 2))
        path = f"pkg/module_{position % FILES}.py"
        return {
            "id": new_id(),
            "analysis_id": analysis["id"],
            "position": position,
            "fingerprint": _fingerprint(position),
            "rule": rule,
            "name": name,
            "severity": SEVERITIES[position % 3],
            "confidence": "high",
            "path": path,
            "start_line": line,
            "start_column": 12,
            "end_line": line,
            "end_column": 24,
            "cell": 0,
            "symbol": f"pkg.module_{position % FILES}.norm_{position}",
            "message": "the norm in the denominator is zero for a zero input, and its gradient is NaN there",
            "settled_by": ["nan_gradient"],
            "hypothesis": {"kind": "division"},
            "fix": {"safety": "none", "edits": []},
            "related": [],
            "verdict": ("confirmed", "not_reproduced", "not_exercised")[position % 3],
            "verdict_reason": "nan_gradient found an input at which the gradient is NaN",
            "evidence": {"check": "nan_gradient", "input": [0.0] * 40, "numbers": {"norm": 0.0}},
            "is_new": position % 10 == 0,
            "triage": STATES[position % len(STATES)],
        }

    def _known(self, project: Row, analyses: list[Row]) -> Iterator[Row]:
        for position in range(self._size.known_each):
            finding = self._finding(analyses[-1], position)
            state = STATES[position % len(STATES)]
            decided = state in {"accepted", "false_positive"}
            yield {
                "id": new_id(),
                "project_id": project["id"],
                "fingerprint": finding["fingerprint"],
                "state": state,
                "reason": "the input is never zero here" if decided else "",
                "decided_by_name": "ada" if decided else None,
                "decided_at": analyses[-1]["created_at"] if decided else None,
                "occurrences": position % 7,
                **{key: finding[key] for key in ("rule", "name", "severity", "path", "symbol", "message", "verdict")},
                "severity_rank": SEVERITIES.index(finding["severity"]),
                "line": finding["start_line"],
                "on_main": position % 5 > 0,
                "first_analysis_id": analyses[0]["id"],
                "last_analysis_id": analyses[-1]["id"],
                "first_seen_at": analyses[0]["created_at"],
                "last_seen_at": analyses[-1]["created_at"],
            }

    def _count(self) -> None:
        """What settling writes with each analysis."""
        with Session(self._engine) as session:
            for row in session.scalars(select(AnalysisRow)).all():
                row.totals = count_totals(session, row.id).stored()
            session.commit()

    def _forge(self, projects: list[Row]) -> None:
        installation = {
            "id": new_id(),
            "forge": "github",
            "external_id": "1",
            "account": "team",
            "organisation_id": "default",
            "permissions": {},
            "created_at": START,
        }
        self._put("installations", [installation])
        for number, project in enumerate(projects):
            repository = {
                "id": new_id(),
                "forge": "github",
                "external_id": str(number),
                "full_name": f"team/{project['name']}",
                "clone_url": f"{project['repository_url']}.git",
                "web_url": project["repository_url"],
                "is_private": False,
                "default_branch": "main",
                "installation_id": installation["id"],
                "project_id": project["id"],
                "created_at": START,
            }
            self._put("repositories", [repository])
            requests = [_pull_request(repository, each) for each in range(self._size.pull_requests_each)]
            if project["id"] == self.filled.project:
                self.filled.pull_request = requests[-1]["id"]
            self._put("pull_requests", requests)
        self._put("deliveries", (_delivery(number) for number in range(self._size.deliveries)))

    def _hook(self, project: Row, *, analyses: int) -> None:
        hook = {
            "id": new_id(),
            "project_id": project["id"],
            "url": "https://hooks.example/gradproof",
            "events": ["analysis.finished"],
            "created_at": START,
        }
        self.filled.hook = hook["id"]
        self._put("hooks", [hook])
        self._put("hook_deliveries", (_hook_delivery(hook) for _ in range(analyses)))

    def _audit(self, projects: list[Row], users: list[Row]) -> Row:
        user = self._random.choice(users)
        return {
            "id": new_id(),
            "at": START,
            "actor_kind": "user",
            "actor_id": user["id"],
            "actor_name": user["name"],
            "organisation_id": "default",
            "project_id": self._random.choice(projects)["id"],
            "action": "finding.accepted",
            "object_kind": "finding",
            "object_id": _fingerprint(self._random.randrange(400)),
            "details": {"reason": "the input is never zero here"},
        }

    def _token(self, number: int, users: list[Row]) -> Row:
        return {
            "id": new_id(),
            "name": f"token {number}",
            "kind": "api",
            "digest": f"{number:064x}",
            "last_four": "abcd",
            "scopes": ["read"],
            "user_id": users[number % len(users)]["id"],
            "created_at": START,
        }


def _fingerprint(position: int) -> str:
    return f"{position:032x}"


def _snapshot_row(snapshot: Snapshot) -> Row:
    return {"digest": snapshot.digest, "files": snapshot.files, "lines": snapshot.lines, "created_at": START}


def _user(number: int) -> Row:
    name = f"person-{number}"
    return {
        "id": new_id(),
        "name": name,
        "display_name": f"Person {number}",
        "is_operator": False,
        "created_at": START,
    }


def _member(user: Row, number: int) -> Row:
    role = ("admin", "maintainer", "triager", "viewer")[number % 4]
    return {"organisation_id": "default", "user_id": user["id"], "role": role, "created_at": START}


def _target(analysis: Row, position: int) -> Row:
    module = f"pkg.module_{position % FILES}"
    return {
        "id": new_id(),
        "analysis_id": analysis["id"],
        "position": position,
        "name": f"{module}:Norm{position}",
        "kind": "module",
        "path": f"pkg/module_{position % FILES}.py",
        "line": 4,
        "end_line": 9,
        "import_root": "",
        "module": module,
        "qualname": f"Norm{position}",
        "hypotheses": [],
        "mined": [],
        "turn": position,
        "harness": {
            "source": "synthesised",
            "grade": "B",
            "constructor": f"Norm{position}(8)",
            "inputs": ["float64[2, 8]"],
            "provenance": "annotations",
            "reason": None,
        },
        "reused": False,
    }


def _job(analysis: Row, target: Row) -> Row:
    return {
        "id": new_id(),
        "analysis_id": analysis["id"],
        "target_id": target["id"],
        "kind": "probe",
        "queue": "cpu",
        "device_class": "cpu",
        "checks": list(CHECKS),
        "idempotency_key": f"{analysis['id']}:{target['id']}",
        "state": "succeeded",
        "attempt": 1,
        "losses": 0,
        "max_attempts": 3,
        "created_at": analysis["created_at"],
        "started_at": analysis["created_at"],
        "finished_at": analysis["finished_at"],
    }


def _pull_request(repository: Row, number: int) -> Row:
    return {
        "id": new_id(),
        "repository_id": repository["id"],
        "number": number + 1,
        "state": "open" if number % 3 else "merged",
        "title": f"Change {number}",
        "author": "ada",
        "base_ref": "main",
        "base_sha": f"{number:040x}",
        "head_ref": f"change-{number}",
        "head_sha": f"{number + 1:040x}",
        "silence": {"summary": "there is nothing to say: no finding is new"},
        "created_at": START,
        "updated_at": START,
    }


def _hook_delivery(hook: Row) -> Row:
    return {
        "id": new_id(),
        "hook_id": hook["id"],
        "event": "analysis.finished",
        "created_at": START,
        "attempts": 1,
        "status": 200,
        "delivered_at": START,
    }


def _delivery(number: int) -> Row:
    return {
        "id": new_id(),
        "forge": "github",
        "delivery_id": str(number),
        "event": "pull_request",
        "action": "synchronize",
        "received_at": START,
        "outcome": "done",
        "reason": "",
        "ended_at": START,
    }
