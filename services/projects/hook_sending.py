"""Calls the hooks that are due: one address, one bounded answer, tried again with growing waits for a day.

The address is judged when the hook is made and again here, and what is called is the very address that was judged: no
second answer of a name server is asked for, no redirect is followed, no proxy of the environment is used. Nothing of
the answer but its status is read. The lease of a call is its `due_at`: a process that dies in between costs a delay.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import httpx
import structlog
from sqlalchemy.orm import Session

from services.analyses.models import AnalysisRow
from services.database import Database
from services.database.base import utc_now
from services.projects import hook_repository as repository
from services.projects.errors import HookUrlError
from services.projects.hook_signing import signed_headers
from services.projects.hooks import anywhere, checked_url
from services.projects.models import HookDeliveryRow, HookRow
from services.projects.repository import project_name
from services.settings import Settings
from services.snapshots.errors import GitError
from services.snapshots.urls import GitUrl, Resolver, resolve
from services.version import version

log = structlog.get_logger(__name__)

# After the first attempt: some 19 hours in all. A receiver that is away for a night hears of it in the morning.
WAITS: Final = (
    timedelta(seconds=10),
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=6),
    timedelta(hours=10),
)
_DEADLINE_S: Final = 15.0
_LEASE: Final = timedelta(minutes=2)
_AT_ONCE: Final = 20
_KEPT: Final = timedelta(days=30)
_ADDRESSES: Final = 2


@dataclass(frozen=True, slots=True)
class _Call:
    """What is to be sent, read in one transaction and sent in none."""

    delivery_id: str
    hook_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: int | None
    reason: str | None


def send_due(database: Database, settings: Settings, *, resolver: Resolver | None = None) -> int:
    """Make the calls whose time has come; how many there were. Never raises for what the other side does."""
    calls = _take(database, settings)
    if calls:
        for call, outcome in zip(calls, asyncio.run(_send_all(calls, settings, resolver)), strict=True):
            with database.unit_of_work() as uow:
                _note(uow.session, call, outcome)
    return len(calls)


def _take(database: Database, settings: Settings) -> list[_Call]:
    now = utc_now()
    with database.reading() as session:
        if not repository.due_deliveries(session, now, 1):
            return []
    with database.unit_of_work() as uow:
        repository.forget_deliveries(uow.session, now - _KEPT, _AT_ONCE * 10)
        repository.end_calls_of_disabled(uow.session)
        rows = [
            row
            for row in repository.due_deliveries(uow.session, now, _AT_ONCE)
            if repository.take_delivery(uow.session, row, now + _LEASE)
        ]
        return [_call(uow.session, settings, row) for row in rows]


def _call(session: Session, settings: Settings, row: HookDeliveryRow) -> _Call:
    hook = session.get_one(HookRow, row.hook_id)
    analysis = None if row.analysis_id is None else session.get(AnalysisRow, row.analysis_id)
    body = {"type": row.event, "timestamp": row.created_at.isoformat(), "data": _data(session, settings, analysis)}
    return _Call(row.id, hook.id, hook.url, json.dumps(body, ensure_ascii=False).encode())


def _data(session: Session, settings: Settings, row: AnalysisRow | None) -> dict[str, object]:
    """Little enough to post into a chat; the rest is behind the links."""
    if row is None:
        return {}
    here = settings.public_url.rstrip("/")
    return {
        "analysis": row.id,
        "status": row.status,
        "reason": row.reason,
        "project": None if row.project_id is None else project_name(session, row.project_id),
        "branch": row.branch,
        "commit": row.source_commit,
        "gate": row.gate,
        "totals": row.totals,
        "links": {"page": f"{here}/analyses/{row.id}", "report": f"{here}/api/v1/analyses/{row.id}/report"},
    }


async def _send_all(calls: Sequence[_Call], settings: Settings, resolver: Resolver | None) -> list[_Outcome]:
    return list(await asyncio.gather(*(_send(call, settings, resolver) for call in calls)))


async def _send(call: _Call, settings: Settings, resolver: Resolver | None) -> _Outcome:
    try:
        # One clock for all of it: a server that trickles its answer byte by byte never runs into a read timeout.
        async with asyncio.timeout(_DEADLINE_S):
            url = checked_url(call.url, settings)
            resolved = await asyncio.to_thread(resolve, url, anywhere(settings), resolver)
            return await _post(call, settings, url, resolved.addresses[:_ADDRESSES])
    except TimeoutError:
        return _Outcome(None, f"no answer within {_DEADLINE_S:.0f} s")
    except (HookUrlError, GitError) as error:
        return _Outcome(None, error.message)
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        return _Outcome(None, f"{type(error).__name__}: {error}"[:300])


async def _post(
    call: _Call, settings: Settings, url: GitUrl, addresses: Sequence[IPv4Address | IPv6Address]
) -> _Outcome:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"Gradproof/{version()}",
        "Host": _authority(url),
        **signed_headers(
            settings, call.hook_id, message_id=call.delivery_id, timestamp=int(time.time()), body=call.body
        ),
    }
    context = ssl.create_default_context()
    if settings.git_ca_file is not None:
        context.load_verify_locations(cafile=str(settings.git_ca_file))
    async with httpx.AsyncClient(verify=context, trust_env=False, follow_redirects=False, timeout=10.0) as client:
        for number, address in enumerate(addresses, 1):
            pinned = httpx.URL(scheme="https", host=str(address), port=url.port, path=url.path)
            request = client.build_request(
                "POST", pinned, content=call.body, headers=headers, extensions={"sni_hostname": url.host}
            )
            try:
                response = await client.send(request, stream=True)
            except httpx.ConnectError:
                if number == len(addresses):
                    raise
                continue
            await response.aclose()
            return _judged(response.status_code)
    raise AssertionError("a resolved host has an address")


def _judged(status: int) -> _Outcome:
    if 200 <= status < 300:
        return _Outcome(status, None)
    if 300 <= status < 400:
        return _Outcome(status, f"answered {status}: redirects are not followed")
    return _Outcome(status, f"answered {status}")


def _note(session: Session, call: _Call, outcome: _Outcome) -> None:
    row = session.get(HookDeliveryRow, call.delivery_id)
    if row is None:  # the hook was removed meanwhile
        return
    row.status, row.reason = outcome.status, outcome.reason
    if outcome.reason is None:
        row.delivered_at, row.due_at = utc_now(), None
    elif outcome.status == HTTPStatus.GONE:
        row.due_at = None
        row.reason = "answered 410: the hook is disabled, since the address wants no more calls"
        session.get_one(HookRow, row.hook_id).disabled_at = utc_now()
    elif row.attempts > len(WAITS):
        row.due_at = None
        row.reason = f"given up after {row.attempts} attempts: {outcome.reason}"
    else:
        row.due_at = utc_now() + WAITS[row.attempts - 1]
    if outcome.reason is not None:
        log.info("hook_not_taken", hook=call.hook_id, delivery=call.delivery_id, reason=row.reason)


def _authority(url: GitUrl) -> str:
    return str(url).removeprefix("https://").removesuffix(url.path)
