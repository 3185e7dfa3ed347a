"""Puts a digest into words, as plain text that is safe to look at, and a mail around it.

Names of projects, paths and rules were written by strangers: they are bounded, on one line, and show what they hide.
The same row of the outbox gives the same mail, with the same `Message-ID`: one that is sent twice, because a process
died between sending it and noting that, can be told to be one. This module must not know the database, nor open a
connection.
"""

from __future__ import annotations

from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final
from urllib.parse import quote

from services.digests.model import Digest, Group, NamedFinding, ProjectNews, Section
from services.reports.untrusted import one_line, shorten
from services.settings import Settings
from services.settings.mail import read_address

_NAME: Final = 100
_PLACE: Final = 160
_IN_SUBJECT: Final = 60
_WORDS: Final = {
    "ending": ("acceptance of yours ends soon", "acceptances of yours end soon"),
    "ended": ("acceptance of yours has ended", "acceptances of yours have ended"),
    "regressed": ("finding is back after it was fixed", "findings are back after they were fixed"),
    "new": ("new finding on the main line", "new findings on the main line"),
    "given": ("finding was given to you", "findings were given to you"),
    "fixed": ("finding is fixed", "findings are fixed"),
    "yours": ("open finding is yours", "open findings are yours"),
}


def section(news: ProjectNews, settings: Settings) -> Section:
    """What is told of one project."""
    here = f"{settings.public_url.rstrip('/')}/projects/{quote(news.project_id, safe='')}"
    name = _clean(news.name, _NAME)
    lines = [name, here]
    for group in news.groups:
        lines += ["", *_group(group, here)]
    return Section(project_id=news.project_id, name=name, text="\n".join(lines))


def mail(digest: Digest, *, mail_id: str, at: datetime, to: str, settings: Settings) -> EmailMessage:
    """The mail to one person. Raises `ValueError` for an address that no mail can have."""
    sender = read_address(settings.mail_from)
    here = f"{settings.public_url.rstrip('/')}/me#digest"
    message = EmailMessage(policy=SMTP)
    message["From"] = Address("Gradproof", addr_spec=sender.addr_spec)
    message["To"] = read_address(to)
    message["Subject"] = _subject(digest)
    message["Date"] = at
    message["Message-ID"] = f"<digest.{mail_id}@{sender.domain}>"
    message["List-Unsubscribe"] = f"<{here}>"
    message["Auto-Submitted"] = "auto-generated"
    # Quoted, so that it passes servers that take seven bits only, and can be read in the raw.
    message.set_content(_text(digest, here), cte="quoted-printable")
    return message


def _subject(digest: Digest) -> str:
    first = digest.sections[0]
    others = len(digest.sections) - 1 + digest.further
    more = f" and {_count(others, 'more project', 'more projects')}" if others else ""
    return f"Gradproof, {digest.period}: {shorten(first.name, _IN_SUBJECT)}{more}"


def _text(digest: Digest, here: str) -> str:
    parts = [f"What happened from {_moment(digest.since)} to {_moment(digest.until)}."]
    parts += [one.text for one in digest.sections]
    if digest.further:
        parts.append(f"There is something to tell of {_count(digest.further, 'more project', 'more projects')}.")
    often = {"daily": "once a day", "weekly": "once a week"}[digest.period]
    parts.append(
        f"-- \nYou get this {often} at most, because you asked for it; nothing is sent when nothing happened.\n"
        f"Another rhythm, or none: {here}"
    )
    return "\n\n".join(parts) + "\n"


def _group(group: Group, here: str) -> list[str]:
    lines = [f"  {_count(group.count, *_WORDS[group.kind])}"]
    for one in group.named:
        lines.append(f"    {_finding(one, group.kind)}")
        lines.append(f"      {here}/findings/{quote(one.fingerprint, safe='')}")
    rest = group.count - len(group.named)
    if group.named and rest:
        lines.append(f"    and {rest} more")
    return lines


def _finding(one: NamedFinding, kind: str) -> str:
    place = _clean(f"{one.path}:{one.line}", _PLACE)
    until = f", until {_moment(one.until)}" if kind == "ending" and one.until is not None else ""
    return f"{_clean(one.severity, _NAME)} {_clean(f'{one.rule} {one.name}', _NAME)} at {place}{until}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _moment(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M} UTC"


def _clean(text: str, limit: int) -> str:
    return shorten(one_line(text), limit)
