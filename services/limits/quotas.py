"""How many analyses one caller may submit a minute, and how many may wait or run: of one caller, one project, in all.

Counted in the database, in the transaction that adds the analysis, so that any number of API processes hold to it
together. What Gradproof submits by itself (for a pull request, which has at most one analysis of its present head) is
counted and never refused: a person waits for it, and nobody would read the refusal.
This module must not know HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy.orm import Session

from services.accounts.access import Subject
from services.limits import repository
from services.limits.errors import LimitReachedError
from services.settings import Settings

# Analyses take minutes, and nobody knows how many: half a minute costs little patience and few requests.
_LOOK_AGAIN_S: Final = 30.0
_MINUTE_S: Final = 60.0
_REFUSED: Final = frozenset({"user", "token"})


def require_room(
    session: Session, settings: Settings, subject: Subject, project_id: str | None, *, analyses: int = 1
) -> None:
    """Raise `LimitReachedError` unless `subject` may add so many more analyses, to this project if any.

    Holds other submissions up until the transaction ends, so it belongs right before the row is added.
    """
    if subject.kind not in _REFUSED:
        return
    repository.serialise(session)
    _require_slowness(session, settings, subject.owner, analyses)
    for limit, allowed, whose, condition in _quotas(settings, subject.owner, project_id):
        used = repository.count_open(session, **condition)
        if used + analyses > allowed:
            raise LimitReachedError(
                f"{used:,} analyses{whose} wait or run, and {allowed:,} may{_together(analyses)}: the next is taken "
                "when one of them has ended",
                limit=limit,
                allowed=allowed,
                used=used,
                retry_after_s=_LOOK_AGAIN_S,
            )


def _together(analyses: int) -> str:
    return f" (this takes {analyses} more)" if analyses > 1 else ""


def _require_slowness(session: Session, settings: Settings, caller: str, analyses: int) -> None:
    allowed = settings.submission_rate
    if not allowed:
        return
    ages = repository.recent(session, caller, allowed)
    if len(ages) + analyses <= allowed:
        return
    # With the oldest of them gone from the last minute there is room for one.
    going = min(len(ages) + analyses - allowed, len(ages))
    wait_s = max(1.0, _MINUTE_S - ages[-going]) if going else _MINUTE_S
    raise LimitReachedError(
        f"this caller has submitted {len(ages):,} analyses within a minute, and {allowed:,} are "
        f"allowed{_together(analyses)}: the next is taken in {wait_s:.0f} s",
        limit="submission_rate",
        allowed=allowed,
        used=len(ages),
        retry_after_s=wait_s,
    )


def _quotas(settings: Settings, caller: str, project_id: str | None) -> Iterator[tuple[str, int, str, dict[str, str]]]:
    """(setting, what it allows, whose, what to count) of every quota that there is."""
    if settings.open_analyses_of_caller:
        yield "open_analyses_of_caller", settings.open_analyses_of_caller, " of this caller", {"submitted_by": caller}
    if settings.open_analyses_of_project and project_id is not None:
        condition = {"project_id": project_id}
        yield "open_analyses_of_project", settings.open_analyses_of_project, " of this project", condition
    if settings.open_analyses:
        yield "open_analyses", settings.open_analyses, "", {}
