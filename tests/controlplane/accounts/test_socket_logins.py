"""The logins of many sockets are read again together, and each socket gets its own answer."""

import asyncio
import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError

from controlplane.accounts import claims, logins, sockets
from controlplane.accounts.models import Login, User
from tests.people import OLGA, VERA

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("thread_connections"),
]


@sync_to_async
def login_of(name: str) -> Any:
    """The scope of a socket of a person who has just logged in."""
    from django.test import Client

    browser = Client()
    browser.force_login(User.objects.get(username=name))
    return {"session": browser.session}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sessions each turn of the thread read."""
    counts: list[int] = []
    users = sockets._users

    def counted(sessions: Any) -> Any:
        counts.append(len(sessions))
        return users(sessions)

    monkeypatch.setattr(sockets, "_users", counted)
    return counts


@pytest.fixture
def people(production: str) -> None:
    for person in (OLGA, VERA):
        User.objects.get_or_create(username=person.name, defaults={"role": person.role})


async def names_of(scopes: list[Any]) -> list[str]:
    found = await asyncio.gather(*(sockets.user_of(scope) for scope in scopes))
    return [user.get_username() for user in found]


async def test_checks_of_one_moment_are_answered_in_one_turn(people: None, turns: list[int]) -> None:
    scopes = [await login_of(name) for name in (OLGA.name, VERA.name)] * 50
    assert await names_of(scopes) == [OLGA.name, VERA.name] * 50
    assert turns == [100]
    # Those that come while a turn is answered get the next one.
    assert await names_of(scopes[:2]) == [OLGA.name, VERA.name]
    assert turns == [100, 2]


async def test_a_login_that_ended_is_found_beside_others(people: None) -> None:
    scopes = [await login_of(name) for name in (OLGA.name, VERA.name, OLGA.name)]
    await sync_to_async(Login.objects.filter(pk=scopes[0]["session"][logins.KEY]).update)(
        ended_at="2026-01-01T00:00Z"
    )
    assert await names_of(scopes) == ["", VERA.name, OLGA.name]


async def test_without_postgres_each_socket_keeps_what_its_session_claims(
    people: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = [await login_of(OLGA.name), await login_of(VERA.name)]
    asked = []

    def down(session: Any, user: Any) -> None:
        asked.append(session)
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(logins, "admitted", down)
    monkeypatch.setattr(
        "controlplane.accounts.sockets.claims.believed", lambda session, error: session[logins.KEY]
    )
    found = await asyncio.gather(*(sockets.user_of(scope) for scope in scopes))
    assert found == [scope["session"][logins.KEY] for scope in scopes]
    # Postgres was asked once, and not once for each socket: each may wait for a timeout.
    assert len(asked) == 1


async def test_an_error_of_one_session_is_its_own(people: None, monkeypatch: pytest.MonkeyPatch) -> None:
    scopes = [await login_of(name) for name in (OLGA.name, VERA.name)]
    admitted = logins.admitted

    def broken(session: Any, user: Any) -> Any:
        if user.get_username() == OLGA.name:
            raise ValueError("broken")
        return admitted(session, user)

    monkeypatch.setattr(logins, "admitted", broken)
    found = await asyncio.gather(*(sockets.user_of(scope) for scope in scopes), return_exceptions=True)
    assert isinstance(found[0], ValueError)
    assert found[1].get_username() == VERA.name


async def test_a_socket_that_leaves_disturbs_no_other(people: None) -> None:
    scopes = [await login_of(name) for name in (OLGA.name, VERA.name)]
    leaving = asyncio.create_task(sockets.user_of(scopes[0]))
    staying = asyncio.create_task(sockets.user_of(scopes[1]))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).get_username() == VERA.name
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_an_open_page_outlasts_postgres_though_its_claims_are_old(
    people: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = await login_of(OLGA.name)
    now = time.time()
    monkeypatch.setattr("controlplane.accounts.claims.time.time", lambda: now)
    assert (await sockets.user_of(scope)).get_username() == OLGA.name
    now += claims.BELIEVED_S * 3
    # An hour on one page: only the socket checked its login meanwhile.
    assert (await sockets.user_of(scope)).get_username() == OLGA.name

    def down(*_: Any) -> None:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(logins, "admitted", down)
    now += claims.BELIEVED_S - 1
    assert (await sockets.user_of(scope)).role == OLGA.role
    now += 2
    assert not (await sockets.user_of(scope)).is_authenticated, "nobody is believed for longer"
