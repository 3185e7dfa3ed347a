"""The process that reads a snapshot: started by `worker.reading`, killed by it if need be.

Hostile source may hang or crash a parser, or make it take all memory: that ends this process and nothing else. It gets
no secrets (its environment is empty), reads one JSON request and writes one JSON answer.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from pydantic import TypeAdapter

from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.reading import read_snapshot
from services.problems import GradproofError

OUTCOME: TypeAdapter[StaticOutcome] = TypeAdapter(StaticOutcome)
# Exit codes that tell a refusal (a sentence is on stdout) and a lack of memory from a crash.
REFUSED = 3
NO_MEMORY = 4
# All of it is parsed by the worker and stored in one transaction, which on SQLite keeps every other writer waiting:
# 10,000 of both take 2 s. The largest public collections of models have fewer.
MOST_TARGETS = 20_000
MOST_FINDINGS = 20_000


def main() -> int:
    """Read the request from stdin, answer on stdout."""
    request = json.load(sys.stdin)
    limit = int(request["memory"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = read_snapshot(Path(request["source"]), AnalysisOptions.model_validate(request["options"]))
        if excess := _excess(outcome):
            sys.stdout.write(f"too-much: {excess}; leave files out with `exclude` in gradproof.toml")
            return REFUSED
        answer = OUTCOME.dump_json(outcome)
    except GradproofError as error:
        sys.stdout.write(f"{error.code}: {error.message}")
        return REFUSED
    except MemoryError:
        return NO_MEMORY
    sys.stdout.buffer.write(answer)
    return 0


def _excess(outcome: StaticOutcome) -> str | None:
    """What there is more of than one analysis takes."""
    targets, findings = len(outcome.analysis.targets), len(outcome.analysis.findings) + len(outcome.analysis.suppressed)
    if targets > MOST_TARGETS:
        return f"the source has {targets:,} targets; one analysis takes {MOST_TARGETS:,}"
    if findings > MOST_FINDINGS:
        return f"the source has {findings:,} findings; one analysis takes {MOST_FINDINGS:,}"
    return None


if __name__ == "__main__":
    sys.exit(main())
