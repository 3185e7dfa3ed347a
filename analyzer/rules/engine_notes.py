"""What the engine itself has to say about a file: it can't be read, or a suppression comment is wrong.

They are rules so that they are documented, listed and tested like all others; their `check` finds nothing, because
the engine reports them. This module must not do the engine's work.
"""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule


class EngineNote(Rule):
    """Common to all: never more than a note, always certain."""

    severity = Severity.NOTE
    confidence = Confidence.HIGH
    torch_versions = "any"

    def check(self, file: FileContext) -> Iterable[Hit]:  # noqa: ARG002  the engine reports these
        return ()


class SyntaxErrorNote(EngineNote):
    id = "GP001"
    name = "syntax-error"
    documentation = Documentation(
        what_it_does="Reports a file that is not valid Python, with the line where the parser gave up.",
        why_is_this_bad="Nothing in that file was analysed, and importing it fails. The other files were analysed.",
        faulty_example="def forward(self, x:\n    return x\n",
        right_example="def forward(self, x):\n    return x\n",
        fix_safety="There is no fix.",
    )
    valid = (
        "",
        "x = 1\n",
        "match command:\n    case [x]:\n        y = x\n",
    )
    invalid = (
        Invalid("x = 1\ndef f(:\n    pass\n", (2,)),
        Invalid("print 'x'\n", (1,)),
        Invalid("if x:\n        a\n    b\n", (3,)),
    )


class UnreadableFileNote(EngineNote):
    id = "GP002"
    name = "unreadable-file"
    documentation = Documentation(
        what_it_does=(
            "Reports a file that could not be analysed at all: its bytes are in no declared encoding, it is larger "
            "than the limit, it is nested too deeply for a parser, or its analysis took longer than the limit."
        ),
        why_is_this_bad="Nothing in that file was analysed. The other files were.",
        faulty_example="x = " + "(" * 300 + "1" + ")" * 300 + "\n",
        right_example="x = 1\n",
        fix_safety="There is no fix.",
    )
    valid = (
        b"\xef\xbb\xbfx = 1\n",
        b"# -*- coding: latin-1 -*-\nname = 'caf\xe9'\n",
        b"#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\nname = '\x80'\n",
    )
    invalid = (
        Invalid(b"x = 1\nname = 'caf\xe9'\n", (2,)),
        Invalid(b"# coding: klingon\nx = 1\n", (1,)),
        Invalid("x = " + "-" * 20_000 + "1\n", (1,)),
        Invalid("x = a" + ".b" * 20_000 + "\n", (1,)),
        Invalid("x = 1\ny = '\0'\n", (2,)),
    )


class UnusedSuppressionNote(EngineNote):
    id = "GP003"
    name = "unused-suppression"
    documentation = Documentation(
        what_it_does="Reports a `gradproof: ignore[...]` comment that silences no finding on its statement.",
        why_is_this_bad=(
            "It hides the next real finding on that line, and tells readers of a danger that is not there (any more)."
        ),
        faulty_example="x = 1  # gradproof: ignore[GP101] the divisor is a count\n",
        right_example="x = 1\n",
        fix_safety="Removing the comment is safe.",
    )
    valid = (
        "x = 1  # gradproof is a tool\n",
        "text = '# gradproof: ignore[GP101] in a string'\n",
    )
    invalid = (
        Invalid("x = 1  # gradproof: ignore[GP101] counted\n", (1,)),
        Invalid("x = 1\n\n# gradproof: ignore[GP999] no such rule\ny = 2\n", (3,)),
        Invalid("x = 1  # gradproof: ignore[GP101, GP107] both\n", (1, 1)),
    )


class SuppressionWithoutReasonNote(EngineNote):
    id = "GP004"
    name = "suppression-without-reason"
    documentation = Documentation(
        what_it_does=(
            "Reports a `gradproof: ignore` comment that gives no reason or names no rule. It silences nothing."
        ),
        why_is_this_bad="Nobody can tell later whether the silence is still right.",
        faulty_example="x = 1  # gradproof: ignore[GP101]\n",
        right_example="x = 1\n",
        fix_safety="There is no fix: only a person knows the reason.",
    )
    valid = (
        "x = 1  # gradproof: ignore[GP101] the divisor is a count\n",
        "x = 1  # noqa: E501\n",
    )
    invalid = (
        Invalid("x = 1  # gradproof: ignore[GP101]\n", (1,)),
        Invalid("x = 1  # gradproof: ignore\n", (1,)),
        Invalid("x = 1  # gradproof: ignore because I say so\n", (1,)),
        Invalid("x = 1  # gradproof: ignore[]  why\n", (1,)),
    )
