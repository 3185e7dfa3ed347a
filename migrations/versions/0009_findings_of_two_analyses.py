"""An index by which the findings of two analyses are compared"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index(op.f("ix_findings_analysis_id_fingerprint"), "findings", ["analysis_id", "fingerprint"])


def downgrade() -> None:
    """Undo."""
    op.drop_index(op.f("ix_findings_analysis_id_fingerprint"), table_name="findings")
