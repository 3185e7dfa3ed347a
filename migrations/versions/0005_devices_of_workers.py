"""Which GPU a worker has, and how it is"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("workers", sa.Column("device", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Undo."""
    op.drop_column("workers", "device")
