import time
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client, RequestFactory

from controlplane.accounts import claims, permissions
from controlplane.accounts.claims import ClaimsUser
from controlplane.accounts.models import User
from controlplane.accounts.owned_tokens import TokenUser
from controlplane.accounts.sockets import ListedOrigins
from tests.people import BY_ROLE, create_person


@pytest.fixture
def no_postgres(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As when the server is stopped: no connection can be made, and none is left."""
    from django.db import connection

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    def stop() -> None:
        connection.close()
        monkeypatch.setattr(connection, "connect", refuse)

    yield stop
    monkeypatch.undo()


def logged_in(role: str) -> Client:
    client = Client()
    client.force_login(create_person(BY_ROLE[role].name))
    assert client.get("/readyz", secure=True).status_code == 200
    # Any page that reads the user stores the claims.
    assert client.get("/api/v1/docs", secure=True).status_code == 200
    return client


ROLES = {
    "stranger": AnonymousUser(),
    "viewer": User(username="vera", role="viewer"),
    "operator": User(username="olga", role="operator"),
    "admin": User(username="ada", role="admin"),
    "superuser": User(username="superuser", role="viewer", is_superuser=True),
    "disabled admin": User(username="disabled", role="admin", is_active=False),
    "operator by claims": ClaimsUser(username="olga", role="operator"),
    "admin by token": TokenUser(name="pipeline", role="admin"),
    "nonsense": User(username="nonsense", role="root"),
}
MIN_ROLE = {"viewer": 1, "operator": 2, "admin": 3}
RANK = {
    "stranger": 0,
    "viewer": 1,
    "operator": 2,
    "admin": 3,
    "superuser": 3,
    "disabled admin": 0,
    "operator by claims": 2,
    "admin by token": 3,
    "nonsense": 0,
}


@pytest.mark.parametrize("action", permissions.ACTIONS)
@pytest.mark.parametrize("who", ROLES)
def test_each_role_has_its_permissions(who: str, action: str) -> None:
    assert permissions.may(ROLES[who], action) == (RANK[who] >= MIN_ROLE[permissions.ACTIONS[action]])


def test_a_view_redirects_anonymous_users_to_login_and_refuses_lower_roles() -> None:
    view = permissions.require_role("operator")(lambda request: HttpResponse("done"))
    request = RequestFactory().get("/breakers")
    request.user = ROLES["stranger"]  # type: ignore[assignment]
    assert view(request).status_code == 302
    request.user = ROLES["viewer"]  # type: ignore[assignment]
    with pytest.raises(PermissionDenied):
        view(request)
    request.user = ROLES["admin"]  # type: ignore[assignment]
    assert view(request).content == b"done"


def test_a_session_lasts_while_postgres_is_down(transactional_db: Any, no_postgres: Any) -> None:
    client = logged_in("operator")
    no_postgres()
    # The description needs a login and nothing else.
    assert client.get("/api/v1/docs", secure=True).status_code == 200
    assert client.get("/readyz", secure=True).status_code == 503
    assert client.get("/healthz", secure=True).status_code == 200


def test_without_postgres_the_claims_give_name_and_role(transactional_db: Any, no_postgres: Any) -> None:
    client = logged_in("operator")
    no_postgres()
    request = RequestFactory().get("/")
    request.session = client.session
    user = claims.user_of(request)
    assert isinstance(user, ClaimsUser)
    assert (user.get_username(), user.role, user.from_claims) == ("olga", "operator", True)


def test_claims_are_trusted_for_ten_minutes(transactional_db: Any, no_postgres: Any) -> None:
    client = logged_in("operator")
    session = client.session
    assert session["claims"]["until"] == pytest.approx(time.time() + 600, abs=5)
    session["claims"] = session["claims"] | {"until": int(time.time()) - 1}
    no_postgres()
    request = RequestFactory().get("/")
    request.session = session
    assert claims.user_of(request).is_authenticated is False


def test_a_change_of_role_is_in_the_next_claims(transactional_db: Any) -> None:
    client = logged_in("operator")
    User.objects.update(role="viewer")
    client.get("/api/v1/docs", secure=True)
    assert client.session["claims"]["role"] == "viewer"


def test_forged_claims_are_ignored(transactional_db: Any, no_postgres: Any) -> None:
    from django.conf import settings
    from django.core import signing

    client = Client()
    forged = signing.dumps(
        {"claims": {"name": "mallory", "role": "admin", "until": int(time.time()) + 600}},
        key="some other key",
        salt="django.contrib.sessions.backends.signed_cookies",
        compress=True,
    )
    client.cookies[settings.SESSION_COOKIE_NAME] = forged
    no_postgres()
    assert client.get("/api/v1/docs", secure=True).status_code == 302


def test_an_edit_without_postgres_is_answered_503(
    transactional_db: Any, no_postgres: Any, production: str
) -> None:
    client = logged_in("admin")
    no_postgres()
    response = client.get("/api/v1/production/tiers", secure=True)
    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert response["Content-Type"] == "application/problem+json"


def test_the_session_cookie_is_signed_secure_and_out_of_reach_of_scripts(transactional_db: Any) -> None:
    client = logged_in("viewer")
    cookie = client.cookies["__Host-fuseboard"]
    assert (cookie["secure"], cookie["httponly"], cookie["samesite"], cookie["path"]) == (
        True,
        True,
        "Lax",
        "/",
    )
    assert not cookie["domain"]


def test_passwords_are_hashed_with_argon2(transactional_db: Any) -> None:
    user = User.objects.create_user("vera", password="pässwörd " * 10)
    assert user.password.startswith("argon2$argon2id$")
    assert user.check_password("pässwörd " * 10)


ORIGINS = [
    ("https://board.example.com", True),
    ("https://board.example.com:443", True),
    ("http://board.example.com", False),
    ("https://board.example.com:8443", False),
    ("https://evil.example.com", False),
    ("https://board.example.com.evil.com", False),
    ("null", False),
    ("https://board.example.com:abc", False),
    ("https://board.example.com:99999", False),
    ("https://[", False),
    ("https://b\xf6ard.example.com", False),
    ("", False),
    (None, False),
]


@pytest.mark.parametrize(("origin", "welcome"), ORIGINS)
async def test_only_listed_origins_may_open_the_socket(origin: str | None, welcome: bool) -> None:
    async def accept(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})

    guarded = ListedOrigins(accept, ["https://board.example.com"])
    headers = [] if origin is None else [(b"origin", origin.encode("latin1"))]
    socket = ApplicationCommunicator(guarded, {"type": "websocket", "path": "/ws/live", "headers": headers})
    await socket.send_input({"type": "websocket.connect"})
    answer = await socket.receive_output(5)
    assert answer["type"] == ("websocket.accept" if welcome else "websocket.close")
