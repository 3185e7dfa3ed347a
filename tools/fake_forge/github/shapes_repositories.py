"""The JSON of accounts, repositories, the App, its installations, commits and files, for answers and webhooks alike."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, Final

from tools.fake_forge.clock import stamp
from tools.fake_forge.diffs import FileDiff
from tools.fake_forge.world import (
    Account,
    AppIdentity,
    Installation,
    Repository,
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
PATCH_LIMIT: Final = 100_000  # bytes of a file's patch beyond which GitHub leaves it out (about; undocumented)


def node_id(kind: str, number: int) -> str:
    """A global id for GraphQL, as opaque as GitHub's."""
    return f"{kind}_{base64.urlsafe_b64encode(f'{kind}:{number}'.encode()).decode().rstrip('=')}"


def optional(moment: datetime | None) -> str | None:
    return stamp(moment) if moment else None


class RepositoryShapes:
    """Builds the JSON of who and what there is."""

    def __init__(self, world: World, app: AppIdentity, api: str, web: str) -> None:
        self.world = world
        self.identity = app
        self.api = api
        self.web = web

    # People and repositories

    def user(self, account: Account) -> Json:
        login = account.login
        address = f"{self.api}/users/{login}"
        return {
            "login": login,
            "id": account.id,
            "node_id": node_id("U", account.id),
            "avatar_url": f"{self.web}/avatars/{account.id}",
            "gravatar_id": "",
            "url": address,
            "html_url": f"{self.web}/{login}",
            **{key: address + rest for key, rest in _USER_LINKS.items()},
            "type": account.kind,
            "user_view_type": "public",
            "site_admin": False,
        }

    def repository(self, repository: Repository) -> Json:
        address = f"{self.api}/repos/{repository.full_name}"
        page = f"{self.web}/{repository.full_name}"
        host = self.web.partition("://")[2]
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
        told |= {"created_at": seconds, "pushed_at": int(self.world.clock.now().timestamp()), "stargazers": 0}
        told["master_branch"] = repository.default_branch
        if owner.kind == "Organization":
            told["organization"] = owner.login
        return told

    def full_repository(self, repository: Repository) -> Json:
        return self.repository(repository) | {"network_count": 0, "subscribers_count": 0, "temp_clone_token": None}

    # The app

    def app(self) -> Json:
        identity = self.identity
        return {
            "id": identity.app_id,
            "slug": identity.slug,
            "node_id": node_id("A", identity.app_id),
            "client_id": identity.client_id,
            "owner": self.user(identity.owner),
            "name": identity.slug.capitalize(),
            "description": None,
            "external_url": "https://gradproof.example",
            "html_url": f"{self.web}/apps/{identity.slug}",
            "created_at": stamp(identity.created_at),
            "updated_at": stamp(identity.created_at),
            "permissions": dict(identity.permissions),
            "events": list(identity.events),
        }

    def installation(self, installation: Installation) -> Json:
        address = f"{self.api}/app/installations/{installation.id}"
        by = installation.suspended_by
        return {
            "id": installation.id,
            "client_id": self.identity.client_id,
            "account": self.user(installation.account),
            "repository_selection": "all" if installation.selected is None else "selected",
            "access_tokens_url": f"{address}/access_tokens",
            "repositories_url": f"{self.api}/installation/repositories",
            "html_url": f"{self.web}/settings/installations/{installation.id}",
            "app_id": self.identity.app_id,
            "app_slug": self.identity.slug,
            "target_id": installation.account.id,
            "target_type": installation.account.kind,
            "permissions": dict(installation.permissions),
            "events": list(self.identity.events),
            "created_at": stamp(installation.created_at),
            "updated_at": stamp(installation.created_at),
            "single_file_name": None,
            "has_multiple_single_files": False,
            "single_file_paths": [],
            "suspended_by": self.user(by) if by else None,
            "suspended_at": optional(installation.suspended_at),
        }

    def installation_in_webhook(self, installation: Installation) -> Json:
        return {"id": installation.id, "node_id": node_id("I", installation.id)}

    def repository_in_installation(self, repository: Repository) -> Json:
        keys = ("id", "node_id", "name", "full_name", "private")
        return {key: value for key, value in self.repository(repository).items() if key in keys}

    # Commits

    def commit(self, repository: Repository, sha: str) -> Json:
        info = repository.git.commit_info(sha)
        address = f"{self.api}/repos/{repository.full_name}"
        page = f"{self.web}/{repository.full_name}/commit"
        person = {"name": info.author, "email": info.email, "date": info.at}
        account = self.world.accounts.get(info.author)
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
            "url": f"{self.web}/{repository.full_name}/commit/{sha}",
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
        page = f"{self.web}/{repository.full_name}"
        told: Json = {
            "sha": diff.blob,
            "filename": diff.path,
            "status": diff.status,
            "additions": diff.additions,
            "deletions": diff.deletions,
            "changes": diff.additions + diff.deletions,
            "blob_url": f"{page}/blob/{sha}/{diff.path}",
            "raw_url": f"{page}/raw/{sha}/{diff.path}",
            "contents_url": f"{self.api}/repos/{repository.full_name}/contents/{diff.path}?ref={sha}",
        }
        if diff.previous_path:
            told["previous_filename"] = diff.previous_path
        if diff.patch is not None and len(diff.patch.encode()) <= PATCH_LIMIT:
            told["patch"] = diff.patch
        return told
