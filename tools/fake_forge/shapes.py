"""The JSON in which GitHub tells of things, for answers and webhooks alike."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, Final

from tools.fake_forge.clock import stamp
from tools.fake_forge.diffs import FileDiff
from tools.fake_forge.world import (
    Account,
    CheckRun,
    CheckSuite,
    Installation,
    IssueComment,
    PullRequest,
    Repository,
    Review,
    ReviewComment,
    Thread,
    World,
)

Json = dict[str, Any]

_USER_LINKS: Final = {
    "followers_url": "/followers",
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs",
    "repos_url": "/repos",
    "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}
_REPOSITORY_LINKS: Final = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "contributors_url": "/contributors",
    "deployments_url": "/deployments",
    "downloads_url": "/downloads",
    "events_url": "/events",
    "forks_url": "/forks",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "hooks_url": "/hooks",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "languages_url": "/languages",
    "merges_url": "/merges",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "stargazers_url": "/stargazers",
    "statuses_url": "/statuses/{sha}",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "tags_url": "/tags",
    "teams_url": "/teams",
    "trees_url": "/git/trees{/sha}",
}
_REACTIONS: Final = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")
PATCH_LIMIT: Final = 100_000  # bytes of a file's patch beyond which GitHub leaves it out (about; undocumented)


def node_id(kind: str, number: int) -> str:
    """A global id for GraphQL, as opaque as GitHub's."""
    return f"{kind}_{base64.urlsafe_b64encode(f'{kind}:{number}'.encode()).decode().rstrip('=')}"


def _when(moment: datetime | None) -> str | None:
    return stamp(moment) if moment else None


class Shapes:
    """Builds the JSON. `api` and `web` are the addresses at which the fake's REST and its git and pages are."""

    def __init__(self, world: World, app: AppIdentity, api: str, web: str) -> None:
        self._world = world
        self._identity = app
        self._api = api
        self._web = web

    # People and repositories

    def user(self, account: Account) -> Json:
        login = account.login
        address = f"{self._api}/users/{login}"
        return {
            "login": login,
            "id": account.id,
            "node_id": node_id("U", account.id),
            "avatar_url": f"{self._web}/avatars/{account.id}",
            "gravatar_id": "",
            "url": address,
            "html_url": f"{self._web}/{login}",
            **{key: address + rest for key, rest in _USER_LINKS.items()},
            "type": account.kind,
            "user_view_type": "public",
            "site_admin": False,
        }

    def repository(self, repository: Repository) -> Json:
        address = f"{self._api}/repos/{repository.full_name}"
        page = f"{self._web}/{repository.full_name}"
        host = self._web.partition("://")[2]
        return {
            "id": repository.id,
            "node_id": node_id("R", repository.id),
            "name": repository.name,
            "full_name": repository.full_name,
            "private": repository.private,
            "owner": self.user(repository.owner),
            "html_url": page,
            "description": None,
            "fork": repository.fork_of is not None,
            "url": address,
            **{key: address + rest for key, rest in _REPOSITORY_LINKS.items()},
            "git_url": f"git://{host}/{repository.full_name}.git",
            "ssh_url": f"git@{host}:{repository.full_name}.git",
            "clone_url": f"{page}.git",
            "svn_url": page,
            "mirror_url": None,
            "homepage": None,
            "language": "Python",
            "license": None,
            "created_at": stamp(repository.created_at),
            "updated_at": stamp(repository.created_at),
            "pushed_at": stamp(repository.created_at),
            "size": 1,
            "stargazers_count": 0,
            "watchers_count": 0,
            "forks_count": 0,
            "open_issues_count": 0,
            "forks": 0,
            "open_issues": 0,
            "watchers": 0,
            "default_branch": repository.default_branch,
            "has_issues": True,
            "has_projects": False,
            "has_wiki": False,
            "has_pages": False,
            "has_downloads": True,
            "has_discussions": False,
            "archived": False,
            "disabled": False,
            "visibility": "private" if repository.private else "public",
            "allow_forking": True,
            "is_template": False,
            "web_commit_signoff_required": False,
            "topics": [],
            "custom_properties": {},
        }

    def repository_in_push(self, repository: Repository) -> Json:
        """`push` is older than the rest: it counts seconds, and names some things twice."""
        told, owner = self.repository(repository), repository.owner
        seconds = int(repository.created_at.timestamp())
        told["owner"] |= {"name": owner.login, "email": f"{owner.login}@users.example"}
        told |= {"created_at": seconds, "pushed_at": int(self._world.clock.now().timestamp()), "stargazers": 0}
        told["master_branch"] = repository.default_branch
        if owner.kind == "Organization":
            told["organization"] = owner.login
        return told

    def full_repository(self, repository: Repository) -> Json:
        return self.repository(repository) | {"network_count": 0, "subscribers_count": 0, "temp_clone_token": None}

    # The app

    def app(self) -> Json:
        identity = self._identity
        return {
            "id": identity.app_id,
            "slug": identity.slug,
            "node_id": node_id("A", identity.app_id),
            "client_id": identity.client_id,
            "owner": self.user(identity.owner),
            "name": identity.slug.capitalize(),
            "description": None,
            "external_url": "https://gradproof.example",
            "html_url": f"{self._web}/apps/{identity.slug}",
            "created_at": stamp(identity.created_at),
            "updated_at": stamp(identity.created_at),
            "permissions": dict(identity.permissions),
            "events": list(identity.events),
        }

    def installation(self, installation: Installation) -> Json:
        address = f"{self._api}/app/installations/{installation.id}"
        by = installation.suspended_by
        return {
            "id": installation.id,
            "client_id": self._identity.client_id,
            "account": self.user(installation.account),
            "repository_selection": "all" if installation.selected is None else "selected",
            "access_tokens_url": f"{address}/access_tokens",
            "repositories_url": f"{self._api}/installation/repositories",
            "html_url": f"{self._web}/settings/installations/{installation.id}",
            "app_id": self._identity.app_id,
            "app_slug": self._identity.slug,
            "target_id": installation.account.id,
            "target_type": installation.account.kind,
            "permissions": dict(installation.permissions),
            "events": list(self._identity.events),
            "created_at": stamp(installation.created_at),
            "updated_at": stamp(installation.created_at),
            "single_file_name": None,
            "has_multiple_single_files": False,
            "single_file_paths": [],
            "suspended_by": self.user(by) if by else None,
            "suspended_at": _when(installation.suspended_at),
        }

    def installation_in_webhook(self, installation: Installation) -> Json:
        return {"id": installation.id, "node_id": node_id("I", installation.id)}

    def repository_in_installation(self, repository: Repository) -> Json:
        keys = ("id", "node_id", "name", "full_name", "private")
        return {key: value for key, value in self.repository(repository).items() if key in keys}

    # Commits

    def commit(self, repository: Repository, sha: str) -> Json:
        info = repository.git.commit_info(sha)
        address = f"{self._api}/repos/{repository.full_name}"
        page = f"{self._web}/{repository.full_name}/commit"
        person = {"name": info.author, "email": info.email, "date": info.at}
        account = self._world.accounts.get(info.author)
        unsigned = {"verified": False, "reason": "unsigned", "signature": None, "payload": None, "verified_at": None}
        return {
            "url": f"{address}/commits/{sha}",
            "sha": sha,
            "node_id": f"C_{sha}",
            "html_url": f"{page}/{sha}",
            "comments_url": f"{address}/commits/{sha}/comments",
            "commit": {
                "url": f"{address}/git/commits/{sha}",
                "author": person,
                "committer": person,
                "message": info.message,
                "tree": {"sha": info.tree, "url": f"{address}/git/trees/{info.tree}"},
                "comment_count": 0,
                "verification": unsigned,
            },
            "author": self.user(account) if account else None,
            "committer": self.user(account) if account else None,
            "parents": [
                {"sha": parent, "url": f"{address}/commits/{parent}", "html_url": f"{page}/{parent}"}
                for parent in info.parents
            ],
        }

    def commit_in_webhook(self, repository: Repository, sha: str) -> Json:
        """As `push` tells of commits."""
        info = repository.git.commit_info(sha)
        parent = info.parents[0] if info.parents else None
        files = repository.git.diff(parent, sha) if parent else []
        person = {"name": info.author, "email": info.email, "username": info.author, "date": info.at}
        return {
            "id": sha,
            "tree_id": info.tree,
            "distinct": True,
            "message": info.message,
            "timestamp": info.at,
            "url": f"{self._web}/{repository.full_name}/commit/{sha}",
            "author": person,
            "committer": person,
            "added": [each.path for each in files if each.status == "added"],
            "removed": [each.path for each in files if each.status == "removed"],
            "modified": [each.path for each in files if each.status not in ("added", "removed")],
        }

    def simple_commit(self, repository: Repository, sha: str) -> Json:
        info = repository.git.commit_info(sha)
        person = {"name": info.author, "email": info.email}
        return {
            "id": sha,
            "tree_id": info.tree,
            "message": info.message,
            "timestamp": info.at,
            "author": person,
            "committer": person,
        }

    def file(self, repository: Repository, sha: str, diff: FileDiff) -> Json:
        page = f"{self._web}/{repository.full_name}"
        told: Json = {
            "sha": diff.blob,
            "filename": diff.path,
            "status": diff.status,
            "additions": diff.additions,
            "deletions": diff.deletions,
            "changes": diff.additions + diff.deletions,
            "blob_url": f"{page}/blob/{sha}/{diff.path}",
            "raw_url": f"{page}/raw/{sha}/{diff.path}",
            "contents_url": f"{self._api}/repos/{repository.full_name}/contents/{diff.path}?ref={sha}",
        }
        if diff.previous_path:
            told["previous_filename"] = diff.previous_path
        if diff.patch is not None and len(diff.patch.encode()) <= PATCH_LIMIT:
            told["patch"] = diff.patch
        return told

    # Pull requests

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
        address = f"{self._api}/repos/{repository.full_name}"
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
            "closed_at": _when(pull.closed_at),
            "merged_at": _when(pull.merged_at),
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
        return f"{self._web}/{pull.repository.full_name}/pull/{pull.number}"

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
            "repository_url": f"{self._api}/repos/{pull.repository.full_name}",
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
        address = f"{self._api}/repos/{repository.full_name}/issues/comments/{comment.id}"
        return {
            "url": address,
            "html_url": f"{self.pull_page(comment.pull)}#issuecomment-{comment.id}",
            "issue_url": f"{self._api}/repos/{repository.full_name}/issues/{comment.pull.number}",
            "id": comment.id,
            "node_id": node_id("IC", comment.id),
            "user": self.user(comment.author),
            "created_at": stamp(comment.created_at),
            "updated_at": stamp(comment.updated_at),
            "author_association": self.association(repository, comment.author),
            "body": comment.body,
            "reactions": self._reactions(address, [content for _, _, content in comment.reactions]),
            "performed_via_github_app": self.app() if comment.author is self._identity.bot else None,
        }

    def review(self, review: Review) -> Json:
        pull = review.pull
        here = f"{self._api}/repos/{pull.repository.full_name}/pulls/{pull.number}"
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
        repository = f"{self._api}/repos/{pull.repository.full_name}"
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

    # Checks

    def _pulls_of(self, repository: Repository, sha: str) -> list[Json]:
        told = []
        for pull in self._world.pulls_of(repository, sha):
            place = {
                "id": repository.id,
                "url": f"{self._api}/repos/{repository.full_name}",
                "name": repository.name,
            }
            told.append(
                {
                    "url": f"{self._api}/repos/{repository.full_name}/pulls/{pull.number}",
                    "id": pull.id,
                    "number": pull.number,
                    "head": {"ref": pull.head, "sha": pull.head_sha, "repo": place},
                    "base": {"ref": pull.base, "sha": pull.base_sha, "repo": place},
                }
            )
        return told

    def check_run(self, run: CheckRun) -> Json:
        repository = run.suite.repository
        address = f"{self._api}/repos/{repository.full_name}/check-runs/{run.id}"
        page = f"{self._web}/{repository.full_name}/runs/{run.id}"
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
        blob = f"{self._web}/{name}/blob/{run.head_sha}/{annotation['path']}"
        return empty | annotation | {"blob_href": blob}

    def check_suite(self, suite: CheckSuite) -> Json:
        repository = suite.repository
        address = f"{self._api}/repos/{repository.full_name}/check-suites/{suite.id}"
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


class AppIdentity:
    """Who the App under test is."""

    def __init__(self, *, app_id: int, slug: str, owner: Account, bot: Account, created_at: datetime) -> None:
        self.app_id = app_id
        self.slug = slug
        self.client_id = f"Iv23li{app_id:014d}"
        self.owner = owner
        self.bot = bot
        self.created_at = created_at
        self.permissions: dict[str, str] = {}
        self.events: list[str] = []
