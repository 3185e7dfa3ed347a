"""`make demo-bot`: a pull request on a small stand-in for GitHub, and what the bot writes there.

Everything is real but the forge: `gradproof serve` is told of a GitHub App, is sent signed webhooks, fetches the head
by git over TLS, reads it, runs it in the sandbox, and answers over the API. A pull request with three faults is opened
on a repository that has one already; then the faults are mended by another push. Printed is what a person would see on
the forge, and how often something was written there. The exit code is 0 only if the check first failed or advised, and
ended as `success`. With `--keep` the service and the forge stay up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tools.demo import DemoError, running_service
from tools.fake_forge import FakeForge
from tools.fake_forge.world import CheckRun, PullRequest

SECRET = "a secret that only the forge and the demo know"
# A batch with inductor takes a minute on two cores that have other work.
PATIENCE_S = 900.0
LOOK_EVERY_S = 0.5
HEADER = "import torch\n"
KNOWN = """

class Mean(torch.nn.Module):
    def forward(self, x, mask):
        return (x * mask).sum() / mask.sum()
"""
FAULTY = """

class Cosine(torch.nn.Module):
    def forward(self, x):
        return x / x.norm()


class LogLoss(torch.nn.Module):
    def forward(self, x):
        return torch.log(torch.sigmoid(x)).mean()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * x
"""
MENDED = """

class Cosine(torch.nn.Module):
    def forward(self, x):
        return x / x.norm().clamp(min=1e-12)


class LogLoss(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.logsigmoid(x).mean()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * cotangent * x
"""


def main(arguments: list[str]) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-bot", description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave the service and the forge up until Ctrl-C")
    keep = parser.parse_args(arguments).keep
    try:
        with tempfile.TemporaryDirectory(prefix="gradproof-demo-bot-") as directory:
            return 0 if _demonstrate(Path(directory), keep=keep) else 1
    except DemoError as error:
        sys.stderr.write(f"The demo can't go on: {error}\n")
        return 3


def _demonstrate(directory: Path, *, keep: bool) -> bool:
    with FakeForge(webhook_secret=SECRET) as forge:
        key = directory / "app.pem"
        key.write_text(forge.private_key, encoding="utf-8")
        key.chmod(0o600)
        settings = {
            "GRADPROOF_GITHUB_APP_ID": str(forge.app_id),
            "GRADPROOF_GITHUB_PRIVATE_KEY_FILE": str(key),
            "GRADPROOF_GITHUB_WEBHOOK_SECRETS": f'["{SECRET}"]',
            "GRADPROOF_GITHUB_API_URL": forge.url,
            "GRADPROOF_GITHUB_WEB_URL": forge.secure_url,
            "GRADPROOF_FORGE_CA_FILE": str(forge.authority),
            "GRADPROOF_GIT_CA_FILE": str(forge.authority),
            "GRADPROOF_GIT_TRUSTED_NETWORKS": '["127.0.0.0/8"]',
        }
        with running_service(directory, settings) as service:
            forge.webhook_url = f"{service.url}/webhooks/github"
            repository = forge.create_repository("team/models", {"layers.py": HEADER + KNOWN}, roles={"ada": "write"})
            _say("\nada opens a pull request that adds three faults to a file that has one already.")
            pull = forge.open_pull_request(repository, {"layers.py": HEADER + KNOWN + FAULTY}, title="Three new layers")
            first = _completed(forge, pull)
            _tell(forge, pull, first)
            before = forge.writes()
            _say("\nada pushes a commit that mends them.")
            forge.push(pull, {"layers.py": HEADER + KNOWN + MENDED}, message="Mend what the bot found")
            last = _completed(forge, pull)
            _tell(forge, pull, last)
            _say(
                f"Written for the first head: {_counted(before)}; for the second: {_counted(forge.writes() - before)}."
            )
            _say(f"Every project, pull request and report: {service.url} (token {service.token})")
            if forge.violations:
                raise DemoError(f"requests or answers broke GitHub's OpenAPI: {forge.violations[:3]}")
            if keep:
                _say("Both stay up until Ctrl-C.")
                _until_interrupted()
            return first.conclusion in {"failure", "neutral"} and last.conclusion == "success"


def _completed(forge: FakeForge, pull: PullRequest) -> CheckRun:
    """The check run of the present head, once it has been completed and everything else was written."""
    start = time.monotonic()
    told = ""
    while time.monotonic() - start < PATIENCE_S:
        runs = forge.check_runs(pull)
        state = runs[-1].status if runs else "no check yet"
        if state != told:
            _say(f"  {time.monotonic() - start:6.1f} s: {state}")
            told = state
        if state == "completed":
            _until_quiet(forge.writes)
            return runs[-1]
        time.sleep(LOOK_EVERY_S)
    raise DemoError(f"the check of {pull.head_sha[:10]} was not completed within {PATIENCE_S:.0f} s")


def _until_quiet(writes: Callable[[], Counter[str]]) -> None:
    """Wait until nothing has been written for ten looks: comments follow the check, a second apart."""
    unchanged, before = 0, writes()
    while unchanged < 10:
        time.sleep(LOOK_EVERY_S)
        now = writes()
        unchanged = unchanged + 1 if now == before else 0
        before = now


def _tell(forge: FakeForge, pull: PullRequest, run: CheckRun) -> None:
    _say(f"\nThe check says {run.conclusion}: {run.title}")
    for annotation in run.annotations:
        _say(
            f"  {annotation['path']}:{annotation['start_line']} {annotation['annotation_level']}: {annotation['title']}"
        )
    for comment in forge.comments(pull):
        _say(f"\n@{comment.author.login} in the conversation:\n{textwrap.indent(comment.body, '  | ')}")
    for thread in forge.threads(pull):
        state = "resolved" if thread.is_resolved else "open"
        _say(f"\n@{thread.comments[0].author.login} at {thread.path}:{thread.original_line} ({state}):")
        _say(textwrap.indent(thread.comments[0].body, "  | "))


def _counted(writes: Counter[str]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(writes.items())) or "nothing"


def _until_interrupted() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        _say("")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
