"""The pages for people: server-rendered, readable without JavaScript, under a policy that runs no foreign code.

Pages know a browser by a session cookie, which lets nobody into the API. This package must not query anything.
"""

from __future__ import annotations

from api.pages.errors import problem_page
from api.pages.routes import router

__all__ = ["problem_page", "router"]
