"""Applies the fixes of findings to a source, again and again until nothing is left that can be applied.

What was applied is analysed anew: a fix stays only if its finding is gone and nothing else worth a warning came in its
place, so that a mistake in a rule's rewrite costs a fix and never somebody's code. Line ends, encoding and everything
outside the edits stay as they are. This module must not know single rules or write files.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from analyzer.file_analysis import Surroundings, analyze_text
from analyzer.findings import Edit, Finding, FixSafety, Region, Severity
from analyzer.modules import ModuleLayout
from analyzer.options import DEFAULT_OPTIONS, AnalyzerOptions
from analyzer.rules.engine_notes import SyntaxErrorNote, UnreadableFileNote
from analyzer.source import UnreadableSourceError, decode

# A fix can uncover another one; chains of more than three have not been seen on any example.
_MAX_ROUNDS = 10
_LINE_END = re.compile(r"\r\n|\r|\n")
_UNANALYSED = frozenset({SyntaxErrorNote.id, UnreadableFileNote.id})


@dataclass(frozen=True, slots=True)
class Left:
    """A finding that has a fix which was not applied, and why not."""

    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True)
class FixedSource:
    """`data` is the file after all fixes, in its own encoding and with its own line ends.

    `applied` are the findings that are gone, with their places in the text as it was when each was applied. `problem`
    says why the file could not be read at all.
    """

    data: bytes
    applied: tuple[Finding, ...] = ()
    left: tuple[Left, ...] = ()
    problem: str | None = None


def fix_source(
    data: bytes,
    path: str = "<source>",
    *,
    unsafe: bool = False,
    options: AnalyzerOptions = DEFAULT_OPTIONS,
    surroundings: Surroundings | None = None,
) -> FixedSource:
    """Applies every safe fix, with `unsafe` all of them; suppressed findings are left alone.

    `surroundings`: the rest of the snapshot, where the file does not stand alone. Never raises for what the file
    contains.
    """
    try:
        decode(data, max_bytes=options.max_bytes)
    except UnreadableSourceError as error:
        return FixedSource(data, problem=error.reason)
    encoding = _encoding(data)
    text = data.decode(encoding)
    place = surroundings if surroundings is not None else Surroundings(ModuleLayout([path]))
    fixer = _Fixer(text, path, unsafe=unsafe, options=options, surroundings=place)
    problem = fixer.run()
    # Nothing applied: not a byte may change, whatever the codec makes of the file.
    fixed = fixer.text.encode(encoding) if fixer.applied else data
    return FixedSource(fixed, tuple(fixer.applied), tuple(fixer.left), problem)


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap; places count lines of any line end, and no byte order mark."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix("\ufeff")
    ends = [match.span() for match in _LINE_END.finditer(body)]
    starts = [0, *(end for _, end in ends), len(body)]
    newline = _usual_line_end(body)

    def offset(line: int, column: int) -> int:
        return min(starts[min(line - 1, len(starts) - 1)] + column - 1, len(body))

    for edit in sorted(set(edits), key=lambda edit: edit.region, reverse=True):
        region = edit.region
        start, end = offset(region.start_line, region.start_column), offset(region.end_line, region.end_column)
        body = body[:start] + edit.replacement.replace("\n", newline) + body[end:]
    return mark + body


def without_overlaps(findings: Sequence[Finding]) -> list[Finding]:
    """The findings whose fixes can be applied together: the first in the text wins, equal edits count once."""
    chosen: list[Finding] = []
    taken: set[Edit] = set()
    for finding in sorted(findings, key=lambda finding: (finding.fix.edits[0].region, finding.rule)):
        if all(edit in taken or not any(_overlap(edit.region, other.region) for other in taken)
               for edit in finding.fix.edits):  # fmt: skip
            chosen.append(finding)
            taken.update(finding.fix.edits)
    return chosen


def _overlap(one: Region, other: Region) -> bool:
    return (one.start_line, one.start_column) < (other.end_line, other.end_column) and (
        other.start_line,
        other.start_column,
    ) < (one.end_line, one.end_column)


def _encoding(data: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data[:4096]).readline)
    return "utf-8" if encoding == "utf-8-sig" else encoding  # the mark stays a character of the text


def _usual_line_end(text: str) -> str:
    counts = Counter(_LINE_END.findall(text))
    return counts.most_common(1)[0][0] if counts else "\n"


@dataclass(slots=True)
class _Fixer:
    text: str
    path: str
    unsafe: bool
    options: AnalyzerOptions
    surroundings: Surroundings
    applied: list[Finding] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    _refused: dict[str, str] = field(default_factory=dict)

    def run(self) -> str | None:
        """Rounds until nothing changes; returns why the file can't be analysed, if it can't."""
        findings = self._analyse(self.text)
        unread = [finding for finding in findings if finding.rule in _UNANALYSED]
        if unread:
            return unread[0].message
        for _ in range(_MAX_ROUNDS):
            chosen = without_overlaps([finding for finding in findings if self._wanted(finding)])
            if not chosen:
                break
            findings = self._apply(chosen, findings)
        for finding in findings:
            reason = self._reason(finding) if finding.fix.edits else None
            if reason is not None:
                self.left.append(Left(finding, reason))
        return None

    def _reason(self, finding: Finding) -> str | None:
        if finding.fix.safety is FixSafety.UNSAFE and not self.unsafe:
            return "the fix is unsafe: it can change values that were finite"
        return self._refused.get(finding.fingerprint, f"not reached in {_MAX_ROUNDS} rounds")

    def _analyse(self, text: str) -> tuple[Finding, ...]:
        return analyze_text(text, self.path, self.surroundings, self.options).findings

    def _wanted(self, finding: Finding) -> bool:
        allowed = finding.fix.safety is FixSafety.SAFE or (self.unsafe and finding.fix.safety is FixSafety.UNSAFE)
        return bool(finding.fix.edits) and allowed and finding.fingerprint not in self._refused

    def _apply(self, chosen: list[Finding], before: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Applies what holds of these fixes, halving them where something does not; returns the findings after."""
        text = apply_edits(self.text, [edit for finding in chosen for edit in finding.fix.edits])
        after = self._analyse(text)
        objection = _objection(chosen, before, after)
        if objection is None:
            self.text = text
            self.applied.extend(chosen)
            return after
        if len(chosen) == 1:
            self._refused[chosen[0].fingerprint] = objection
            return before
        middle = len(chosen) // 2
        between = self._apply(chosen[:middle], before)
        names = {finding.fingerprint for finding in chosen[middle:]}
        rest = [finding for finding in between if finding.fingerprint in names]  # their places may have moved
        return self._apply(rest, between) if rest else between


def _objection(chosen: list[Finding], before: Sequence[Finding], after: Sequence[Finding]) -> str | None:
    """What is wrong with a text after fixes, if anything."""
    if any(finding.rule in _UNANALYSED for finding in after):
        return "the fixed file would not be valid Python"
    had, has = _counts(before), _counts(after)
    for rule, number in Counter(finding.rule for finding in chosen).items():
        if has[rule] > had[rule] - number:
            return "the fix does not remove the finding"
    worse = sorted(
        rule for rule, number in _counts(after, loud=True).items() if number > _counts(before, loud=True)[rule]
    )
    return f"the fix would bring up {', '.join(worse)}" if worse else None


def _counts(findings: Sequence[Finding], *, loud: bool = False) -> Counter[str]:
    return Counter(finding.rule for finding in findings if not loud or finding.severity is not Severity.NOTE)
