"""Ids in the addresses of a team's pages, judged before the domain sees them: what no id looks like is not found."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends

from api.parameters import ID_PATTERN
from services.forges.overview import PullRequestNotFoundError


def _pull_request(pull_request_id: str) -> str:
    if not re.fullmatch(ID_PATTERN, pull_request_id):
        raise PullRequestNotFoundError(f"there is no pull request {pull_request_id[:50]!r}", id=pull_request_id[:50])
    return pull_request_id


PullRequestId = Annotated[str, Depends(_pull_request)]
