"""The queries of asking GitHub for webhooks again: whose turn it is, which webhooks we have, how far was looked.

Never commits. How far was looked is a row among the leases, whose moment nobody waits for: everything that GitHub sent
until then has arrived, or is not waited for any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.database.base import FromNow
from services.forges.models import DeliveryRow
from services.jobs.models import LeaseRow

TURN: Final = "redelivery"
_LOOKED_THROUGH: Final = "redelivery: looked through"
# Databases bound the parameters of a statement: SQLite's older builds at 999.
_AT_ONCE: Final = 500


def is_somebodys_turn(session: Session) -> bool:
    """Whether a round is under way, or was lately."""
    statement = select(LeaseRow.name).where(LeaseRow.name == TURN, LeaseRow.until >= FromNow())
    return session.scalar(statement) is not None


def taken(session: Session, guids: Iterable[str]) -> frozenset[str]:
    """Those of these webhooks of GitHub that were written down here, whatever became of them since."""
    found: set[str] = set()
    for part in _parts(guids):
        found.update(
            session.scalars(
                select(DeliveryRow.delivery_id).where(DeliveryRow.forge == "github", DeliveryRow.delivery_id.in_(part))
            )
        )
    return frozenset(found)


def looked_through(session: Session) -> datetime | None:
    """Until when, by GitHub's clock, nothing is missing; None if nobody has looked yet."""
    return session.scalar(select(LeaseRow.until).where(LeaseRow.name == _LOOKED_THROUGH))


def remember_looked_through(session: Session, holder: str, until: datetime) -> None:
    """Note until when nothing is missing. Only whoever has the turn may do this."""
    session.merge(LeaseRow(name=_LOOKED_THROUGH, holder=holder, until=until))


def _parts(values: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(values)
    while part := list(islice(rest, _AT_ONCE)):
        yield part
