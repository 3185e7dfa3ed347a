"""What a pull request is told of an analysis: chosen once, here, for the check, the comment and the lines alike.

Only what is new is told, and only by rules that may speak up; what was executed and held is not. A failing check that
fails without the change as well, or not every time, is told apart. Pure; it must not know how things are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote

from services.checks.plan import CHECKS
from services.forges.markdown import link, span
from services.gates.evaluate import COMPLETE
from services.gates.policy import GatePolicy, RuleMode
from services.reports.document import CheckClassName, CheckInfo, FindingInfo, Placed, Report, TargetInfo
from services.reports.sources import NoSources, Sources, file_region, shown_region
from services.reports.stories import untold_failures

_DECIDED: Final = frozenset({"accepted", "false_positive"})
_SPEAKING: Final = frozenset({RuleMode.COMMENT, RuleMode.BLOCK})
_GRAVITY: Final = {"error": 0, "warning": 1, "note": 2}
_SHORT_COMMIT: Final = 12
_UNCOMPARED: Final = "there was nothing to compare it with"
# Enough of a fingerprint to name a finding in a command: two of a thousand findings agree once in 10**8 projects.
SHORT_FINGERPRINT: Final = 12


# One check of one target on one device, by their names.
CheckKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Links:
    """Where things are shown. `repository` is its page at the forge, `report` the page of the analysis with us."""

    forge: Literal["github", "gitlab"]
    repository: str
    head_sha: str
    report: str

    def lines(self, path: str, first: int, last: int) -> str:
        """The lines of a file as they are at the head."""
        separator = "/-" if self.forge == "gitlab" else ""
        plain = "?plain=1" if path.endswith((".ipynb", ".md")) else ""
        end = "" if last <= first else f"-{last}" if self.forge == "gitlab" else f"-L{last}"
        return f"{self.repository}{separator}/blob/{self.head_sha}/{quote(path)}{plain}#L{first}{end}"

    def of_commit(self, sha: str) -> str:
        """A commit, as a link that shows its first digits."""
        separator = "/-" if self.forge == "gitlab" else ""
        return link(f"`{sha[:_SHORT_COMMIT]}`", f"{self.repository}{separator}/commit/{sha}")

    def finding(self, finding: FindingInfo) -> str:
        """The page of a finding: its evidence, its history, what to do about it."""
        return f"{self.report}/findings/{quote(finding.fingerprint, safe='')}"


@dataclass(frozen=True, slots=True)
class Review:
    """An analysis of the head of a pull request, and what it is seen with.

    `base_sha` is the commit that it is compared with, None where there was nothing to compare with. `fixed` are the
    findings of the base that are gone. `base_is_missing`: there is a commit to compare with, and its analysis came to
    nothing; then nobody knows what is new, though the report has to call everything so. `blocks`: a failing gate fails
    the check.
    """

    report: Report
    links: Links
    policy: GatePolicy
    base_sha: str | None = None
    sources: Sources = field(default_factory=NoSources)
    fixed: Sequence[FindingInfo] = ()
    blocks: bool = False
    base_is_missing: bool = False

    @property
    def is_final(self) -> bool:
        """Whether something came of the analysis that can be told."""
        return self.report.analysis.status in {"finished", "partial"}

    @property
    def fails(self) -> bool:
        """Whether the gate fails the check: for what the change brings, never for what we could not do ourselves."""
        failed = {condition.name for condition in self.report.gate.conditions if not condition.passed}
        only_cut_short = self.report.analysis.status == "partial" and failed == {COMPLETE}
        return self.is_final and self.blocks and not (self.report.gate.passed or self.base_is_missing or only_cut_short)


@dataclass(frozen=True, slots=True)
class FailingCheck:
    """A failing check with whose fault it is."""

    target: TargetInfo
    check: CheckInfo
    kind: CheckClassName
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What is told: `findings` (errors and warnings) and `notes`, the gravest first; failing checks that no finding
    tells of, by whose fault they are.
    """

    findings: tuple[FindingInfo, ...]
    notes: tuple[FindingInfo, ...]
    checks: tuple[FailingCheck, ...]

    @property
    def new_checks(self) -> tuple[FailingCheck, ...]:
        """Failing checks that are the change's own."""
        return tuple(failing for failing in self.checks if failing.kind == "new")

    @property
    def other_checks(self) -> tuple[FailingCheck, ...]:
        """Failing checks that say nothing about the change."""
        return tuple(failing for failing in self.checks if failing.kind != "new")

    @property
    def count(self) -> int:
        """How many new things there are to look at."""
        return len(self.findings) + len(self.new_checks)


def select(review: Review) -> Selection:
    """What of an analysis a pull request is told."""
    told = [finding for finding in review.report.findings if _speaks(finding, review)]
    told.sort(key=lambda finding: (_GRAVITY[finding.severity], finding.verdict != "confirmed", *_place(finding)))
    return Selection(
        findings=tuple(finding for finding in told if finding.severity != "note"),
        notes=tuple(finding for finding in told if finding.severity == "note"),
        checks=_failing(review, told),
    )


def _speaks(finding: FindingInfo, review: Review) -> bool:
    if not finding.is_new or finding.triage in _DECIDED or finding.verdict == "not_reproduced":
        return False
    if review.policy.mode(finding.rule, finding.name) not in _SPEAKING:
        return False
    if finding.rule not in CHECKS:
        return True
    kinds = {check.baseline_class for _, check in check_infos(review.report, finding)}
    return not kinds or bool(kinds & {"new", None})


def _failing(review: Review, told: Sequence[FindingInfo]) -> tuple[FailingCheck, ...]:
    """The failing checks that no finding tells of which is told, with whose fault they are.

    One that is new and belongs to a finding that is not told, decided or of a silent rule, is not told either.
    """
    by_findings = {key for finding in told for key in checks_of(finding)}
    by_silent = {key for finding in review.report.findings for key in checks_of(finding)} - by_findings
    orphans = {(target.name, check.check, check.device) for target, check in untold_failures(review.report)}
    failing = []
    for target in review.report.targets:
        for check in target.checks:
            key = (target.name, check.check, check.device)
            if check.verdict != "fail" or key in by_findings:
                continue
            kind = check.baseline_class or "new"
            if kind != "new" or (key in orphans and key not in by_silent):
                failing.append(FailingCheck(target, check, kind, check.baseline_reason or _UNCOMPARED))
    return tuple(failing)


def checks_of(finding: FindingInfo) -> tuple[CheckKey, ...]:
    """The checks that a finding rests on or tells of: target, check, device."""
    records = finding.evidence.get("checks")
    told = [finding.evidence, *(records if isinstance(records, list) else ())]
    found = []
    for record in told:
        if isinstance(record, Mapping):
            names = (record.get("target"), record.get("check"), record.get("device"))
            if all(isinstance(name, str) for name in names):
                found.append((str(names[0]), str(names[1]), str(names[2])))
    return tuple(dict.fromkeys(found))


def check_infos(report: Report, finding: FindingInfo) -> tuple[tuple[TargetInfo, CheckInfo], ...]:
    """The failing checks that a finding rests on, with their targets."""
    keys = checks_of(finding)
    names = {target for target, _, _ in keys}
    found = {
        (target.name, check.check, check.device): (target, check)
        for target in report.targets
        if target.name in names
        for check in target.checks
        if check.verdict == "fail"
    }
    return tuple(found[key] for key in keys if key in found)


def lines_of(review: Review, place: Placed) -> tuple[int, int]:
    """The first and the last line of a place in its file; a place in a notebook has one line."""
    region = file_region(review.sources, shown_region(review.sources, place))
    first = max(region.start_line, 1)
    last = max(region.end_line, first)
    # A region that ends before the first character of a line does not reach it.
    return first, last - 1 if last > first and region.end_column <= 1 else last


def place_link(review: Review, place: Placed) -> str:
    """Where it is, as a link to the lines at the head."""
    first, last = lines_of(review, place)
    return link(span(place.place, 160), review.links.lines(place.path, first, last))


def short(finding: FindingInfo) -> str:
    """How a finding is named in a command."""
    return finding.fingerprint[:SHORT_FINGERPRINT]


def _place(finding: FindingInfo) -> tuple[str, int, int, str]:
    return finding.path, finding.cell or 0, finding.start_line, finding.fingerprint
