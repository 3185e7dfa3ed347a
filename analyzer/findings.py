"""What the analyzer says: findings, their places, their fixes.

Plain immutable values, so that any room can hold them. This module must not know rules, parsing or storage.
Lines and columns are 1-based; columns count characters (code points), not bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters: `note` never fails a gate by default."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Confidence(StrEnum):
    """How sure the rule is, before anything was run."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class FixSafety(StrEnum):
    """`safe`: the same values wherever the old code was finite."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    NONE = "none"


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A half-open place in one file: the end column is the one after the last character.

    In a notebook, `cell` is the number of the cell, from 1, and the lines are those of the cell; elsewhere it is 0.
    """

    path: str
    start_line: int
    start_column: int
    end_line: int
    end_column: int
    cell: int = 0

    @property
    def place(self) -> str:
        """The line for a person: `pkg/a.py:12`, `notebook.ipynb:cell 3:2`."""
        return f"{self.path}:cell {self.cell}:{self.start_line}" if self.cell else f"{self.path}:{self.start_line}"


@dataclass(frozen=True, slots=True)
class Related:
    """A further place that explains a finding: where the value came from, which guard was missing."""

    region: Region
    message: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of `region` by `replacement`."""

    region: Region
    replacement: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A rewrite that mends a finding."""

    safety: FixSafety = FixSafety.NONE
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says about one place.

    `fingerprint` survives moved lines, a changed rule text or version, and unrelated changes. `settled_by` names
    the runtime checks that can confirm or refute the finding (empty: there is nothing to execute). `hypothesis`
    is what those checks should aim at, as JSON-compatible data.
    """

    fingerprint: str
    rule: str
    name: str
    severity: Severity
    confidence: Confidence
    region: Region
    symbol: str
    message: str
    settled_by: tuple[str, ...] = ()
    hypothesis: Mapping[str, object] = field(default_factory=dict)
    fix: Fix = Fix()
    related: tuple[Related, ...] = ()


@dataclass(frozen=True, slots=True)
class Suppression:
    """A finding silenced by a comment in the source, kept so that reports can count it."""

    finding: Finding
    reason: str


class TargetKind(StrEnum):
    """What kind of thing can be run."""

    MODULE = "module"
    FUNCTION = "function"
    AUTOGRAD_FUNCTION = "autograd_function"


@dataclass(frozen=True, slots=True)
class TargetDeclaration:
    """A thing that can be run, found by reading the source.

    `name` is `module:qualname`. `import_root` is the directory, relative to the snapshot ("" for its top), that
    must be on `sys.path` for `module` to be importable. `line` is that of the `class` or `def` keyword. `why_not` is
    empty for what is to be run; else it says in a few stable words why there is no gradient to look at.
    """

    name: str
    kind: TargetKind
    path: str
    line: int
    end_line: int
    import_root: str
    module: str
    qualname: str
    why_not: str = ""

    @property
    def eligible(self) -> bool:
        """Whether it is to be run; what is not stays in the list, so that everything public has a verdict."""
        return not self.why_not


@dataclass(frozen=True, slots=True)
class ImportNote:
    """What importing a file does beside defining things: `kind` is in stable words, `detail` a sentence."""

    path: str
    line: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class StaticAnalysis:
    """Everything reading found in a snapshot, in the order of path and line.

    `reaches`: by name of a target, the places (path, first line, last line) outside of it that running it may come to.
    `closures`: by path of a file with targets, a digest of everything of the snapshot that its code rests on; a file
    has none when that can't be told.
    """

    findings: tuple[Finding, ...]
    suppressed: tuple[Suppression, ...]
    targets: tuple[TargetDeclaration, ...]
    files: int
    lines: int
    reaches: Mapping[str, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)
    closures: Mapping[str, str] = field(default_factory=dict)
    import_notes: tuple[ImportNote, ...] = ()
