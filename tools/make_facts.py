"""Writes `analyzer/facts/torch_<version>_*.json` out of the torch that is installed (`make facts`).

usage: python tools/make_facts.py [--check]

`--check` writes nothing and ends with 1 when the files are not what the installed torch gives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch_facts.assembly import names_document, operations_document
from torch_facts.deprecations import deprecations_document
from torch_facts.graph_breaks import graph_breaks_document
from torch_facts.signatures import signatures_document

DIRECTORY = Path(__file__).parent.parent / "analyzer" / "facts"


def main(arguments: list[str]) -> int:
    version = torch.__version__.partition("+")[0]
    stem = "torch_" + "_".join(version.split(".")[:2])
    # Names first: measuring loads modules of torch that `import torch` does not.
    documents = {
        f"{stem}_names.json": names_document(version),
        f"{stem}_deprecations.json": deprecations_document(version),
        f"{stem}_signatures.json": signatures_document(version),
        f"{stem}_graph_breaks.json": graph_breaks_document(version),
    }
    documents[f"{stem}_operations.json"] = operations_document(version)
    stale = []
    for name, document in documents.items():
        text = json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n"
        path = DIRECTORY / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text)
            sys.stdout.write(f"wrote {path.name}: {len(text)} bytes\n")
    if stale and "--check" in arguments:
        sys.stderr.write(f"not what torch {version} gives: {', '.join(stale)}; run `make facts`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
