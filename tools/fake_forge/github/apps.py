"""The App itself: who it is, where it is installed, its tokens, its webhook deliveries."""

from __future__ import annotations

import json
from typing import Final

from tools.fake_forge.clock import stamp
from tools.fake_forge.deliveries import Delivery, Parcel
from tools.fake_forge.exchange import Call, Json, Operations, Refusal, Reply, allowed, not_found
from tools.fake_forge.world import Installation, Token

operations: Final = Operations()


@operations.add("GET /app", app=True)
def app(call: Call) -> Reply:
    told = call.hub.shapes.app() | {"installations_count": len(call.hub.world.installations)}
    return Reply(200, told)


@operations.add("GET /app/installations", app=True)
def installations(call: Call) -> Reply:
    return call.page(list(call.hub.world.installations.values()), call.hub.shapes.installation)


@operations.add("GET /app/installations/{installation_id}", app=True)
def installation(call: Call) -> Reply:
    return Reply(200, call.hub.shapes.installation(_installation(call)))


@operations.add("GET /repos/{owner}/{repo}/installation", app=True)
def installation_of_repository(call: Call) -> Reply:
    found = call.hub.world.installation_for(call.repository)
    if found is None:
        raise not_found()
    return Reply(200, call.hub.shapes.installation(found))


@operations.add("POST /app/installations/{installation_id}/access_tokens", app=True)
def access_token(call: Call) -> Reply:
    """A token of one hour, with all the installation has or less."""
    found, world = _installation(call), call.hub.world
    if found.suspended_at is not None:
        documentation = "https://docs.github.com/rest/reference/apps#create-an-installation-access-token-for-an-app"
        raise Refusal(403, "This installation has been suspended", documentation=documentation)
    wanted = call.body.get("permissions")
    if wanted is not None and not allowed(found, wanted):
        raise Refusal(422, "The permissions requested are not granted to this installation.")
    chosen = {each.id for each in world.repositories.values() if found.covers(each)}
    limited = "repositories" in call.body or "repository_ids" in call.body
    if limited:
        ids, names = call.body.get("repository_ids", []), call.body.get("repositories", [])
        asked = [each for each in world.repositories.values() if each.id in ids or each.name in names]
        covered = {each.id for each in asked if found.covers(each)}
        if not covered or len(covered) < len(set(ids)) or len(covered) < len(set(names)):
            raise Refusal(
                422, "There is at least one repository that does not exist or is not accessible to the parent …"
            )
        chosen = covered
    permissions = dict(wanted or found.permissions)
    permissions.setdefault("metadata", "read")
    token = call.hub.authentication.issue(found, permissions, frozenset(chosen) if limited else None)
    told: Json = {"token": token.text, "expires_at": stamp(token.expires_at), "permissions": permissions}
    told["repository_selection"] = "selected" if limited or found.selected is not None else "all"
    if limited:
        told["repositories"] = [call.hub.shapes.repository(world.repositories[each]) for each in sorted(chosen)]
    return Reply(201, told)


@operations.add("GET /installation/repositories", ("metadata", "read"))
def repositories(call: Call) -> Reply:
    token = call.principal
    assert isinstance(token, Token)
    covered = [each for each in call.hub.world.repositories.values() if token.covers(each)]
    return call.page(covered, call.hub.shapes.repository, wrapped_as="repositories")


@operations.add("GET /rate_limit")
def rate_limit(call: Call) -> Reply:
    installation = call.principal.installation if isinstance(call.principal, Token) else None
    limit, used, reset = 60, 0, int(call.hub.world.clock.now().timestamp()) + 3600
    if installation is not None and installation.resets_at is not None:
        limit, used, reset = installation.limit, installation.used, int(installation.resets_at.timestamp())
    core = {"limit": limit, "used": used, "remaining": max(limit - used, 0), "reset": reset}
    return Reply(200, {"resources": {"core": core, "search": core}, "rate": core})


@operations.add("GET /meta")
def meta(_call: Call) -> Reply:
    return Reply(200, {"verifiable_password_authentication": False, "hooks": ["127.0.0.0/8"]})


@operations.add("GET /app/hook/deliveries", app=True)
def deliveries(call: Call) -> Reply:
    """The newest first; the next page is named by a cursor, as GitHub does here and nowhere else."""
    log = list(reversed(call.hub.courier.log))
    wanted = call.query.get("status")
    if wanted is not None:
        log = [each for each in log if (200 <= each.status < 400) == (wanted == "success")]
    cursor = call.query.get("cursor", "")
    if cursor:
        place = cursor.removeprefix("v1_")
        if not place.isdigit():
            raise Refusal(400, "Invalid cursor")
        log = [each for each in log if each.id < int(place)]
    size = min(max(int(call.query.get("per_page", "30")), 1), 100)
    headers = {}
    if len(log) > size:
        kept = f"&status={wanted}" if wanted else ""
        following = f"{call.address}?per_page={size}{kept}&cursor=v1_{log[size - 1].id}"
        headers["link"] = f'<{following}>; rel="next"'
    return Reply(200, [_delivery(each) for each in log[:size]], headers)


@operations.add("GET /app/hook/deliveries/{delivery_id}", app=True)
def delivery(call: Call) -> Reply:
    found = _found_delivery(call)
    headers = {name: value for name, value in found.headers.items() if isinstance(value, str)}
    return Reply(
        200,
        _delivery(found)
        | {
            "url": call.hub.courier.url or "",
            "request": {"headers": headers, "payload": json.loads(found.body)},
            "response": {"headers": {}, "payload": found.response},
        },
    )


@operations.add("POST /app/hook/deliveries/{delivery_id}/attempts", app=True)
def attempt(call: Call) -> Reply:
    """Accepted at once, sent soon."""
    found = _found_delivery(call)
    call.hub.courier.post(Parcel.again(found))
    return Reply(202, {})


def _installation(call: Call) -> Installation:
    found = call.hub.world.installations.get(call.number("installation_id"))
    if found is None:
        raise not_found()
    return found


def _found_delivery(call: Call) -> Delivery:
    number = call.number("delivery_id")
    found = next((each for each in call.hub.courier.log if each.id == number), None)
    if found is None:
        raise not_found()
    return found


def _delivery(found: Delivery) -> Json:
    reached = found.status != 0
    return {
        "id": found.id,
        "guid": found.guid,
        "delivered_at": stamp(found.at),
        "redelivery": found.redelivery,
        "duration": found.duration,
        "status": ("OK" if found.status < 400 else f"Invalid HTTP Response: {found.status}")
        if reached
        else "failed to connect to host",
        "status_code": found.status if reached else 502,
        "event": found.event,
        "action": found.action,
        "installation_id": found.installation,
        "repository_id": found.repository,
        "throttled_at": None,
    }
