"""What people tell the bot in a comment, and what it answers. Pure: who may say it, and doing it, is not known here.

A command is a line that begins with `/gradproof`, outside of quotes and code, so that neither a reply that quotes one
nor an explanation of one is obeyed. The first such line counts. Whatever came from people or from a repository is
escaped in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from analyzer.findings import Region
from analyzer.registry import rule as find_rule
from services.checks.documentation import check as find_check
from services.forges.markdown import fenced, fitted, link, plain, prose, span
from services.forges.review import Review, check_infos, place_link
from services.forges.sentences import check_numbers, told
from services.reports import harnesses
from services.reports.document import CheckInfo, FindingInfo, TargetInfo
from services.reports.rulebook import entry
from services.reports.sources import excerpt, shown_region
from services.reports.untrusted import one_line, shorten

CommandName = Literal["rerun", "pause", "resume", "ignore", "explain", "help"]

LONGEST_REASON: Final = 500
_OTHER_NAMES: Final = {"re-run": "rerun", "retry": "rerun", "unpause": "resume"}
_COMMAND: Final = re.compile(r" {0,3}/gradproof(?![\w-])[ \t]*(.*)", re.IGNORECASE)
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{6,64}")
_SUBJECT: Final = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_MOST_LINES: Final = 500
_LONGEST_LINE: Final = 2_000
_LONGEST_SCRIPT: Final = 8_000
LARGEST_EXPLANATION: Final = 20_000

_USAGE: Final[dict[CommandName, tuple[str, str]]] = {
    "rerun": ("/gradproof rerun", "analyse the present commit once more"),
    "pause": ("/gradproof pause", "say nothing more in this pull request"),
    "resume": ("/gradproof resume", "speak again, and analyse the present commit"),
    "ignore": ("/gradproof ignore FINDING REASON", "accept a finding, with the reason, and tell of it no more"),
    "explain": ("/gradproof explain FINDING", "say more of a finding, a rule (`GP101`) or a check (`gradcheck`)"),
    "help": ("/gradproof help", "say this"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody wants. `subject` is the beginning of a fingerprint, or the name of a rule or check."""

    name: CommandName
    subject: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Misread:
    """A line that was meant for us and can't be obeyed; `problem` is a sentence in Markdown."""

    problem: str


def read_command(body: str) -> Command | Misread | None:
    """The command in a comment; None if nobody speaks to us."""
    for line in _spoken(body):
        found = _COMMAND.match(line)
        if found is not None:
            return _read(found[1].strip())
    return None


def _spoken(body: str) -> Iterator[str]:
    """The lines that a person wrote as text: no quotes, no fences, no indented code, no hidden comments."""
    visible = re.sub(r"<!--.*?(?:-->|\Z)", "", body, flags=re.DOTALL)
    fence = ""
    # Not `splitlines`: a quote may hold other separators, behind which a command would stand on a line of its own.
    for line in visible.split("\n")[:_MOST_LINES]:
        marks = _FENCE.match(line)
        if fence:
            if marks is not None and marks[1].startswith(fence) and not marks[2].strip():
                fence = ""
        elif marks is not None:
            fence = marks[1]
        else:
            yield line[:_LONGEST_LINE]


def _read(words: str) -> Command | Misread:
    written, _, rest = words.partition(" ")
    name = _OTHER_NAMES.get(written.lower(), written.lower()) or "help"
    if name not in _USAGE:
        return Misread(f"There is no command {span(written, 40)}.")
    return _read_subject(name, rest.strip()) if name in {"ignore", "explain"} else Command(name)


def _read_subject(name: CommandName, words: str) -> Command | Misread:
    written, _, rest = words.partition(" ")
    subject, reason = written.strip("`'\"<>[]"), shorten(one_line(rest), LONGEST_REASON)
    if not _SUBJECT.fullmatch(subject):
        return Misread(f"Which one? {_usage(name)}.")
    if name == "explain":
        return Command(name, subject)
    if not _FINGERPRINT.fullmatch(subject.lower()):
        return Misread(
            f"A finding is named by a row of digits, such as `3fa94c01d2be`, which {span(subject, 60)} is not."
        )
    if not reason:
        return Misread(f"Why? A reason is kept with the decision: {_usage(name)}.")
    return Command(name, subject.lower(), reason)


def matching(subject: str, fingerprints: Iterable[str]) -> tuple[str, ...]:
    """The fingerprints that begin so: none, one, or several, which are not told apart by it."""
    if not _FINGERPRINT.fullmatch(subject.lower()):
        return ()
    return tuple(dict.fromkeys(each for each in fingerprints if each.startswith(subject.lower())))


# Answers


def misread_answer(misread: Misread) -> str:
    """To a line that can't be obeyed: what is wrong, and what there is."""
    return f"{misread.problem}\n\n{_list()}"


def help_answer() -> str:
    """What there is."""
    return _list()


def not_allowed_answer(login: str) -> str:
    """To somebody who may not write to the repository."""
    return f"This takes permission to write to the repository, which {span(login, 60)} does not have."


def rerun_answer(commit: str) -> str:
    """A commit is analysed again."""
    return f"The commit {span(commit[:12])} is being analysed again."


def pause_answer() -> str:
    """Silence from now on."""
    return "Paused: nothing more is analysed or written here until `/gradproof resume`."


def resume_answer() -> str:
    """Speech from now on."""
    return "Resumed: the present commit is being analysed."


def ignored_answer(finding: FindingInfo, reason: str, login: str) -> str:
    """A finding was accepted."""
    return (
        f"{_named(finding)} is accepted by {span(login, 60)}: {plain(reason, LONGEST_REASON)}\n\n"
        "It is told no more, here and in later pull requests, until its code changes."
    )


def not_found_answer(subject: str) -> str:
    """Nothing is called so."""
    return f"No finding of this pull request, no rule and no check is called {span(subject, 100)}."


def ambiguous_answer(subject: str, fingerprints: Iterable[str]) -> str:
    """Several findings begin so."""
    names = ", ".join(span(fingerprint[:16]) for fingerprint in list(fingerprints)[:10])
    return f"Several findings begin with {span(subject, 100)}: {names}."


def explain_rule_answer(subject: str, pages: str) -> str | None:
    """What a rule or a check is, in our own words; None if none has that name. `pages` is where each has its page."""
    rule = find_rule(subject.upper()) or find_rule(subject.lower())
    check = find_check(subject.lower())
    if rule is None and check is None:
        return None
    known = entry(rule.id if rule is not None else subject.lower())
    title = f"**{known.id} {known.name}**" if rule is not None else f"**{known.name}**"
    where = link("The whole page", f"{pages.rstrip('/')}/{known.id}")
    return f"{title}: {known.summary}\n\n{known.explanation}\n\n{where}."


def explain_finding_answer(review: Review, finding: FindingInfo) -> str:
    """What is known of a finding: what it says, where, what execution showed, how, and how to see it oneself.

    Three of them fit into one comment.
    """
    parts = [f"{_named(finding)} at {place_link(review, finding)} ({finding.severity})"]
    parts += [part for part in (_quoted(review, finding), told(review, finding)) if part]
    shown = check_infos(review.report, finding)
    for target, check in shown[:2]:
        parts += _run(target, check)
    script = next((check.repro for _, check in shown if check.repro and len(check.repro) <= _LONGEST_SCRIPT), None)
    if script is not None:
        written = fenced(script, "python", _LONGEST_SCRIPT)
        parts.append(f"<details><summary>A script that shows it</summary>\n\n{written}\n\n</details>")
    evidence = f"{link('Evidence and history', review.links.finding(finding))}."
    return fitted(parts, tail=lambda _: evidence, limit=LARGEST_EXPLANATION)


def _run(target: TargetInfo, check: CheckInfo) -> Iterator[str]:
    """A check that failed, with its numbers, and how the target was called."""
    yield f"{plain(check.check)} on {span(target.name, 120)} ({plain(check.device)}): {prose(check.summary)}"
    numbers = check_numbers(check)
    if numbers:
        yield numbers
    if target.harness is not None:
        called, grade = harnesses.called(target.harness), harnesses.grade_sentence(target.harness)
        yield f"It was {span(called, 300)}: {plain(grade)}."


def _quoted(review: Review, finding: FindingInfo) -> str:
    region: Region = shown_region(review.sources, finding)
    lines = excerpt(review.sources, region)
    return fenced("\n".join(f"{line.number:>5}  {line.text}" for line in lines), "python") if lines else ""


def _named(finding: FindingInfo) -> str:
    return f"**{plain(finding.rule)} {plain(finding.name)}** ({span(finding.fingerprint[:12])})"


def _usage(name: CommandName) -> str:
    written, does = _USAGE[name]
    return f"`{written}`: {does}"


def _list() -> str:
    lines = [f"- {_usage(name)}" for name in _USAGE]
    return "\n".join(["For people who may write to this repository, at the beginning of a line:", "", *lines])
