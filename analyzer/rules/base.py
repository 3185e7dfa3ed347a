"""What a rule is: its documentation, its examples, and one method that looks at a file.

A rule says where and why; the engine turns that into findings (exact places, fingerprints, suppression). This module
must not know the engine, the other rules or how files are read.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from analyzer.findings import Confidence, FixSafety, Severity

if TYPE_CHECKING:
    from analyzer.context import FileContext


@dataclass(frozen=True, slots=True)
class Documentation:
    """The sections of a rule's page, in their order. Plain Markdown sentences; examples are Python source."""

    what_it_does: str
    why_is_this_bad: str
    faulty_example: str
    right_example: str
    fix_safety: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """A source that the rule must flag, and where.

    `lines` are the 1-based lines where its findings start, in order, one entry for each finding.
    """

    source: str | bytes
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    """Put `text` in the place of `node`.

    For an expression, `text` is an expression, and gets parentheses where it needs them. For a statement, `text` is one
    or more statements, written as at the left margin; they are indented like the node. An empty text takes the
    statement away. `node` must not lie in an f-string.
    """

    node: ast.expr | ast.stmt
    text: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What would mend a hit. `safety`: SAFE when the values stay the same wherever the old code was finite.

    Build the texts from `file.source(node)` and `file.operand_source(node)`, which keep the author's formatting, and
    name functions of torch by `file.spelling("torch.nn.functional.softplus")`.
    """

    safety: FixSafety
    replacements: tuple[Replacement, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """One place that a rule objects to.

    `node` is the smallest expression or statement at fault. `severity` and `confidence` override the rule's own.
    `hypothesis` is what a runtime check should aim at; `related` are further nodes that explain the finding: where the
    value came from, which guard was missing. `fix` is what would mend it.
    """

    node: ast.AST
    message: str
    severity: Severity | None = None
    confidence: Confidence | None = None
    hypothesis: Mapping[str, object] = field(default_factory=dict)
    related: tuple[tuple[ast.AST, str], ...] = ()
    fix: Rewrite | None = None


class Rule(ABC):
    """A hazard, with everything a person or a report needs to know about it.

    `settled_by` names the runtime checks that confirm or refute a finding. `torch_versions` says for which torch the
    facts behind the rule were measured. `fix` is the best safety among the fixes that it offers (NONE: it offers none;
    SAFE: some of its fixes are safe, others may not be). `triggers` are words of which at least one stands in every
    file that the rule could have something to say about: files without any are never shown to it (empty: it sees
    every file).
    """

    id: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    confidence: ClassVar[Confidence]
    documentation: ClassVar[Documentation]
    settled_by: ClassVar[tuple[str, ...]] = ()
    torch_versions: ClassVar[str] = ">=2.4"
    fix: ClassVar[FixSafety] = FixSafety.NONE
    triggers: ClassVar[tuple[str, ...]] = ()
    valid: ClassVar[tuple[str | bytes, ...]] = ()
    invalid: ClassVar[tuple[Invalid, ...]] = ()

    @abstractmethod
    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every place in the file that this rule objects to, in any order."""
