"""The repository's own examples: a job that runs them, the calls that they make; the order in which targets are run"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from services.database.base import JsonColumn, StoredText

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_KINDS = "kind IN ('ingest', 'static', 'examples', 'probe')"
_KINDS_BEFORE = "kind IN ('ingest', 'static', 'probe')"


def upgrade() -> None:
    """Apply."""
    op.add_column("targets", sa.Column("mined", JsonColumn, nullable=False, server_default="[]"))
    op.add_column("targets", sa.Column("turn", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("analyses", sa.Column("examples", JsonColumn, nullable=False, server_default="[]"))
    op.add_column("analyses", sa.Column("examples_reason", StoredText(), nullable=True))
    _set_kinds(_KINDS)


def downgrade() -> None:
    """Undo."""
    op.execute("DELETE FROM jobs WHERE kind = 'examples'")
    _set_kinds(_KINDS_BEFORE)
    op.drop_column("analyses", "examples_reason")
    op.drop_column("analyses", "examples")
    op.drop_column("targets", "turn")
    op.drop_column("targets", "mined")


def _set_kinds(condition: str) -> None:
    # SQLite knows a constraint only as part of its table, so the table is made anew there. Dropping the old one deletes
    # what refers to its rows: results are kept aside meanwhile.
    is_remade = op.get_bind().dialect.name == "sqlite"
    if is_remade:
        op.execute("CREATE TEMPORARY TABLE kept_results AS SELECT * FROM check_results")
    with op.batch_alter_table("jobs") as table:
        table.drop_constraint(op.f("ck_jobs_kind_is_known"), type_="check")
        table.create_check_constraint(op.f("ck_jobs_kind_is_known"), condition)
    if is_remade:
        op.execute("INSERT INTO check_results SELECT * FROM kept_results")
        op.execute("DROP TABLE kept_results")
