"""Whose fault a failing check is: compared with the base, and with earlier runs of the very same code.

A check that fails on a change says nothing about the change where it fails without it, where it comes out differently
each time, or where there is nothing to compare it with. Only what is new may fail a gate. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.findings.model import TargetResult
from services.reports.document import CheckClassName, CheckInfo

# One check of one target on one device, by their names.
CheckKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class BaseCheck:
    """What a check said on the base, and for which cause it failed there."""

    verdict: str
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class BaseTarget:
    """A target of the base: how it was called, and why it was not run, if so."""

    constructor: str | None = None
    inputs: tuple[str, ...] = ()
    has_harness: bool = False
    not_run_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Comparand:
    """What an analysis is compared with.

    `torch` and `devices` are those that the base ran with; `ran`: it ran anything at all, and to its end. `earlier`
    holds by check the verdicts of runs of the same code, with the same calls and bounds, in other analyses of the
    project.
    """

    ran: bool = True
    torch: str | None = None
    devices: Collection[str] = ()
    targets: Mapping[str, BaseTarget] = field(default_factory=dict)
    checks: Mapping[CheckKey, BaseCheck] = field(default_factory=dict)
    earlier: Mapping[CheckKey, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Classified:
    """The class of a failing check, and the sentence behind it."""

    kind: CheckClassName
    reason: str


def with_classes(
    targets: Iterable[TargetResult], base: Comparand, *, torch: str | None = None
) -> tuple[TargetResult, ...]:
    """The targets of an analysis that ran with `torch`, each failing check with its class."""
    return tuple(
        replace(target, checks=tuple(_told(target, check, base, torch) for check in target.checks))
        if any(check.verdict == "fail" for check in target.checks)
        else target
        for target in targets
    )


def _told(target: TargetResult, check: CheckInfo, base: Comparand, torch: str | None) -> CheckInfo:
    if check.verdict != "fail":
        return check
    found = _classified(target, check, base, torch)
    return check.model_copy(update={"baseline_class": found.kind, "baseline_reason": found.reason})


def _classified(target: TargetResult, check: CheckInfo, base: Comparand, torch: str | None) -> Classified:
    key = (target.declaration.name, check.check, check.device)
    unstable = base.earlier.get(key, frozenset()) & {"pass", "inconclusive"}
    if unstable:
        other = "passed" if "pass" in unstable else "came to no verdict"
        return Classified("flaky", f"the same code {other} in another run")
    before = base.checks.get(key)
    return _without_result(target, check, base) if before is None else _compared(target, check, before, base, torch)


def _compared(
    target: TargetResult, check: CheckInfo, before: BaseCheck, base: Comparand, torch: str | None
) -> Classified:
    """Of a check that the base has a result of."""
    if before.verdict == "fail":
        return _failing_on_both(check, before)
    if before.verdict == "inconclusive":
        return Classified("flaky", "on the base it came to no verdict")
    if before.verdict != "pass":
        what = "was skipped" if before.verdict == "skipped" else "could not run"
        return Classified("not_comparable", f"on the base it {what}")
    if base.torch is not None and torch is not None and base.torch != torch:
        return Classified("not_comparable", f"the base ran with another torch ({base.torch})")
    theirs = base.targets.get(target.declaration.name)
    if theirs is not None and _called_differently(target, theirs):
        return Classified("not_comparable", "the base was built or called in another way")
    return Classified("new", "it passes on the base")


def _failing_on_both(check: CheckInfo, before: BaseCheck) -> Classified:
    cause = None if check.diagnosis is None else check.diagnosis.cause
    if before.cause == cause or before.cause is None or cause is None:
        return Classified("already_failing", "it fails on the base too")
    return Classified("new", f"on the base it fails for another reason ({_words(before.cause)})")


def _without_result(target: TargetResult, check: CheckInfo, base: Comparand) -> Classified:
    """Of a check that the base has no result of: on a new target it is new, on an old one nobody can tell."""
    if not base.ran:
        return Classified("not_comparable", "the base was not run to its end")
    theirs = base.targets.get(target.declaration.name)
    if theirs is None:
        return Classified("new", "the base has no such target")
    if theirs.not_run_reason is not None:
        return Classified("not_comparable", f"on the base the target was not run ({theirs.not_run_reason})")
    if check.device not in base.devices:
        return Classified("not_comparable", f"the base was not run on {check.device}")
    return Classified("not_comparable", "the base did not run this check")


def _called_differently(target: TargetResult, theirs: BaseTarget) -> bool:
    if target.harness is None or not theirs.has_harness:
        return False
    return (target.harness.constructor, tuple(target.harness.inputs)) != (theirs.constructor, theirs.inputs)


def _words(cause: str) -> str:
    return cause.replace("_", " ")
