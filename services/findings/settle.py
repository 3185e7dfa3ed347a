"""Gives each static finding the verdict that the checks support, and no more than that.

A failing check confirms a finding only where it can be told that it failed because of it: at the finding's place, or
somewhere unnamed in the target around it. A passing check refutes a finding only if the check searches for the very
hazard; otherwise the finding stays `not_exercised`, with the reason. A check that was aimed at a finding and says what
came of it is taken at its word for that finding. Pure: no clock, no storage, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analyzer.findings import Finding
from services.checks.plan import CHECKS
from services.findings.aims import AIMS, PRECISE
from services.findings.faults import further
from services.findings.model import SettledFinding, Settlement, TargetResult
from services.findings.searches import Search, SearchOutcome, searches
from services.findings.spans import Spans
from services.reports.document import CheckInfo, TriageState
from services.reports.gradient_evidence import gradient_evidence, unexecuted_lines

_T = TypeVar("_T")

# A check names the line it could attribute a fault to by the stack or by the source of the function; statements that
# span lines make that off by one in either direction.
_LINE_SLACK = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """One check of one target, with what it says of the findings that it was aimed at."""

    target: TargetResult
    check: CheckInfo
    searches: Mapping[str, Search]


@dataclass(frozen=True, slots=True, eq=False)
class _Exercised:
    """A target with its runs."""

    target: TargetResult
    runs: tuple[_Run, ...]


@dataclass(frozen=True, slots=True)
class _Explaining:
    """The findings that could have led to a failure: those at its place, and how many there are in its target."""

    at_the_place: tuple[Finding, ...]
    in_the_target: int


class _Index:
    """Findings, targets and failures by path and line: a large repository has thousands of each."""

    def __init__(self, findings: Sequence[Finding], targets: Sequence[TargetResult]) -> None:
        exercised = [
            _Exercised(target, tuple(_Run(target, check, searches(check.evidence)) for check in target.checks))
            for target in targets
        ]
        runs = [run for item in exercised for run in item.runs]
        self._findings = _by_path((finding.region.path, *_near(finding), finding) for finding in findings)
        self._targets = _by_path(
            (item.target.declaration.path, item.target.declaration.line, item.target.declaration.end_line, item)
            for item in exercised
        )
        everything = [other for run in runs for other in (run, *_further(run))]
        self._failures = _by_path(
            (run.check.path, run.check.line, run.check.line, (number, run))
            for number, run in enumerate(everything)
            if run.check.verdict == "fail" and run.check.path is not None and run.check.line is not None
        )
        self._searches: dict[str, list[_Run]] = {}
        for run in runs:
            for fingerprint in run.searches:
                self._searches.setdefault(fingerprint, []).append(run)
        self._explaining: dict[_Run, _Explaining] = {}

    def enclosing(self, finding: Finding) -> tuple[_Exercised, ...]:
        """The targets whose source holds the finding, the innermost first."""
        targets = self._targets.get(finding.region.path)
        around = () if targets is None else targets.at(finding.region.start_line)
        return tuple(sorted(around, key=lambda item: item.target.declaration.end_line - item.target.declaration.line))

    def failures_at(self, finding: Finding) -> tuple[_Run, ...]:
        """The failing checks that point at the finding, in the order of the targets."""
        failures = self._failures.get(finding.region.path)
        pointing = () if failures is None else failures.beginning(*_near(finding))
        return tuple(run for _, run in sorted(pointing, key=lambda numbered: numbered[0]))

    def searched(self, finding: Finding) -> tuple[_Run, ...]:
        """The checks that were aimed at the finding and speak of it; which targets were sent it, is theirs to know."""
        return tuple(run for run in self._searches.get(finding.fingerprint, ()) if _can_speak_of(run.check, finding))

    def belongs_to_another(self, run: _Run, finding: Finding) -> bool:
        """Whether the check names a place that lies outside its target, or that another finding of it holds."""
        check, declaration = run.check, run.target.declaration
        if any(search.outcome == "confirmed" for key, search in run.searches.items() if key != finding.fingerprint):
            return True
        if check.path is None or check.line is None or (check.path, check.line) == (declaration.path, declaration.line):
            return False  # no place, or that of the class itself, which stands for no better one
        if check.check in PRECISE or check.path != declaration.path:
            return True
        if not declaration.line <= check.line <= declaration.end_line:
            return True
        return any(other is not finding for other in self._explaining_of(run).at_the_place)

    def rivals(self, run: _Run, finding: Finding) -> int:
        """How many findings of the target, besides this one of it, could have led to this failure."""
        return self._explaining_of(run).in_the_target - _can_come_from(run.check, finding)

    def _explaining_of(self, run: _Run) -> _Explaining:
        if run not in self._explaining:
            check, declaration = run.check, run.target.declaration
            here = self._findings.get(check.path or "")
            around = self._findings.get(declaration.path)
            # Findings lie in the index with the slack around them: one line earlier than they begin.
            first, last = declaration.line - _LINE_SLACK, declaration.end_line - _LINE_SLACK
            self._explaining[run] = _Explaining(
                _explaining(check, () if here is None or check.line is None else here.at(check.line)),
                len(_explaining(check, () if around is None else around.beginning(first, last))),
            )
        return self._explaining[run]


def _further(run: _Run) -> Iterator[_Run]:
    if run.check.verdict == "fail":
        for check in further(run.check):
            yield _Run(run.target, check, run.searches)


def _explaining(check: CheckInfo, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if _can_come_from(check, finding))


def _by_path(spans: Iterable[tuple[str, int, int, _T]]) -> dict[str, Spans[_T]]:
    listed: dict[str, list[tuple[int, int, _T]]] = {}
    for path, first, last, value in spans:
        listed.setdefault(path, []).append((first, last, value))
    return {path: Spans(values) for path, values in listed.items()}


def settle(
    findings: Iterable[Finding],
    targets: Sequence[TargetResult],
    *,
    known: frozenset[str] = frozenset(),
    triage: Mapping[str, TriageState] | None = None,
) -> tuple[SettledFinding, ...]:
    """Each finding with its verdict, in the order given.

    `known` holds the fingerprints that the base analysis has too; `triage` what people decided, by fingerprint.
    """
    findings = tuple(findings)
    index = _Index(findings, targets)
    states = triage or {}
    return tuple(
        SettledFinding(
            finding=finding,
            settlement=_settle_one(finding, index),
            is_new=finding.fingerprint not in known,
            triage=states.get(finding.fingerprint, "open"),
        )
        for finding in findings
    )


def _settle_one(finding: Finding, index: _Index) -> Settlement:
    if not finding.settled_by:
        return Settlement("static_only", "Reading decides this: there is nothing to execute.")
    searched = index.searched(finding)
    confirmed = _by_search(finding, searched, "confirmed")
    if confirmed is not None:
        return confirmed
    for run in index.failures_at(finding):
        if finding.fingerprint not in run.searches and _can_come_from(run.check, finding):
            return _confirmed(run, f"at line {run.check.line}")
    around = index.enclosing(finding)
    here = tuple(run for item in around for run in item.runs)
    runs = tuple(run for run in here if run.check.check in finding.settled_by)
    return (
        _by_failure(finding, here, index)
        or _by_search(finding, searched, "not_reproduced")
        or _by_unlike_failure(finding, here)
        or _by_passing(finding, runs)
        or _by_search(finding, searched, "not_reached")
        or _not_exercised(finding, [item.target for item in around], runs)
    )


def _by_search(finding: Finding, searched: Sequence[_Run], outcome: SearchOutcome) -> Settlement | None:
    """What a check that was aimed at this very finding says of it."""
    run = _first(run for run in searched if run.searches[finding.fingerprint].outcome == outcome)
    if run is None:
        return None
    check, told = run.check, gradient_evidence(run.check.evidence)
    who = f"{check.check} on {run.target.declaration.name} ({check.device})"
    evidence = _evidence(run)
    search = run.searches[finding.fingerprint]
    if search.fix is not None:
        evidence["fix"] = {"verified": search.fix.verified, "reason": search.fix.reason}
    if outcome == "not_reached":
        because = search.text or "no call came to this line"
        return Settlement("not_exercised", f"{who} was aimed at this, but {_sentence(because)}", evidence)
    if search.text is not None:
        came_to = "confirmed at its place" if outcome == "confirmed" else "searched at its place, and held"
        return Settlement(outcome, f"{who}: {came_to}: {_sentence(search.text)}", evidence)
    if outcome == "not_reproduced":
        came = f"; {search.closest}" if search.closest else ""
        return Settlement(
            outcome, f"{who} searched for an input that brings this about and found none{came}.", evidence
        )
    shown = {key: text for key, text in (("input", told.given), ("birth", told.birth)) if text is not None}
    if check.verdict != "fail":
        return Settlement(
            "not_exercised",
            f"{who} brought this about, but does not call it a fault: {_sentence(check.summary)}",
            evidence | shown,
        )
    said = check.diagnosis.text if check.diagnosis else check.summary
    given = f" Input: {_sentence(told.given)}" if told.given and told.given not in said else ""
    return Settlement("confirmed", f"{who} was aimed at this and hit it: {_sentence(said)}{given}", evidence | shown)


def _by_failure(finding: Finding, runs: Sequence[_Run], index: _Index) -> Settlement | None:
    """What a failure in the target means that the fault could have led to."""
    explained = [run for run in _failures(finding, runs) if _can_come_from(run.check, finding)]
    for run in explained:
        if not index.belongs_to_another(run, finding) and not index.rivals(run, finding):
            return _confirmed(run, f"in {run.target.declaration.qualname}, around this line")
    if not explained:
        return None
    run = explained[0]
    if index.belongs_to_another(run, finding):
        place = f" ({run.check.path}, line {run.check.line})" if run.check.path else ""
        return _not_told_apart(run, f"for another place{place}")
    others = index.rivals(run, finding)
    return _not_told_apart(run, f"{others} other finding{'s' if others > 1 else ''} there can explain it as well")


def _by_unlike_failure(finding: Finding, runs: Sequence[_Run]) -> Settlement | None:
    """What a failure means for a reason that is not the finding's."""
    run = _first(run for run in _failures(finding, runs) if run.check.check in finding.settled_by)
    if run is None:
        return None
    cause = run.check.diagnosis.cause.replace("_", " ") if run.check.diagnosis else "?"
    return _not_told_apart(run, f"for another reason ({cause})")


def _failures(finding: Finding, runs: Sequence[_Run]) -> list[_Run]:
    return [run for run in runs if run.check.verdict == "fail" and finding.fingerprint not in run.searches]


def _not_told_apart(run: _Run, because: str) -> Settlement:
    return Settlement(
        "not_exercised",
        f"{run.check.check} failed in {run.target.declaration.name}, but {because}: mend that first, then this one can "
        "be told apart.",
        _evidence(run),
    )


def _can_come_from(check: CheckInfo, finding: Finding) -> bool:
    """Whether what the rule suspects could lead to this failure of this check."""
    aim = AIMS.get(finding.rule)
    if aim is None:
        return check.check in finding.settled_by
    return _can_speak_of(check, finding) and check.diagnosis is not None and check.diagnosis.cause in aim.causes


def _can_speak_of(check: CheckInfo, finding: Finding) -> bool:
    aim = AIMS.get(finding.rule)
    return check.check in finding.settled_by or (aim is not None and check.check in aim.also)


def _by_passing(finding: Finding, runs: Sequence[_Run]) -> Settlement | None:
    run = _first(run for run in runs if run.check.verdict == "pass" and _refutes(run, finding))
    if run is None:
        return None
    return Settlement(
        "not_reproduced",
        f"{run.check.check} ran {run.target.declaration.name}, which is what this rule doubts, and it held: "
        f"{_sentence(run.check.summary)}",
        _evidence(run),
    )


def _confirmed(run: _Run, where: str) -> Settlement:
    said = run.check.diagnosis.text if run.check.diagnosis else run.check.summary
    return Settlement(
        "confirmed",
        f"{run.check.check} on {run.target.declaration.name} ({run.check.device}) failed {where}: {_sentence(said)}",
        _evidence(run),
    )


def _not_exercised(finding: Finding, around: Sequence[TargetResult], runs: Sequence[_Run]) -> Settlement:
    if not around:
        return Settlement(
            "not_exercised",
            f"No target encloses {finding.symbol or finding.region.path}, so no check reached this line by itself.",
        )
    wanted = " or ".join(finding.settled_by)
    for verdict, words in (
        ("error", "could not run"),
        ("inconclusive", "was inconclusive"),
        ("skipped", "was skipped"),
    ):
        run = _first(run for run in runs if run.check.verdict == verdict)
        if run is not None:
            return Settlement(
                "not_exercised",
                f"{run.check.check} on {run.target.declaration.name} {words}: {_sentence(run.check.summary)}",
                _evidence(run),
            )
    passed = _first(run for run in runs if run.check.verdict == "pass")
    if passed is not None:
        missed = _line_is_unexecuted(passed.check, finding)
        because = "nothing that it tried came to this line" if missed else "it can pass with what this rule warns of"
        return Settlement(
            "not_exercised",
            f"{passed.check.check} passed on {passed.target.declaration.name}, but {because}.",
            _evidence(passed),
        )
    stopped = _first(target for target in around if target.not_run_reason)
    if stopped is not None:
        detail = f": {_sentence(stopped.not_run_detail)}" if stopped.not_run_detail else "."
        return Settlement(
            "not_exercised",
            f"{stopped.declaration.name} could not be run ({stopped.not_run_reason}){detail}",
            {"target": stopped.declaration.name},
        )
    ran = sorted({check.check for target in around for check in target.checks})
    did = f"only {', '.join(ran)} ran" if ran else "no check ran"
    if not any(check in CHECKS for check in finding.settled_by):
        return Settlement("not_exercised", f"only {wanted} would settle this, a check that this version does not have.")
    return Settlement("not_exercised", f"{wanted} would settle this; {did} on {around[0].declaration.name}.")


def _near(finding: Finding) -> tuple[int, int]:
    """The lines at which a check points at the finding."""
    return finding.region.start_line - _LINE_SLACK, finding.region.end_line + _LINE_SLACK


def _refutes(run: _Run, finding: Finding) -> bool:
    """Whether the check could not have passed with the fault that the rule suspects."""
    aim, check = AIMS.get(finding.rule), run.check
    if aim is None or run.target.declaration.kind is not aim.kind:
        return False
    if check.check in aim.refuted_by:
        return check.check != "accumulation_equivalence" or _compared_all_steps(check)
    # Only of backward is it known which lines were executed; and of the situations, that they were all tried.
    return (
        check.check in aim.searched_by
        and finding.symbol.rpartition(".")[2] == "backward"
        and _tried_everything(check)
        and not _line_is_unexecuted(check, finding)
    )


def _compared_all_steps(check: CheckInfo) -> bool:
    """Whether several micro-batches made a step, and each step was compared with the same samples as one batch."""
    return bool(check.evidence.get("set_to_one")) and not check.evidence.get("not_compared")


def _tried_everything(check: CheckInfo) -> bool:
    """Whether a gradient check went through all of its situations: without time there are only ordinary calls."""
    number = check.evidence.get("situations")
    return isinstance(number, int) and number > 0 and not check.evidence.get("stopped")


def _line_is_unexecuted(check: CheckInfo, finding: Finding) -> bool:
    lines = unexecuted_lines(check.evidence) or ()
    return any(finding.region.start_line <= line <= finding.region.end_line for line in lines)


def _evidence(run: _Run) -> dict[str, object]:
    evidence: dict[str, object] = {
        "target": run.target.declaration.name,
        "check": run.check.check,
        "device": run.check.device,
        "verdict": run.check.verdict,
    }
    if run.check.diagnosis is not None:
        evidence["cause"] = run.check.diagnosis.cause
        evidence["numbers"] = dict(run.check.diagnosis.numbers)
    return evidence


def _sentence(text: str) -> str:
    text = text.strip() or "no reason given"
    return text if text[-1] in ".!?…" else text + "."


def _first(values: Iterable[_T]) -> _T | None:
    return next(iter(values), None)
