"""Writes `analyzer/facts/torch_history.json` out of wheels of torch, oldest to newest, and the installed one.

usage: python tools/make_torch_history.py WHEEL...

The wheels are only read as archives. Run it when the installed torch changes, with one wheel of each minor version
that a project may still ask for; `make facts` does not, because it has no wheels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch_facts.history import Sources, history_document
from torch_facts.names import existing_names

PATH = Path(__file__).parent.parent / "analyzer" / "facts" / "torch_history.json"


def main(arguments: list[str]) -> int:
    if not arguments:
        sys.stderr.write(__doc__ or "")
        return 2
    versions = [Sources.of_wheel(Path(argument)) for argument in arguments]
    versions.append(Sources.of_directory(torch.__version__, Path(torch.__file__).parent))
    text = json.dumps(history_document(versions, existing_names()[0]), separators=(",", ":"), sort_keys=True) + "\n"
    PATH.write_text(text)
    sys.stdout.write(f"wrote {PATH.name}: {len(text)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
