"""The pages of a team: its projects, its inbox, its settings, and who works for it.

Routes here hold no query and no rule: what may be seen and done is decided by the use cases, which get the subject.
"""

from __future__ import annotations

from fastapi import APIRouter

from api.pages import badges
from api.pages.team import named, projects, pull_requests, workers

router = APIRouter(include_in_schema=False)
for part in (badges, projects, pull_requests, workers, named):
    router.include_router(part.router)
