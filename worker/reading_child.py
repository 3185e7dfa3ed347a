"""The process that reads a snapshot: started by `worker.reading` in a sandbox, ended by it if need be.

Hostile source may hang or crash a parser, make it take all memory, or take it over: that ends, or wins, this process
and nothing else. It sees the snapshot, the interpreter and Gradproof's own code, gets one JSON request, and writes one
JSON answer in pieces, which its reader believes no more than anything else out of a sandbox.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.reading import read_snapshot
from services.problems import GradproofError

OUTCOME: Final[TypeAdapter[StaticOutcome]] = TypeAdapter(StaticOutcome)
# Exit codes that tell a refusal (the answer is a sentence) and a lack of memory from a crash.
REFUSED: Final = 3
NO_MEMORY: Final = 4
# All of it is parsed by the worker and stored in one transaction, which on SQLite keeps every other writer waiting:
# 10,000 of both take 2 s. The largest public collections of models have fewer.
MOST_TARGETS: Final = 20_000
MOST_FINDINGS: Final = 20_000
# A line of results of a sandbox may have 1 MiB. JSON has no line ends of its own, so that it can be cut anywhere.
_PIECE: Final = 512 * 1024
_RESULT_FD: Final = "GRADPROOF_RESULT_FD"


def main() -> int:
    """Read the request from the file that the first argument names, and the source at the second; answer."""
    request = json.loads(Path(sys.argv[1]).read_bytes())
    limit = int(request["memory"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = read_snapshot(Path(sys.argv[2]), AnalysisOptions.model_validate(request["options"]))
        if (more := excess(outcome)) is not None:
            _say(f"too-much: {more}; leave files out with `exclude` in gradproof.toml".encode())
            return REFUSED
        answer = OUTCOME.dump_json(outcome)
    except GradproofError as error:
        _say(f"{error.code}: {error.message}".replace("\n", " ").encode())
        return REFUSED
    except MemoryError:
        return NO_MEMORY
    _say(answer)
    return 0


def excess(outcome: StaticOutcome) -> str | None:
    """What there is more of than one analysis takes."""
    targets, findings = len(outcome.analysis.targets), len(outcome.analysis.findings) + len(outcome.analysis.suppressed)
    if targets > MOST_TARGETS:
        return f"the source has {targets:,} targets; one analysis takes {MOST_TARGETS:,}"
    if findings > MOST_FINDINGS:
        return f"the source has {findings:,} findings; one analysis takes {MOST_FINDINGS:,}"
    return None


def _say(answer: bytes) -> None:
    with open(int(os.environ[_RESULT_FD]), "wb", closefd=False) as results:
        for start in range(0, len(answer), _PIECE):
            results.write(answer[start : start + _PIECE] + b"\n")
