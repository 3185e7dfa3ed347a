"""What a failing check found, fault by fault: the one that it names, and the further ones in its evidence. Pure.

All of it comes out of the sandbox, so it is taken only in the shape that the probe gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from services.findings.model import TargetResult
from services.reports.document import CheckInfo, Diagnosis
from services.reports.gradient_evidence import gradient_evidence
from services.reports.untrusted import one_line, shorten

_LONGEST_TEXT: Final = 300
_MOST_FAULTS: Final = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a failing check found; `source` is the text of its line, `symbol` what encloses it.

    `is_main`: it is the one that the check itself names. `is_located`: the check names a place for it, which is not
    just the first line of its target.
    """

    target: TargetResult
    check: CheckInfo
    path: str
    line: int
    symbol: str
    source: str
    cause: str
    message: str
    is_main: bool = True

    @property
    def key(self) -> tuple[str, ...]:
        """What stays the same when lines move."""
        return self.path, self.symbol, self.source, self.check.check, self.cause

    @property
    def is_located(self) -> bool:
        declaration = self.target.declaration
        return self.check.line is not None and (self.path, self.line) != (declaration.path, declaration.line)


def faults(targets: Sequence[TargetResult]) -> Iterator[Fault]:
    """Everything that checks failed for, in the order of the targets."""
    for target in targets:
        for check in target.checks:
            if check.verdict == "fail":
                yield _named(target, check, is_main=True)
                for other in further(check):
                    yield _named(target, other, is_main=False)
                yield from _births(target, check)


def further(check: CheckInfo) -> Iterator[CheckInfo]:
    """The same check as if it named each of the further faults that it gives a cause and a place for."""
    for record in _records(check):
        path, line = record.get("path", check.path), record.get("line")
        cause, text = record.get("cause"), record.get("text")
        if not (isinstance(path, str) and _is_line(line) and isinstance(cause, str) and isinstance(text, str)):
            continue
        if (path, line, cause) != (check.path, check.line, check.diagnosis.cause if check.diagnosis else None):
            told = Diagnosis(cause=cause, text=shorten(text, _LONGEST_TEXT))
            evidence = {"source": record.get("source")}
            yield check.model_copy(update={"path": path, "line": line, "diagnosis": told, "evidence": evidence})


def _named(target: TargetResult, check: CheckInfo, *, is_main: bool) -> Fault:
    place = check.path is not None and check.line is not None
    cause = check.diagnosis.cause if check.diagnosis else "failed"
    said = check.diagnosis.text if check.diagnosis else check.summary
    symbol, source = _source(check.evidence.get("source"), target)
    return Fault(
        target,
        check,
        check.path if place and check.path else target.declaration.path,
        check.line if place and check.line else target.declaration.line,
        symbol,
        source,
        cause,
        said,
        is_main,
    )


def _births(target: TargetResult, check: CheckInfo) -> Iterator[Fault]:
    """The further births of values that are not finite, each at its own line."""
    for record in _records(check):
        birth = record.get("birth")
        if not isinstance(birth, Mapping):
            continue
        path, line = birth.get("path"), birth.get("line")
        if not isinstance(path, str) or not _is_line(line) or (path, line) == (check.path, check.line):
            continue
        symbol, source = _source(record.get("source"), target)
        told = gradient_evidence(record)
        said = f"a value or gradient that is not finite is born here: {told.birth or 'no more is known'}"
        if told.given:
            said += f"; input: {told.given}"
        cause = "nan_gradient" if birth.get("phase") == "backward" else "nan_output"
        yield Fault(target, check, path, line, symbol, source, cause, said, is_main=False)


def _records(check: CheckInfo) -> list[Mapping[str, object]]:
    also = check.evidence.get("also")
    return [record for record in also[:_MOST_FAULTS] if isinstance(record, Mapping)] if isinstance(also, list) else []


def _is_line(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _source(value: object, target: TargetResult) -> tuple[str, str]:
    """What encloses the line, and the text of the line, as the probe read them."""
    record = value if isinstance(value, Mapping) else {}
    symbol, text = record.get("symbol"), record.get("text")
    declaration = target.declaration
    own = symbol if isinstance(symbol, str) and symbol else declaration.qualname
    return (
        shorten(one_line(f"{declaration.module}.{own}"), _LONGEST_TEXT),
        shorten(one_line(text), _LONGEST_TEXT) if isinstance(text, str) else "",
    )
