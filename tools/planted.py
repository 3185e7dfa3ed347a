"""What is planted in the demo repository, and whether a report says exactly that.

Shared by `make demo` and the tests. This module must not know how a report came to be: it gets the document of
`services/reports/document.py` as plain JSON values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
REPOSITORY = EXAMPLES / "vision_language_lab"
EXPECTED = EXAMPLES / "vision_language_lab.expected.json"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault: found by reading (`rule`) or only by running (`check`, and the cause it should name)."""

    id: str
    path: str
    line: int
    text: str
    kind: str
    rule: str | None
    check: str | None
    cause: str | None
    targets: tuple[str, ...]
    says: str

    @property
    def place(self) -> str:
        """`path:line`, as an editor opens it."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Found:
    """A planted fault and what the report says of it; `by_running` lists the failing checks that it explains."""

    fault: Fault
    said: str
    by_running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A report against the planted faults. `surplus` is whatever else the report calls an error, warning or failure."""

    found: tuple[Found, ...]
    missed: tuple[Fault, ...]
    surplus: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """All of the planted faults, and nothing else."""
        return not self.missed and not self.surplus


def planted_faults(expected: Path = EXPECTED) -> tuple[Fault, ...]:
    """The faults that the expectation file lists, in its order."""
    document = json.loads(expected.read_text(encoding="utf-8"))
    return tuple(
        Fault(
            id=entry["id"],
            path=entry["path"],
            line=entry["line"],
            text=entry["text"],
            kind=entry["kind"],
            rule=entry["found_by"].get("rule"),
            check=entry["found_by"].get("check"),
            cause=entry["found_by"].get("cause"),
            targets=tuple(entry["targets"]),
            says=entry["says"],
        )
        for entry in document["faults"]
    )


def compare(report: Json, faults: tuple[Fault, ...]) -> Comparison:
    """Match a report with the planted faults.

    A fault of reading is found by a finding of its rule that spans its line; a fault of running by a failing check of
    its name on one of its targets, with its cause where one is named. Notes are no claims and are left out.
    """
    claims = [finding for finding in report["findings"] if finding["severity"] != "note"]
    failures = list(_failures(report))
    found: list[Found] = []
    missed: list[Fault] = []
    for fault in faults:
        ran_into = tuple(
            f"{target['name']} {check['check']}" for target, check in failures if target["name"] in fault.targets
        )
        said = next(
            (f"{claim['rule']} {claim['name']}: {claim['message']}" for claim in claims if _spans(claim, fault)), None
        )
        if fault.check is not None:
            said = next((_sentence(check) for target, check in failures if _shows(target, check, fault)), None)
        if said is None:
            missed.append(fault)
        else:
            found.append(Found(fault, said, ran_into))
    known_targets = {target for fault in faults for target in fault.targets}
    surplus = [
        f"{claim['path']}:{claim['start_line']} {claim['rule']} {claim['name']}: {claim['message']}"
        for claim in claims
        if not any(_spans(claim, fault) or _is_run_into(claim, fault) for fault in faults)
    ]
    surplus += [
        f"{target['path']}:{target['line']} {target['name']} fails {check['check']}: {check['summary']}"
        for target, check in failures
        if target["name"] not in known_targets
    ]
    return Comparison(tuple(found), tuple(missed), tuple(surplus))


def _failures(report: Json) -> Iterator[tuple[Json, Json]]:
    for target in report["targets"]:
        for check in target["checks"]:
            if check["verdict"] == "fail":
                yield target, check


def _spans(claim: Json, fault: Fault) -> bool:
    same_place = claim["path"] == fault.path and claim["start_line"] <= fault.line <= claim["end_line"]
    return bool(same_place and claim["rule"] == fault.rule)


def _is_run_into(claim: Json, fault: Fault) -> bool:
    """Whether the claim is that of the failing check which finds the fault."""
    return claim["rule"] == fault.check and bool({*claim["evidence"].get("targets", ())} & {*fault.targets})


def _shows(target: Json, check: Json, fault: Fault) -> bool:
    if target["name"] not in fault.targets or check["check"] != fault.check:
        return False
    return fault.cause is None or bool((check["diagnosis"] or {}).get("cause") == fault.cause)


def _sentence(check: Json) -> str:
    diagnosis = check["diagnosis"]
    return f"{check['check']}: {diagnosis['cause']}: {diagnosis['text']}" if diagnosis else check["summary"]
