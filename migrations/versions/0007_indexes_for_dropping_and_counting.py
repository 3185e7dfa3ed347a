"""Indexes for dropping analyses and for counting what somebody submitted lately

Without them each target that goes would have all jobs read for those that refer to it, and each analysis all others.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index(op.f("ix_jobs_target_id"), "jobs", ["target_id"], unique=False)
    op.create_index(op.f("ix_analyses_base_id"), "analyses", ["base_id"], unique=False)
    op.create_index(
        op.f("ix_analyses_submitted_by_created_at"), "analyses", ["submitted_by", "created_at"], unique=False
    )
    op.drop_index(op.f("ix_analyses_submitted_by"), table_name="analyses")


def downgrade() -> None:
    """Undo."""
    op.create_index(op.f("ix_analyses_submitted_by"), "analyses", ["submitted_by"], unique=False)
    op.drop_index(op.f("ix_analyses_submitted_by_created_at"), table_name="analyses")
    op.drop_index(op.f("ix_analyses_base_id"), table_name="analyses")
    op.drop_index(op.f("ix_jobs_target_id"), table_name="jobs")
