"""What is over and only takes room, by kind, with the age at which it goes. Never commits.

To have another table tidied, add its line to `LEFTOVERS`. Idempotency keys are the reconciler's own affair; sessions,
attempts to sign in, and what came from forges are forgotten by those who keep them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, CursorResult, delete, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from services.database.base import FromNow
from services.digests.models import DigestMailRow
from services.projects.models import HookDeliveryRow, ShareLinkRow


@dataclass(frozen=True, slots=True)
class Leftover:
    """Rows of one table, named for people. They are over for `age` when the condition holds."""

    name: str
    id: InstrumentedAttribute[str]
    over: ColumnElement[bool]


LEFTOVERS: Final = (
    # A team that looks into why a hook was not heard does so within weeks.
    Leftover(
        "calls of hooks",
        HookDeliveryRow.id,
        HookDeliveryRow.due_at.is_(None) & (HookDeliveryRow.created_at < FromNow(-timedelta(days=30))),
    ),
    Leftover(
        "mails of digests",
        DigestMailRow.id,
        DigestMailRow.due_at.is_(None) & (DigestMailRow.created_at < FromNow(-timedelta(days=30))),
    ),
    Leftover("share links", ShareLinkRow.id, ShareLinkRow.expires_at < FromNow(-timedelta(days=30))),
)


def forget(session: Session, leftover: Leftover, *, limit: int) -> int:
    """Drop up to `limit` rows that are over; how many they were."""
    chosen = select(leftover.id).where(leftover.over).limit(limit)
    result = session.execute(
        delete(leftover.id.class_).where(leftover.id.in_(chosen)).execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount
