"""Findings in notebooks: the cell beside the line"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("findings") as table:
        table.add_column(sa.Column("cell", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("findings") as table:
        table.drop_column("cell")
