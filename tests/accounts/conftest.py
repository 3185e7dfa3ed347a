"""People and projects for tests about who may do what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.accounts.access import EVERYTHING, SYSTEM, Subject
from services.accounts.organisations import OrganisationService
from services.accounts.users import UserService
from services.database import Database
from services.projects.service import ProjectService
from services.settings import Settings

Person = Callable[..., Subject]


@pytest.fixture
def organisations(database: Database) -> OrganisationService:
    return OrganisationService(database)


@pytest.fixture
def users(database: Database) -> UserService:
    return UserService(database)


@pytest.fixture
def projects(database: Database, service_settings: Settings) -> ProjectService:
    return ProjectService(database, service_settings)


@pytest.fixture
def person(users: UserService, organisations: OrganisationService) -> Person:
    """`person("ada", acme="admin")`: a user with these roles in these organisations, who is signed in."""

    def make(name: str, *, operator: bool = False, **roles: str) -> Subject:
        user = users.create(SYSTEM, name, password=None, is_operator=operator)
        for slug, role in roles.items():
            organisations.set_member(SYSTEM, slug, name, role)
        return Subject("user", user.id, name, EVERYTHING, everywhere=operator, user_id=user.id)

    return make
