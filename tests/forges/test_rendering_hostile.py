"""Whatever a repository is called and says: what the bot writes holds our own links and markup, and no others.

Read by a Markdown parser that is not ours. Each text that submitted code can influence is made of attacks.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from services.forges.check_output import check_output
from services.forges.commands_text import explain_finding_answer, ignored_answer, read_command
from services.forges.inline_comments import plan_inline, read_finding, review_body
from services.forges.review import Review
from services.forges.summary_comment import is_summary, summary
from services.reports.document import FixInfo
from services.reports.sources import TreeSources
from tests.forges.reviews import BASE, GITHUB, GITLAB, PUBLIC, changed, diff, edit, found, review
from tests.forges.test_rendering_markdown import HOSTILE, LINKED

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
OURS = ("https://github.com/acme/models/", "https://gitlab.com/acme/models/", "https://gradproof.example/")
MARKUP = re.compile(r"</?(?:sub|br|details|summary)>|<!-- gradproof:(?:summary|finding) [0-9a-z:]+ -->")


def assert_ours(body: str, code: tuple[str, ...] = ("", "python", "suggestion", "suggestion:-0+0")) -> None:
    """Nothing in it but our links, our tags, code as code, and text that a forge makes nothing of."""
    tokens = [inner for token in PARSER.parse(body) for inner in (token, *(token.children or []))]
    for token in tokens:
        assert token.type not in {"image", "em_open", "s_open", "hr", "blockquote_open", "code_block"}
        if token.type == "link_open":
            assert str(token.attrs["href"]).startswith(OURS)
        if token.type in {"html_block", "html_inline"}:
            outside = MARKUP.sub("", token.content)
            assert "<" not in outside
        if token.type == "fence":
            assert token.info in code
        if token.type == "text":
            for pattern in LINKED:
                assert not pattern.search(token.content), pattern.pattern
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f-\x9f]", body)


def hostile_review(text: str, links: Any) -> Review:
    """Two findings and a failing check, all of whose texts, paths and names are this one."""
    path = re.sub(r"[\x00-\x1f\ud800-\udfff]", "", text)[:60].strip("/ ") or "a.py"
    report = changed(
        found(), message=text, name=text, symbol=text, verdict_reason=text, verdict="confirmed", severity="error",
        path=path, start_line=1, end_line=1, start_column=1, end_column=2, rule=f"GP101 {text}",
    )  # fmt: skip
    target = report.targets[0]
    check = target.checks[0].model_copy(
        update={
            "check": f"gradcheck {text}", "summary": text, "device": text, "path": path, "line": 1, "repro": text,
            "baseline_class": "flaky", "baseline_reason": text, "diagnosis": None,
            "evidence": {"situation": text, "input": {text: text}, "birth": {"operation": text, "path": text}},
        }
    )  # fmt: skip
    report = report.model_copy(
        update={"targets": [target.model_copy(update={"name": f"{text}:{text}", "checks": [check], "path": path})]}
    )
    condition = report.gate.conditions[0].model_copy(update={"name": text, "explanation": text})
    report = report.model_copy(update={"gate": report.gate.model_copy(update={"conditions": [condition]})})
    fix = FixInfo(safety="safe", edits=[edit((1, 1), (1, 2), "y")], verified=True, verified_reason=text)
    report = changed(report, fix=fix)
    return review(report, links=links, sources=TreeSources({path: b"x\n"}), fixed=report.findings)


@pytest.mark.parametrize("links", [GITHUB, GITLAB])
@settings(deadline=None, derandomize=True, max_examples=25)
@given(text=HOSTILE | st.just("a.py"))
def test_no_body_holds_anything_but_our_own(links: Any, text: str) -> None:
    of = hostile_review(text, links)
    path = of.report.findings[0].path
    bodies: list[str] = [check_output(of).summary]
    written = summary(of, project="01jc", number=7, said_before=False)
    assert written is not None
    assert is_summary(written.body, "01jc", 7)
    plan = plan_inline(of, diff({path: b"x\n"}), {path: b"x\n"}.get)
    bodies += [written.body, review_body(of, plan)]
    for each in plan.comments:
        assert read_finding(each.comment.body) == each.fingerprint
        bodies.append(each.comment.body)
    finding = of.report.findings[0]
    bodies += [explain_finding_answer(of, finding), ignored_answer(finding, text, text)]
    for body in bodies:
        assert_ours(body)
        assert read_command(body) is None


def test_the_parser_would_see_it() -> None:
    """The check above can fail."""
    for body in (
        "@ada",
        "[x](https://evil.example)",
        "![x](https://gradproof.example/x)",
        "<b>x</b>",
        "*x*",
        "www.x.y",
    ):
        with pytest.raises(AssertionError):
            assert_ours(body)
    assert_ours(f"[x]({PUBLIC}/a) `@ada` <sub>x</sub> {BASE[:3]}")
