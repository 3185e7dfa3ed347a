"""Pull requests from real commits: files, comparison, forks, pages of lists, renames."""

from __future__ import annotations

from tests.forge_fake.application import LINES, App, changed, git
from tools.fake_forge import FakeForge


def test_a_pull_request_tells_of_its_commits_and_files(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES, "old.py": LINES * 2})
    files = {"a.py": changed(3), "old.py": None, "new.py": LINES * 2 + "more\n", "blob.bin": b"\0\1"}
    pull = forge.open_pull_request(repository, files, by="ada")
    told = app.get("/repos/octo/demo/pulls/1").json()
    assert told["head"]["sha"] == pull.head_sha
    assert (told["additions"], told["deletions"], told["changed_files"], told["commits"]) == (2, 1, 3, 1)
    listed = {each["filename"]: each for each in app.get("/repos/octo/demo/pulls/1/files").json()}
    assert listed["a.py"]["patch"].startswith("@@ -1,6 +1,6 @@\n line 1\n")
    assert (listed["new.py"]["status"], listed["new.py"]["previous_filename"]) == ("renamed", "old.py")
    assert "patch" not in listed["blob.bin"]
    assert forge.violations == []


def test_a_large_change_has_no_patch(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    forge.open_pull_request(repository, {"large.py": "x = 1  # a long line of a generated file\n" * 5000})
    (told,) = app.get("/repos/octo/demo/pulls/1/files").json()
    assert told["additions"] == 5000
    assert "patch" not in told


def test_names_of_files_are_anything(forge: FakeForge, app: App) -> None:
    name = 'pkg/we"ird\\ \t<b>\u202e.py'
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    forge.open_pull_request(repository, {name: LINES})
    (told,) = app.get("/repos/octo/demo/pulls/1/files").json()
    assert told["filename"] == name


def test_a_comparison_has_the_merge_base(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    start = repository.branches["main"]
    pull = forge.open_pull_request(repository, {"a.py": changed(3)})
    forge.push_to(repository, "main", {"b.py": "x\n"})
    told = app.get(f"/repos/octo/demo/compare/main...{pull.head_sha}").json()
    assert told["merge_base_commit"]["sha"] == start
    assert (told["status"], told["ahead_by"], told["behind_by"]) == ("diverged", 1, 1)
    assert [each["filename"] for each in told["files"]] == ["a.py"]
    assert app.get("/repos/octo/demo/compare/main...nowhere").status_code == 404
    assert forge.violations == []


def test_a_fork_is_found_by_its_commit_and_not_by_a_check(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    pull = forge.open_pull_request(repository, {"a.py": changed(3)}, by="eve", fork=True)
    run = app.post("/repos/octo/demo/check-runs", {"name": "gradproof", "head_sha": pull.head_sha}).json()
    assert run["pull_requests"] == []
    (found,) = app.get(f"/repos/octo/demo/commits/{pull.head_sha}/pulls").json()
    assert (found["number"], found["head"]["repo"]["full_name"]) == (1, "eve/demo")
    (found,) = app.get("/repos/octo/demo/pulls", params={"head": "eve:feature"}).json()
    assert found["head"]["repo"]["fork"] is True
    forge.settle()
    # A push to a fork is none to the repository: neither `push` nor `check_suite` comes.
    assert [each.event for each in forge.deliveries] == ["pull_request", "check_run"]
    own = forge.open_pull_request(repository, {"a.py": changed(5)}, branch="own")
    run = app.post("/repos/octo/demo/check-runs", {"name": "gradproof", "head_sha": own.head_sha}).json()
    assert [each["number"] for each in run["pull_requests"]] == [2]


def test_what_a_person_may_do(forge: FakeForge, app: App) -> None:
    forge.create_repository("octo/demo", roles={"mia": "maintain", "tom": "triage"})
    forge.create_repository("octo/elsewhere", roles={"eve": "admin"})
    address = "/repos/octo/demo/collaborators/{}/permission"
    told = {name: app.get(address.format(name)).json() for name in ("mia", "tom", "eve")}
    assert {name: (each["permission"], each["role_name"]) for name, each in told.items()} == {
        "mia": ("write", "maintain"),
        "tom": ("read", "triage"),
        "eve": ("none", "none"),
    }
    assert app.get(address.format("nobody")).status_code == 404
    assert forge.violations == []


def test_lists_come_in_pages_whose_links_name_the_repository_by_number(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    pull = forge.open_pull_request(repository, {f"f{number:03}.py": "x\n" for number in range(65)})
    first = app.get("/repos/octo/demo/pulls/1/files")
    assert len(first.json()) == 30
    assert f"/repositories/{repository.id}/pulls/1/files?page=2" in first.links["next"]["url"]
    seen, answer = first.json(), first
    while "next" in answer.links:
        answer = app.get(answer.links["next"]["url"])
        seen += answer.json()
    assert [each["filename"] for each in seen] == [each.path for each in pull.files()]
    assert first.links["last"]["url"].endswith("page=3")
    large = app.get("/repos/octo/demo/pulls/1/files", params={"per_page": 100})
    assert (len(large.json()), "next" in large.links) == (65, False)
    assert forge.violations == []


def test_a_renamed_repository_redirects(forge: FakeForge, app: App) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    forge.open_pull_request(repository, {"a.py": changed(3)})
    forge.rename(repository, "renamed")
    answer = app.get("/repos/octo/demo/pulls/1")
    assert answer.status_code == 301
    assert answer.headers["location"].endswith(f"/repositories/{repository.id}/pulls/1")
    assert app.get(answer.headers["location"]).json()["base"]["repo"]["full_name"] == "octo/renamed"
    assert app.post("/repos/octo/demo/issues/1/comments", {"body": "x"}).status_code == 307


def test_git_clones_with_a_token_and_not_without(forge: FakeForge, app: App, tmp_path: object) -> None:
    repository = forge.create_repository("octo/demo", {"a.py": LINES})
    pull = forge.open_pull_request(repository, {"a.py": changed(3)}, by="eve", fork=True)
    address = forge.clone_url(repository)
    assert git(forge, "ls-remote", address).returncode != 0
    assert git(forge, "ls-remote", address, token="ghs_wrong").returncode != 0
    listed = git(forge, "ls-remote", address, "refs/pull/1/head", token=app.token)
    assert listed.stdout.split() == [pull.head_sha, "refs/pull/1/head"]
    there = f"{tmp_path}/clone"
    done = git(forge, "clone", "--quiet", address, there, token=app.token)
    assert done.returncode == 0, done.stderr
    fetched = git(forge, "-C", there, "fetch", "--quiet", "--depth=1", "origin", pull.head_sha, token=app.token)
    assert fetched.returncode == 0, fetched.stderr
    assert git(forge, "-C", there, "show", f"{pull.head_sha}:a.py").stdout == changed(3)
    pushed = git(forge, "-C", there, "push", "--quiet", "origin", "main:other", token=app.token)
    assert pushed.returncode != 0
    public = forge.create_repository("octo/open", private=False)
    assert git(forge, "ls-remote", forge.clone_url(public)).returncode == 0
    forge.clock.advance(hours=1)
    assert git(forge, "ls-remote", address, token=app.token).returncode != 0
