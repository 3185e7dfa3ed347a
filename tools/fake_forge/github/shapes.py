"""The JSON in which GitHub tells of things: all of it."""

from __future__ import annotations

from tools.fake_forge.clock import stamp
from tools.fake_forge.github.shapes_pulls import PullShapes
from tools.fake_forge.github.shapes_repositories import Json, node_id
from tools.fake_forge.world import (
    CheckRun,
    CheckSuite,
    Repository,
)


class Shapes(PullShapes):
    """Builds the JSON, that of checks too. `api` and `web` are where the fake's REST and its git and pages are."""

    def _pulls_of(self, repository: Repository, sha: str) -> list[Json]:
        told = []
        for pull in self.world.pulls_of(repository, sha):
            place = {
                "id": repository.id,
                "url": f"{self.api}/repos/{repository.full_name}",
                "name": repository.name,
            }
            told.append(
                {
                    "url": f"{self.api}/repos/{repository.full_name}/pulls/{pull.number}",
                    "id": pull.id,
                    "number": pull.number,
                    "head": {"ref": pull.head, "sha": pull.head_sha, "repo": place},
                    "base": {"ref": pull.base, "sha": pull.base_sha, "repo": place},
                }
            )
        return told

    def check_run(self, run: CheckRun) -> Json:
        repository = run.suite.repository
        address = f"{self.api}/repos/{repository.full_name}/check-runs/{run.id}"
        page = f"{self.web}/{repository.full_name}/runs/{run.id}"
        return {
            "id": run.id,
            "name": run.name,
            "node_id": node_id("CR", run.id),
            "head_sha": run.head_sha,
            "external_id": run.external_id,
            "url": address,
            "html_url": page,
            "details_url": run.details_url or "https://gradproof.example",
            "status": run.status,
            "conclusion": run.conclusion,
            "started_at": run.started_at,
            "completed_at": run.completed_at,
            "output": {
                "title": run.title,
                "summary": run.summary,
                "text": run.text,
                "annotations_count": len(run.annotations),
                "annotations_url": f"{address}/annotations",
            },
            "check_suite": {"id": run.suite.id},
            "app": self.app(),
            "pull_requests": self._pulls_of(repository, run.head_sha),
        }

    def check_run_in_webhook(self, run: CheckRun) -> Json:
        suite = self.check_suite(run.suite)
        kept = ("id", "node_id", "head_branch", "head_sha", "status", "conclusion", "url", "before", "after", "app")
        told = {key: suite[key] for key in (*kept, "pull_requests", "created_at", "updated_at")}
        return self.check_run(run) | {"check_suite": told}

    def annotation(self, run: CheckRun, annotation: Json) -> Json:
        name = run.suite.repository.full_name
        empty = dict.fromkeys(("start_column", "end_column", "title", "raw_details"))
        blob = f"{self.web}/{name}/blob/{run.head_sha}/{annotation['path']}"
        return empty | annotation | {"blob_href": blob}

    def check_suite(self, suite: CheckSuite) -> Json:
        repository = suite.repository
        address = f"{self.api}/repos/{repository.full_name}/check-suites/{suite.id}"
        return {
            "id": suite.id,
            "node_id": node_id("CS", suite.id),
            "head_branch": suite.head_branch,
            "head_sha": suite.head_sha,
            "status": suite.status,
            "conclusion": suite.conclusion,
            "url": address,
            "before": "0" * 40,
            "after": suite.head_sha,
            "pull_requests": self._pulls_of(repository, suite.head_sha),
            "app": self.app(),
            "created_at": stamp(suite.created_at),
            "updated_at": stamp(suite.created_at),
            "rerequestable": True,
            "runs_rerequestable": True,
            "latest_check_runs_count": len(suite.runs),
            "check_runs_url": f"{address}/check-runs",
            "head_commit": self.simple_commit(repository, suite.head_sha),
        }

    def check_suite_in_answer(self, suite: CheckSuite) -> Json:
        return self.check_suite(suite) | {"repository": self.repository(suite.repository)}
