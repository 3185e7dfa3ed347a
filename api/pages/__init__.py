"""The pages for people: server-rendered, readable without JavaScript, under a policy that runs no foreign code.

Pages know a browser by a session cookie, which lets nobody into the API. This package must not query anything.
"""

from __future__ import annotations

from fastapi import APIRouter

from api.pages import analyses, comparison, findings, openid, routes, sharing, sign_in, targets, team
from api.pages.errors import problem_page

router = APIRouter()
router.include_router(sign_in.router)
router.include_router(openid.router)
router.include_router(team.router)
for part in (analyses, findings, targets, comparison, sharing, routes):
    router.include_router(part.router)

__all__ = ["problem_page", "router"]
