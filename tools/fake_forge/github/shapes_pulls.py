"""The JSON of pull requests, their comments, reviews and threads."""

from __future__ import annotations

from typing import Final

from tools.fake_forge.clock import stamp
from tools.fake_forge.github.shapes_repositories import Json, RepositoryShapes, node_id, optional
from tools.fake_forge.world import (
    Account,
    IssueComment,
    PullRequest,
    Repository,
    Review,
    ReviewComment,
    Thread,
)

_REACTIONS: Final = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")


class PullShapes(RepositoryShapes):
    """Builds the JSON of pull requests and of what is said about them."""

    def _end(self, repository: Repository, ref: str, sha: str) -> Json:
        return {
            "label": f"{repository.owner.login}:{ref}",
            "ref": ref,
            "sha": sha,
            "user": self.user(repository.owner),
            "repo": self.repository(repository),
        }

    def simple_pull(self, pull: PullRequest) -> Json:
        repository = pull.repository
        address = f"{self.api}/repos/{repository.full_name}"
        here, issue = f"{address}/pulls/{pull.number}", f"{address}/issues/{pull.number}"
        page = self.pull_page(pull)
        links = {
            "self": here,
            "html": page,
            "issue": issue,
            "comments": f"{issue}/comments",
            "review_comments": f"{here}/comments",
            "review_comment": f"{address}/pulls/comments{{/number}}",
            "commits": f"{here}/commits",
            "statuses": f"{address}/statuses/{pull.head_sha}",
        }
        return {
            "url": here,
            "id": pull.id,
            "node_id": node_id("PR", pull.id),
            "html_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "issue_url": issue,
            "commits_url": links["commits"],
            "review_comments_url": links["review_comments"],
            "review_comment_url": links["review_comment"],
            "comments_url": links["comments"],
            "statuses_url": links["statuses"],
            "number": pull.number,
            "state": pull.state,
            "locked": pull.locked,
            "active_lock_reason": None,
            "title": pull.title,
            "user": self.user(pull.author),
            "body": pull.body,
            "labels": [],
            "milestone": None,
            "assignee": None,
            "assignees": [],
            "requested_reviewers": [],
            "requested_teams": [],
            "draft": pull.draft,
            "created_at": stamp(pull.created_at),
            "updated_at": stamp(pull.updated_at),
            "closed_at": optional(pull.closed_at),
            "merged_at": optional(pull.merged_at),
            "merge_commit_sha": pull.merge_commit,
            "head": self._end(pull.head_repository, pull.head, pull.head_sha),
            "base": self._end(repository, pull.base, pull.base_sha),
            "_links": {name: {"href": address} for name, address in links.items()},
            "author_association": self.association(repository, pull.author),
            "auto_merge": None,
        }

    def pull(self, pull: PullRequest) -> Json:
        files = pull.files()
        is_open = pull.state == "open"
        return self.simple_pull(pull) | {
            "merged": pull.merged_at is not None,
            "mergeable": True if is_open else None,
            "rebaseable": is_open,
            "mergeable_state": "clean" if is_open else "unknown",
            "merged_by": self.user(pull.merged_by) if pull.merged_by else None,
            "comments": len(pull.comments),
            "review_comments": len(pull.review_comments()),
            "maintainer_can_modify": False,
            "commits": len(pull.repository.git.commits(pull.base_sha, pull.head_sha)),
            "additions": sum(each.additions for each in files),
            "deletions": sum(each.deletions for each in files),
            "changed_files": len(files),
        }

    def pull_page(self, pull: PullRequest) -> str:
        return f"{self.web}/{pull.repository.full_name}/pull/{pull.number}"

    def issue(self, pull: PullRequest) -> Json:
        """The pull request as an issue: what `issue_comment` tells of."""
        simple = self.simple_pull(pull)
        address = simple["issue_url"]
        kept = ("number", "state", "locked", "active_lock_reason", "title", "user", "body", "labels", "milestone")
        more = ("assignee", "assignees", "draft", "created_at", "updated_at", "closed_at", "author_association")
        return {key: simple[key] for key in (*kept, *more, "html_url")} | {
            "id": pull.id + 500_000,
            "node_id": node_id("I_PR", pull.id),
            "url": address,
            "repository_url": f"{self.api}/repos/{pull.repository.full_name}",
            "labels_url": f"{address}/labels{{/name}}",
            "comments_url": f"{address}/comments",
            "events_url": f"{address}/events",
            "timeline_url": f"{address}/timeline",
            "comments": len(pull.comments),
            "reactions": self._reactions(address, []),
            "performed_via_github_app": None,
            "state_reason": None,
            "pull_request": {
                "url": simple["url"],
                "html_url": simple["html_url"],
                "diff_url": simple["diff_url"],
                "patch_url": simple["patch_url"],
                "merged_at": simple["merged_at"],
            },
        }

    def association(self, repository: Repository, account: Account) -> str:
        """How the repository stands to a person, in GitHub's word."""
        if account is repository.owner:
            return "OWNER"
        if account.kind == "Bot":
            return "NONE"
        return "COLLABORATOR" if account.login in repository.roles else "NONE"

    # Comments and reviews

    def _reactions(self, address: str, contents: list[str]) -> Json:
        counts = {content: contents.count(content) for content in _REACTIONS}
        return {"url": f"{address}/reactions", "total_count": len(contents), **counts}

    def issue_comment(self, comment: IssueComment) -> Json:
        repository = comment.pull.repository
        address = f"{self.api}/repos/{repository.full_name}/issues/comments/{comment.id}"
        return {
            "url": address,
            "html_url": f"{self.pull_page(comment.pull)}#issuecomment-{comment.id}",
            "issue_url": f"{self.api}/repos/{repository.full_name}/issues/{comment.pull.number}",
            "id": comment.id,
            "node_id": node_id("IC", comment.id),
            "user": self.user(comment.author),
            "created_at": stamp(comment.created_at),
            "updated_at": stamp(comment.updated_at),
            "author_association": self.association(repository, comment.author),
            "body": comment.body,
            "reactions": self._reactions(address, [content for _, _, content in comment.reactions]),
            "performed_via_github_app": self.app() if comment.author is self.identity.bot else None,
        }

    def review(self, review: Review) -> Json:
        pull = review.pull
        here = f"{self.api}/repos/{pull.repository.full_name}/pulls/{pull.number}"
        page = f"{self.pull_page(pull)}#pullrequestreview-{review.id}"
        return {
            "id": review.id,
            "node_id": node_id("PRR", review.id),
            "user": self.user(review.author),
            "body": review.body,
            "state": review.state,
            "html_url": page,
            "pull_request_url": here,
            "author_association": self.association(pull.repository, review.author),
            "_links": {"html": {"href": page}, "pull_request": {"href": here}},
            "submitted_at": stamp(review.submitted_at),
            "commit_id": review.commit,
        }

    def review_comment(self, comment: ReviewComment) -> Json:
        thread, pull = comment.thread, comment.thread.pull
        repository = f"{self.api}/repos/{pull.repository.full_name}"
        here, address = f"{repository}/pulls/{pull.number}", f"{repository}/pulls/comments/{comment.id}"
        page = f"{self.pull_page(pull)}#discussion_r{comment.id}"
        told = {
            "url": address,
            "pull_request_review_id": comment.review.id,
            "id": comment.id,
            "node_id": node_id("PRRC", comment.id),
            "diff_hunk": thread.excerpt,
            "path": thread.path,
            "commit_id": thread.commit if thread.is_outdated else pull.head_sha,
            "original_commit_id": thread.commit,
            "user": self.user(comment.author),
            "body": comment.body,
            "created_at": stamp(comment.created_at),
            "updated_at": stamp(comment.updated_at),
            "html_url": page,
            "pull_request_url": here,
            "author_association": self.association(pull.repository, comment.author),
            "_links": {"self": {"href": address}, "html": {"href": page}, "pull_request": {"href": here}},
            "reactions": self._reactions(address, []),
            "subject_type": thread.kind,
            "start_line": thread.start_line,
            "original_start_line": thread.original_start_line,
            "start_side": thread.start_side,
            "line": thread.line if thread.kind == "line" else 1,
            "original_line": thread.original_line or 1,
            "side": thread.side,
            "position": self._position(thread),
            "original_position": 1,
        }
        if comment.reply_to is not None:
            told["in_reply_to_id"] = comment.reply_to.id
        return told

    def _position(self, thread: Thread) -> int | None:
        if thread.line is None:
            return 1 if thread.kind == "file" else None
        shown = next((each for each in thread.pull.files() if each.path == thread.path), None)
        return shown.position(thread.line, thread.side) if shown else None

    def thread(self, thread: Thread) -> Json:
        return {
            "node_id": node_id("PRRT", thread.id),
            "comments": [self.review_comment(comment) for comment in thread.comments],
        }
