"""Comments stand at added lines only, few and once; a suggestion is right or is not made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from analyzer.findings import Edit, Region
from analyzer.fixing import apply_edits
from services.findings.failures import with_failures
from services.forges.inline_comments import (
    InlineOptions,
    InlinePlan,
    finding_marker,
    git_blob_sha,
    gone,
    plan_inline,
    read_finding,
    review_body,
)
from services.forges.markdown import size
from services.forges.review import Review
from services.forges.values import Comment, Person, ReviewThread
from services.gates import GatePolicy
from services.reports.document import FindingInfo, Report
from services.reports.sources import TreeSources
from tests.forges.reviews import (
    GITHUB,
    GITLAB,
    HEAD,
    NORMALISE,
    TREE,
    changed,
    clean,
    diff,
    edit,
    found,
    many,
    review,
    with_fix,
)
from tests.reports.samples import SOURCE, check, hostile_report, report_of, target, wrong_gradient

CODE = TREE["pkg/a.py"]
PARSER = MarkdownIt("commonmark")


def planned(
    of: Review | Report,
    contents: Mapping[str, bytes] | None = None,
    *,
    before: Mapping[str, bytes] | None = None,
    already: tuple[str, ...] = (),
    file: Mapping[str, Any] | None = None,
    **options: Any,
) -> InlinePlan:
    """What is planned where the pull request brings `contents` (all of pkg/a.py) instead of `before` (nothing)."""
    contents = TREE if contents is None else contents
    return plan_inline(
        of if isinstance(of, Review) else review(of),
        diff(contents, before, **(file or {})),
        contents.get,
        already=already,
        options=InlineOptions(**options),
    )


def first(plan: InlinePlan) -> Any:
    """The comment on `hand-normalisation`, the finding with the fix."""
    return next(each for each in plan.comments if each.fingerprint == "f" * 32)


def suggestions(plan: InlinePlan) -> list[str]:
    """The contents of the suggestions, as a Markdown parser that is not ours reads them."""
    return [
        token.content
        for each in plan.comments
        for token in PARSER.parse(each.comment.body)
        if token.type == "fence" and token.info.startswith("suggestion")
    ]


def test_each_new_finding_has_a_comment_at_its_line() -> None:
    plan = planned(found())
    assert [(each.fingerprint, each.comment.path, each.comment.line) for each in plan.comments] == [
        ("a" * 32, "pkg/a.py", 13),
        ("f" * 32, "pkg/a.py", 18),
    ]
    said = plan.comments[0].comment.body
    assert said.startswith(f"<!-- gradproof:finding {'a' * 32} -->\n**GP303 backward\\-arity** (error)\n\n")
    assert "**Shown by execution:**" in said
    assert "`/gradproof ignore aaaaaaaaaaaa REASON`" in said
    assert "[What it means](https://gradproof.example/rules/GP303)" in said
    assert read_finding(said) == "a" * 32


def test_only_added_lines_are_commented_on() -> None:
    before = {"pkg/a.py": CODE.replace(b"return grad * x, None", b"return grad")}
    plan = planned(found(), before=before)
    assert [each.comment.line for each in plan.comments] == [13]
    ((finding, reason),) = plan.unplaced
    assert finding.rule == "GP102"
    assert "does not add its line" in reason
    # Line 18 stands in the diff as an unchanged line, which is not enough.
    near = {"pkg/a.py": CODE.replace(b"    def forward(self, x):", b"    def forward(self, y):")}
    assert planned(found(), before=near).comments == ()


def test_a_finding_of_several_lines_stands_at_those_that_are_added() -> None:
    spread = changed(found(), start_line=11, end_line=13, start_column=1, end_column=5)
    assert [(each.comment.start_line, each.comment.line) for each in planned(spread).comments] == [(11, 13), (11, 13)]
    before = {"pkg/a.py": CODE.replace(b"(x,) = ctx.saved_tensors", b"x = ctx")}
    assert [(each.comment.start_line, each.comment.line) for each in planned(spread, before=before).comments] == [
        (None, 12),
        (None, 12),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"is_new": False}, {"triage": "accepted"}, {"severity": "note"}, {"verdict": "not_reproduced"}],
)
def test_what_is_known_decided_or_only_a_note_has_no_comment(changes: dict[str, Any]) -> None:
    assert planned(changed(found(), **changes)).comments == ()


def test_a_finding_has_one_comment_only() -> None:
    assert [each.fingerprint for each in planned(found(), already=("a" * 32,)).comments] == ["f" * 32]
    twice = found().model_copy(update={"findings": [*found().findings, *found().findings]})
    assert len(planned(twice).comments) == 2


def test_thirty_at_most_and_the_others_are_listed() -> None:
    contents = {"pkg/a.py": b"x\n" * 120}
    plan = planned(many(120), contents)
    assert len(plan.comments) == 30
    assert len(plan.listed) == 90
    said = review_body(review(), plan)
    assert said.startswith("Gradproof: 30 new findings at lines that this change adds. 90 more without a comment:")
    assert said.count("\n- warning: GP102") == 90
    assert len(planned(many(120), contents, most=3).comments) == 3
    assert len(planned(many(120), contents, most=500).comments) == 30
    assert len(planned(many(120), contents, most=0).comments) == 0
    assert (
        size(review_body(review(), planned(changed(many(900), name="ü" * 250), {"pkg/a.py": b"x\n" * 900}))) <= 65_536
    )


def test_the_gravest_come_first() -> None:
    report = many(40)
    grave = report.findings[39].model_copy(update={"severity": "error", "verdict": "confirmed"})
    report = report.model_copy(update={"findings": [*report.findings[:39], grave]})
    assert planned(report, {"pkg/a.py": b"x\n" * 40}).comments[0].fingerprint == grave.fingerprint


def test_files_without_a_patch_are_told_with_the_reason() -> None:
    plan = plan_inline(review(), diff(TREE).__class__({}, {}, {"pkg/a.py": "it is too large"}), TREE.get)
    assert plan.comments == ()
    assert {reason for _, reason in plan.unplaced} == {"it is too large"}


def test_a_verified_safe_fix_is_suggested() -> None:
    plan = planned(with_fix(found()))
    assert suggestions(plan) == ["        return torch.nn.functional.normalize(x)\n"]
    assert first(plan).has_suggestion
    assert (first(plan).comment.start_line, first(plan).comment.line) == (None, 18)
    assert "The fix was executed: the fixed code is clean" in first(plan).comment.body


@pytest.mark.parametrize(
    ("fix", "options", "file"),
    [
        ({"verified": None}, {}, {}),
        ({"verified": False}, {}, {}),
        ({"verified": False}, {"unverified": True}, {}),
        ({"safety": "unsafe"}, {}, {}),
        ({}, {"suggestions": False}, {}),
        ({}, {"analysed_sha": "9" * 40}, {}),
        ({}, {}, {"blob_sha": "9" * 40}),
    ],
)
def test_no_suggestion_but_for_a_fix_that_was_executed_on_this_very_file(
    fix: dict[str, Any], options: dict[str, Any], file: dict[str, Any]
) -> None:
    plan = planned(with_fix(found(), **fix), file=file, **options)
    assert suggestions(plan) == []
    assert len(plan.comments) == 2, "the finding is told all the same"
    assert not first(plan).has_suggestion


def test_a_project_may_allow_safe_fixes_that_nothing_could_execute() -> None:
    plan = planned(with_fix(found(), verified=None, verified_reason=None), unverified=True)
    assert len(suggestions(plan)) == 1
    assert "nothing executed it" in first(plan).comment.body


def test_a_suggestion_is_made_for_the_head_that_was_analysed() -> None:
    assert suggestions(planned(with_fix(found()), analysed_sha=HEAD))
    assert suggestions(planned(with_fix(found()), file={"blob_sha": None}))
    assert git_blob_sha(b"a\nb\n") == "422c2b7ab3b3c668038da977e4e93a5fc623169c"  # as `git hash-object` says


@pytest.mark.parametrize(
    "content",
    [
        SOURCE.replace("\n", "\r\n").encode(),
        SOURCE.replace("import torch\n", "import torch\r").encode(),
        b"\xef\xbb\xbf" + CODE,
        CODE.replace(b"import torch\n", b"# \xe9\n"),
    ],
)
def test_no_suggestion_where_lines_or_characters_may_differ(content: bytes) -> None:
    assert suggestions(planned(with_fix(found()), {"pkg/a.py": content})) == []


def test_a_suggestion_replaces_added_lines_only() -> None:
    spread = edit((16, 1), (18, 28), "class Norm(torch.nn.Module):\n    def forward(self, x):\n        return x")
    before = {"pkg/a.py": CODE.replace(b"return x / x.norm()", b"return x")}
    # Lines that stay as they are need not be added.
    assert suggestions(planned(with_fix(found(), spread), before=before)) == ["        return x\n"]
    both = edit((16, 1), (18, 28), "class Norm(Module):\n    def forward(self, x):\n        return x")
    assert suggestions(planned(with_fix(found(), both), before=before)) == []
    plan = planned(with_fix(found(), both))
    assert (first(plan).comment.start_line, first(plan).comment.line) == (16, 18)


def test_several_edits_are_one_suggestion() -> None:
    plan = planned(with_fix(found(), edit((16, 7), (16, 11), "Unit"), edit((18, 16), (18, 17), "y")))
    assert suggestions(plan) == [
        "class Unit(torch.nn.Module):\n    def forward(self, x):\n        return y / x.norm()\n"
    ]
    apart = with_fix(found(), edit((1, 1), (1, 1), "import math\n"), NORMALISE)
    before = {"pkg/a.py": CODE.replace(b"return x / x.norm()", b"return x")}
    assert suggestions(planned(apart, before=before)) == []


@pytest.mark.parametrize(
    ("edits", "expected", "lines"),
    [
        ((edit((17, 1), (18, 1), ""),), [""], (None, 17)),
        ((edit((18, 9), (18, 9), "y = 1\n        "),), ["        y = 1\n        return x / x.norm()\n"], (None, 18)),
        ((edit((18, 16), (18, 28), "x / x.norm()"),), [], (None, 18)),
        ((edit((90, 1), (91, 1), ""),), [], (None, 18)),
        ((edit((18, 9), (18, 28), "\n".join(["x"] * 60)),), [], (None, 18)),
        ((edit((18, 9), (18, 28), "x" * 9_000),), [], (None, 18)),
    ],
)
def test_lines_are_removed_added_or_left(edits: Any, expected: list[str], lines: tuple[int | None, int]) -> None:
    plan = planned(with_fix(found(), *edits))
    assert suggestions(plan) == expected
    assert (first(plan).comment.start_line, first(plan).comment.line) == lines


def test_back_ticks_in_code_do_not_end_the_suggestion() -> None:
    plan = planned(with_fix(found(), edit((18, 16), (18, 28), '"""\n````\n@everyone\n"""')))
    assert suggestions(plan) == ['        return """\n````\n@everyone\n"""\n']
    assert "`````suggestion\n" in first(plan).comment.body


def test_gitlab_says_how_far_a_suggestion_reaches_back() -> None:
    spread = edit((16, 1), (18, 28), "class Norm(Module):\n    def forward(self, x):\n        return x")
    plan = planned(review(with_fix(found(), spread), links=GITLAB))
    assert "```suggestion:-2+0\n" in first(plan).comment.body
    assert (first(plan).comment.start_line, first(plan).comment.line) == (None, 18)
    plan = planned(review(with_fix(found()), links=GITLAB))
    assert "```suggestion:-0+0\n" in first(plan).comment.body


def test_gitlab_is_given_no_line_that_it_would_obey() -> None:
    obeyed = edit((18, 16), (18, 28), '"""\n/close\n"""')
    assert suggestions(planned(review(with_fix(found(), obeyed), links=GITLAB))) == []
    assert len(suggestions(planned(review(with_fix(found(), obeyed), links=GITHUB)))) == 1


TEXT = st.lists(st.sampled_from(["a", "b = 1", "", "```", "    x", "é😀", "/close"]), min_size=1, max_size=8)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.data(), TEXT, st.lists(st.sampled_from(["", "y", "y\n", "\n", "````\n", "é"]), min_size=1, max_size=2))
def test_taking_a_suggestion_makes_the_file_that_was_verified(data: Any, lines: list[str], texts: list[str]) -> None:
    """What the forge does with a suggestion (replace the comment's lines) is what the fix does."""
    code = "\n".join(lines) + "\n"
    places = st.integers(1, len(lines)).flatmap(
        lambda line: st.tuples(st.just(line), st.integers(1, len(lines[line - 1]) + 1))
    )
    edits, at = [], (0, 0)
    for text in texts:  # none begins where another ends: which of two insertions comes first is not said
        if at == (len(lines), len(lines[-1]) + 1):
            break
        begin = data.draw(places.filter(lambda place, at=at: place > at))
        end = data.draw(places.filter(lambda place, begin=begin: place >= begin))
        edits.append(edit(begin, end, text))
        at = end
    report = changed(with_fix(found(), *edits), path="pkg/b.py", start_line=1, end_line=1, start_column=1, end_column=2)
    contents = {"pkg/b.py": code.encode()}
    plan = planned(review(report, sources=TreeSources(contents)), contents)
    expected = apply_edits(
        code, [Edit(Region("x", e.start_line, e.start_column, e.end_line, e.end_column), e.replacement) for e in edits]
    )
    made = [each for each in plan.comments if each.has_suggestion]
    assert bool(made) is (expected != code)
    for each, text in zip(made, suggestions(plan), strict=True):
        all_lines = code.split("\n")
        start = each.comment.start_line or each.comment.line
        taken = [*all_lines[: start - 1], *text.split("\n")[:-1], *all_lines[each.comment.line :]]
        assert "\n".join(taken) == expected


def test_a_notebook_has_comments_but_no_suggestions() -> None:
    report = changed(with_fix(found()), path="a.ipynb", cell=1, start_line=1, end_line=1)
    plan = planned(review(report, sources=TreeSources({})), {"a.ipynb": b'{"cells": []}\n'})
    assert len(plan.comments) == 2
    assert suggestions(plan) == []


def thread(of: FindingInfo, path: str = "pkg/a.py") -> ReviewThread:
    """A conversation that we began about a finding."""
    moment = datetime(2026, 11, 30, tzinfo=UTC)
    body = f"{finding_marker(of)}\nx"
    ours = Comment("1", "1", Person("1", "gradproof[bot]", is_bot=True), True, body, moment, moment)
    return ReviewThread("1", path, 1, False, False, (ours,))


def test_findings_that_are_gone_are_told() -> None:
    known = {each.fingerprint: thread(each) for each in found().findings}
    assert gone(review(), known) == set()
    assert gone(review(changed(found(), triage="accepted")), known) == set(known)
    assert gone(review(clean()), known) == set(known)
    assert gone(review(clean(status="partial", reason="lost")), known) == set()


def test_a_file_that_cannot_be_read_any_more_has_fixed_nothing() -> None:
    broken = changed(many(1), rule="GP001", name="syntax-error")
    known = {each.fingerprint: thread(each) for each in found().findings}
    assert gone(review(broken), known) == set()
    elsewhere = {each.fingerprint: thread(each, "pkg/b.py") for each in found().findings}
    assert gone(review(broken), elsewhere) == set(elsewhere)


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ([check()], True),
        ([], False),
        ([check(verdict="error")], False),
        ([check(verdict="inconclusive")], False),
        ([check(check="nan_gradient")], False),
        ([check(), check(device="cuda", verdict="fail")], False),
        (None, True),
    ],
)
def test_what_a_check_brought_is_gone_when_it_passes_or_has_no_target_any_more(checks: Any, expected: bool) -> None:
    targets = (target(checks=(wrong_gradient(),)),)
    (brought,) = report_of((), targets, settled=with_failures((), targets)).findings
    known = {brought.fingerprint: thread(brought)}
    assert read_finding(thread(brought).comments[0].body) == brought.fingerprint
    now = (target("pkg.a:Other"),) if checks is None else (target(checks=tuple(checks)),)
    assert bool(gone(review(report_of((), now)), known)) is expected


def test_a_hostile_repository_forges_nothing() -> None:
    report = changed(hostile_report(), is_new=True, verdict="confirmed", severity="error")
    path = report.findings[0].path
    contents = {path: b"x\n"}
    plan = planned(review(report, sources=TreeSources(contents), policy=GatePolicy()), contents)
    said = plan.comments[0].comment.body
    rest = said.partition("\n")[2]
    for forbidden in ("@everyone", "fixes #2", "<script", "<img", "<!--", "javascript:", "\u202e", "\x1b"):
        assert forbidden not in rest
    assert read_finding(said) == report.findings[0].fingerprint
    assert read_finding(rest) is None
    listed = planned(review(report, sources=TreeSources(contents)), contents, most=0)
    for forbidden in ("@everyone", "<script", "<!--", "\u202e"):
        assert forbidden not in review_body(review(report), listed)
