"""Our own documentation as HTML: paragraphs, lists and code spans, which is all that its sentences use.

It is fed with texts of the product only, and escapes them all the same.
"""

from __future__ import annotations

import re

from markupsafe import Markup

from services.reports.formats.html import prose

_BLANK_LINES = re.compile(r"\n\s*\n")
_ITEM = re.compile(r"^\s*[-*] ", re.MULTILINE)
_STRONG = re.compile(r"\*\*([^*]+)\*\*")


def blocks(text: str) -> Markup:
    """Paragraphs and lists."""
    return Markup("\n").join(_block(block.strip()) for block in _BLANK_LINES.split(text.strip()) if block.strip())


def _block(block: str) -> Markup:
    first, *items = _ITEM.split(block)
    lead = Markup("<p>{}</p>").format(_inline(first)) if first.strip() else Markup("")
    if not items:
        return lead
    listed = Markup("").join(Markup("<li>{}</li>").format(_inline(item)) for item in items)
    return lead + Markup("<ul>{}</ul>").format(listed)


def _inline(text: str) -> Markup:
    parts = _STRONG.split(" ".join(text.split()))
    return Markup("").join(
        Markup("<strong>{}</strong>").format(prose(part)) if position % 2 else prose(part)
        for position, part in enumerate(parts)
    )
