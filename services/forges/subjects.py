"""Who acts when a forge does: an installation, or a person at the forge through it."""

from __future__ import annotations

from services.accounts.access import Permission, Subject


def forge_subject(installation_id: str, name: str, project_id: str) -> Subject:
    """An installation as one who acts: in one project, and no more than analyses and findings need."""
    permissions = frozenset({Permission.READ, Permission.SUBMIT, Permission.TRIAGE})
    return Subject("forge", installation_id, name, permissions, project_id=project_id)
