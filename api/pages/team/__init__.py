"""The pages of a team: its projects, its inbox, its settings, and who works for it.

Routes here hold no query and no rule: what may be seen and done is decided by the use cases, which get the subject.
"""

from __future__ import annotations

from fastapi import APIRouter

from api.pages import badges
from api.pages.team import (
    audit,
    compliance,
    inbox,
    installation,
    me,
    named,
    organisations,
    project_hooks,
    project_people,
    project_rules,
    project_settings,
    projects,
    pull_requests,
    workers,
)

router = APIRouter(include_in_schema=False)
for part in (
    badges,
    projects,
    inbox,
    project_rules,
    project_settings,
    project_people,
    project_hooks,
    audit,
    organisations,
    pull_requests,
    compliance,
    workers,
    me,
    installation,
    named,
):
    router.include_router(part.router)
