"""Comments at lines: only for what is new, only at lines that the pull request adds, few, and each only once.

A fix is suggested where it was executed and held, replaces whole added lines, and the file at the head is the one that
was analysed: a person can take it with one click, so it has to be right. Every comment begins with a hidden marker that
names its finding, by which it is neither repeated nor lost. Pure, but for the contents that it is given a way to read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from analyzer.findings import Edit, Region
from analyzer.fixing import apply_edits
from analyzer.notebooks import is_notebook
from services.checks.plan import CHECKS
from services.forges.diff import FileLines, PullRequestDiff
from services.forges.markdown import fitted, is_command_of_gitlab, link, marker, plain, read_marker
from services.forges.review import Review, lines_of, place_link, select, short
from services.forges.sentences import counted, told
from services.forges.values import ReviewComment, ReviewThread
from services.reports.document import FindingInfo, Report
from services.triage.looked import UNREADABLE

MOST_COMMENTS: Final = 30
LARGEST_BODY: Final = 65_536
_KIND: Final = "finding"
# Nobody reads a longer suggestion, and a longer one is no small fix.
_MOST_LINES: Final = 40
_LONGEST_SUGGESTION: Final = 8_000
_MOST_LISTED: Final = 100

Contents = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class InlineOptions:
    """What a project wants. `unverified`: safe fixes that nothing could execute are suggested as well.

    `analysed_sha` is the commit that was analysed: for another head nothing is suggested.
    """

    most: int = MOST_COMMENTS
    suggestions: bool = True
    unverified: bool = False
    analysed_sha: str | None = None


@dataclass(frozen=True, slots=True)
class InlineComment:
    """A comment and the finding that it is about."""

    fingerprint: str
    comment: ReviewComment
    has_suggestion: bool


@dataclass(frozen=True, slots=True)
class InlinePlan:
    """What to write. `listed` are findings beyond the cap, which the text of the review names; `unplaced` are those
    that have no added line, with the reason: the check and the summary tell of them.
    """

    comments: tuple[InlineComment, ...] = ()
    listed: tuple[FindingInfo, ...] = ()
    unplaced: tuple[tuple[FindingInfo, str], ...] = field(default=())


def finding_marker(finding: FindingInfo) -> str:
    """The first line of a comment about a finding; of one that a check brought it names check and target as well."""
    target = finding.evidence.get("target")
    if finding.rule in CHECKS and isinstance(target, str):
        return marker(_KIND, f"{finding.fingerprint}:{finding.rule}:{_named(target)}")
    return marker(_KIND, finding.fingerprint)


def read_finding(body: str) -> str | None:
    """The fingerprint in a comment that begins with a marker. Its author has to be us as well."""
    key = read_marker(_KIND, body)
    return None if key is None else key.partition(":")[0]


def plan_inline(
    review: Review,
    diff: PullRequestDiff,
    contents: Contents,
    *,
    already: Collection[str] = (),
    options: InlineOptions | None = None,
) -> InlinePlan:
    """Where to say what. `contents` reads a file as it was analysed; `already` are fingerprints with a comment."""
    options = options or InlineOptions()
    comments: list[InlineComment] = []
    listed: list[FindingInfo] = []
    unplaced: list[tuple[FindingInfo, str]] = []
    seen = set(already)
    for finding in select(review).findings:
        if finding.fingerprint in seen:
            continue
        seen.add(finding.fingerprint)
        span = _span(review, finding, diff)
        if span is None:
            unplaced.append((finding, diff.unknown.get(finding.path, "the pull request does not add its line")))
        elif len(comments) >= min(options.most, MOST_COMMENTS):
            listed.append(finding)
        else:
            suggestion = _suggestion(review, finding, diff, contents, options)
            comments.append(_comment(review, finding, span, diff, suggestion))
    return InlinePlan(tuple(comments), tuple(listed), tuple(unplaced))


def review_body(review: Review, plan: InlinePlan) -> str:
    """The text of the review that the comments come in: what it is, and what there was no room for."""
    report = link("the report", review.links.report)
    head = f"Gradproof: {counted(len(plan.comments), 'new finding')} at lines that this change adds."
    if not plan.listed:
        return f"{head} More in {report}."
    lines = [
        f"- {plain(finding.severity)}: {plain(finding.rule)} {plain(finding.name)} at {place_link(review, finding)}"
        for finding in plan.listed[:_MOST_LISTED]
    ]
    beyond = len(plan.listed) - len(lines)

    def tail(left_out: int) -> str:
        more = left_out + beyond
        return f"\n{more:,} more in {report}." if more else f"\nMore in {report}."

    return fitted(
        [f"{head} {len(plan.listed):,} more without a comment:\n", *lines],
        tail=tail,
        limit=LARGEST_BODY,
        separator="\n",
    )


def git_blob_sha(content: bytes) -> str:
    """git's name of a content: what a forge calls the file at the head."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _span(review: Review, finding: FindingInfo, diff: PullRequestDiff) -> tuple[int, int] | None:
    """The added lines to comment on: all of the finding's, or the first of them that is added."""
    lines = diff.of(finding.path)
    first, last = lines_of(review, finding)
    if lines.all_added(first, last):
        return first, last
    added = lines.first_added(first, last)
    return None if added is None else (added, added)


@dataclass(frozen=True, slots=True)
class _Suggestion:
    """Lines from first to last, and those that replace them: none, where they are to be removed."""

    first: int
    last: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The new lines, each with its end."""
        return "".join(f"{line}\n" for line in self.lines)


def _suggestion(
    review: Review, finding: FindingInfo, diff: PullRequestDiff, contents: Contents, options: InlineOptions
) -> _Suggestion | None:
    fix = finding.fix
    proven = fix.verified is True or (fix.verified is None and options.unverified)
    if not (options.suggestions and fix.edits and fix.safety == "safe" and proven):
        return None
    if options.analysed_sha is not None and options.analysed_sha != review.links.head_sha:
        return None
    text = _text_at_head(finding, diff, contents)
    if text is None:
        return None
    made = _replaced(finding, text)
    if made is None or not _fits(made, diff.of(finding.path), review):
        return None
    return made


def _fits(made: _Suggestion, lines: FileLines, review: Review) -> bool:
    return (
        lines.all_added(made.first, made.last)
        and max(made.last - made.first + 1, len(made.lines)) <= _MOST_LINES
        and len(made.text) <= _LONGEST_SUGGESTION
        and not (review.links.forge == "gitlab" and is_command_of_gitlab(made.text))
    )


def _text_at_head(finding: FindingInfo, diff: PullRequestDiff, contents: Contents) -> str | None:
    """The analysed file, if it is the one at the head, and lines of it are what a forge counts."""
    if finding.cell is not None or is_notebook(finding.path):
        return None
    content = contents(finding.path)
    file = diff.files.get(finding.path)
    if content is None or file is None or (file.blob_sha is not None and file.blob_sha != git_blob_sha(content)):
        return None
    # With other line ends than a line feed, the forge would count or write other lines than we do.
    if b"\r" in content or content.startswith(b"\xef\xbb\xbf"):
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _replaced(finding: FindingInfo, text: str) -> _Suggestion | None:
    """The whole lines that the edits of a fix touch, as they read afterwards; None if it changes nothing."""
    edits = [
        Edit(Region(finding.path, edit.start_line, edit.start_column, edit.end_line, edit.end_column), edit.replacement)
        for edit in finding.fix.edits
    ]
    before = text.split("\n")
    first = min(edit.region.start_line for edit in edits)
    last = max(edit.region.end_line for edit in edits)
    if not 1 <= first <= last <= len(before):
        return None
    after = apply_edits(text, edits).split("\n")
    untouched = len(before) - last
    if after[: first - 1] != before[: first - 1] or (untouched and after[-untouched:] != before[last:]):
        return None
    new = after[first - 1 : len(after) - untouched]
    # Lines at both ends that stay as they are need not be added by the pull request.
    while new and first < last and new[-1] == before[last - 1]:
        new, last = new[:-1], last - 1
    while new and first < last and new[0] == before[first - 1]:
        new, first = new[1:], first + 1
    return None if new == before[first - 1 : last] else _Suggestion(first, last, tuple(new))


def _comment(
    review: Review,
    finding: FindingInfo,
    span: tuple[int, int],
    diff: PullRequestDiff,
    suggestion: _Suggestion | None,
) -> InlineComment:
    if suggestion is not None:
        span = suggestion.first, suggestion.last
    first, last = span
    if review.links.forge == "gitlab":
        first = last  # a discussion stands at one line; a suggestion says how many it reaches back
    file = diff.files.get(finding.path)
    return InlineComment(
        fingerprint=finding.fingerprint,
        comment=ReviewComment(
            path=finding.path,
            line=last,
            body=_body(review, finding, suggestion),
            start_line=first if first < last else None,
            previous_path=file.previous_path if file is not None else None,
        ),
        has_suggestion=suggestion is not None,
    )


def _body(review: Review, finding: FindingInfo, suggestion: _Suggestion | None) -> str:
    parts = [
        finding_marker(finding),
        f"**{plain(finding.rule)} {plain(finding.name)}** ({finding.severity})",
        told(review, finding),
    ]
    if suggestion is not None:
        parts.append(_fence(review, suggestion))
        proof = plain((finding.fix.verified_reason or "").rstrip("."), 600)
        shown = "The fix was executed" if finding.fix.verified else "The fix is safe by its form; nothing executed it"
        parts.append(f"{shown}{f': {proof}' if proof else ''}.")
    more = [
        link("Evidence", review.links.finding(finding)),
        f"Not a fault? `/gradproof ignore {short(finding)} REASON`",
    ]
    if finding.explanation_url.startswith(("https://", "http://")):
        more.insert(0, link("What it means", finding.explanation_url))
    parts.append(f"<sub>{' · '.join(more)}</sub>")
    return f"{parts[0]}\n" + "\n\n".join(parts[1:])


def _fence(review: Review, suggestion: _Suggestion) -> str:
    """The suggestion in a fence longer than any run of back-ticks in it: what is in it is taken as it stands."""
    longest = max((len(run) for run in re.findall("`+", suggestion.text)), default=0)
    fence = "`" * max(3, longest + 1)
    back = f":-{suggestion.last - suggestion.first}+0" if review.links.forge == "gitlab" else ""
    return f"{fence}suggestion{back}\n{suggestion.text}{fence}"


def gone(review: Review, threads: Mapping[str, ReviewThread]) -> frozenset[str]:
    """Of the findings that have a conversation, those that are no longer told: fixed, or decided by a person.

    Only where the analysis looked: not where it was cut short, nor in a file that can't be read any more, and what a
    check brought only where that check passes now or its target is gone.
    """
    if review.report.analysis.status != "finished":
        return frozenset()
    there = {finding.fingerprint for finding in select(review).findings}
    decided = {finding.fingerprint for finding in review.report.findings} - there
    unreadable = {finding.path for finding in review.report.findings if finding.rule in UNREADABLE}
    return frozenset(
        fingerprint
        for fingerprint, thread in threads.items()
        if fingerprint in decided
        or (fingerprint not in there and thread.path not in unreadable and _is_settled(review.report, thread))
    )


def _is_settled(report: Report, thread: ReviewThread) -> bool:
    """Whether what a check brought is over; what a rule said is over when it is no longer said."""
    key = read_marker(_KIND, thread.comments[0].body) if thread.comments else None
    _, _, brought_by = (key or "").partition(":")
    check, _, target = brought_by.partition(":")
    if not check:
        return True
    verdicts = [
        {result.verdict for result in each.checks if result.check == check}
        for each in report.targets
        if _named(each.name) == target
    ]
    return all("pass" in found and "fail" not in found for found in verdicts)


def _named(target: str) -> str:
    """A target in a marker: its name may hold anything."""
    return hashlib.sha256(target.encode("utf-8", "surrogatepass")).hexdigest()[:12]
