"""The tables of findings and of findings silenced by a comment in the source."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from services.database import Base, new_id
from services.database.base import JsonColumn


class FindingRow(Base):
    """What one rule says about one place of one analysis, and what running the code said about that.

    `position` is its place in the order of path and line; `cell` is the cell of a notebook, 0 in other files. `verdict`
    starts as `not_exercised` or `static_only` and is settled when the last job of the analysis ended.
    """

    __tablename__ = "findings"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    analysis_id: Mapped[str] = mapped_column(ForeignKey("analyses.id", ondelete="CASCADE"))
    position: Mapped[int]
    fingerprint: Mapped[str] = mapped_column(index=True)
    rule: Mapped[str]
    name: Mapped[str]
    severity: Mapped[str]
    confidence: Mapped[str]
    path: Mapped[str]
    start_line: Mapped[int]
    start_column: Mapped[int]
    end_line: Mapped[int]
    end_column: Mapped[int]
    cell: Mapped[int] = mapped_column(default=0)
    symbol: Mapped[str]
    message: Mapped[str]
    settled_by: Mapped[list[str]] = mapped_column(JsonColumn)
    hypothesis: Mapped[dict[str, object]] = mapped_column(JsonColumn)
    fix: Mapped[dict[str, object]] = mapped_column(JsonColumn)
    related: Mapped[list[dict[str, object]]] = mapped_column(JsonColumn)
    verdict: Mapped[str]
    verdict_reason: Mapped[str]
    evidence: Mapped[dict[str, object]] = mapped_column(JsonColumn, default=dict)
    is_new: Mapped[bool] = mapped_column(default=True)
    triage: Mapped[str] = mapped_column(default="open")

    # Two analyses are compared by fingerprint, and one fingerprint stands in all analyses of its project.
    __table_args__ = (UniqueConstraint("analysis_id", "position"), Index(None, "analysis_id", "fingerprint"))


class SuppressionRow(Base):
    """A finding silenced by a comment in the source, with the reason given there."""

    __tablename__ = "suppressions"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    analysis_id: Mapped[str] = mapped_column(ForeignKey("analyses.id", ondelete="CASCADE"))
    position: Mapped[int]
    rule: Mapped[str]
    path: Mapped[str]
    start_line: Mapped[int]
    fingerprint: Mapped[str]
    reason: Mapped[str]
    finding: Mapped[dict[str, object]] = mapped_column(JsonColumn)

    __table_args__ = (UniqueConstraint("analysis_id", "position"),)
