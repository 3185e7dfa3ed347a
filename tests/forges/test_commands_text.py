"""Commands are read where a person wrote them as text, and every answer is safe to post."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.registry import all_rules
from services.checks.documentation import all_checks
from services.forges import commands_text as commands
from services.forges.commands_text import Command, Misread, matching, read_command
from services.forges.markdown import size
from tests.forges.reviews import changed, found, review
from tests.reports.samples import HOSTILE_TEXTS, hostile_report
from tests.reports.test_markdown import outside_code


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("/gradproof rerun", Command("rerun")),
        ("/gradproof re-run please", Command("rerun")),
        ("/GradProof  Rerun", Command("rerun")),
        ("   /gradproof pause\r\n", Command("pause")),
        ("Thanks!\n\n/gradproof resume\n/gradproof rerun", Command("resume")),
        ("/gradproof", Command("help")),
        ("/gradproof help", Command("help")),
        ("/gradproof explain GP101", Command("explain", "GP101")),
        ("/gradproof explain `gradcheck`", Command("explain", "gradcheck")),
        (
            "/gradproof ignore 3fa94c01d2be rows are never zero",
            Command("ignore", "3fa94c01d2be", "rows are never zero"),
        ),
        ("/gradproof ignore `3FA94C01D2BE`  two   blanks ", Command("ignore", "3fa94c01d2be", "two blanks")),
        ("<!-- /gradproof pause -->\n/gradproof rerun", Command("rerun")),
        ("```\n/gradproof pause\n```\n/gradproof rerun", Command("rerun")),
        ("````\n```\n/gradproof pause\n```\n````\n/gradproof rerun", Command("rerun")),
    ],
)
def test_a_command_is_read(body: str, expected: Command) -> None:
    assert read_command(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "",
        "please /gradproof rerun",
        "> /gradproof rerun",
        ">> /gradproof rerun",
        "    /gradproof rerun",
        "\t/gradproof rerun",
        "`/gradproof rerun`",
        "- /gradproof rerun",
        "```\n/gradproof rerun",
        "~~~text\n/gradproof rerun\n~~~",
        "```\n/gradproof rerun\n``` not the end\n/gradproof rerun",
        "<!-- hidden\n/gradproof rerun\n-->",
        "<!-- never closed\n/gradproof rerun",
        "/gradproofs rerun",
        "/gradproof-bot rerun",
        "> a quote\u2028/gradproof rerun",
        "> a quote\x0b/gradproof rerun",
        "> a quote\x85/gradproof rerun",
        "x\n" * 600 + "/gradproof rerun",
    ],
)
def test_what_is_quoted_shown_or_hidden_is_no_command(body: str) -> None:
    assert read_command(body) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("/gradproof dance", "There is no command `dance`"),
        ("/gradproof ignore", "Which one?"),
        ("/gradproof ignore 3fa94c01d2be", "Why?"),
        ("/gradproof ignore 3fa94c01d2be \u200b", "Why?"),
        ("/gradproof ignore GP101 because", "is named by a row of digits"),
        ("/gradproof ignore 3fa because", "is named by a row of digits"),
        ("/gradproof explain", "Which one?"),
        ("/gradproof explain <script>alert(1)</script>", "Which one?"),
    ],
)
def test_what_cannot_be_obeyed_is_answered_with_what_there_is(body: str, words: str) -> None:
    misread = read_command(body)
    if body.endswith("\u200b"):
        assert isinstance(misread, Command), "what is invisible is shown, and is a reason of sorts"
        return
    assert isinstance(misread, Misread)
    answer = commands.misread_answer(misread)
    assert words in answer
    assert "`/gradproof ignore FINDING REASON`" in answer


def test_a_reason_is_kept_short_and_visible() -> None:
    read = read_command("/gradproof ignore 3fa94c01d2be \u202e" + "x" * 900)
    assert isinstance(read, Command)
    assert read.reason.startswith("[U+202E]xxx")
    assert len(read.reason) == 500


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.text(max_size=200) | st.text(alphabet="/gradproof ignexplsu\n`~>-<!", max_size=80))
def test_any_comment_can_be_read(body: str) -> None:
    read = read_command(body)
    assert read is None or isinstance(read, Command | Misread)


def test_an_endless_comment_is_read_quickly() -> None:
    for body in (
        "/gradproof ignore " + "a" * 10**6,
        "`" * 10**6,
        "<!--" * 10**5,
        "/gradproof " * 10**5,
        "~~~\n" * 10**5,
    ):
        read_command(body)


def test_findings_are_named_by_the_beginning_of_their_fingerprint() -> None:
    known = ["aaaaaa11", "aaaaaa22", "bbbbbb33", "bbbbbb33"]
    assert matching("BBBBBB", known) == ("bbbbbb33",)
    assert matching("aaaaaa", known) == ("aaaaaa11", "aaaaaa22")
    assert matching("cccccc", known) == ()
    assert matching("a", known) == ()
    assert matching("", known) == ()


def test_every_rule_and_every_check_can_be_explained() -> None:
    for rule in all_rules():
        for name in (rule.id, rule.id.lower(), rule.name):
            answer = commands.explain_rule_answer(name, "https://gradproof.example/rules/")
            assert answer is not None
            assert answer.startswith(f"**{rule.id} {rule.name}**")
            assert f"(https://gradproof.example/rules/{rule.id})" in answer
            assert len(answer) < 20_000
    for check in all_checks():
        answer = commands.explain_rule_answer(check.name, "https://gradproof.example/rules")
        assert answer is not None
        assert check.summary in answer
    assert commands.explain_rule_answer("GP999", "https://gradproof.example/rules") is None
    assert commands.explain_rule_answer("3fa94c01d2be", "https://gradproof.example/rules") is None


def test_a_finding_is_explained_with_its_source_its_numbers_and_a_script() -> None:
    report = found()
    answer = commands.explain_finding_answer(review(report), report.findings[1])
    assert answer.startswith("**GP303 backward\\-arity** (`aaaaaaaaaaaa`) at [`pkg/a.py:13`](https://github.com/")
    assert "   13          return grad * x, None" in answer
    assert "**Shown by execution:**" in answer
    assert "`called with float64[2, 8]`" in answer
    assert "A script that shows it" in answer
    assert "print(torch.ones(1))" in answer
    assert "/findings/" + "a" * 32 in answer


def test_three_explanations_fit_into_one_comment() -> None:
    report = changed(found(), message="😀" * 3_000, verdict_reason="`" * 3_000)
    script = report.targets[0].checks[0].model_copy(update={"repro": "😀" * 7_000, "summary": "é" * 9_000})
    target = report.targets[0].model_copy(update={"checks": [script]})
    report = report.model_copy(update={"targets": [target, *report.targets[1:]]})
    for finding in report.findings:
        answer = commands.explain_finding_answer(review(report), finding)
        assert size(answer) <= 20_000
        assert answer.endswith(").")
        assert outside_code(answer)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_no_answer_speaks_for_somebody_else(text: str) -> None:
    report = changed(hostile_report(), verdict="confirmed")
    finding = report.findings[0]
    answers = [
        commands.not_allowed_answer(text),
        commands.ignored_answer(finding, text, text),
        commands.not_found_answer(text),
        commands.ambiguous_answer(text, [text, text]),
        commands.rerun_answer(text),
        commands.explain_finding_answer(review(report), finding),
        commands.misread_answer(Misread("There is no such command.")),
        commands.help_answer(),
        commands.pause_answer(),
        commands.resume_answer(),
    ]
    for answer in answers:
        read = outside_code(answer)
        for forbidden in ("@everyone", "@me", "fixes #2", "<script", "<img", "<!--", "javascript:", "\u202e", "\x1b"):
            assert forbidden not in read
        assert read_command(answer) is None, "an answer of ours is no command"
