"""An analysis that runs nothing, from files on this machine to the report: no store, no database, no worker.

It must stay light to import: editors and commit hooks start it anew for every file.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import TargetDeclaration
from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.reading import Reading, known_configuration, outcome_of, read_files
from services.configuration import RuleSelection
from services.findings.model import TargetResult
from services.findings.settle import settle
from services.gates import evaluate, retain
from services.identifiers import new_id
from services.reports.build import build_report
from services.reports.document import AnalysisInfo, Report, SnapshotInfo, Source, Tool
from services.snapshots.model import tree_digest
from services.snapshots.places import LocalPlace
from services.version import version


def read_place(
    place: LocalPlace, options: AnalysisOptions, *, processes: int = 1, cache: Path | None = None
) -> StaticOutcome:
    """What reading these files brings. Raises `ConfigurationError`."""
    return read_files(
        place.base,
        place.names,
        options,
        configured_at=place.top,
        reading=Reading(only=place.only, processes=processes, cache=cache),
    )


def read_buffer(source: bytes, name: str, place: LocalPlace, options: AnalysisOptions) -> StaticOutcome:
    """What reading an editor's buffer brings, as if it were the file of this name. Raises `ConfigurationError`."""
    configuration = known_configuration(place.top)
    selection = RuleSelection(configuration, select=options.rules, ignore=options.ignore)
    if not configuration.files([name]):
        return outcome_of(analyze_source("", name), configuration)
    beside = configuration.files(place.names)
    analysis = analyze_source(
        source, name, options=AnalyzerOptions(rules=selection.rules), root=place.base, beside=beside
    )
    return outcome_of(selection.applied(analysis), configuration)


def static_report(
    outcome: StaticOutcome, digest: str, *, known: frozenset[str], everything_known: bool, started: datetime
) -> Report:
    """The report of what was read. `known` are the fingerprints that are not new; `digest` is that of the files."""
    analysis = outcome.analysis
    found = retain(analysis.findings, outcome.policy)
    targets = tuple(_unrun(target, outcome) for target in analysis.targets)
    if everything_known:
        known = frozenset(finding.fingerprint for finding in found)
    settled = settle(found, targets, known=known)
    finished = datetime.now(UTC)
    return build_report(
        tool=Tool(version=version(), torch=None, devices=[]),
        analysis=AnalysisInfo(
            id=new_id(),
            created_at=started,
            finished_at=finished,
            status="finished",
            duration_s=(finished - started).total_seconds(),
        ),
        snapshot=SnapshotInfo(
            digest=digest, source=Source(kind="directory"), files=analysis.files, lines=analysis.lines
        ),
        gate=evaluate(settled, targets, outcome.policy),
        findings=settled,
        suppressed=analysis.suppressed,
        imports=analysis.import_notes,
        targets=targets,
    )


def _unrun(target: TargetDeclaration, outcome: StaticOutcome) -> TargetResult:
    reason, detail = outcome.not_run(target) or (None, "")
    return TargetResult(declaration=target, not_run_reason=reason, not_run_detail=detail)


def digest_of(place: LocalPlace) -> str:
    """The digest of the files that count, by their names and contents; one that can't be read counts as empty."""
    return tree_digest((name, _digest_of_file(place.base / name)) for name in sorted(place.asked))


def digest_of_buffer(source: bytes, name: str) -> str:
    """The digest of one file of this content."""
    return tree_digest(iter([(name, hashlib.sha256(source).digest())]))


def _digest_of_file(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:  # piece by piece: what is too large to be analysed may be larger than memory
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError:
        return hashlib.sha256().digest()
