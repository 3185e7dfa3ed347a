"""Writes the one comment of a pull request: edited in place, not written again where nothing about it has changed.

A comment of ours that a person deleted stays deleted, until a finding comes that blocks and that no earlier head had.
"""

from __future__ import annotations

from typing import Final

from services.database.base import utc_now
from services.forges.errors import ForgeNotFoundError
from services.forges.models import PullRequestRow
from services.forges.publication import SUMMARY, Publication
from services.forges.review import Review, select
from services.forges.summary_comment import Summary, is_summary, summary
from services.forges.values import Comment
from services.gates.policy import RuleMode

DELETED: Final = (
    "a person deleted our comment, which is respected until a finding blocks that no earlier commit of the pull "
    "request had"
)
NOTHING_TO_SAY: Final = "there is nothing new to say"
UNWANTED: Final = "the project wants no comment"


def write_summary(publication: Publication) -> None:
    """Bring the comment up to date. Raises `StaleHeadError`, `ForgeError`, `LeaseLostError`."""
    review, wants = publication.review, publication.bot.summary
    if review is None:
        return
    if wants == "never":
        publication.silent(SUMMARY, UNWANTED)
        return
    if publication.known.summary_removed_at is not None and not _blocks_anew(publication, review):
        publication.silent(SUMMARY, DELETED)
        return
    wanted = _wanted(publication, review, said_before=publication.known.summary_id is not None)
    if wanted is None:
        publication.silent(SUMMARY, NOTHING_TO_SAY)
        return
    if publication.known.summary_id is not None and publication.known.summary_digest == wanted.digest:
        publication.told(SUMMARY)
        return
    if publication.known.summary_id is None:
        _create(publication, wanted)
    else:
        _edit(publication, review, wanted)


def _wanted(publication: Publication, review: Review, *, said_before: bool) -> Summary | None:
    return summary(
        review,
        project=publication.place.project_id,
        number=publication.place.number,
        said_before=said_before,
        always=publication.bot.summary == "always",
    )


def _create(publication: Publication, wanted: Summary) -> None:
    """Write it, unless an earlier try did so and nobody heard of it: then that one is ours."""
    found = _found(publication)
    if found is not None:
        if found.body.strip() != wanted.body.strip():
            publication.require_present_head()
            publication.client.edit_comment(
                publication.place.full_name, publication.place.number, found.identifier, wanted.body
            )
        _remember(publication, found.identifier, wanted)
        return
    publication.require_present_head()
    comment = publication.client.create_comment(publication.place.full_name, publication.place.number, wanted.body)
    _remember(publication, comment.identifier, wanted)


def _edit(publication: Publication, review: Review, wanted: Summary) -> None:
    identifier = publication.known.summary_id
    assert identifier is not None
    publication.require_present_head()
    try:
        publication.client.edit_comment(publication.place.full_name, publication.place.number, identifier, wanted.body)
    except ForgeNotFoundError:

        def deleted(row: PullRequestRow) -> None:
            row.summary_id, row.summary_digest, row.summary_removed_at = None, "", utc_now()

        publication.remember(deleted)
        if not _blocks_anew(publication, review):
            publication.silent(SUMMARY, DELETED)
            return
        _create(publication, wanted)
        return
    _remember(publication, identifier, wanted)


def _found(publication: Publication) -> Comment | None:
    """The comment by its marker and its author: anybody can copy a marker."""
    place = publication.place
    for comment in publication.client.list_comments(place.full_name, place.number):
        if comment.by_us and is_summary(comment.body, place.project_id, place.number):
            return comment
    return None


def _blocks_anew(publication: Publication, review: Review) -> bool:
    """Whether a finding fails the gate, and no earlier head of the pull request had it."""
    if review.report.gate.passed or not publication.bot.blocks:
        return False
    return any(
        finding.fingerprint not in publication.earlier
        and review.policy.mode(finding.rule, finding.name) is RuleMode.BLOCK
        for finding in select(review).findings
    )


def _remember(publication: Publication, identifier: str, wanted: Summary) -> None:
    def change(row: PullRequestRow) -> None:
        row.summary_id, row.summary_digest, row.summary_removed_at = identifier, wanted.digest, None

    publication.remember(change)
    publication.told(SUMMARY)
