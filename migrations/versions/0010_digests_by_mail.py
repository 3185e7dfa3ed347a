"""Digests by mail: who wants one how often, the mails that wait, and since when a finding is on the main line

`first_seen_at` does not tell the last: what a proposal showed first is new to the others when it is merged.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from services.database.base import JsonColumn, StoredText, UtcDateTime

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "digests",
        sa.Column("user_id", StoredText(), nullable=False),
        sa.Column("period", StoredText(), nullable=False),
        sa.Column("told_until", UtcDateTime(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("period IN ('daily', 'weekly')", name=op.f("ck_digests_period_is_known")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_digests_user_id_users"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", name=op.f("pk_digests")),
    )
    op.create_index(op.f("ix_digests_due_at"), "digests", ["due_at"], unique=False)
    op.create_table(
        "digest_mails",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("user_id", StoredText(), nullable=False),
        sa.Column("content", JsonColumn, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("reason", StoredText(), nullable=True),
        sa.Column("delivered_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_digest_mails_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_digest_mails")),
    )
    op.create_index(op.f("ix_digest_mails_due_at"), "digest_mails", ["due_at"], unique=False)
    op.create_index(op.f("ix_digest_mails_user_id"), "digest_mails", ["user_id"], unique=False)
    op.add_column("project_findings", sa.Column("main_since", UtcDateTime(), nullable=True))
    op.execute("UPDATE project_findings SET main_since = first_seen_at WHERE on_main")
    op.create_index(
        op.f("ix_project_findings_project_id_main_since"),
        "project_findings",
        ["project_id", "main_since"],
        unique=False,
    )
    op.create_index(
        op.f("ix_project_findings_project_id_fixed_at"), "project_findings", ["project_id", "fixed_at"], unique=False
    )
    op.create_index(op.f("ix_triage_events_kind_at"), "triage_events", ["kind", "at"], unique=False)


def downgrade() -> None:
    """Undo."""
    op.drop_index(op.f("ix_triage_events_kind_at"), table_name="triage_events")
    op.drop_index(op.f("ix_project_findings_project_id_fixed_at"), table_name="project_findings")
    op.drop_index(op.f("ix_project_findings_project_id_main_since"), table_name="project_findings")
    op.drop_column("project_findings", "main_since")
    op.drop_table("digest_mails")
    op.drop_table("digests")
