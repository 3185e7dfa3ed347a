r"""A small stateful GitHub, with a subset of GitLab, for tests and the demo. Not part of the product.

    with FakeForge(webhook_url="http://127.0.0.1:8000/webhooks/github") as forge:
        repository = forge.create_repository("octo/demo", {"a.py": "x = 1\n"})
        pull = forge.open_pull_request(repository, {"a.py": "x = 2\n"}, by="ada")  # sends its webhooks
        forge.fail(failures.secondary_limit(), "POST", "/check-runs")
        before = forge.writes()
        forge.push(pull, {"b.py": "y = 1\n"})
        assert forge.writes() - before == {"check_run.create": 1, "comment.update": 1}
        assert forge.violations == []

`FakeForge` says what there is. What it does not serve is a 404; what GitHub's OpenAPI does not allow is a 422, and is
told by `violations`, as is an answer or a webhook of the fake itself that GitHub would not give.
"""

from tools.fake_forge.forge import FakeForge

__all__ = ["FakeForge"]
