"""Run the examples of a documentation page as a reader would, and write what they print into the page.

    python -m tools.page_examples docs/gradients.md      (`make examples`)

In the order of the page, in an empty folder: code blocks that begin with `# NAME.py` or `# NAME.toml` become files, and
the commands of console blocks run, with the Python of this environment; the lines below each command become what it
printed. Pictures that they draw go to `images/` beside the page. A block after
`<!-- not run -->` is left as it is: it needs another machine than this one. This module must not change any other text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_BLOCK: Final = re.compile(r"(?P<above><!-- not run -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n", re.DOTALL)
_FILE_NAME: Final = re.compile(r"# (\S+\.(?:py|toml))\n")
_LONGEST_S: Final = 120


def run_page(text: str, folder: Path) -> str:
    """The page with the output of its commands as it is today; `folder` is where they run."""

    def rewritten(block: re.Match[str]) -> str:
        name = _FILE_NAME.match(block["text"])
        if name is not None:
            (folder / name[1]).write_text(block["text"], encoding="utf-8")
        if block["above"] or block["language"] != "console":
            return block[0]
        commands = [line[2:] for line in block["text"].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"$ {command}\n{_printed(command, folder)}" for command in commands) + "```\n"

    return _BLOCK.sub(rewritten, text)


def _printed(command: str, folder: Path) -> str:
    """Both streams, in order. Whether a command fails is part of what it shows."""
    python = Path(sys.executable).parent
    # The repository itself, too: pages use its tools. Bytecode would outlive the files of this run.
    paths = f"{ROOT / 'worker' / 'probe'}{os.pathsep}{ROOT}"
    environment = os.environ | {
        "PATH": f"{python}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
    }
    found = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    lines = "\n".join(line.rstrip() for line in found.stdout.splitlines())
    return f"{lines}\n" if lines else ""


def main(arguments: list[str]) -> int:
    """Rewrite the page; returns the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tools.page_examples PAGE\n")
        return 2
    page = Path(arguments[0])
    with tempfile.TemporaryDirectory() as folder:
        page.write_text(run_page(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
        for picture in sorted(Path(folder).glob("*.svg")):
            (page.parent / "images").mkdir(exist_ok=True)
            shutil.copy(picture, page.parent / "images" / picture.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
