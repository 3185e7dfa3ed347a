"""What a report says about harnesses in words: what a grade means, why targets were not run, and what to do about it.

Every format takes these words from here, so that they are the same wherever a verdict is shown. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from services.reports.document import ExampleInfo, FindingInfo, Harness, Report, TargetInfo

GRADES: Final[Mapping[Literal["A", "B", "C"], str]] = {
    "A": "the repository itself calls it so",
    "B": "inferred, and independent routes agree on it",
    "C": "guessed: it runs, but its author may call it otherwise",
}

_DECLARE: Final = "Declare how it is built and called, in `pyproject.toml`:"
_NEXT_STEPS: Final[Mapping[str, str]] = {
    "import failed": "Import the module with the same interpreter to see the whole error. What a script does when it "
    'is run belongs under `if __name__ == "__main__":`.',
    "missing dependency": "Install the package into the interpreter that runs the code (`--python`), see Missing "
    "packages.",
    "name absent after import": "The name is defined under a condition that did not hold here, or removed again.",
    "constructor unsolved": _DECLARE,
    "inputs unsolved": _DECLARE,
    "crashed": "Run it by itself to see the native crash; if the values tried are to blame, declare others:",
    "timed out": "Declare it with smaller sizes:",
    "out of memory": "Declare it with smaller sizes:",
    "budget spent": "Raise the budget of the analysis, or name fewer files.",
    "cancelled": "Run the analysis again.",
    "not asked for": "Nothing was to be run of it.",
}
_DECLARED: Final = frozenset({"constructor unsolved", "inputs unsolved", "crashed", "timed out", "out of memory"})
_OUTCOMES: Final[Mapping[str, str]] = {
    "ran": "ran to its end",
    "raised": "raised",
    "timed_out": "took too long",
    "skipped": "not run",
}


@dataclass(frozen=True, slots=True)
class NotRun:
    """The targets that were not run for one reason, with what was tried last of each, and what would mend it."""

    reason: str
    targets: tuple[TargetInfo, ...]
    next_step: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Examples:
    """What running the repository's own examples brought, by outcome."""

    outcomes: tuple[tuple[str, int], ...]
    captured: int
    items: tuple[ExampleInfo, ...]
    why_not: str


def grade_sentence(harness: Harness) -> str:
    """The grade with what it means."""
    return f"harness grade {harness.grade}: {GRADES[harness.grade]}"


def called(harness: Harness) -> str:
    """How a target was built and called, as a person would say it."""
    built = f"{harness.constructor} called" if harness.constructor else "called"
    return f"{built} with {', '.join(harness.inputs) or 'nothing'}"


def options(harness: Harness) -> str:
    """The other values of mode arguments that were tried, empty if there are none."""
    return ", ".join(variant.option for variant in harness.variants)


def harness_of(report: Report, finding: FindingInfo) -> Harness | None:
    """The harness that a finding's verdict rests on."""
    name = finding.evidence.get("target")
    return next((target.harness for target in report.targets if target.name == name), None)


def not_run(report: Report) -> tuple[NotRun, ...]:
    """What was to be run and wasn't, by reason, the most frequent first."""
    return _by_reason(report, eligible=True)


def not_eligible(report: Report) -> tuple[NotRun, ...]:
    """What is counted apart, by reason."""
    return _by_reason(report, eligible=False)


def _by_reason(report: Report, *, eligible: bool) -> tuple[NotRun, ...]:
    apart = report.summary.targets.not_eligible
    groups: dict[str, list[TargetInfo]] = {}
    for target in report.targets:
        reason = target.not_run_reason
        if reason is not None and (reason not in apart) == eligible:
            groups.setdefault(reason, []).append(target)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return tuple(
        NotRun(
            reason,
            tuple(targets),
            *(advice(reason, targets[0]) if eligible else ("", "")),
        )
        for reason, targets in ordered
    )


def advice(reason: str, first: TargetInfo) -> tuple[str, str]:
    """What to do about targets that were not run for a reason, and what would declare the first; both may be empty."""
    return _NEXT_STEPS.get(reason, ""), snippet(first) if reason in _DECLARED else ""


def snippet(target: TargetInfo) -> str:
    """The table of the configuration that declares a target, to be filled in."""
    qualname = target.name.rpartition(":")[2]
    lines = ["[[tool.gradproof.targets]]", f"target = {_quoted(target.name)}"]
    if target.kind == "module":
        lines.append(f"constructor = {_quoted(f'{qualname}(…)')}")
    lines.append('inputs = ["torch.randn(2, 8)"]')
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def examples(report: Report) -> Examples | None:
    """None where nothing was to be run at all."""
    if report.plan is None and not report.examples:
        return None
    counts = {outcome: sum(item.outcome == outcome for item in report.examples) for outcome in _OUTCOMES}
    return Examples(
        outcomes=tuple((_OUTCOMES[outcome], count) for outcome, count in counts.items() if count),
        captured=sum(item.captured for item in report.examples),
        items=tuple(report.examples),
        why_not=(report.plan.examples or "") if report.plan is not None else "",
    )
