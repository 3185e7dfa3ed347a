"""Accounts, triage and forges: who may do what, what a team decided, where each pull request stands"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from services.database.base import JsonColumn, StoredText, UtcDateTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NEVER_CHANGED = "audit events are never changed and never deleted"


def upgrade() -> None:  # noqa: PLR0915 - one statement a table, in the order of their references
    """Apply."""
    op.create_table(
        "audit_events",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor_kind", StoredText(), nullable=False),
        sa.Column("actor_id", StoredText(), nullable=False),
        sa.Column("actor_name", StoredText(), nullable=False),
        sa.Column("organisation_id", StoredText(), nullable=True),
        sa.Column("project_id", StoredText(), nullable=True),
        sa.Column("action", StoredText(), nullable=False),
        sa.Column("object_kind", StoredText(), nullable=False),
        sa.Column("object_id", StoredText(), nullable=False),
        sa.Column("details", JsonColumn, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_events")),
    )
    op.create_index(op.f("ix_audit_events_organisation_id_id"), "audit_events", ["organisation_id", "id"], unique=False)
    op.create_index(op.f("ix_audit_events_project_id_id"), "audit_events", ["project_id", "id"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("forge", StoredText(), nullable=False),
        sa.Column("delivery_id", StoredText(), nullable=False),
        sa.Column("event", StoredText(), nullable=False),
        sa.Column("action", StoredText(), nullable=False),
        sa.Column("received_at", UtcDateTime(), nullable=False),
        sa.Column("payload", JsonColumn, nullable=True),
        sa.Column("outcome", StoredText(), nullable=False),
        sa.Column("reason", StoredText(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('received', 'done', 'ignored', 'failed')", name=op.f("ck_deliveries_outcome_is_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("forge", "delivery_id", name=op.f("uq_deliveries_forge_delivery_id")),
    )
    op.create_index(op.f("ix_deliveries_received_at"), "deliveries", ["received_at"], unique=False)
    op.create_table(
        "organisations",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("slug", StoredText(), nullable=False),
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organisations")),
        sa.UniqueConstraint("slug", name=op.f("uq_organisations_slug")),
    )
    op.create_table(
        "sign_in_attempts",
        sa.Column("key", StoredText(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_at", UtcDateTime(), nullable=False),
        sa.Column("closed_until", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_sign_in_attempts")),
    )
    op.create_index(op.f("ix_sign_in_attempts_last_at"), "sign_in_attempts", ["last_at"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("display_name", StoredText(), nullable=False),
        sa.Column("email", StoredText(), nullable=True),
        sa.Column("password", StoredText(), nullable=True),
        sa.Column("is_operator", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("disabled_at", UtcDateTime(), nullable=True),
        sa.Column("last_seen_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_index(op.f("ix_users_email"), "users", ["email"], unique=False)
    op.create_table(
        "hooks",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("project_id", StoredText(), nullable=False),
        sa.Column("url", StoredText(), nullable=False),
        sa.Column("events", JsonColumn, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("disabled_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_hooks_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hooks")),
    )
    op.create_index(op.f("ix_hooks_project_id"), "hooks", ["project_id"], unique=False)
    op.create_table(
        "identities",
        sa.Column("issuer", StoredText(), nullable=False),
        sa.Column("subject", StoredText(), nullable=False),
        sa.Column("user_id", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_identities_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_identities")),
    )
    op.create_index(op.f("ix_identities_user_id"), "identities", ["user_id"], unique=False)
    op.create_table(
        "installations",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("forge", StoredText(), nullable=False),
        sa.Column("external_id", StoredText(), nullable=False),
        sa.Column("account", StoredText(), nullable=False),
        sa.Column("organisation_id", StoredText(), nullable=False),
        sa.Column("permissions", JsonColumn, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("suspended_at", UtcDateTime(), nullable=True),
        sa.Column("removed_at", UtcDateTime(), nullable=True),
        sa.Column("quiet_until", UtcDateTime(), nullable=True),
        sa.Column("quiet_reason", StoredText(), nullable=True),
        sa.CheckConstraint("forge IN ('github', 'gitlab')", name=op.f("ck_installations_forge_is_known")),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name=op.f("fk_installations_organisation_id_organisations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installations")),
        sa.UniqueConstraint("forge", "external_id", name=op.f("uq_installations_forge_external_id")),
    )
    op.create_index(op.f("ix_installations_organisation_id"), "installations", ["organisation_id"], unique=False)
    op.create_table(
        "memberships",
        sa.Column("organisation_id", StoredText(), nullable=False),
        sa.Column("user_id", StoredText(), nullable=False),
        sa.Column("role", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "role IN ('viewer', 'triager', 'maintainer', 'admin')", name=op.f("ck_memberships_role_is_known")
        ),
        sa.ForeignKeyConstraint(
            ["organisation_id"],
            ["organisations.id"],
            name=op.f("fk_memberships_organisation_id_organisations"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_memberships_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("organisation_id", "user_id", name=op.f("pk_memberships")),
    )
    op.create_index(op.f("ix_memberships_user_id"), "memberships", ["user_id"], unique=False)
    op.create_table(
        "project_findings",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("project_id", StoredText(), nullable=False),
        sa.Column("fingerprint", StoredText(), nullable=False),
        sa.Column("state", StoredText(), nullable=False),
        sa.Column("reason", StoredText(), nullable=False),
        sa.Column("decided_by", StoredText(), nullable=True),
        sa.Column("decided_by_name", StoredText(), nullable=True),
        sa.Column("decided_at", UtcDateTime(), nullable=True),
        sa.Column("until_date", UtcDateTime(), nullable=True),
        sa.Column("until_occurrences", sa.Integer(), nullable=True),
        sa.Column("until_torch", StoredText(), nullable=True),
        sa.Column("occurrences", sa.Integer(), nullable=False),
        sa.Column("assignee_id", StoredText(), nullable=True),
        sa.Column("assignee_name", StoredText(), nullable=True),
        sa.Column("rule", StoredText(), nullable=False),
        sa.Column("name", StoredText(), nullable=False),
        sa.Column("severity", StoredText(), nullable=False),
        sa.Column("severity_rank", sa.Integer(), nullable=False),
        sa.Column("path", StoredText(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("symbol", StoredText(), nullable=False),
        sa.Column("message", StoredText(), nullable=False),
        sa.Column("verdict", StoredText(), nullable=False),
        sa.Column("on_main", sa.Boolean(), nullable=False),
        sa.Column("first_analysis_id", StoredText(), nullable=True),
        sa.Column("last_analysis_id", StoredText(), nullable=True),
        sa.Column("first_seen_at", UtcDateTime(), nullable=False),
        sa.Column("last_seen_at", UtcDateTime(), nullable=False),
        sa.Column("fixed_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'accepted', 'false_positive', 'fixed', 'regressed')",
            name=op.f("ck_project_findings_state_is_known"),
        ),
        sa.ForeignKeyConstraint(
            ["assignee_id"], ["users.id"], name=op.f("fk_project_findings_assignee_id_users"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_project_findings_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project_findings")),
        sa.UniqueConstraint("project_id", "fingerprint", name=op.f("uq_project_findings_project_id_fingerprint")),
    )
    op.create_index(op.f("ix_project_findings_assignee_id"), "project_findings", ["assignee_id"], unique=False)
    op.create_index(
        op.f("ix_project_findings_project_id_last_analysis_id"),
        "project_findings",
        ["project_id", "last_analysis_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_project_findings_project_id_rule_state"),
        "project_findings",
        ["project_id", "rule", "state"],
        unique=False,
    )
    op.create_index(
        op.f("ix_project_findings_project_id_state_severity_rank_id"),
        "project_findings",
        ["project_id", "state", "severity_rank", "id"],
        unique=False,
    )
    op.create_index(op.f("ix_project_findings_until_date"), "project_findings", ["until_date"], unique=False)
    op.create_table(
        "project_memberships",
        sa.Column("project_id", StoredText(), nullable=False),
        sa.Column("user_id", StoredText(), nullable=False),
        sa.Column("role", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "role IN ('viewer', 'triager', 'maintainer', 'admin')", name=op.f("ck_project_memberships_role_is_known")
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_project_memberships_project_id_projects"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_project_memberships_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "user_id", name=op.f("pk_project_memberships")),
    )
    op.create_index(op.f("ix_project_memberships_user_id"), "project_memberships", ["user_id"], unique=False)
    op.create_table(
        "hook_deliveries",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("hook_id", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=True),
        sa.Column("event", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("reason", StoredText(), nullable=True),
        sa.Column("delivered_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["hook_id"], ["hooks.id"], name=op.f("fk_hook_deliveries_hook_id_hooks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hook_deliveries")),
    )
    op.create_index(op.f("ix_hook_deliveries_due_at"), "hook_deliveries", ["due_at"], unique=False)
    op.create_index(op.f("ix_hook_deliveries_hook_id"), "hook_deliveries", ["hook_id"], unique=False)
    op.create_table(
        "repositories",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("forge", StoredText(), nullable=False),
        sa.Column("external_id", StoredText(), nullable=False),
        sa.Column("full_name", StoredText(), nullable=False),
        sa.Column("clone_url", StoredText(), nullable=False),
        sa.Column("web_url", StoredText(), nullable=False),
        sa.Column("is_private", sa.Boolean(), nullable=False),
        sa.Column("default_branch", StoredText(), nullable=False),
        sa.Column("installation_id", StoredText(), nullable=False),
        sa.Column("project_id", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("removed_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("forge IN ('github', 'gitlab')", name=op.f("ck_repositories_forge_is_known")),
        sa.ForeignKeyConstraint(
            ["installation_id"],
            ["installations.id"],
            name=op.f("fk_repositories_installation_id_installations"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_repositories_project_id_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repositories")),
        sa.UniqueConstraint("forge", "external_id", name=op.f("uq_repositories_forge_external_id")),
    )
    op.create_index(op.f("ix_repositories_full_name"), "repositories", ["full_name"], unique=False)
    op.create_index(op.f("ix_repositories_installation_id"), "repositories", ["installation_id"], unique=False)
    op.create_index(op.f("ix_repositories_project_id"), "repositories", ["project_id"], unique=False)
    # Nothing refers to tokens yet: on SQLite, which has to copy the table, that would be deleted.
    with op.batch_alter_table("api_tokens") as table:
        table.add_column(sa.Column("user_id", StoredText(), nullable=True))
        table.add_column(sa.Column("project_id", StoredText(), nullable=True))
        for column, to in (("user_id", "users"), ("project_id", "projects")):
            table.create_foreign_key(op.f(f"fk_api_tokens_{column}_{to}"), to, [column], ["id"], ondelete="CASCADE")
            table.create_index(op.f(f"ix_api_tokens_{column}"), [column])
    op.create_table(
        "sessions",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("digest", StoredText(), nullable=False),
        sa.Column("user_id", StoredText(), nullable=True),
        sa.Column("token_id", StoredText(), nullable=True),
        sa.Column("agent", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("(user_id IS NULL) <> (token_id IS NULL)", name=op.f("ck_sessions_belongs_to_one")),
        sa.ForeignKeyConstraint(
            ["token_id"], ["api_tokens.id"], name=op.f("fk_sessions_token_id_api_tokens"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_sessions_user_id_users"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("digest", name=op.f("uq_sessions_digest")),
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"], unique=False)
    op.create_index(op.f("ix_sessions_token_id"), "sessions", ["token_id"], unique=False)
    op.create_index(op.f("ix_sessions_user_id"), "sessions", ["user_id"], unique=False)
    op.create_table(
        "share_links",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("analysis_id", StoredText(), nullable=False),
        sa.Column("created_by", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["analyses.id"], name=op.f("fk_share_links_analysis_id_analyses"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_share_links")),
    )
    op.create_index(op.f("ix_share_links_analysis_id"), "share_links", ["analysis_id"], unique=False)
    op.create_table(
        "triage_events",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("finding_id", StoredText(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor_kind", StoredText(), nullable=False),
        sa.Column("actor_id", StoredText(), nullable=False),
        sa.Column("actor_name", StoredText(), nullable=False),
        sa.Column("kind", StoredText(), nullable=False),
        sa.Column("before", StoredText(), nullable=True),
        sa.Column("after", StoredText(), nullable=True),
        sa.Column("text", StoredText(), nullable=False),
        sa.Column("details", JsonColumn, nullable=False),
        sa.ForeignKeyConstraint(
            ["finding_id"],
            ["project_findings.id"],
            name=op.f("fk_triage_events_finding_id_project_findings"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_triage_events")),
    )
    op.create_index(op.f("ix_triage_events_finding_id_id"), "triage_events", ["finding_id", "id"], unique=False)
    op.create_table(
        "pull_requests",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("repository_id", StoredText(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", StoredText(), nullable=False),
        sa.Column("is_draft", sa.Boolean(), nullable=False),
        sa.Column("is_fork", sa.Boolean(), nullable=False),
        sa.Column("title", StoredText(), nullable=False),
        sa.Column("author", StoredText(), nullable=False),
        sa.Column("base_ref", StoredText(), nullable=False),
        sa.Column("base_sha", StoredText(), nullable=False),
        sa.Column("head_ref", StoredText(), nullable=False),
        sa.Column("head_sha", StoredText(), nullable=False),
        sa.Column("merge_base_sha", StoredText(), nullable=True),
        sa.Column("pushes", sa.Integer(), nullable=False),
        sa.Column("paused_at", UtcDateTime(), nullable=True),
        sa.Column("pause_reason", StoredText(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("analysis_id", StoredText(), nullable=True),
        sa.Column("base_analysis_id", StoredText(), nullable=True),
        sa.Column("check_sha", StoredText(), nullable=True),
        sa.Column("check_id", StoredText(), nullable=True),
        sa.Column("check_state", StoredText(), nullable=False),
        sa.Column("check_digest", StoredText(), nullable=False),
        sa.Column("check_pages", sa.Integer(), nullable=False),
        sa.Column("summary_id", StoredText(), nullable=True),
        sa.Column("summary_digest", StoredText(), nullable=False),
        sa.Column("summary_removed_at", UtcDateTime(), nullable=True),
        sa.Column("sarif_sha", StoredText(), nullable=True),
        sa.Column("silence", JsonColumn, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("state IN ('open', 'closed', 'merged')", name=op.f("ck_pull_requests_state_is_known")),
        sa.ForeignKeyConstraint(
            ["repository_id"],
            ["repositories.id"],
            name=op.f("fk_pull_requests_repository_id_repositories"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pull_requests")),
        sa.UniqueConstraint("repository_id", "number", name=op.f("uq_pull_requests_repository_id_number")),
    )
    op.create_index(op.f("ix_pull_requests_analysis_id"), "pull_requests", ["analysis_id"], unique=False)
    op.create_index(op.f("ix_pull_requests_head_sha"), "pull_requests", ["head_sha"], unique=False)
    op.create_table(
        "forge_tasks",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("kind", StoredText(), nullable=False),
        sa.Column("key", StoredText(), nullable=False),
        sa.Column("installation_id", StoredText(), nullable=True),
        sa.Column("pull_request_id", StoredText(), nullable=True),
        sa.Column("delivery_id", StoredText(), nullable=True),
        sa.Column("details", JsonColumn, nullable=False),
        sa.Column("state", StoredText(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owner", StoredText(), nullable=True),
        sa.Column("lease_until", UtcDateTime(), nullable=True),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("reason", StoredText(), nullable=True),
        sa.CheckConstraint("kind IN ('delivery', 'analyse', 'publish')", name=op.f("ck_forge_tasks_kind_is_known")),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'done', 'failed')", name=op.f("ck_forge_tasks_state_is_known")
        ),
        sa.ForeignKeyConstraint(
            ["delivery_id"], ["deliveries.id"], name=op.f("fk_forge_tasks_delivery_id_deliveries"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["installation_id"],
            ["installations.id"],
            name=op.f("fk_forge_tasks_installation_id_installations"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["pull_request_id"],
            ["pull_requests.id"],
            name=op.f("fk_forge_tasks_pull_request_id_pull_requests"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_forge_tasks")),
    )
    op.create_index(
        op.f("ix_forge_tasks_installation_id_state"), "forge_tasks", ["installation_id", "state"], unique=False
    )
    op.create_index(op.f("ix_forge_tasks_key_state"), "forge_tasks", ["key", "state"], unique=False)
    op.create_index(op.f("ix_forge_tasks_pull_request_id"), "forge_tasks", ["pull_request_id"], unique=False)
    op.create_index(op.f("ix_forge_tasks_state_due_at"), "forge_tasks", ["state", "due_at"], unique=False)
    op.create_table(
        "review_threads",
        sa.Column("id", StoredText(), nullable=False),
        sa.Column("pull_request_id", StoredText(), nullable=False),
        sa.Column("fingerprint", StoredText(), nullable=False),
        sa.Column("comment_id", StoredText(), nullable=False),
        sa.Column("thread_id", StoredText(), nullable=True),
        sa.Column("path", StoredText(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("head_sha", StoredText(), nullable=False),
        sa.Column("state", StoredText(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("state IN ('open', 'resolved', 'kept')", name=op.f("ck_review_threads_state_is_known")),
        sa.ForeignKeyConstraint(
            ["pull_request_id"],
            ["pull_requests.id"],
            name=op.f("fk_review_threads_pull_request_id_pull_requests"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_threads")),
        sa.UniqueConstraint("pull_request_id", "comment_id", name=op.f("uq_review_threads_pull_request_id_comment_id")),
    )
    op.create_index(op.f("ix_review_threads_pull_request_id"), "review_threads", ["pull_request_id"], unique=False)
    op.add_column("analyses", sa.Column("purpose", StoredText(), server_default="main", nullable=False))
    op.add_column("analyses", sa.Column("pull_request_id", StoredText(), nullable=True))
    op.add_column("analyses", sa.Column("branch", StoredText(), nullable=True))
    op.add_column("analyses", sa.Column("submitted_by", StoredText(), nullable=True))
    op.add_column("analyses", sa.Column("submitted_by_name", StoredText(), nullable=True))
    op.add_column("analyses", sa.Column("totals", JsonColumn, nullable=True))
    op.create_index(
        op.f("ix_analyses_project_id_purpose_id"), "analyses", ["project_id", "purpose", "id"], unique=False
    )
    op.create_index(op.f("ix_analyses_pull_request_id"), "analyses", ["pull_request_id"], unique=False)
    op.create_index(op.f("ix_analyses_submitted_by"), "analyses", ["submitted_by"], unique=False)
    op.add_column("projects", sa.Column("organisation_id", StoredText(), server_default="default", nullable=False))
    op.add_column("projects", sa.Column("repository_url", StoredText(), nullable=True))
    op.add_column("projects", sa.Column("default_branch", StoredText(), nullable=True))
    op.add_column("projects", sa.Column("settings", JsonColumn, server_default="{}", nullable=False))
    op.add_column("projects", sa.Column("baseline_id", StoredText(), nullable=True))
    op.add_column("projects", sa.Column("archived_at", UtcDateTime(), nullable=True))
    op.create_index(op.f("ix_projects_organisation_id_name"), "projects", ["organisation_id", "name"], unique=False)
    op.execute(
        "INSERT INTO organisations (id, slug, name, created_at)"
        " VALUES ('default', 'default', 'Default', CURRENT_TIMESTAMP)"
    )
    _guard_audit()


def downgrade() -> None:
    """Undo."""
    op.drop_index(op.f("ix_api_tokens_user_id"), table_name="api_tokens")
    op.drop_index(op.f("ix_api_tokens_project_id"), table_name="api_tokens")
    with op.batch_alter_table("api_tokens") as table:
        table.drop_column("project_id")
        table.drop_column("user_id")
    op.drop_table("review_threads")
    op.drop_table("forge_tasks")
    op.drop_table("pull_requests")
    op.drop_table("triage_events")
    op.drop_table("share_links")
    op.drop_table("sessions")
    op.drop_table("repositories")
    op.drop_table("hook_deliveries")
    op.drop_table("project_memberships")
    op.drop_table("project_findings")
    op.drop_table("memberships")
    op.drop_table("installations")
    op.drop_table("identities")
    op.drop_table("hooks")
    op.drop_table("users")
    op.drop_table("sign_in_attempts")
    op.drop_table("organisations")
    op.drop_table("deliveries")
    op.drop_table("audit_events")
    op.drop_index(op.f("ix_projects_organisation_id_name"), table_name="projects")
    op.drop_column("projects", "archived_at")
    op.drop_column("projects", "baseline_id")
    op.drop_column("projects", "settings")
    op.drop_column("projects", "default_branch")
    op.drop_column("projects", "repository_url")
    op.drop_column("projects", "organisation_id")
    op.drop_index(op.f("ix_analyses_submitted_by"), table_name="analyses")
    op.drop_index(op.f("ix_analyses_pull_request_id"), table_name="analyses")
    op.drop_index(op.f("ix_analyses_project_id_purpose_id"), table_name="analyses")
    op.drop_column("analyses", "totals")
    op.drop_column("analyses", "submitted_by_name")
    op.drop_column("analyses", "submitted_by")
    op.drop_column("analyses", "branch")
    op.drop_column("analyses", "pull_request_id")
    op.drop_column("analyses", "purpose")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_change_of_audit()")


def _guard_audit() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_change_of_audit() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION '{_NEVER_CHANGED}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_events_stay BEFORE UPDATE OR DELETE ON audit_events"
            " FOR EACH ROW EXECUTE FUNCTION refuse_change_of_audit()"
        )
        return
    for what in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_events_stay_{what.lower()} BEFORE {what} ON audit_events"
            f" BEGIN SELECT RAISE(ABORT, '{_NEVER_CHANGED}'); END"
        )
