"""Writes comments at lines, resolves those whose finding is gone, and leaves those that a person has joined.

What is there is asked of the forge each time: by the hidden marker and the author a comment of ours is known again,
also one that an earlier try has written without anybody hearing of it. A comment that a person deleted is remembered
here, and not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from services.forges import repository
from services.forges.diff import PullRequestDiff, patched, read_diff
from services.forges.errors import PermissionMissingError
from services.forges.inline_comments import InlineOptions, gone, plan_inline, read_finding, review_body
from services.forges.models import ReviewThreadRow
from services.forges.publication import INLINE, THREADS, Publication
from services.forges.review import select
from services.forges.values import MinimiseReason, ReviewDraft, ReviewThread

OPEN: Final = "open"
RESOLVED: Final = "resolved"
KEPT: Final = "kept"
UNWANTED: Final = "the project wants no comments at lines"


def write_threads(publication: Publication) -> None:
    """Look at the conversations there are: resolve ours whose finding is gone, open those whose finding is there again.

    Where nobody could look for a finding, its conversation stays as it is.

    Raises `StaleHeadError`, `ForgeError`, `LeaseLostError`.
    """
    review = publication.review
    known = _known(publication)
    if review is None or not (publication.bot.inline or known):
        return
    publication.threads = publication.client.list_threads(publication.place.full_name, publication.place.number)
    ours = dict(_ours(publication.threads))
    for fingerprint, thread in ours.items():
        if fingerprint not in known:
            known[fingerprint] = _keep(publication, fingerprint, thread, OPEN)
    over = gone(review, ours)
    there = frozenset() if review.base_is_missing else {finding.fingerprint for finding in select(review).findings}
    for fingerprint, state in known.items():
        if fingerprint not in ours:
            continue
        thread = ours[fingerprint]
        if fingerprint in over and state == OPEN:
            _keep(publication, fingerprint, thread, _resolved(publication, thread))
        elif fingerprint in there and state == RESOLVED and thread.is_resolved and not thread.has_reply:
            publication.require_present_head()
            publication.client.unresolve_thread(
                publication.place.full_name, publication.place.number, thread.identifier
            )
            _keep(publication, fingerprint, thread, OPEN)
        elif fingerprint not in over and state == OPEN and thread.is_resolved:
            _keep(publication, fingerprint, thread, KEPT)  # a person has decided: it is theirs
    publication.told(THREADS)


def write_inline(publication: Publication) -> None:
    """Comment on what is new, in one review. Raises `StaleHeadError`, `ForgeError`, `LeaseLostError`."""
    review = publication.review
    if review is None:
        return
    if not publication.bot.inline:
        publication.silent(INLINE, UNWANTED)
        return
    already = {*_known(publication), *(fingerprint for fingerprint, _ in _ours(publication.threads))}
    if all(finding.fingerprint in already for finding in select(review).findings):
        publication.told(INLINE)
        return
    diff = _diff(publication)
    head = publication.head_directory
    plan = plan_inline(
        review,
        diff,
        _contents(head),
        already=already,
        options=InlineOptions(most=publication.bot.inline_most, suggestions=publication.bot.suggestions),
    )
    if plan.comments:
        publication.require_present_head()
        place = publication.place
        posted = publication.client.create_review(
            place.full_name,
            place.number,
            ReviewDraft(
                commit_sha=publication.known.head_sha,
                body=review_body(review, plan),
                comments=tuple(each.comment for each in plan.comments),
            ),
        )
        publication.threads = publication.client.list_threads(place.full_name, place.number)
        for fingerprint, thread in _ours(publication.threads):
            if fingerprint not in already:
                _keep(publication, fingerprint, thread, OPEN)
        if posted.rejected:
            publication.silent(
                INLINE, f"the forge refused {len(posted.rejected)} comments: their lines are not in its diff"
            )
            return
    if plan.unplaced:
        number, (_, reason) = len(plan.unplaced), plan.unplaced[0]
        what = "1 new finding has" if number == 1 else f"{number} new findings have"
        publication.silent(INLINE, f"{what} no comment at a line ({reason}): the check and the report tell of it")
        return
    publication.told(INLINE)


def _known(publication: Publication) -> dict[str, str]:
    """The state of each comment that we know of, by its finding."""
    with publication.database.reading() as session:
        rows = repository.threads_of(session, publication.pull_request_id)
        return {row.fingerprint: row.state for row in rows}


def _ours(threads: Iterable[ReviewThread]) -> Iterable[tuple[str, ReviewThread]]:
    for thread in threads:
        fingerprint = read_finding(thread.comments[0].body) if thread.by_us else None
        if fingerprint is not None:
            yield fingerprint, thread


def _resolved(publication: Publication, thread: ReviewThread) -> str:
    """Resolve a conversation, unless a person has joined it; the state that it is in then.

    Resolving takes a permission of its own at GitHub. Where it is missing, our comment is folded away instead.
    """
    if thread.is_resolved:
        return RESOLVED
    if thread.has_reply:
        return KEPT
    place = publication.place
    publication.require_present_head()
    try:
        publication.client.resolve_thread(place.full_name, place.number, thread.identifier)
    except PermissionMissingError:
        if not publication.client.features.minimise:
            raise
        publication.require_present_head()
        publication.client.minimise_comment(thread.comments[0].node_id, MinimiseReason.RESOLVED)
    return RESOLVED


def _keep(publication: Publication, fingerprint: str, thread: ReviewThread, state: str) -> str:
    with publication.owning() as (uow, row):
        repository.remember_thread(
            uow.session,
            ReviewThreadRow(
                pull_request_id=row.id,
                fingerprint=fingerprint,
                comment_id=thread.comments[0].identifier,
                thread_id=thread.identifier,
                path=thread.path,
                line=thread.line or 0,
                head_sha=publication.known.head_sha,
                state=state,
            ),
        )
    return state


def _diff(publication: Publication) -> PullRequestDiff:
    """What the pull request adds; where the forge gives no patch, it is computed from what was analysed."""
    files = publication.client.changed_files(publication.place.full_name, publication.place.number)
    base, head = publication.base_directory, publication.head_directory
    if base is not None and head is not None:
        files = patched(files, base=base, head=head)
    return read_diff(files)


def _contents(root: Path | None) -> Callable[[str], bytes | None]:
    """Reads a file as it was analysed; nothing outside of the snapshot, and no link."""

    def read(path: str) -> bytes | None:
        if root is None:
            return None
        file = root / path
        try:
            inside = file.resolve().is_relative_to(root.resolve()) and file.is_file() and not file.is_symlink()
            return file.read_bytes() if inside else None
        except (OSError, ValueError):
            return None

    return read
