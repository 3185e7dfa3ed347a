"""What `--base` names: a report, or a git ref of the local repository. Read, never run."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from analyzer.engine import analyze_files
from services.analyses.reading import SUFFIXES
from services.problems import BadInputError
from services.reports.document import Report
from services.snapshots.places import local_place


class BaseError(BadInputError):
    """What --base names is neither a report nor something that git knows."""

    code = "base"
    title = "The base can't be used"


def known_of(base: str, top: Path) -> frozenset[str]:
    """The fingerprints of the base: those of a report, or what reading the tree of a git ref at `top` brings."""
    report = Path(base)
    if report.is_file():
        try:
            document = Report.model_validate(json.loads(report.read_text(encoding="utf-8")))
        except (ValueError, OSError) as error:
            raise BaseError(f"{base} is not a report of Gradproof: {error}".split("\n", 1)[0], base=base) from error
        return frozenset(finding.fingerprint for finding in document.findings)
    return _fingerprints_of_ref(base, top)


def _fingerprints_of_ref(ref: str, where: Path) -> frozenset[str]:
    if ref.startswith("-"):
        raise BaseError(f"{ref!r} is no git ref", base=ref)
    command = ["git", "-C", str(where), "archive", "--format=tar", f"{ref}:./"]
    try:
        archive = subprocess.run(command, capture_output=True, check=False, timeout=120)
    except FileNotFoundError as error:
        raise BaseError("git is not installed, and --base names no report file", base=ref) from error
    if archive.returncode:
        said = archive.stderr.decode(errors="replace").strip().splitlines()
        raise BaseError(f"{ref!r} is neither a report file nor a git ref: {said[-1] if said else ''}", base=ref)
    with tempfile.TemporaryDirectory(prefix="gradproof-base-") as directory:
        top = Path(directory) / where.name  # a package's own name is part of the paths
        top.mkdir(exist_ok=True)
        _unpack_files(archive.stdout, top)
        place = local_place([str(top)], SUFFIXES, lambda _: False)
        findings = analyze_files(place.base, place.names).findings
        return frozenset(finding.fingerprint for finding in findings)


def _unpack_files(archive: bytes, directory: Path) -> None:
    """The regular files of an archive that git has just made of the user's own repository."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        members.extractall(directory, [member for member in members if member.isfile()], filter="data")
