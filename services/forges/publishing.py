"""Brings a pull request at the forge up to what is known of its present head: the check, lines, the comment, SARIF.

Each part is written by itself and is silent by itself, with a stated reason; what a rate limit or a failing forge cuts
off is taken up again where it stood. Each part may be done twice: what the forge has is remembered or looked up. This
module decides in which order things are written and what an error means for the rest, not what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from services.analyses.models import AnalysisRow
from services.database import Database
from services.database.base import utc_now
from services.forges import repository
from services.forges.client import ForgeClient
from services.forges.connections import Forges
from services.forges.errors import (
    ForgeError,
    ForgeNotFoundError,
    ForgeRejectedError,
    InstallationSuspendedError,
    NotSupportedByForgeError,
    PermissionMissingError,
)
from services.forges.following import queue_analysing
from services.forges.models import InstallationRow, PullRequestRow, RepositoryRow
from services.forges.publication import (
    CHECK,
    INLINE,
    SARIF,
    SUMMARY,
    THREADS,
    AnalysisStand,
    Publication,
    StaleHeadError,
    place_of,
    remembered,
)
from services.forges.publishing_check import write_check
from services.forges.publishing_inline import write_inline, write_threads
from services.forges.publishing_sarif import upload_sarif
from services.forges.publishing_summary import write_summary
from services.forges.reviews import Reviews
from services.forges.states import SWITCHED_OFF
from services.forges.task_repository import TaskClaim
from services.forges.tasks import ForgeTasks
from services.forges.wanted_check import wanted_check
from services.projects.settings import read_project_settings
from services.settings import Settings

log = structlog.get_logger(__name__)

# Heads of one pull request whose findings are remembered: more pushes than that, and what is new may be told again.
_EARLIER_HEADS: Final = 50
Part = Callable[[Publication], None]
BASE_IS_MISSING: Final = (
    "the commit that the change branched off from could not be analysed, so that nobody knows what is new"
)


class Publishing:
    """What is done with tasks of the kind `publish`."""

    def __init__(self, database: Database, settings: Settings, forges: Forges) -> None:
        self._database = database
        self._settings = settings
        self._forges = forges
        self._tasks = ForgeTasks(database, settings)
        self._reviews = Reviews(database, settings)

    def publish(self, claim: TaskClaim) -> str:
        """Do it; what came of it. Raises `ForgeError` where trying again may help, and `LeaseLostError`."""
        assert claim.pull_request_id is not None
        with self._database.reading() as session:
            around = repository.surroundings(session, claim.pull_request_id)
            if around is None:
                return "the pull request is gone"
            beyond = repository.out_of_reach(around)
            place, known = place_of(around), remembered(around.pull_request)
            enabled = read_project_settings(around.project.settings).bot.enabled
        if beyond is not None:
            self.note(claim, beyond)
            return beyond
        if known.state != "open":
            return f"the pull request is {known.state}"
        if not enabled:
            self.note(claim, SWITCHED_OFF)
            return SWITCHED_OFF
        with self._forges.client(place.forge, place.installation, place.repository) as client:
            return self._write(self._publication(claim, client))

    def note(self, claim: TaskClaim, reason: str) -> None:
        """A task for a pull request came to nothing, or not to its end: say why on its page."""
        if claim.pull_request_id is None:
            return
        part = CHECK if claim.kind == "publish" else "analysis"
        with self._tasks.owning(claim) as uow:
            row = repository.lock_pull_request(uow.session, claim.pull_request_id)
            if row is not None:
                row.silence = {**row.silence, part: reason}

    def suspended(self, claim: TaskClaim) -> None:
        """The forge says that the installation is suspended, though its webhook didn't reach us."""
        if claim.installation_id is None:
            return
        with self._tasks.owning(claim) as uow:
            row = uow.session.get(InstallationRow, claim.installation_id)
            if row is not None and row.suspended_at is None:
                row.suspended_at = utc_now()
        self.note(claim, "the application is suspended at the forge: its owner can take it up again")

    # ------------------------------------------------------------------------------------------ what is known

    def _publication(self, claim: TaskClaim, client: ForgeClient) -> Publication:
        assert claim.pull_request_id is not None
        with self._database.reading() as session:
            around = repository.surroundings(session, claim.pull_request_id)
            assert around is not None
            row = around.pull_request
            analysis = None if row.analysis_id is None else session.get(AnalysisRow, row.analysis_id)
            publication = Publication(
                database=self._database,
                settings=self._settings,
                tasks=self._tasks,
                claim=claim,
                client=client,
                pull_request_id=row.id,
                place=place_of(around),
                known=remembered(row),
                bot=read_project_settings(around.project.settings).bot,
                analysis=None if analysis is None else _stand(analysis),
                silence=dict(row.silence),
            )
            if analysis is not None:
                publication.earlier = repository.earlier_fingerprints(session, row.id, analysis.id, _EARLIER_HEADS)
        loaded = self._reviews.load(publication.pull_request_id)
        if loaded is not None and publication.analysis is not None and publication.analysis.is_settled:
            publication.review = loaded.review
            publication.head_directory, publication.base_directory = loaded.head, loaded.base
        return publication

    # ------------------------------------------------------------------------------------------ writing

    def _write(self, publication: Publication) -> str:
        reason = ""
        try:
            for name, part in self._parts(publication):
                self._one(publication, name, part)
        except StaleHeadError as error:
            reason = error.reason
            publication.silent(CHECK, reason)
            self._look_again(publication)
        finally:
            self._keep_silence(publication)
        return reason

    @staticmethod
    def _look_again(publication: Publication) -> None:
        """Have the new head followed: its webhook may never come. If it was dealt with meanwhile, that is done."""
        with publication.owning() as (uow, row):
            if row.head_sha == publication.known.head_sha and row.state == "open":
                queue_analysing(uow, uow.session.get_one(RepositoryRow, row.repository_id), row)

    @staticmethod
    def _parts(publication: Publication) -> tuple[tuple[str, Part], ...]:
        """In the order of what people wait for."""
        wanted = wanted_check(publication)
        check: tuple[tuple[str, Part], ...] = (
            () if wanted is None else ((CHECK, lambda publication: write_check(publication, wanted)),)
        )
        if publication.review is None:
            return check
        beside: tuple[tuple[str, Part], ...] = (
            (THREADS, write_threads),
            (INLINE, write_inline),
            (SUMMARY, write_summary),
            (SARIF, upload_sarif),
        )
        if publication.known.paused is not None:
            beside = _unsaid((INLINE, SUMMARY), f"paused: {publication.known.paused}")
        elif publication.review.base_is_missing:
            sarif = (SARIF,) if publication.bot.sarif else ()
            beside = (beside[0], *_unsaid((INLINE, SUMMARY, *sarif), BASE_IS_MISSING))
        return (*check, *beside)

    @staticmethod
    def _one(publication: Publication, name: str, part: Part) -> None:
        """Write one part. What concerns it alone is its silence; what concerns all ends the publication."""
        try:
            part(publication)
        except InstallationSuspendedError:
            raise
        except PermissionMissingError as error:
            publication.silent(name, f"the permission {error.permission} is missing: {error.message}")
        except (ForgeRejectedError, ForgeNotFoundError, NotSupportedByForgeError) as error:
            publication.silent(name, error.message)
        except ForgeError as error:
            publication.silent(name, error.message)
            raise

    @staticmethod
    def _keep_silence(publication: Publication) -> None:
        def change(row: PullRequestRow) -> None:
            row.silence = publication.silence

        publication.remember(change)


def _unsaid(names: tuple[str, ...], reason: str) -> tuple[tuple[str, Part], ...]:
    """What is left to the check, and why."""
    return tuple((name, lambda publication, name=name: publication.silent(name, reason)) for name in names)


def _stand(row: AnalysisRow) -> AnalysisStand:
    return AnalysisStand(row.id, row.status, row.reason, row.started_at, row.finished_at)
