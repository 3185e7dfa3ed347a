"""Baselines: a file in the repository that says which findings are known, so that only new ones count.

A baseline is JSON, sorted, with one entry a finding: its fingerprint, by which it is recognised, and its rule, path and
message, for the people who read the diff. It comes with the repository, so it is untrusted: read as data, and bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from services.problems import BadInputError
from services.reports.document import BaselineEntry, BaselineInfo, FindingInfo
from services.reports.untrusted import one_line, shorten

_MAX_BYTES: Final = 64 * 2**20
_LONGEST_MESSAGE: Final = 300


class BaselineError(BadInputError):
    """A baseline can't be read or written."""

    code = "baseline"
    title = "The baseline can't be used"


class Baseline(BaseModel):
    """The findings that are known."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal["1"] = "1"
    tool: Literal["gradproof"] = "gradproof"
    findings: tuple[BaselineEntry, ...] = ()

    @property
    def fingerprints(self) -> frozenset[str]:
        """What known findings are recognised by."""
        return frozenset(entry.fingerprint for entry in self.findings)


def baseline_of(findings: Iterable[FindingInfo]) -> Baseline:
    """A baseline that knows these findings."""
    entries = {
        finding.fingerprint: BaselineEntry(
            fingerprint=finding.fingerprint,
            rule=finding.rule,
            path=finding.path,
            message=shorten(one_line(finding.message), _LONGEST_MESSAGE),
        )
        for finding in findings
    }
    return Baseline(
        findings=tuple(sorted(entries.values(), key=lambda entry: (entry.path, entry.rule, entry.fingerprint)))
    )


def read_baseline(file: Path) -> Baseline:
    """The baseline in a file. Raises `BaselineError`."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        advice = "; --write-baseline makes one" if isinstance(error, FileNotFoundError) else ""
        raise BaselineError(f"{file}: {error.strerror or error}{advice}", file=str(file)) from error
    if len(data) > _MAX_BYTES:
        raise BaselineError(f"{file} has more than {_MAX_BYTES:,} bytes", file=str(file))
    try:
        return Baseline.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BaselineError(f"{file} is no baseline: {place}{': ' if place else ''}{first['msg']}") from error


def write_baseline(baseline: Baseline, file: Path) -> None:
    """Write it so that a diff shows single entries. Raises `BaselineError`."""
    try:
        file.write_text(baseline.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BaselineError(f"{file}: {error.strerror or error}", file=str(file)) from error


def compared(
    baseline: Baseline,
    file: Path,
    findings: Iterable[FindingInfo],
    *,
    rules: Collection[str] | None,
    asked: Collection[str] | None,
) -> BaselineInfo:
    """What the baseline holds that was looked for and is gone.

    `rules` are those that ran and `asked` the files that were to be read (None: all): of others nothing is known. A
    file that does not exist any more takes its entries along when all files were asked for.
    """
    found = {finding.fingerprint for finding in findings}
    return BaselineInfo(
        file=str(file),
        entries=len(baseline.findings),
        gone=[
            entry
            for entry in baseline.findings
            if entry.fingerprint not in found
            and (rules is None or entry.rule in rules)
            and (asked is None or entry.path in asked)
        ],
    )
