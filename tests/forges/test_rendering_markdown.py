"""No text of a repository speaks to a forge: read by a Markdown parser that is not ours, and by what forges link."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from services.forges.markdown import fenced, fitted, link, marker, plain, prose, read_marker, size, span, table
from services.reports.untrusted import one_line, shorten
from tests.reports.samples import HOSTILE_TEXTS

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
FRAGMENTS = st.sampled_from(
    [
        *("@everyone", "@a/b", "#1", "fixes #12", "GH-3", "gh-3", "o/r#4", "o/r@deadbeef", "!7", "a!7", "a@b.example"),
        *(
            "deadbeef",
            "1a2b3c4d5e6f",
            "0123456789abcdef0123456789abcdef01234567",
            "%milestone",
            "~label",
            "&epic",
            "^alert",
        ),
        *(
            "<!-- gradproof:summary p:1 -->",
            "<img src=x>",
            "<b>",
            "&lt;",
            "![x](y)",
            "[x](y)",
            "[^1]",
            "]: x",
            "<details>",
        ),
        *("http://x.y", "www.x.y", "mailto:a@b.c", "`", "``", "```", "~~~", "|", "\\", "\\|", "\n", "\r\n", "# h"),
        *("- [ ] x", "> q", "***", "_x_", "~~x~~", "$x$", ":smile:", "    code", "\t", "1. x", "---", "===", "{{7*7}}"),
        *("\u202e", "\u200b", "\x1b[31m", "\x00", "\ud800", "/close", "\n/close", "é", "😀", " ", "a"),
    ]
)
HOSTILE = st.lists(FRAGMENTS, max_size=12).map("".join) | st.text(max_size=40)
LINKED = [
    re.compile(r"(?<![\w`])@[\w]"),
    re.compile(r"(?<![\w&])#\d"),
    re.compile(r"\w[#!@]\w"),
    re.compile(r"(?i)\bGH-\d"),
    re.compile(r"(?<!\w)!\d"),
    re.compile(r"(?i)https?://"),
    re.compile(r"(?i)(?<!\w)www\."),
    re.compile(r"(?i)(?<!\w)mailto:"),
    re.compile(r"(?<![0-9A-Za-z])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,40}(?![0-9A-Za-z])"),
    re.compile(r"(?<!\w)[~%&^$]\w"),
]
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def tokens(markdown: str) -> list[Token]:
    found = []
    for token in PARSER.parse(markdown):
        found += [token, *(token.children or [])]
    return found


def kinds(markdown: str) -> set[str]:
    return {token.type for token in tokens(markdown)}


def read_text(markdown: str) -> str:
    return "".join(token.content for token in tokens(markdown) if token.type == "text")


@settings(deadline=None, derandomize=True, max_examples=200)
@given(HOSTILE)
def test_plain_text_is_nothing_but_text(value: str) -> None:
    written = plain(value)
    assert kinds(f"x {written} y") <= {"paragraph_open", "inline", "text", "paragraph_close"}
    assert kinds(written) <= {"paragraph_open", "inline", "text", "paragraph_close"}
    read = read_text(written)
    for pattern in LINKED:
        assert not pattern.search(read), pattern.pattern
    assert not STEERING.search(written)
    assert "<!--" not in written
    assert not written.startswith("/")


@settings(deadline=None, derandomize=True, max_examples=200)
@given(HOSTILE)
def test_plain_text_still_says_what_it_said(value: str) -> None:
    assert read_text(f"x{plain(value)}")[1:].replace("\u200b", "") == shorten(one_line(value), 600).replace(
        "\u200b", ""
    )


@settings(deadline=None, derandomize=True, max_examples=150)
@given(HOSTILE)
def test_a_code_span_is_one_code_span(value: str) -> None:
    written = span(value)
    found = [
        token for token in tokens(f"x {written} y") if token.type not in {"paragraph_open", "inline", "paragraph_close"}
    ]
    assert [token.type for token in found] == ["text", "code_inline", "text"]
    said = shorten(one_line(value), 200)
    assert found[1].content.strip() == said.replace("|", "\\|").strip()


@settings(deadline=None, derandomize=True, max_examples=150)
@given(HOSTILE)
def test_prose_holds_text_and_code_and_nothing_else(value: str) -> None:
    written = prose(value)
    assert kinds(f"x {written}") <= {"paragraph_open", "inline", "text", "code_inline", "paragraph_close"}
    for pattern in LINKED:
        assert not pattern.search(read_text(f"x {written}")), pattern.pattern


def test_prose_shows_code_as_code() -> None:
    assert prose("`x / x.norm()` is NaN at `x = 0`!") == "`x / x.norm()` is NaN at `x = 0`\\!"
    assert kinds(prose("an odd ` one")) == {"paragraph_open", "inline", "text", "paragraph_close"}
    assert prose("b``1a2b3c") == plain("b``1a2b3c")


def test_a_backslash_before_a_reference_stays_one() -> None:
    assert plain("\\&epic") == "\\\\&amp;\u200bepic"


@settings(deadline=None, derandomize=True, max_examples=150)
@given(HOSTILE)
def test_a_fence_is_one_fence_whatever_is_in_it(value: str) -> None:
    found = tokens(f"before\n\n{fenced(value, 'python')}\n\nafter")
    fences = [token for token in found if token.type == "fence"]
    assert len(fences) == 1
    assert kinds(f"before\n\n{fenced(value)}\n\nafter") == {
        "paragraph_open", "inline", "text", "paragraph_close", "fence"
    }  # fmt: skip
    assert not re.search(r"^\s*/[A-Za-z]", fences[0].content, re.MULTILINE), "GitLab would obey it"


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(HOSTILE, min_size=1, max_size=4))
def test_a_cell_stays_a_cell(values: list[str]) -> None:
    made = table(("a", "b", "c"), [(plain(value), span(value), prose(value)) for value in values])
    found = [token.type for token in tokens(made)]
    assert found.count("tr_open") == len(values) + 1
    assert found.count("td_open") == 3 * len(values)
    assert found.count("code_inline") >= len(values)


def test_a_long_block_is_cut_between_lines() -> None:
    assert fenced("\n".join(["x" * 30] * 10), limit=70).count("x" * 30) == 2


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_a_marker_counts_on_the_first_line_alone(text: str) -> None:
    ours = marker("summary", "01jc:7")
    assert read_marker("summary", f"{ours}\n{plain(text)}") == "01jc:7"
    assert read_marker("summary", f"{ours}\r\nx") == "01jc:7"
    assert read_marker("finding", f"{ours}\n") is None
    for forged in (f"x {ours}", f"\n{ours}", f"{plain(text)}\n{ours}", f"`{ours}`", f"> {ours}", f"{ours}x", ours[:-1]):
        assert read_marker("summary", forged) is None


@pytest.mark.parametrize("key", ["", "a b", "-->", "a\n", "x" * 121, "é"])
def test_a_marker_is_made_of_plain_characters(key: str) -> None:
    with pytest.raises(ValueError, match="marker"):
        marker("summary", key)


@pytest.mark.parametrize("path", ["a b", "a(b)", "a>b", "<a>", 'a"b', "a\nb", "a|b", "a\\b", "é"])
def test_an_address_does_not_end_early(path: str) -> None:
    found = [token for token in tokens(f"x {link('y', f'https://h/{path}')} z") if token.type == "link_open"]
    assert len(found) == 1
    assert str(found[0].attrs["href"]).startswith("https://h/")
    assert read_text(f"x {link('y', f'https://h/{path}')} z") == "x y z"


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.text(max_size=60), max_size=40), st.integers(min_value=60, max_value=600))
def test_what_does_not_fit_is_left_out_whole(parts: list[str], limit: int) -> None:
    def tail(left_out: int) -> str:
        return f"{left_out} more" if left_out else ""

    made = fitted(parts, tail=tail, limit=limit)
    assert size(made) <= limit
    kept = next(
        number for number in range(len(parts), -1, -1)
        if made == "\n\n".join([*parts[:number], *([tail(len(parts) - number)] if number < len(parts) else [])])
    )  # fmt: skip
    if kept < len(parts):
        longer = "\n\n".join([*parts[: kept + 1], tail(len(parts) - kept - 1) or ""])
        assert size(longer) > limit - 12  # the words of the tail may be what is too much
