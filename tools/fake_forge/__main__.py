"""Runs the fake forge for a look by hand: `python -m tools.fake_forge [--webhook-url URL]`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tools.fake_forge.forge import FakeForge

_MODULE = """\
import torch


class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.norm()
"""


def main() -> None:
    """Serve one repository with one open pull request, and say how to reach them."""
    parser = argparse.ArgumentParser(prog="python -m tools.fake_forge", description=__doc__)
    parser.add_argument("--webhook-url", help="where to send webhooks, as http://127.0.0.1:8000/webhooks/github")
    parser.add_argument("--webhook-secret", default="an open secret")
    parser.add_argument("--port", type=int, default=3000)
    parser.add_argument("--secure-port", type=int, default=3443)
    options = parser.parse_args()
    forge = FakeForge(
        webhook_url=options.webhook_url,
        webhook_secret=options.webhook_secret,
        port=options.port,
        secure_port=options.secure_port,
    )
    with forge:
        repository = forge.create_repository("octo/demo", {"pkg/__init__.py": "", "README.md": "# Demo\n"})
        key = Path(forge.authority).with_name("app.pem")
        key.write_text(forge.private_key, encoding="utf-8")
        pull = forge.open_pull_request(repository, {"pkg/norm.py": _MODULE}, title="Normalise")
        told = (
            f"API           {forge.url}",
            f"git and TLS   {forge.secure_url} (authority: {forge.authority})",
            f"App           id {forge.app_id}, key {key}, webhook secret {forge.webhook_secret!r}",
            f"Pull request  {pull.full_name} of installation {forge.installation('octo').id}",
            f"GitLab        {forge.url}/api/v4, token {forge.gitlab.token}",
            "Ctrl-C ends it.",
        )
        print("\n".join(told), flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
