"""What `--base` names: a report, or a git ref of the local repository. Read, never run."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
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


@dataclass(frozen=True, slots=True)
class Base:
    """The fingerprints of a base, and the digest of each of its files by name (None: a report, which has no files)."""

    fingerprints: frozenset[str] = frozenset()
    files: Mapping[str, bytes] | None = None

    def changed(self, tree: Mapping[str, bytes]) -> frozenset[str] | None:
        """The modules of `tree` that are not as they were; None if nobody knows."""
        if self.files is None:
            return None
        names = (name for name in tree if name.endswith(SUFFIXES))
        return frozenset(name for name in names if sha256(tree[name]).digest() != self.files.get(name))


def base_of(base: str, top: Path) -> Base:
    """What a report says, or reading the tree of a git ref at `top`. Raises `BaseError`."""
    report = Path(base)
    if report.is_file():
        try:
            document = Report.model_validate(json.loads(report.read_text(encoding="utf-8")))
        except (ValueError, OSError) as error:
            raise BaseError(f"{base} is not a report of Gradproof: {error}".split("\n", 1)[0], base=base) from error
        return Base(frozenset(finding.fingerprint for finding in document.findings))
    return _base_of_ref(base, top)


def _base_of_ref(ref: str, where: Path) -> Base:
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
        return Base(
            frozenset(finding.fingerprint for finding in findings),
            {name: sha256((place.base / name).read_bytes()).digest() for name in place.names},
        )


def _unpack_files(archive: bytes, directory: Path) -> None:
    """The regular files of an archive that git has just made of the user's own repository."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        members.extractall(directory, [member for member in members if member.isfile()], filter="data")
