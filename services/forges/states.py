"""Where a pull request stands, and what a look at the forge means for it. Pure, but for the row that is brought up to
date.

Every rule of when something is analysed is here: present head, drafts, pauses, waiting for further pushes. What counts
is what the forge shows now; in which order its webhooks came never matters. This module must not ask anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from services.forges.models import PullRequestRow
from services.forges.values import PullRequest
from services.projects.settings import BotSettings

SUPERSEDED: Final = "superseded by a newer push"
REBASED: Final = "superseded: the pull request has another base branch now"
CLOSED: Final = "the pull request was closed"
SWITCHED_OFF: Final = "the bot is switched off in the settings of the project"
ANALYSIS: Final = "analysis"


@dataclass(frozen=True, slots=True)
class Seen:
    """What follows from a look: why analyses under way are to end, and when the head is to be analysed.

    `superseded` is None if they go on; `analyse_after` is None if nothing is to begin.
    """

    superseded: str | None = None
    analyse_after: timedelta | None = None
    paused: bool = False


def observe(row: PullRequestRow, seen: PullRequest, bot: BotSettings, *, now: datetime, is_new: bool) -> Seen:
    """Bring the row up to what the forge shows now; what follows from it."""
    moved = not is_new and row.head_sha != seen.head_sha
    rebased = not is_new and row.base_ref != seen.base_ref
    reopened = row.state != "open" and seen.state == "open"
    row.title, row.author = seen.title, seen.author.login
    row.state, row.is_draft, row.is_fork = seen.state, seen.is_draft, seen.is_fork
    row.base_ref, row.base_sha = seen.base_ref, seen.base_sha
    row.head_ref, row.head_sha = seen.head_ref, seen.head_sha
    row.updated_at = now
    if moved:
        row.pushes += 1
    if moved or rebased:
        row.analysis_id = row.base_analysis_id = row.merge_base_sha = None
    if seen.state != "open":
        row.due_at = None
        return Seen(superseded=CLOSED)
    superseded = SUPERSEDED if moved else REBASED if rebased else None
    if row.analysis_id is not None:
        return Seen(superseded=superseded)
    paused = _pause(row, bot, now=now) if moved else False
    reason = standstill(row, bot)
    if reason is not None:
        row.due_at = None
        row.silence = {ANALYSIS: reason}
        return Seen(superseded=superseded, paused=paused or (moved and row.paused_at is not None))
    if row.due_at is not None and not (moved or rebased or reopened or is_new):
        return Seen(superseded=superseded)  # it is on its way
    after = timedelta(seconds=bot.debounce_s) if moved else timedelta(0)
    row.due_at = now + after
    row.silence = {}
    return Seen(superseded=superseded, analyse_after=after)


def standstill(row: PullRequestRow, bot: BotSettings) -> str | None:
    """Why the present head is not to be analysed; None if it is."""
    if not bot.enabled:
        return SWITCHED_OFF
    if row.state != "open":
        return f"the pull request is {row.state}"
    if row.paused_at is not None:
        return f"paused: {row.pause_reason}"
    if row.is_draft and not bot.drafts:
        return "the pull request is a draft; it is analysed once it is ready for review, or if the project wants drafts"
    return None


def pause(row: PullRequestRow, reason: str, *, now: datetime) -> None:
    """Stand still until somebody wants it to go on."""
    row.paused_at, row.pause_reason = now, reason
    row.due_at = None
    row.silence = {**row.silence, ANALYSIS: f"paused: {reason}"}


def resume(row: PullRequestRow) -> None:
    """Go on."""
    row.paused_at, row.pause_reason, row.pushes = None, "", 0
    row.silence = {part: reason for part, reason in row.silence.items() if part != ANALYSIS}


def somebody_is_there(row: PullRequestRow) -> None:
    """A person wrote or did something in the pull request: pushes are read by somebody."""
    row.pushes = 0


def _pause(row: PullRequestRow, bot: BotSettings, *, now: datetime) -> bool:
    """Whether so many pushes came without anybody there that we stand still from this one on."""
    if row.paused_at is not None or not bot.pause_after_pushes or row.pushes < bot.pause_after_pushes:
        return False
    number = "1 push" if row.pushes == 1 else f"{row.pushes} pushes"
    pause(
        row,
        f"{number} came without anybody writing in the pull request; `/gradproof resume` goes on",
        now=now,
    )
    return True
