"""Who may do what: every role, every action, by API, by form and by socket."""

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.test import Client
from django.urls import resolve

from controlplane.accounts.models import User
from controlplane.api.api import api
from controlplane.editing import edits
from dashboard.consumer import LiveConsumer
from tests.controlplane.accounts.permission_lists import FORMS, OPERATIONS
from tests.controlplane.calling import problem, send, token_of
from tests.people import BY_ROLE, create_person

#: A test sends each request of a long list for each role.
pytestmark = pytest.mark.timeout(400)

ROLES = ("viewer", "operator", "admin")


def may(role: str, least: str) -> bool:
    return ROLES.index(role) >= ROLES.index(least)


@pytest.fixture
def tokens(production: str, ada: Any) -> dict[str, str]:
    edits.create_environment(environment="staging", reason="for a test", actor=ada)
    return {role: token_of(role) for role in ROLES}


def test_every_operation_of_the_api_requires_its_role(tokens: dict[str, str]) -> None:
    wrong = []
    for method, path, body, least in OPERATIONS:
        for role in ROLES:
            answer = send(tokens[role], method, path, body)
            # There is no pod for a drill, and no person who could approve.
            refused = {422} if path.endswith(("/drills", "/approvals")) else set()
            allowed = {200, 201, 404, 409} | refused
            if answer.status_code not in (allowed if may(role, least) else {403}):
                wrong.append((method, path, role, answer.status_code, answer.content))
            if answer.status_code >= 400:
                problem(answer, answer.status_code)
    assert not wrong


def test_no_operation_answers_anonymous_callers(tokens: dict[str, str]) -> None:
    for method, path, body, _ in OPERATIONS:
        content = body if isinstance(body, str) else json.dumps(body) if body else ""
        stranger = Client(enforce_csrf_checks=True).generic(
            method, path, content, content_type="application/json", secure=True
        )
        problem(stranger, 401 if method == "GET" else 403)
        problem(send("fb_0000000000000000_" + "0" * 64, method, path, body), 401)


def test_a_token_of_one_environment_opens_no_other(tokens: dict[str, str]) -> None:
    token = token_of("admin", environment="staging")
    assert send(token, "GET", "/api/v1/staging/tenants").status_code == 200
    for method, path, body, _ in OPERATIONS:
        problem(send(token, method, path, body), 403)


def test_the_matrix_misses_no_operation() -> None:
    described = api.get_openapi_schema()["paths"]
    operations = {
        (method.upper(), path.replace("{", "<").replace("}", ">"))
        for path, methods in described.items()
        for method in methods
    }
    listed = {
        (method, f"/{resolve(path.partition('?')[0]).route}".replace("path:", ""))
        for method, path, _, _ in OPERATIONS
    }
    assert operations - listed == set()
    assert listed - operations == set()


@pytest.fixture
def clients(production: str, settings: Any) -> dict[str, Client]:
    settings.SECURE_SSL_REDIRECT = False
    found = {}
    for role in ROLES:
        found[role] = Client()
        found[role].force_login(create_person(BY_ROLE[role].name))
    return found


def test_every_page_and_form_requires_its_role(clients: dict[str, Client]) -> None:
    wrong = []
    for method, path, data, least in FORMS:
        for role in ROLES:
            answer = clients[role].generic(
                method,
                path,
                "&".join(f"{name}={value}" for name, value in (data or {}).items()).replace(" ", "+"),
                content_type="application/x-www-form-urlencoded",
            )
            # An allowed caller gets the form's errors, or a 404.
            allowed = {200, 204, 302, 400, 404, 409, 422}
            if answer.status_code not in (allowed if may(role, least) else {403}):
                wrong.append((method, path, role, answer.status_code))
        stranger = Client().generic(method, path)
        if stranger.status_code != 302 or "/login" not in stranger["Location"]:
            wrong.append((method, path, "stranger", stranger.status_code))
    assert not wrong


def test_a_role_in_one_environment_opens_no_page_and_form_of_another(
    production: str, ada: Any, settings: Any
) -> None:
    settings.SECURE_SSL_REDIRECT = False
    edits.create_environment(environment="staging", reason="for a test", actor=ada)
    # A role of its own replaces the role for all environments, also where it is none.
    create_person("olga", environment_roles={"production": "admin", "staging": ""})
    create_person("otto", environment_roles={"production": "", "staging": "admin"})
    wrong = []
    for name, closed, open_ in (("olga", "/env/staging", ""), ("otto", "", "/env/staging")):
        client = Client()
        client.force_login(User.objects.get(username=name))
        for method, path, data, _ in FORMS:
            if method == "GET" and closed + path in ("/", "/explain", "/people"):
                continue  # It leads to the environment of the person.
            if (status := client.generic(method, closed + path, **_form(data)).status_code) != 403:
                wrong.append((name, method, closed + path, status))
            # These belong to no environment, so only the role for all of them counts.
            everywhere = ("/people", "/runbooks/new", "/runbooks/hot-key/edit")
            if method == "GET" and not path.startswith(everywhere):
                status = client.get(open_ + path).status_code
                if status not in (200, 302, 400, 404):
                    wrong.append((name, method, open_ + path, status))
    assert not wrong


def _form(data: dict[str, str] | None) -> dict[str, str]:
    body = "&".join(f"{name}={value}" for name, value in (data or {}).items()).replace(" ", "+")
    return {"data": body, "content_type": "application/x-www-form-urlencoded"}


def test_the_matrix_misses_no_page() -> None:
    from dashboard import urls

    # Own accounts, invitations, and shared reports have separate tests: any role, and no role, may use them.
    named = {page.name for page in urls.urlpatterns if hasattr(page, "name")} - {"welcome", "shared_report"}
    listed = {resolve(path.partition("?")[0]).url_name for _, path, _, _ in FORMS}
    assert named - listed == set()


def test_forms_require_the_csrf_token_of_their_page(production: str, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    client = Client(enforce_csrf_checks=True)
    client.force_login(create_person("ada"))
    for method, path, data, _ in FORMS:
        if method == "POST":
            assert client.post(path, data).status_code == 403


@pytest.mark.parametrize(("role", "closed"), [("", 4401), *((role, None) for role in ROLES)])
def test_a_socket_opens_for_every_role_and_does_nothing(
    production: str, monkeypatch: pytest.MonkeyPatch, role: str, closed: int | None
) -> None:
    """It only shows: no request can change anything, so every role may use it."""
    from django.contrib.auth.models import AnonymousUser

    from controlplane.audit.models import Entry
    from dashboard import consumer

    monkeypatch.setattr(consumer.hub, "join", lambda topic, member: None)
    monkeypatch.setattr(consumer.hub, "leave", lambda topic, member: None)
    user: Any = User(username=BY_ROLE[role].name, role=role) if role else AnonymousUser()
    before = Entry.objects.count()

    async def talk() -> int | None:
        scope = {"type": "websocket", "path": "/ws/live", "query_string": b"page=overview", "user": user}
        socket = ApplicationCommunicator(LiveConsumer.as_asgi(), scope)
        await socket.send_input({"type": "websocket.connect"})
        assert (await socket.receive_output(5))["type"] == "websocket.accept"
        if not role:
            return int((await socket.receive_output(5))["code"])
        for message in ('{"act": "reset", "dependency": "openai"}', "[]", "x" * 70_000):
            await socket.send_input({"type": "websocket.receive", "text": message})
        await socket.send_input({"type": "websocket.receive", "bytes": b"\x00\xff"})
        assert await socket.receive_nothing(0.1)
        await socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wait(5)
        return None

    assert async_to_sync(talk)() == closed
    assert Entry.objects.count() == before
