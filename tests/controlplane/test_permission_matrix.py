"""Who may do what: every role, every action, by API, by form and by socket."""

import json
from datetime import UTC, datetime, timedelta
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
from tests.controlplane.calling import API, problem, send, token_of
from tests.people import BY_ROLE, create_person

ROLES = ("viewer", "operator", "admin")
WHY = {"reason": "for a test"}
NUMBERS = {"limit": 50, "window_s": 60, "burst": 5, "expected_version": 1, **WHY}
GONE = "reason=for+a+test&expected_version=1"
PLAN = "tenants: {acme: {tier: free}}"
BULK = {"filter": {"tier": "pro"}, "change": {"suspended": False}, **WHY}
LATER = {"due_at": "2027-01-01T00:00:00Z", "document": {"tenants": {"acme": {"tier": "free"}}}, **WHY}
TOMORROW = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
NO_DRAFT = "00000000-0000-4000-8000-000000000000"
NO_TOKEN = "0123456789abcdef"

#: Method, address, body, and the lowest role that may. A 404 or 409 counts as allowed.
OPERATIONS: list[tuple[str, str, Any, str]] = [
    ("GET", f"{API}/configuration", None, "viewer"),
    ("GET", f"{API}/configuration/older-defaults", None, "viewer"),
    ("PUT", f"{API}/configuration/default-tier", {"tier": "free", **WHY}, "admin"),
    ("PATCH", f"{API}/configuration/tuning", {"tuning": {"ramp_ms": 5000}, **WHY}, "admin"),
    (
        "PATCH",
        f"{API}/configuration/protection",
        {"protection": {"retries_per_s": 5}, "expected_revision": 1, **WHY},
        "admin",
    ),
    ("GET", f"{API}/series?kind=fleet&fields=requests", None, "viewer"),
    ("GET", f"{API}/series/marks?kind=fleet", None, "viewer"),
    ("GET", f"{API}/tenants", None, "viewer"),
    ("POST", f"{API}/tenants", {"key": "new", "tier": "free", **WHY}, "admin"),
    ("GET", f"{API}/tenants/acme", None, "viewer"),
    ("GET", f"{API}/tenants/acme/effective", None, "viewer"),
    ("PATCH", f"{API}/tenants/acme", {"suspended": True, "expected_version": 1, **WHY}, "admin"),
    ("DELETE", f"{API}/tenants/acme?{GONE}", None, "admin"),
    ("PUT", f"{API}/tenants/acme/quotas/requests", NUMBERS, "admin"),
    ("DELETE", f"{API}/tenants/acme/quotas/requests?{GONE}", None, "admin"),
    ("GET", f"{API}/templates", None, "viewer"),
    ("GET", f"{API}/templates/standard", None, "viewer"),
    ("GET", f"{API}/templates/standard/followers", None, "viewer"),
    ("PUT", f"{API}/templates/standard", NUMBERS | {"expected_version": 0}, "admin"),
    ("POST", f"{API}/templates/standard/preview", NUMBERS, "admin"),
    ("DELETE", f"{API}/templates/standard?{GONE}", None, "admin"),
    ("GET", f"{API}/tiers", None, "viewer"),
    ("POST", f"{API}/tiers", {"name": "gold", **WHY}, "admin"),
    ("GET", f"{API}/tiers/free", None, "viewer"),
    ("PUT", f"{API}/tiers/free/quotas/requests", NUMBERS, "admin"),
    ("DELETE", f"{API}/tiers/free/quotas/requests?{GONE}", None, "admin"),
    ("GET", f"{API}/subject-limits", None, "viewer"),
    (
        "PUT",
        f"{API}/subject-limits/addresses",
        {"limit": 5, "window_s": 1, "burst": 5, "per": ["ip"], **WHY},
        "admin",
    ),
    ("DELETE", f"{API}/subject-limits/addresses?reason=for+a+test", None, "admin"),
    ("GET", f"{API}/dependencies", None, "viewer"),
    ("POST", f"{API}/dependencies", {"name": "maps", "kind": "external", **WHY}, "admin"),
    ("GET", f"{API}/dependencies/openai", None, "viewer"),
    (
        "PUT",
        f"{API}/dependencies/openai/description",
        {"title": "OpenAI", "expected_version": 1, **WHY},
        "admin",
    ),
    (
        "PATCH",
        f"{API}/dependencies/openai/breaker",
        {"breaker": {"probes": 2}, "expected_version": 1, **WHY},
        "admin",
    ),
    (
        "PATCH",
        f"{API}/dependencies/openai/protection",
        {"preset": {"sla": "api"}, "expected_version": 1, **WHY},
        "admin",
    ),
    ("PUT", f"{API}/dependencies/openai/vendor-limits/contract", NUMBERS | {"burst": 1}, "admin"),
    ("DELETE", f"{API}/dependencies/openai/vendor-limits/contract?{GONE}", None, "admin"),
    ("GET", f"{API}/breakers", None, "viewer"),
    ("GET", f"{API}/breakers/openai", None, "viewer"),
    (
        "POST",
        f"{API}/breakers/openai/hold",
        {"mode": "forced_open", "expires_in_s": 60, **WHY},
        "operator",
    ),
    (
        "POST",
        f"{API}/breakers/openai/override",
        {"mode": "forced_open", "expires_in_s": 60, **WHY},
        "operator",
    ),
    ("POST", f"{API}/breakers/openai/end-override", WHY, "operator"),
    ("POST", f"{API}/breakers/openai/extend", {"expires_in_s": 120, **WHY}, "operator"),
    ("POST", f"{API}/breakers/openai/release", WHY, "operator"),
    ("POST", f"{API}/breakers/openai/reset", WHY, "operator"),
    ("GET", f"{API}/overrides", None, "viewer"),
    ("GET", f"{API}/transitions", None, "viewer"),
    ("GET", f"{API}/servers", None, "viewer"),
    ("GET", f"{API}/servers/web-1", None, "viewer"),
    ("GET", f"{API}/servers/web-1/events", None, "viewer"),
    ("GET", "/api/v1/people", None, "admin"),
    ("POST", "/api/v1/people", {"username": "olga", "role": "operator", **WHY}, "admin"),
    ("PUT", "/api/v1/people/nobody/roles", {"role": "viewer", **WHY}, "admin"),
    ("PUT", "/api/v1/people/nobody/active", {"active": False, **WHY}, "admin"),
    ("POST", "/api/v1/people/nobody/log-out", WHY, "admin"),
    ("GET", f"{API}/fleet", None, "viewer"),
    ("POST", f"{API}/servers/web-1/forget", WHY, "operator"),
    ("POST", f"{API}/fleet/lift-freeze", WHY, "operator"),
    ("GET", f"{API}/drills", None, "viewer"),
    ("GET", f"{API}/alerts", None, "viewer"),
    ("POST", f"{API}/alerts/999999/acknowledge", {"note": "for a test"}, "operator"),
    ("POST", f"{API}/alerts/999999/release", {}, "operator"),
    ("POST", f"{API}/drills", {"kind": "gone", "minutes": 1, "servers": ["web-1"], **WHY}, "admin"),
    ("POST", f"{API}/drills/999999/end", WHY, "admin"),
    ("GET", f"{API}/audit", None, "viewer"),
    ("GET", f"{API}/audit/export", None, "admin"),
    ("GET", f"{API}/agent-tokens", None, "admin"),
    ("POST", f"{API}/agent-tokens", {"name": "pods", "expires_in_s": 3600, **WHY}, "admin"),
    ("POST", f"{API}/agent-tokens/{NO_TOKEN}/rotate", {"expires_in_s": 3600, **WHY}, "admin"),
    ("DELETE", f"{API}/agent-tokens/{NO_TOKEN}?reason=for+a+test", None, "admin"),
    ("GET", f"{API}/api-tokens", None, "admin"),
    ("POST", f"{API}/api-tokens", {"name": "ci", "scope": "read", "expires_in_s": 3600, **WHY}, "admin"),
    ("POST", f"{API}/api-tokens/{NO_TOKEN}/rotate", {"expires_in_s": 3600, **WHY}, "admin"),
    ("DELETE", f"{API}/api-tokens/{NO_TOKEN}?reason=for+a+test", None, "admin"),
    ("POST", f"{API}/refusals/explain", {"token": "fr1." + "A" * 72}, "viewer"),
    ("GET", f"{API}/revisions", None, "viewer"),
    ("GET", f"{API}/revisions/1", None, "viewer"),
    ("GET", f"{API}/export", None, "admin"),
    ("POST", f"{API}/plan", PLAN, "admin"),
    ("POST", f"{API}/what-if?days=2", PLAN, "viewer"),
    ("GET", f"{API}/tenants/acme/usage", None, "viewer"),
    ("GET", f"{API}/tenants/acme/usage/requests", None, "viewer"),
    ("GET", f"{API}/tenants/acme/quotas/requests/what-if", None, "viewer"),
    ("POST", f"{API}/apply?reason=for+a+test&expected_revision=1", PLAN, "admin"),
    ("POST", f"{API}/rollback", {"to_revision": 1, "expected_revision": 1, **WHY}, "admin"),
    ("POST", f"{API}/revisions/999999/revert", {"expected_revision": 1, **WHY}, "admin"),
    ("POST", f"{API}/revisions/999999/revert/preview", WHY, "admin"),
    ("POST", f"{API}/bulk/preview", BULK, "admin"),
    ("POST", f"{API}/bulk", BULK | {"expected_revision": 1}, "admin"),
    ("GET", f"{API}/schedules", None, "viewer"),
    ("POST", f"{API}/schedules", LATER, "admin"),
    ("GET", f"{API}/schedules/999999", None, "viewer"),
    ("DELETE", f"{API}/schedules/999999?reason=for+a+test", None, "admin"),
    ("POST", f"{API}/schedules/999999/acknowledge", WHY, "admin"),
    ("GET", f"{API}/edit-freeze", None, "viewer"),
    ("PUT", f"{API}/edit-freeze", {"until": TOMORROW, **WHY}, "admin"),
    ("DELETE", f"{API}/edit-freeze?reason=for+a+test", None, "admin"),
    ("GET", f"{API}/approvals", None, "viewer"),
    ("PUT", f"{API}/approvals", {"needed": 1, **WHY}, "admin"),
    ("GET", f"{API}/requests", None, "viewer"),
    ("GET", f"{API}/requests/999999", None, "viewer"),
    ("POST", f"{API}/requests/999999/approve", {"expected_version": 1}, "operator"),
    ("POST", f"{API}/requests/999999/reject", WHY, "operator"),
    ("POST", f"{API}/requests/999999/withdraw", WHY, "admin"),
    ("POST", f"{API}/requests/999999/rebase", None, "admin"),
    ("POST", f"{API}/requests/999999/apply", None, "admin"),
    ("GET", "/api/v1/runbooks", None, "viewer"),
    ("GET", "/api/v1/runbooks/openai", None, "viewer"),
    ("PUT", "/api/v1/runbooks/openai", {"title": "OpenAI", "body": "Wait.", **WHY}, "admin"),
]

#: Pages, and the forms on them.
FORMS: list[tuple[str, str, dict[str, str] | None, str]] = [
    ("GET", "/", None, "viewer"),
    ("GET", "/breakers", None, "viewer"),
    ("GET", "/breakers/openai", None, "viewer"),
    ("GET", "/servers", None, "viewer"),
    ("GET", "/tenants", None, "viewer"),
    ("GET", "/tenant?key=acme", None, "viewer"),
    ("GET", "/audit", None, "viewer"),
    ("GET", "/runbooks", None, "viewer"),
    ("GET", "/palette", None, "viewer"),
    ("GET", "/servers/web-1", None, "viewer"),
    ("GET", "/tenant/effective?key=acme", None, "viewer"),
    ("GET", "/templates", None, "viewer"),
    ("GET", "/defaults", None, "viewer"),
    ("POST", "/templates/new", {"name": "usual"}, "admin"),
    ("GET", "/templates/of/standard", None, "viewer"),
    ("POST", "/templates/of/standard", {"act": "remove", **WHY}, "admin"),
    ("POST", "/templates/of/standard/preview", {"limit": "9"}, "admin"),
    ("POST", "/tenant/follow?key=acme", {"template": "standard", **WHY}, "admin"),
    ("GET", "/audit/export?form=csv", None, "admin"),
    ("GET", "/runbooks/openai", None, "viewer"),
    ("GET", "/revisions", None, "viewer"),
    ("GET", "/revisions/1", None, "viewer"),
    ("POST", "/revisions/1", {"seen": "3", **WHY}, "admin"),
    ("GET", "/edit-freeze", None, "admin"),
    ("POST", "/edit-freeze", WHY, "admin"),
    ("GET", "/revisions/1/revert", None, "admin"),
    ("POST", "/revisions/1/revert", WHY, "admin"),
    ("POST", "/revisions/1/undo", {"back": "/"}, "admin"),
    ("GET", "/revisions/1/rollout", None, "viewer"),
    ("GET", "/bulkheads", None, "viewer"),
    ("GET", "/retries", None, "viewer"),
    ("GET", "/limits", None, "viewer"),
    ("GET", "/tiers", None, "viewer"),
    ("GET", "/edit/tier?key=pro", None, "admin"),
    ("POST", "/edit/tier?key=pro", WHY, "admin"),
    ("POST", "/edit/tenant/preview?key=acme", WHY, "admin"),
    ("GET", "/edit/dependency/theirs?key=openai", None, "admin"),
    ("GET", "/requests", None, "viewer"),
    ("POST", "/requests", {"needed": "1", **WHY}, "admin"),
    ("GET", "/requests/999999", None, "viewer"),
    ("POST", "/requests/999999", {"act": "approve", "version": "1"}, "operator"),
    ("POST", "/requests/999999", {"act": "reject", **WHY}, "operator"),
    ("POST", "/requests/999999", {"act": "withdraw", **WHY}, "admin"),
    ("POST", "/requests/999999", {"act": "rebase"}, "admin"),
    ("POST", "/requests/999999", {"act": "apply"}, "admin"),
    ("GET", "/explain", None, "viewer"),
    ("POST", "/explain", {"token": "fr1."}, "viewer"),
    ("GET", "/schedules", None, "viewer"),
    ("POST", "/schedules", {"act": "cancel", "schedule": "999999", **WHY}, "admin"),
    ("GET", "/import", None, "admin"),
    ("POST", "/import", {}, "admin"),
    ("GET", f"/import/{NO_DRAFT}", None, "admin"),
    ("POST", f"/import/{NO_DRAFT}", WHY, "admin"),
    ("GET", "/export/yaml", None, "admin"),
    ("GET", "/tenants/bulk", None, "admin"),
    ("POST", "/tenants/bulk", WHY, "admin"),
    ("POST", "/tenant/preview?key=acme", {"quota": "requests"}, "admin"),
    ("POST", "/servers/web-1/forget", WHY, "operator"),
    ("POST", "/fleet/lift-freeze", WHY, "operator"),
    ("GET", "/drills", None, "admin"),
    ("GET", "/alerts", None, "viewer"),
    ("POST", "/alerts", {"acknowledge": "999999"}, "operator"),
    ("POST", "/drills", {"act": "end", "drill": "999999", **WHY}, "admin"),
    ("GET", "/people", None, "admin"),
    ("POST", "/people", {}, "admin"),
    ("GET", "/people/viewer-by-name", None, "admin"),
    ("POST", "/people/viewer-by-name", {"act": "off"}, "admin"),
    ("GET", "/tokens", None, "admin"),
    ("POST", "/tokens", {}, "admin"),
    ("GET", "/breakers/openai/settings", None, "admin"),
    ("POST", "/breakers/openai/settings", {"version": "1", **WHY}, "admin"),
    ("POST", "/breakers/openai/settings/preview", {"version": "1"}, "admin"),
    ("GET", "/protection", None, "admin"),
    ("POST", "/protection", {"base": "1", **WHY}, "admin"),
    ("POST", "/protection/preview", {"base": "1"}, "admin"),
    ("POST", "/breakers/openai/preview", {"act": "reset"}, "operator"),
    ("POST", "/breakers/openai", {"act": "forced_open", "lasts": "5", **WHY}, "operator"),
    ("POST", "/breakers/openai", {"act": "reset", **WHY}, "operator"),
    (
        "POST",
        "/tenant?key=acme",
        {"quota": "requests", "limit": "9", "window_s": "60", "burst": "9", "version": "1", **WHY},
        "admin",
    ),
]


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


def test_the_matrix_misses_no_page() -> None:
    from dashboard import urls

    # Own accounts and invitations have separate tests: any role, and no role, may use them.
    named = {page.name for page in urls.urlpatterns if hasattr(page, "name")} - {"welcome"}
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
