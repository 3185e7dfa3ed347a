"""The badge of a project: whether the gate of its main line passed, as a picture for a README.

Whoever shows it can't sign in, so its address is the right to see it: it holds a MAC, which only members are shown.
It says passed, failed or not analysed, and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from fastapi import APIRouter, Response

from api.context import ContextDependency
from api.errors import RouteNotFoundError
from services.accounts import signing_key
from services.accounts.access import SYSTEM
from services.settings import Settings

router = APIRouter(include_in_schema=False)

_CODE_DIGITS: Final = 32
# Long enough to spare us, short enough for a README to be right the next time that it is looked at.
_KEPT: Final = "public, max-age=300"
_LOOKS: Final = {
    True: ("passed", "#17652f", 58),
    False: ("failed", "#a3161c", 52),
    None: ("not analysed", "#59616b", 88),
}
_PICTURE: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="Gradproof: {word}">
<title>Gradproof: {word}</title>
<rect width="{width}" height="20" rx="3" fill="#2b3036"/>
<path d="M74 0h{half}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H74z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="8" y="14">Gradproof</text><text x="81" y="14">{word}</text></g>
</svg>
"""


def badge_address(settings: Settings, project_id: str) -> str:
    """Where the badge of a project is, for whoever may see the project."""
    return f"/badges/{project_id}/{_code(settings, project_id)}.svg"


@router.get("/badges/{project_id}/{code}.svg")
def badge(context: ContextDependency, project_id: str, code: str) -> Response:
    """The picture."""
    if not hmac.compare_digest(code.encode("utf-8", "replace"), _code(context.settings, project_id).encode()):
        raise RouteNotFoundError("There is no such badge")
    trend = context.results.trends(SYSTEM, [project_id], last=1).get(project_id)
    word, colour, width = _LOOKS[trend[-1].gate_passed if trend else None]
    picture = _PICTURE.format(width=74 + width, half=width - 3, word=word, colour=colour)
    return Response(picture, media_type="image/svg+xml", headers={"Cache-Control": _KEPT})


def _code(settings: Settings, project_id: str) -> str:
    text = f"badge\0{project_id}".encode("utf-8", "replace")
    return hmac.new(signing_key(settings), text, hashlib.sha256).hexdigest()[:_CODE_DIGITS]
