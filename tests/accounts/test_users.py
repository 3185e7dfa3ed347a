"""People: who gets in by password, who does not, and how slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from argon2 import PasswordHasher
from sqlalchemy import delete, select, update

from services.accounts import TokenService, passwords
from services.accounts.access import SYSTEM, Permission, Subject
from services.accounts.errors import (
    LastAdminError,
    PasswordRefusedError,
    PermissionDeniedError,
    TooManyAttemptsError,
    UserExistsError,
    UserNameError,
    UserNotFoundError,
    WrongPasswordError,
)
from services.accounts.models import AuditEventRow, SessionRow, SignInAttemptsRow, UserRow
from services.accounts.sessions import IDLE, LONGEST, SessionService
from services.accounts.users import UserService
from services.database import Database
from services.database.base import utc_now
from services.settings import Settings
from tests.accounts.conftest import Person

PASSWORD = "staple horse battery"


@pytest.fixture(autouse=True)
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The weakest parameters that there are: what is tried here is not how long guessing takes."""
    monkeypatch.setattr(passwords, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    passwords._nobodys.cache_clear()
    yield
    passwords._nobodys.cache_clear()


@pytest.fixture
def ada(users: UserService) -> str:
    return users.create(SYSTEM, "Ada", password=PASSWORD, email="ada@example.org").name


def actions(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(AuditEventRow.action).order_by(AuditEventRow.id)))


def test_a_password_lets_in_and_only_its_hash_is_kept(users: UserService, ada: str, database: Database) -> None:
    subject = users.sign_in(" ADA ", PASSWORD, address="192.0.2.1")
    assert (subject.kind, subject.name, subject.everywhere) == ("user", "ada", False)
    with database.reading() as session:
        row = session.scalars(select(UserRow)).one()
    assert row.password is not None
    assert row.password.startswith("$argon2id$")
    assert PASSWORD not in str(vars(row))
    assert row.last_seen_at is not None


def test_the_recommended_parameters_are_used() -> None:
    recommended = PasswordHasher()
    assert (recommended.time_cost, recommended.memory_cost, recommended.parallelism) == (3, 65536, 4)


def test_the_answer_does_not_say_what_was_wrong(users: UserService, ada: str) -> None:
    wrong = [(ada, "another password"), (ada, ""), ("nobody", PASSWORD), ("x" * 1000, "\ud800" * 20)]
    for name, password in wrong:
        with pytest.raises(WrongPasswordError) as caught:
            users.sign_in(name, password, address=None)
        assert caught.value.message == "name and password do not belong together"
        assert caught.value.details == {}


def test_an_unknown_name_costs_as_much_as_a_wrong_password(
    users: UserService, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    hasher = passwords._HASHER

    class Counting:
        hash = hasher.hash
        check_needs_rehash = hasher.check_needs_rehash

        def verify(self, kept: str, password: bytes) -> bool:
            hashed.append(kept.split("$")[3])
            return hasher.verify(kept, password)

    monkeypatch.setattr(passwords, "_HASHER", Counting())
    for name in ("ada", "nobody"):
        with pytest.raises(WrongPasswordError):
            users.sign_in(name, "another password", address=None)
    assert len(hashed) == 2
    assert hashed[0] == hashed[1]


def test_passwords_that_are_refused(users: UserService) -> None:
    for password, why in (
        ("elevenchars", "at least 12"),
        ("é" * 513, "at most 1,024 bytes"),
        ("Password1234", "first that are guessed"),
        ("aaaaaaaaaaaaaaab", "first that are guessed"),
        ("a-long-user-name", "first that are guessed"),
    ):
        with pytest.raises(PasswordRefusedError, match=why):
            users.create(SYSTEM, "a-long-user-name", password=password)
    with pytest.raises(UserNotFoundError):
        users.find("a-long-user-name")


def test_passwords_that_are_taken(users: UserService) -> None:
    taken = ["twelve chars", "пароль длинный", "äöüß" * 128, "only lower case letters and blanks"]
    for number, password in enumerate(taken):
        users.create(SYSTEM, f"ada{number}", password=password)
        assert users.sign_in(f"ada{number}", password, address=None).name == f"ada{number}"


def test_names_that_nobody_can_have(users: UserService) -> None:
    for name in ("", "-ada", "ada-", "a" * 65, "a b", "ada/x", "ада", "ada\n.x", "a@b"):
        with pytest.raises(UserNameError):
            users.create(SYSTEM, name, password=None)


def test_a_name_is_had_once(users: UserService, ada: str) -> None:
    with pytest.raises(UserExistsError):
        users.create(SYSTEM, "ADA", password=None)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: _made(users), range(4)))
    assert sorted(made) == [False, False, False, True]


def _made(users: UserService) -> bool:
    try:
        users.create(SYSTEM, "grace", password=None)
    except UserExistsError:
        return False
    return True


def test_only_who_runs_the_installation_makes_users(users: UserService, person: Person) -> None:
    admin = person("admin", default="admin")
    works: list[Callable[[], object]] = [
        lambda: users.create(admin, "x", password=None),
        lambda: users.disable(admin, "admin"),
        lambda: users.enable(admin, "admin"),
        lambda: users.set_operator(admin, "admin", operator=True),
        lambda: users.set_password(admin, "admin", PASSWORD),
        lambda: users.set_email(admin, "admin", "x@team.example"),
    ]
    for action in works:
        with pytest.raises(PermissionDeniedError):
            action()
    reader = Subject("token", "t", "reader", frozenset({Permission.READ}), everywhere=True)
    with pytest.raises(PermissionDeniedError):
        users.disable(reader, "admin")
    assert users.create(person("op", operator=True), "x", password=None).name == "x"


def test_a_hash_of_old_parameters_is_made_anew(
    users: UserService, ada: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "_HASHER", PasswordHasher(time_cost=2, memory_cost=8, parallelism=1))
    users.sign_in("ada", PASSWORD, address=None)
    with database.reading() as session:
        kept = session.scalars(select(UserRow.password)).one()
    assert kept is not None
    assert "t=2" in kept
    assert users.sign_in("ada", PASSWORD, address=None).name == "ada"


# ------------------------------------------------------------------------------------------------------- guessing


def fail(users: UserService, name: str, times: int, address: str | None = None) -> None:
    for _ in range(times):
        with pytest.raises(WrongPasswordError):
            users.sign_in(name, "another password", address=address)


def let_time_pass(database: Database, by: timedelta) -> None:
    with database.unit_of_work() as uow:
        for row in uow.session.scalars(select(SignInAttemptsRow)):
            row.last_at -= by
            row.closed_until = None if row.closed_until is None else row.closed_until - by


@pytest.mark.parametrize("name", ["ada", "nobody"])
def test_failures_close_a_name_longer_each_time_whether_it_exists_or_not(
    users: UserService, ada: str, database: Database, name: str
) -> None:
    pauses = []
    fail(users, name, 6)
    for _ in range(9):
        with pytest.raises(TooManyAttemptsError) as caught:
            users.sign_in(name, PASSWORD, address=None)
        pauses.append(caught.value.retry_after_s)
        let_time_pass(database, timedelta(seconds=caught.value.retry_after_s))
        fail(users, name, 1)
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert caught.value.http_status == 429


def test_the_right_password_after_the_pause_starts_afresh(users: UserService, ada: str, database: Database) -> None:
    fail(users, "ada", 6)
    let_time_pass(database, timedelta(seconds=2))
    users.sign_in("ada", PASSWORD, address=None)
    fail(users, "ada", 6)
    let_time_pass(database, timedelta(days=1, seconds=1))
    fail(users, "ada", 6)


def test_an_address_that_tries_many_names_is_closed(users: UserService, ada: str, database: Database) -> None:
    for number in range(31):
        fail(users, f"name{number}", 1, "2001:db8::1")
    for address in ("2001:db8::1", "2001:db8::2"):  # one subscriber has them both
        with pytest.raises(TooManyAttemptsError):
            users.sign_in("ada", PASSWORD, address=address)
    users.sign_in("ada", PASSWORD, address="2001:db8:0:1::1")
    users.sign_in("ada", PASSWORD, address="::ffff:192.0.2.1")


def test_what_many_people_mistype_at_one_address_does_not_add_up(
    users: UserService, ada: str, database: Database
) -> None:
    for hour in range(6):
        for number in range(12):
            fail(users, f"name{hour}-{number}", 1, "192.0.2.1")
            let_time_pass(database, timedelta(minutes=5))
    users.sign_in("ada", PASSWORD, address="192.0.2.1")


def test_many_at_once_get_no_more_attempts_than_one_after_the_other(
    users: UserService, ada: str, database: Database
) -> None:
    def attempt(_: int) -> str:
        try:
            users.sign_in("ada", "another password", address=None)
        except (WrongPasswordError, TooManyAttemptsError) as error:
            return error.code
        return "in"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(attempt, range(24)))
    assert outcomes.count("wrong-password") == 6


def test_failures_of_known_names_are_written_down(users: UserService, ada: str, database: Database) -> None:
    fail(users, "ada", 2, "192.0.2.7")
    fail(users, "nobody", 3, "192.0.2.7")
    assert actions(database) == ["user.create", "sign-in.failure", "sign-in.failure"]


# ------------------------------------------------------------------------------------------------------- sessions


@pytest.fixture
def sessions(database: Database, service_settings: Settings) -> SessionService:
    return SessionService(database, service_settings)


def test_a_session_is_known_by_what_the_browser_has_and_only_its_hash_is_kept(
    users: UserService, ada: str, sessions: SessionService, database: Database
) -> None:
    subject = users.sign_in("ada", PASSWORD, address=None)
    text = sessions.begin(subject, agent="Firefox " * 100)
    found = sessions.find(text)
    assert found is not None
    assert found.subject == subject
    other = sessions.find(sessions.begin(subject))
    assert other is not None
    assert other.form_key != found.form_key
    assert sessions.find(text[:-1]) is None
    assert sessions.find("") is None
    assert sessions.find("\ud800") is None
    with database.reading() as session:
        kept = " ".join(str(row) for row in session.execute(select(SessionRow.__table__)))
    assert text not in kept
    assert len(sessions.list(subject)) == 2


def test_sessions_end_by_themselves(users: UserService, ada: str, sessions: SessionService, database: Database) -> None:
    text = sessions.begin(users.sign_in("ada", PASSWORD, address=None))
    made = utc_now()
    for hours in range(11, int(LONGEST.total_seconds()) // 3600, 11):  # used often enough
        _age(database, timedelta(hours=11))
        assert sessions.find(text) is not None, hours
    _age(database, timedelta(hours=11))
    assert sessions.find(text) is None
    assert utc_now() - made < IDLE
    text = sessions.begin(users.sign_in("ada", PASSWORD, address=None))
    _age(database, IDLE)
    assert sessions.find(text) is None


def _age(database: Database, by: timedelta) -> None:
    with database.unit_of_work() as uow:
        for row in uow.session.scalars(select(SessionRow)):
            row.created_at -= by
            row.seen_at -= by
            row.expires_at -= by


def test_everything_that_ends_a_session(
    users: UserService, ada: str, sessions: SessionService, database: Database, service_settings: Settings
) -> None:
    subject = users.sign_in("ada", PASSWORD, address=None)

    def begun() -> str:
        return sessions.begin(subject)

    text = begun()
    found = sessions.find(text)
    assert found is not None
    sessions.end(SYSTEM, found.id)  # of somebody else
    assert sessions.find(text) is not None
    sessions.end(subject, found.id)
    assert sessions.find(text) is None

    texts = [begun(), begun()]
    sessions.end_all(subject)
    assert [sessions.find(text) for text in texts] == [None, None]

    kept, other = begun(), begun()
    here = sessions.find(kept)
    assert here is not None
    with pytest.raises(WrongPasswordError):
        users.change_password(subject, old="another password", new="a new long password", address=None, spare=here.id)
    users.change_password(subject, old=PASSWORD, new="a new long password", address=None, spare=here.id)
    assert sessions.find(kept) is not None
    assert sessions.find(other) is None
    users.set_password(SYSTEM, "ada", PASSWORD)
    assert sessions.find(kept) is None

    text = begun()
    users.disable(SYSTEM, "ada")
    assert sessions.find(text) is None
    with pytest.raises(WrongPasswordError):
        users.sign_in("ada", PASSWORD, address=None)

    tokens = TokenService(database, service_settings)
    token = tokens.create("ci", ["read"])
    holder = tokens.find(token.info.id)
    assert holder is not None
    text = sessions.begin(holder)
    assert sessions.find(text) is not None
    tokens.revoke(token.info.id)
    assert sessions.find(text) is None
    assert {"sign-in", "sign-out", "sign-out.everywhere", "user.password", "user.disable", "token.revoke"} <= set(
        actions(database)
    )


def test_a_token_can_not_change_the_password_of_its_user(users: UserService, ada: str) -> None:
    user = users.find("ada")
    holder = Subject("token", "t", "ada (ci)", frozenset(Permission), user_id=user.id)
    with pytest.raises(PermissionDeniedError):
        users.change_password(holder, old=PASSWORD, new="a new long password", address=None)


def test_tokens_of_a_disabled_user_let_nobody_in(
    users: UserService, ada: str, database: Database, service_settings: Settings
) -> None:
    tokens = TokenService(database, service_settings)
    created = tokens.create("ci", ["admin"], user="ada")
    subject = tokens.authenticate(created.text)
    assert subject is not None
    assert (subject.user_id, subject.everywhere, subject.name) == (users.find("ada").id, False, "ada (ci)")
    users.disable(SYSTEM, "ada")
    assert tokens.authenticate(created.text) is None


def test_the_last_operator_stays(users: UserService, ada: str) -> None:
    for name in ("first", "second"):
        users.create(SYSTEM, name, password=PASSWORD, is_operator=True)
    users.disable(SYSTEM, "first")
    users.disable(SYSTEM, "ada")
    with pytest.raises(LastAdminError, match="only operator"):
        users.disable(SYSTEM, "second")
    with pytest.raises(LastAdminError, match="only operator"):
        users.set_operator(SYSTEM, "second", operator=False)
    assert not users.set_operator(SYSTEM, "first", operator=False).is_operator, "who is let in by nobody is none"


def test_an_operator_is_made_and_unmade_and_that_holds_at_once(
    users: UserService, ada: str, database: Database, service_settings: Settings
) -> None:
    tokens = TokenService(database, service_settings)
    text = tokens.create("laptop", ["admin"], user="ada").text

    def everywhere() -> bool:
        subject = tokens.authenticate(text)
        assert subject is not None
        return subject.everywhere

    users.create(SYSTEM, "first", password=PASSWORD, is_operator=True)
    assert not everywhere()
    assert users.set_operator(SYSTEM, "ada", operator=True).is_operator
    users.set_operator(SYSTEM, "ada", operator=True)
    assert everywhere()
    users.set_operator(SYSTEM, "ada", operator=False)
    assert not everywhere()
    assert actions(database).count("user.operator") == 2


def test_a_disabled_user_is_let_in_again(users: UserService, ada: str, database: Database) -> None:
    users.disable(SYSTEM, "ada")
    for _ in range(2):
        assert users.enable(SYSTEM, "ada").disabled_at is None
    assert users.sign_in("ada", PASSWORD, address=None).user_id == users.find("ada").id
    assert actions(database).count("user.enable") == 1


def test_the_audit_log_is_never_changed(users: UserService, ada: str, database: Database) -> None:
    for statement in (update(AuditEventRow).values(actor_name="nobody"), delete(AuditEventRow)):
        with pytest.raises(Exception, match="audit"), database.unit_of_work() as uow:
            uow.session.execute(statement)
    assert actions(database) == ["user.create"]
