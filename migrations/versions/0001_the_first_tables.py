"""The first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from services.database.base import JsonColumn, StoredText, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "api_tokens",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("kind", StoredText(), nullable=False),
        sa.Column("digest", StoredText(), nullable=False),
        sa.Column("last_four", StoredText(), nullable=False),
        sa.Column("scopes", JsonColumn, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_tokens_digest")),
    )
    op.create_table(
        "leases",
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("holder", StoredText(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "projects",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "snapshots",
        sa.Column("digest", StoredText(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_snapshots")),
    )
    op.create_table(
        "workers",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("host", StoredText(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", StoredText(), nullable=False),
        sa.Column("queues", JsonColumn, nullable=False),
        sa.Column("devices", JsonColumn, nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_seen_at"), "workers", ["seen_at"], unique=False)
    op.create_table(
        "analyses",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("project_id", StoredText(), nullable=True),
        sa.Column("base_id", StoredText(), nullable=True),
        sa.Column("snapshot_digest", StoredText(), nullable=True),
        sa.Column("status", StoredText(), nullable=False),
        sa.Column("reason", StoredText(), nullable=True),
        sa.Column("options", JsonColumn, nullable=False),
        sa.Column("configuration", JsonColumn, nullable=True),
        sa.Column("configuration_hash", StoredText(), nullable=True),
        sa.Column("source_kind", StoredText(), nullable=False),
        sa.Column("source_url", StoredText(), nullable=True),
        sa.Column("source_ref", StoredText(), nullable=True),
        sa.Column("source_commit", StoredText(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("static_finished_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("gate", JsonColumn, nullable=True),
        sa.Column("tool", JsonColumn, nullable=False),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'finished', 'failed', 'cancelled', 'partial')",
            name=op.f("ck_analyses_status_is_known"),
        ),
        sa.ForeignKeyConstraint(
            ["base_id"], ["analyses.id"], name=op.f("fk_analyses_base_id_analyses"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_analyses_project_id_projects")),
        sa.ForeignKeyConstraint(
            ["snapshot_digest"], ["snapshots.digest"], name=op.f("fk_analyses_snapshot_digest_snapshots")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_analyses")),
    )
    op.create_index(op.f("ix_analyses_project_id"), "analyses", ["project_id"], unique=False)
    op.create_index(op.f("ix_analyses_snapshot_digest"), "analyses", ["snapshot_digest"], unique=False)
    op.create_index(op.f("ix_analyses_status"), "analyses", ["status"], unique=False)
    op.create_table(
        "findings",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("fingerprint", StoredText(), nullable=False),
        sa.Column("rule", StoredText(), nullable=False),
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("severity", StoredText(), nullable=False),
        sa.Column("confidence", StoredText(), nullable=False),
        sa.Column("path", StoredText(), nullable=False),
        sa.Column("start_line", sa.Integer(), nullable=False),
        sa.Column("start_column", sa.Integer(), nullable=False),
        sa.Column("end_line", sa.Integer(), nullable=False),
        sa.Column("end_column", sa.Integer(), nullable=False),
        sa.Column("symbol", StoredText(), nullable=False),
        sa.Column("message", StoredText(), nullable=False),
        sa.Column("settled_by", JsonColumn, nullable=False),
        sa.Column("hypothesis", JsonColumn, nullable=False),
        sa.Column("fix", JsonColumn, nullable=False),
        sa.Column("related", JsonColumn, nullable=False),
        sa.Column("verdict", StoredText(), nullable=False),
        sa.Column("verdict_reason", StoredText(), nullable=False),
        sa.Column("evidence", JsonColumn, nullable=False),
        sa.Column("is_new", sa.Boolean(), nullable=False),
        sa.Column("triage", StoredText(), nullable=False),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["analyses.id"], name=op.f("fk_findings_analysis_id_analyses"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_findings")),
        sa.UniqueConstraint("analysis_id", "position", name=op.f("uq_findings_analysis_id_position")),
    )
    op.create_index(op.f("ix_findings_fingerprint"), "findings", ["fingerprint"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", StoredText(), nullable=False),
        sa.Column("key", StoredText(), nullable=False),
        sa.Column("body_digest", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["analyses.id"], name=op.f("fk_idempotency_keys_analysis_id_analyses"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_analysis_id"), "idempotency_keys", ["analysis_id"], unique=False)
    op.create_table(
        "suppressions",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("rule", StoredText(), nullable=False),
        sa.Column("path", StoredText(), nullable=False),
        sa.Column("start_line", sa.Integer(), nullable=False),
        sa.Column("fingerprint", StoredText(), nullable=False),
        sa.Column("reason", StoredText(), nullable=False),
        sa.Column("finding", JsonColumn, nullable=False),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["analyses.id"], name=op.f("fk_suppressions_analysis_id_analyses"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suppressions")),
        sa.UniqueConstraint("analysis_id", "position", name=op.f("uq_suppressions_analysis_id_position")),
    )
    op.create_table(
        "targets",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("kind", StoredText(), nullable=False),
        sa.Column("path", StoredText(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("end_line", sa.Integer(), nullable=False),
        sa.Column("import_root", StoredText(), nullable=False),
        sa.Column("module", StoredText(), nullable=False),
        sa.Column("qualname", StoredText(), nullable=False),
        sa.Column("declared", JsonColumn, nullable=True),
        sa.Column("hypotheses", JsonColumn, nullable=False),
        sa.Column("harness", JsonColumn, nullable=True),
        sa.Column("not_run_reason", StoredText(), nullable=True),
        sa.Column("not_run_detail", StoredText(), nullable=True),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["analyses.id"], name=op.f("fk_targets_analysis_id_analyses"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_targets")),
        sa.UniqueConstraint("analysis_id", "position", name=op.f("uq_targets_analysis_id_position")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=False),
        sa.Column("target_id", StoredText(), nullable=True),
        sa.Column("kind", StoredText(), nullable=False),
        sa.Column("queue", StoredText(), nullable=False),
        sa.Column("device_class", StoredText(), nullable=False),
        sa.Column("checks", JsonColumn, nullable=False),
        sa.Column("idempotency_key", StoredText(), nullable=False),
        sa.Column("state", StoredText(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("owner", StoredText(), nullable=True),
        sa.Column("lease_until", UtcDateTime(), nullable=True),
        sa.Column("rung_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("reason", StoredText(), nullable=True),
        sa.CheckConstraint(
            "(state IN ('leased', 'running')) = (lease_until IS NOT NULL)",
            name=op.f("ck_jobs_lease_belongs_to_owned_states"),
        ),
        sa.CheckConstraint("kind IN ('ingest', 'static', 'probe')", name=op.f("ck_jobs_kind_is_known")),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'succeeded', 'failed', 'crashed', 'timed_out', 'cancelled',"
            " 'superseded', 'infra_failed')",
            name=op.f("ck_jobs_state_is_known"),
        ),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["analyses.id"], name=op.f("fk_jobs_analysis_id_analyses"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["targets.id"], name=op.f("fk_jobs_target_id_targets"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
    )
    op.create_index(op.f("ix_jobs_analysis_id_state"), "jobs", ["analysis_id", "state"], unique=False)
    op.create_index(op.f("ix_jobs_queue_state"), "jobs", ["queue", "state"], unique=False)
    op.create_index(op.f("ix_jobs_state_lease_until"), "jobs", ["state", "lease_until"], unique=False)
    op.create_table(
        "check_results",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=False),
        sa.Column("target_id", StoredText(), nullable=False),
        sa.Column("job_id", StoredText(), nullable=False),
        sa.Column("check_name", StoredText(), nullable=False),
        sa.Column("verdict", StoredText(), nullable=False),
        sa.Column("device", StoredText(), nullable=False),
        sa.Column("summary", StoredText(), nullable=False),
        sa.Column("diagnosis", JsonColumn, nullable=True),
        sa.Column("path", StoredText(), nullable=True),
        sa.Column("line", sa.Integer(), nullable=True),
        sa.Column("evidence", JsonColumn, nullable=False),
        sa.Column("repro", StoredText(), nullable=True),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('pass', 'fail', 'inconclusive', 'skipped', 'error')",
            name=op.f("ck_check_results_verdict_is_known"),
        ),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["analyses.id"], name=op.f("fk_check_results_analysis_id_analyses"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_check_results_job_id_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["target_id"], ["targets.id"], name=op.f("fk_check_results_target_id_targets"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_check_results")),
        sa.UniqueConstraint("job_id", "check_name", name=op.f("uq_check_results_job_id_check_name")),
    )
    op.create_index(op.f("ix_check_results_analysis_id"), "check_results", ["analysis_id"], unique=False)
    op.create_index(op.f("ix_check_results_target_id"), "check_results", ["target_id"], unique=False)


def downgrade() -> None:
    """Undo."""
    op.drop_index(op.f("ix_check_results_target_id"))
    op.drop_index(op.f("ix_check_results_analysis_id"))
    op.drop_table("check_results")
    op.drop_index(op.f("ix_jobs_state_lease_until"))
    op.drop_index(op.f("ix_jobs_queue_state"))
    op.drop_index(op.f("ix_jobs_analysis_id_state"))
    op.drop_table("jobs")
    op.drop_table("targets")
    op.drop_table("suppressions")
    op.drop_index(op.f("ix_idempotency_keys_analysis_id"))
    op.drop_table("idempotency_keys")
    op.drop_index(op.f("ix_findings_fingerprint"))
    op.drop_table("findings")
    op.drop_index(op.f("ix_analyses_status"))
    op.drop_index(op.f("ix_analyses_snapshot_digest"))
    op.drop_index(op.f("ix_analyses_project_id"))
    op.drop_table("analyses")
    op.drop_index(op.f("ix_workers_seen_at"))
    op.drop_table("workers")
    op.drop_table("snapshots")
    op.drop_table("projects")
    op.drop_table("leases")
    op.drop_table("api_tokens")
