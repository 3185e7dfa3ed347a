"""Keys by which results of an earlier analysis are found again, and which targets have theirs from there"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from services.database.base import StoredText

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("targets", sa.Column("content_key", StoredText(), nullable=True))
    op.add_column("targets", sa.Column("reused", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("reuse_key", StoredText(), nullable=True))
    op.create_index(op.f("ix_jobs_reuse_key"), "jobs", ["reuse_key"])
    op.add_column("analyses", sa.Column("examples_key", StoredText(), nullable=True))
    op.create_index(op.f("ix_analyses_examples_key"), "analyses", ["examples_key"])


def downgrade() -> None:
    """Undo."""
    op.drop_index(op.f("ix_analyses_examples_key"), "analyses")
    op.drop_column("analyses", "examples_key")
    op.drop_index(op.f("ix_jobs_reuse_key"), "jobs")
    op.drop_column("jobs", "reuse_key")
    op.drop_column("targets", "reused")
    op.drop_column("targets", "content_key")
