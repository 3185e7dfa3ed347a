"""The JSON in which GitLab tells of things."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final

from tools.fake_forge.diffs import FileDiff
from tools.fake_forge.gitlab.state import Discussion, MergeRequest, Note, Project, Status, User

Json = dict[str, Any]
DIFF_LIMIT: Final = 100_000  # bytes of a file's diff beyond which it is left out


def when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def line_code(path: str, old: int, new: int) -> str:
    """How GitLab names a line of a diff."""
    return f"{hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()}_{old}_{new}"


class GitLabShapes:
    """Builds the JSON; `web` is where the fake's pages and git are."""

    def __init__(self, web: str) -> None:
        self.web = web

    def user(self, user: User) -> Json:
        return {
            "id": user.id,
            "username": user.username,
            "public_email": "",
            "name": user.username.capitalize(),
            "state": "active",
            "locked": False,
            "avatar_url": None,
            "web_url": f"{self.web}/{user.username}",
        }

    def user_in_webhook(self, user: User) -> Json:
        return {
            "id": user.id,
            "name": user.username.capitalize(),
            "username": user.username,
            "avatar_url": None,
            "email": "[REDACTED]",
        }

    def member(self, user: User, level: int) -> Json:
        return self.user(user) | {
            "access_level": level,
            "created_at": "2026-01-01T00:00:00.000Z",
            "expires_at": None,
            "membership_state": "active",
        }

    def project(self, project: Project) -> Json:
        page = f"{self.web}/{project.path}"
        told: Json = {
            "id": project.id,
            "description": None,
            "name": project.name,
            "name_with_namespace": project.path.replace("/", " / "),
            "path": project.name,
            "path_with_namespace": project.path,
            "created_at": when(project.created_at),
            "default_branch": project.default_branch,
            "ssh_url_to_repo": f"git@{self.web.partition('://')[2]}:{project.path}.git",
            "http_url_to_repo": f"{page}.git",
            "web_url": page,
            "namespace": {"full_path": project.path.rpartition("/")[0], "kind": "group"},
            "visibility": "private" if project.private else "public",
            "merge_requests_enabled": True,
            "archived": False,
        }
        if project.fork_of:
            told["forked_from_project"] = {"id": project.fork_of.id, "path_with_namespace": project.fork_of.path}
        return told

    def project_in_webhook(self, project: Project) -> Json:
        told = self.project(project)
        kept = ("id", "name", "description", "web_url", "path_with_namespace", "default_branch")
        more = {"git_http_url": told["http_url_to_repo"], "git_ssh_url": told["ssh_url_to_repo"]}
        level = {"visibility_level": 0 if project.private else 20, "avatar_url": None, "ci_config_path": None}
        return {key: told[key] for key in kept} | more | level | {"namespace": told["namespace"]["full_path"]}

    def commit(self, project: Project, sha: str) -> Json:
        info = project.git.commit_info(sha)
        return {
            "id": sha,
            "short_id": sha[:8],
            "title": info.message.partition("\n")[0],
            "message": info.message,
            "author_name": info.author,
            "author_email": info.email,
            "authored_date": info.at,
            "committed_date": info.at,
            "created_at": info.at,
            "parent_ids": list(info.parents),
            "web_url": f"{self.web}/{project.path}/-/commit/{sha}",
        }

    def commit_in_webhook(self, project: Project, sha: str) -> Json:
        info = project.git.commit_info(sha)
        files = project.git.diff(info.parents[0], sha) if info.parents else []
        return {
            "id": sha,
            "message": info.message,
            "title": info.message.partition("\n")[0],
            "timestamp": info.at,
            "url": f"{self.web}/{project.path}/-/commit/{sha}",
            "author": {"name": info.author, "email": info.email},
            "added": [each.path for each in files if each.status == "added"],
            "modified": [each.path for each in files if each.status not in ("added", "removed")],
            "removed": [each.path for each in files if each.status == "removed"],
        }

    def file(self, diff: FileDiff) -> Json:
        text = "" if diff.patch is None else diff.patch + "\n"
        too_large = len(text.encode()) > DIFF_LIMIT
        return {
            "diff": "" if too_large else text,
            "collapsed": False,
            "too_large": too_large,
            "new_path": diff.path,
            "old_path": diff.previous_path or diff.path,
            "a_mode": "0" if diff.status == "added" else "100644",
            "b_mode": "0" if diff.status == "removed" else "100644",
            "new_file": diff.status == "added",
            "renamed_file": diff.status == "renamed",
            "deleted_file": diff.status == "removed",
            "generated_file": False,
        }

    def merge_request_page(self, merge_request: MergeRequest) -> str:
        return f"{self.web}/{merge_request.project.path}/-/merge_requests/{merge_request.iid}"

    def merge_request(self, merge_request: MergeRequest) -> Json:
        return {
            "id": merge_request.id,
            "iid": merge_request.iid,
            "project_id": merge_request.project.id,
            "title": merge_request.title,
            "description": None,
            "state": merge_request.state,
            "created_at": when(merge_request.created_at),
            "updated_at": when(merge_request.updated_at),
            "target_branch": merge_request.target_branch,
            "source_branch": merge_request.source_branch,
            "source_project_id": merge_request.source.id,
            "target_project_id": merge_request.project.id,
            "author": self.user(merge_request.author),
            "labels": [],
            "draft": merge_request.draft,
            "work_in_progress": merge_request.draft,
            "sha": merge_request.head_sha,
            "merge_commit_sha": merge_request.merge_commit,
            "detailed_merge_status": "mergeable",
            "has_conflicts": False,
            "discussion_locked": None,
            "blocking_discussions_resolved": all(
                each.resolved_by for each in merge_request.discussions if not each.individual
            ),
            "user_notes_count": len(merge_request.notes()),
            "changes_count": str(len(merge_request.files())),
            "diff_refs": {
                "base_sha": merge_request.base_sha,
                "head_sha": merge_request.head_sha,
                "start_sha": merge_request.start_sha,
            },
            "references": {"full": f"{merge_request.project.path}!{merge_request.iid}"},
            "web_url": self.merge_request_page(merge_request),
        }

    def listed_merge_request(self, merge_request: MergeRequest) -> Json:
        """Lists say less."""
        left_out = ("diff_refs", "changes_count")
        return {key: value for key, value in self.merge_request(merge_request).items() if key not in left_out}

    def merge_request_in_webhook(self, merge_request: MergeRequest) -> Json:
        told = self.merge_request(merge_request)
        kept = ("id", "iid", "title", "description", "state", "created_at", "updated_at", "target_branch", "draft")
        ends = ("source_branch", "source_project_id", "target_project_id", "work_in_progress", "merge_commit_sha")
        commit = self.commit_in_webhook(merge_request.source, merge_request.head_sha)
        return {key: told[key] for key in (*kept, *ends, "detailed_merge_status")} | {
            "author_id": merge_request.author.id,
            "url": told["web_url"],
            "last_commit": {key: commit[key] for key in ("id", "message", "title", "timestamp", "url", "author")},
            "source": self.project_in_webhook(merge_request.source),
            "target": self.project_in_webhook(merge_request.project),
            "blocking_discussions_resolved": told["blocking_discussions_resolved"],
        }

    def note(self, note: Note) -> Json:
        discussion, merge_request = note.discussion, note.discussion.merge_request
        kind = "DiffNote" if discussion.position else None if discussion.individual else "DiscussionNote"
        told: Json = {
            "id": note.id,
            "type": kind,
            "body": note.body,
            "author": self.user(note.author),
            "created_at": when(note.created_at),
            "updated_at": when(note.updated_at),
            "system": note.system,
            "noteable_id": merge_request.id,
            "noteable_type": "MergeRequest",
            "project_id": merge_request.project.id,
            "resolvable": not discussion.individual,
            "confidential": False,
            "internal": False,
            "imported": False,
            "noteable_iid": merge_request.iid,
            "commands_changes": {},
        }
        if not discussion.individual:
            by = discussion.resolved_by
            told |= {"resolved": by is not None, "resolved_by": self.user(by) if by else None}
        if discussion.position:
            told |= {"commit_id": None, "position": discussion.position}
        return told

    def note_in_webhook(self, note: Note) -> Json:
        told = self.note(note)
        kept = ("id", "created_at", "updated_at", "project_id", "noteable_id", "noteable_type", "system", "type")
        place = note.discussion.position
        code = line_code(place["new_path"], place["old_line"] or 0, place["new_line"] or 0) if place else None
        page = f"{self.merge_request_page(note.discussion.merge_request)}#note_{note.id}"
        return {key: told[key] for key in kept} | {
            "note": note.body,
            "description": note.body,
            "author_id": note.author.id,
            "discussion_id": note.discussion.id,
            "position": place,
            "line_code": code,
            "commit_id": None,
            "url": page,
        }

    def discussion(self, discussion: Discussion) -> Json:
        return {
            "id": discussion.id,
            "individual_note": discussion.individual,
            "notes": [self.note(note) for note in discussion.notes],
        }

    def status(self, project: Project, status: Status, author: User) -> Json:
        return {
            "id": status.id,
            "sha": status.sha,
            "ref": status.ref,
            "status": status.state,
            "name": status.name,
            "target_url": status.target_url,
            "description": status.description,
            "created_at": when(status.created_at),
            "started_at": None,
            "finished_at": None,
            "allow_failure": False,
            "coverage": status.coverage,
            "pipeline_id": 1000 + project.id,
            "author": self.user(author),
        }
