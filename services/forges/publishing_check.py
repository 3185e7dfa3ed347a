"""Writes the check of a head: made once, brought forward, completed with pages of annotations that a retry doubles not.

A check is found again by a name of our own, so that one whose answer was lost is not made twice. Annotations are added
by each call to those that are there: how many the forge holds decides what is still to be sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from services.forges.check_output import pages_of
from services.forges.models import PullRequestRow
from services.forges.publication import CHECK, Publication
from services.forges.values import (
    Annotation,
    CheckAction,
    CheckOutput,
    CheckReport,
    CheckRun,
    CheckStatus,
    Conclusion,
)

CHECK_NAME: Final = "Gradproof"
# A check is never brought back: a task that comes late has nothing to say.
_ORDER: Final[dict[str, int]] = {"": 0, "queued": 1, "in_progress": 2, "completed": 3}


@dataclass(frozen=True, slots=True)
class WantedCheck:
    """How the check of the head should read. `external_id` is our own name of it."""

    external_id: str
    status: CheckStatus
    conclusion: Conclusion | None = None
    title: str = ""
    summary: str = ""
    text: str = ""
    annotations: tuple[Annotation, ...] = ()
    actions: tuple[CheckAction, ...] = ()
    details_url: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None

    def digest(self) -> str:
        """What tells one from another, times apart."""
        told = {name: value for name, value in asdict(self).items() if not name.endswith("_at")}
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def outcome(self) -> tuple[str, str | None]:
        """Status and conclusion."""
        return self.status, self.conclusion

    def report(self, head_sha: str, annotations: Sequence[Annotation]) -> CheckReport:
        """As it is sent, with some of its annotations."""
        output = None
        if self.title:
            output = CheckOutput(self.title, self.summary, self.text, tuple(annotations))
        return CheckReport(
            name=CHECK_NAME,
            head_sha=head_sha,
            external_id=self.external_id,
            status=self.status,
            conclusion=self.conclusion,
            details_url=self.details_url,
            started_at=self.started_at,
            completed_at=self.completed_at,
            output=output,
            actions=self.actions,
        )


def write_check(publication: Publication, wanted: WantedCheck) -> None:
    """Bring the check of the present head to this. Raises `StaleHeadError`, `ForgeError`, `LeaseLostError`."""
    known = publication.known
    identifier = known.check_id if known.check_sha == known.head_sha else None
    pages = pages_of(wanted.annotations, publication.client.features.annotations_at_once)
    is_there = known.check_digest == wanted.digest() and known.check_pages >= len(pages)
    goes_back = _ORDER[wanted.status] < _ORDER[known.check_state]
    if identifier is None or not (is_there or goes_back):
        _bring(publication, wanted, pages, identifier)
    publication.told(CHECK)


def _bring(
    publication: Publication, wanted: WantedCheck, pages: list[tuple[Annotation, ...]], identifier: str | None
) -> None:
    """Send what is missing, page by page; each that was taken is remembered before the next one is sent.

    Without annotations, a check that we know is simply written anew. Else the forge is asked what it has: an earlier
    try may have been carried out though its answer was lost.
    """
    client, place, known = publication.client, publication.place, publication.known
    found = None
    if identifier is None or wanted.annotations:
        found = client.find_check(
            place.full_name, head_sha=known.head_sha, name=CHECK_NAME, external_id=wanted.external_id
        )
    if found is not None:
        identifier = found.identifier
    sent = _pages_held(pages, found)
    if identifier is not None and known.check_state == "completed" and known.check_digest != wanted.digest():
        sent = len(pages)  # of another text: annotations can't be taken back, so those that are there have to do
    elif found is not None and sent == len(pages) and (found.status, found.conclusion) == wanted.outcome:
        _remember(publication, found.identifier, wanted, sent)
        return
    for number in range(min(sent, len(pages) - 1), len(pages)):
        publication.require_present_head()
        report = wanted.report(known.head_sha, pages[number] if number >= sent else ())
        if identifier is None:
            identifier = client.create_check(place.full_name, report).identifier
        else:
            client.update_check(place.full_name, identifier, report)
        _remember(publication, identifier, wanted, max(sent, number + 1))


def _pages_held(pages: list[tuple[Annotation, ...]], found: CheckRun | None) -> int:
    """How many of the pages the forge has, told by how many annotations it holds: a page is taken whole or not."""
    if found is None:
        return 0
    count, sent = 0, 0
    for page in pages:
        count += len(page)
        if count > found.annotations:
            break
        sent += 1
    return sent


def _remember(publication: Publication, identifier: str, wanted: WantedCheck, pages: int) -> None:
    head, digest = publication.known.head_sha, wanted.digest()

    def change(row: PullRequestRow) -> None:
        row.check_sha, row.check_id, row.check_state = head, identifier, wanted.status
        row.check_digest, row.check_pages = digest, pages

    publication.remember(change)
