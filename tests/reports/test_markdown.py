"""Markdown never lets a repository speak to the forge."""

from __future__ import annotations

import re

import pytest

from services.reports.formats import Rendering, report_format
from services.reports.formats.markdown import block, code, text
from tests.reports.samples import HOSTILE_TEXTS, hostile_report, report_of, rich_report
from tests.reports.samples import finding as a_finding

ZERO_WIDTH_SPACE = "\u200b"


def outside_code(markdown: str) -> str:
    """What a forge reads for mentions and references: neither fenced blocks nor code spans."""
    kept = []
    fence = ""
    for line in markdown.split("\n"):
        opening = re.match(r"(`{3,})", line)
        if fence:
            if line == fence:
                fence = ""
            continue
        if opening:
            fence = opening.group()
            continue
        kept.append(line)
    assert not fence, "a fence was left open"
    return re.sub(r"(?<!`)(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", "\n".join(kept))


@pytest.mark.parametrize("hostile", HOSTILE_TEXTS)
def test_hostile_text_becomes_plain_text(hostile: str) -> None:
    written = text(hostile)
    assert "\n" not in written
    assert not re.search(r"(?<![\\&\w])<(?!/?(?:br|details|summary)>)", written), "a tag"
    assert not re.search(r"(?<![\w\u200b])[@#!]\w", written), "a mention or a reference"
    assert not re.search(r"GH-\d", written)
    assert not re.search(r"(?<!\\)(?:\\\\)*[\[\]`*_]", written), "markup"
    assert "://" not in written
    assert "www." not in written


def test_the_whole_hostile_report_mentions_nobody_and_links_nowhere() -> None:
    read = outside_code(report_format("markdown").render(hostile_report(), Rendering()))
    assert not re.search(r"(?<![\w\u200b])@\w", read)
    assert not re.search(r"(?<![\w\u200b&])#\d", read)
    assert "<!--" not in read
    assert "<script" not in read
    assert "<img" not in read
    assert "javascript:" not in read
    assert not re.search(r"(?<!\\)!\[", read)
    assert "\u202e" not in read
    assert "\x1b" not in read


def test_a_mention_is_stopped_by_a_character_of_no_width() -> None:
    assert text("@everyone") == f"@{ZERO_WIDTH_SPACE}everyone"
    assert text("fixes #12") == f"fixes \\#{ZERO_WIDTH_SPACE}12"
    assert text("owner/repo#4") == f"owner/repo\\#{ZERO_WIDTH_SPACE}4"
    assert text("see GH-3") == f"see GH\\-{ZERO_WIDTH_SPACE}3"


def test_a_backslash_before_markup_stays_a_backslash() -> None:
    assert text("\\<b>") == "\\\\&lt;b&gt;"
    assert text("\\&amp;") == "\\\\&amp;amp;"
    assert text("\\*") == "\\\\\\*"


def test_a_code_span_is_longer_than_the_back_ticks_inside() -> None:
    assert code("a") == "`a`"
    assert code("a`b") == "``a`b``"
    assert code("`a``") == "``` `a`` ```"
    assert code("a|b") == "`a\\|b`"
    assert code("") == "` `"


def test_a_fence_is_longer_than_the_back_ticks_inside() -> None:
    assert block("x", "python") == "```python\nx\n```"
    assert block("````\nx\n````") == "`````\n````\nx\n````\n`````"


def test_a_report_longer_than_a_forge_takes_ends_between_two_findings() -> None:
    many = tuple(a_finding(message="x" * 500) for _ in range(500))
    written = report_format("markdown").render(report_of(many), Rendering())
    assert len(written) < 65_536
    assert written.endswith("… the rest is in the whole report.\n")
    outside_code(written)


def test_it_says_what_matters() -> None:
    written = report_format("markdown").render(rich_report(), Rendering())
    assert written.startswith("## Gradproof: gate failed")
    assert "`pkg/a.py:18:16`" in written
    assert "✗ fail cpu" in written
    assert "| constructor unsolved (1) | `pkg.a:Lonely` | Declare how it is built and called" in written
