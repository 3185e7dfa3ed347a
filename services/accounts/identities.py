"""Which user an identity of a provider is. A newcomer becomes a user; nobody becomes somebody who is there already.

An identity is issuer and subject, never an e-mail address or a name: those change hands. This module must not know how
the provider proved it.
"""

from __future__ import annotations

import re
from itertools import chain, count
from typing import Final

import structlog
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from services.accounts import organisation_repository as organisations
from services.accounts import user_repository as repository
from services.accounts.access import SYSTEM, Permission, Subject
from services.accounts.audit import note
from services.accounts.errors import IdentityError
from services.accounts.models import IdentityRow, MembershipRow, UserRow
from services.accounts.openid import Identity
from services.accounts.users import subject_of_user
from services.database import Database
from services.database.base import utc_now
from services.settings import Settings

log = structlog.get_logger(__name__)

_UNUSABLE: Final = re.compile(r"[^a-z0-9._-]+")
_LONGEST: Final = 48


class IdentityService:
    """Signing in whom the identity provider vouches for."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def sign_in(self, identity: Identity) -> Subject:
        """The user that this identity is, made if it is new. Raises `IdentityError` for one that is disabled."""
        try:
            return self._sign_in(identity)
        except IntegrityError:
            # The same person came in by two windows at once, or the name was taken just now: it is there by now.
            return self._sign_in(identity)

    def _sign_in(self, identity: Identity) -> Subject:
        with self._database.unit_of_work() as uow:
            known = repository.find_identity(uow.session, identity.issuer, identity.subject)
            if known is None:
                user = self._newcomer(uow.session, identity)
            else:
                user = uow.session.get_one(UserRow, known.user_id)
                if user.disabled_at is not None:
                    raise IdentityError("this account is disabled")
                user.email = identity.email or user.email
            user.last_seen_at = utc_now()
            uow.session.flush()
            return subject_of_user(user)

    def _newcomer(self, session: Session, identity: Identity) -> UserRow:
        name = _free_name(session, identity.username)
        user = UserRow(name=name, display_name=identity.display_name or name, email=identity.email, password=None)
        session.add(user)
        session.flush()
        session.add(IdentityRow(issuer=identity.issuer, subject=identity.subject, user_id=user.id))
        session.flush()
        note(session, SYSTEM, "user.create", "user", user.id, details={"name": name, "issuer": identity.issuer})
        self._welcome(session, user)
        return user

    def _welcome(self, session: Session, user: UserRow) -> None:
        """What the settings give to newcomers."""
        slug = self._settings.oidc_organisation
        if not slug:
            return
        organisation = organisations.find_organisation(session, SYSTEM, slug, Permission.READ)
        if organisation is None:
            log.warning("newcomers_organisation_missing", organisation=slug, user=user.name)
            return
        role = self._settings.oidc_role
        session.add(MembershipRow(organisation_id=organisation.id, user_id=user.id, role=role))
        session.flush()
        details = {"name": user.name, "from": None, "to": role}
        note(session, SYSTEM, "member.add", "user", user.id, organisation_id=organisation.id, details=details)


def _free_name(session: Session, wanted: str) -> str:
    """A name like the one that is wanted, which nobody has."""
    plain = _UNUSABLE.sub("-", wanted.partition("@")[0].lower()).strip("._-")[:_LONGEST].strip("._-") or "user"
    return next(
        name
        for name in chain([plain], (f"{plain}-{number}" for number in count(2)))
        if repository.find_user(session, name) is None
    )
