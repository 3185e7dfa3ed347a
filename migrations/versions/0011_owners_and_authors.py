"""Who wrote the commit of an analysis, and whose files a snapshot says they are"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("analyses", sa.Column("source_author", sa.String(), nullable=True))
    op.add_column("analyses", sa.Column("source_author_email", sa.String(), nullable=True))
    op.add_column("snapshots", sa.Column("owners", sa.JSON(none_as_null=True), server_default="[]", nullable=False))


def downgrade() -> None:
    """Undo."""
    op.drop_column("snapshots", "owners")
    op.drop_column("analyses", "source_author_email")
    op.drop_column("analyses", "source_author")
