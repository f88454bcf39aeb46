"""NUL and invalid UTF-8 are 400 or 404 at every address: finding 12 of docs/security_review.md."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from controlplane.api.api import api
from controlplane.policies.models import Environment
from tests.controlplane.accounts.test_permission_matrix import FORMS, OPERATIONS
from tests.controlplane.calling import API, problem, send, token_of
from tests.controlplane.http_limits.clients import web_wire
from tests.people import create_person

#: As they stand in an address or a form.
BAD = ["%00", "a%00b", "%FF", "a%C3", "%ED%A0%80", "%C0%80"]
REFUSED = {400, 404}


def routes(patterns: Any = None, before: str = "") -> Iterator[str]:
    """Every route of the web process, like ``people/<str:name>``."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            yield route


def with_text(route: str, text: str) -> Iterator[str]:
    """The route with ``text`` in the place of each of its names in turn; and behind it."""
    parts = route.split("/")
    places = [place for place, part in enumerate(parts) if part.startswith("<")]
    filled = ["production" if "environment" in part else "1" for part in parts]
    for place, part in enumerate(parts):
        if place not in places:
            filled[place] = part
    for place in places:
        yield "/" + "/".join([*filled[:place], text, *filled[place + 1 :]])
    yield "/" + "/".join([*filled[:-1], filled[-1] + text])


@pytest.fixture
def admin(production: str, settings: Any) -> Client:
    settings.SECURE_SSL_REDIRECT = False
    client = Client(raise_request_exception=False)
    client.force_login(create_person("ada"))
    return client


@pytest.fixture
def token(production: str) -> str:
    return token_of("admin")


def test_the_walk_finds_every_page_and_operation() -> None:
    found = set(routes())
    assert {"people/<str:name>", "welcome/<str:link>", "login", "healthz", "metrics"} <= found
    assert sum(route.startswith("api/v1/") for route in found) > 60


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_finding_12_nul_in_any_path_is_400_or_404(admin: Client, token: str, method: str) -> None:
    wrong = []
    for route in [*sorted(set(routes())), "static/", "static/dashboard/app.css", "nowhere"]:
        for path in with_text(route, "a%00b"):
            headers = {"Authorization": f"Bearer {token}"} if path.startswith("/api/") else {}
            answer = admin.generic(method, path, headers=headers)
            if answer.status_code not in REFUSED:
                wrong.append((path, answer.status_code))
    assert not wrong


@pytest.mark.parametrize("bad", BAD)
def test_finding_12_bad_text_in_any_query_is_400(admin: Client, token: str, bad: str) -> None:
    wrong = []
    pages = [(path, {}) for method, path, *_ in FORMS if method == "GET"]
    calls = [
        (path, {"Authorization": f"Bearer {token}"}) for method, path, *_ in OPERATIONS if method == "GET"
    ]
    open_to_all = [(path, {}) for path in ("/login", "/healthz", "/readyz", "/metrics", "/welcome/x")]
    for path, headers in [*pages, *calls, *open_to_all]:
        for name in ("key", "q", "next", bad):
            answer = admin.get(f"{path}{'&' if '?' in path else '?'}{name}={bad}", headers=headers)
            if answer.status_code != 400:
                wrong.append((path, name, answer.status_code))
    assert not wrong


@pytest.mark.parametrize("bad", BAD)
def test_finding_12_bad_text_in_any_form_is_400(admin: Client, bad: str) -> None:
    wrong = []
    own = [
        ("POST", path, {}, "") for path in ("/login", "/account/password", "/account/again", "/login/code")
    ]
    for method, path, data, _ in [*FORMS, *own]:
        if method != "POST":
            continue
        for name in [*(data or {}), "name", bad]:
            body = "&".join(f"{key}={value}" for key, value in {**(data or {}), name: bad}.items())
            answer = admin.post(path, body, content_type="application/x-www-form-urlencoded")
            if answer.status_code != 400:
                wrong.append((path, name, answer.status_code))
    assert not wrong


@pytest.mark.parametrize("text", ["a\0b", b"a\xffb"], ids=["NUL", "not UTF-8"])
def test_bad_text_in_a_field_beside_a_file_is_400(admin: Client, text: str | bytes) -> None:
    content = text.encode() if isinstance(text, str) else text
    body = b'--x\r\nContent-Disposition: form-data; name="prune"\r\n\r\n' + content + b"\r\n--x--\r\n"
    answer = admin.generic("POST", "/import", body, content_type="multipart/form-data; boundary=x")
    assert answer.status_code == 400


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    if path and not isinstance(document, dict | list):
        yield path
    for key, value in items:
        yield from leaves(value, (*path, key))


@pytest.mark.parametrize("bad", ["\0", "a\0b", "\ud800", "a\udfffb"], ids=ascii)
def test_finding_12_bad_text_anywhere_in_a_body_is_400(token: str, bad: str) -> None:
    wrong = []
    for method, path, body, _ in OPERATIONS:
        if not isinstance(body, dict):
            continue
        for place in leaves(body):
            changed = copy.deepcopy(body)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = bad
            answer = send(token, method, path, json.dumps(changed).encode())
            if answer.status_code != 400:
                wrong.append((method, path, place, answer.status_code))
        named = json.dumps({**body, bad: 1}).encode()
        assert send(token, method, path, named).status_code == 400
    assert not wrong


#: Texts of several thousand characters.
LONG = {"body", "plan"}
#: Operations that look up an id which was made before: callers chose it, so it can have any character of
#: `is_subject`.
LOOKED_UP = {("/api/v1/production/counters/clear", "tenant"), ("/api/v1/production/erasures", "value")}


@pytest.mark.parametrize(
    "bad", ["a\u2028b", "a\u0085b", "a\x1bb", "a\u202eb", "x" * 10_000], ids=lambda bad: ascii(bad[:2])
)
def test_control_characters_and_endless_texts_anywhere_in_a_body_are_refused(token: str, bad: str) -> None:
    wrong = []
    for method, path, body, _ in OPERATIONS:
        for place in leaves(body) if isinstance(body, dict) else ():
            if bad.startswith("xx") and place[-1] in LONG:
                continue
            changed = copy.deepcopy(body)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = bad
            answer = send(token, method, path, json.dumps(changed).encode())
            if not 400 <= answer.status_code < 500 and (path, place[-1]) not in LOOKED_UP:
                wrong.append((method, path, place, answer.status_code))
    assert not wrong


def test_a_backslash_before_u0000_is_text(token: str) -> None:
    body = {"key": "new", "tier": "free", "reason": "about \\u0000 in documents"}
    assert send(token, "POST", f"{API}/tenants", body).status_code in (200, 201)


def test_the_answer_says_what_is_wrong(admin: Client, token: str) -> None:
    found = problem(send(token, "GET", f"{API}/tenants?search=%00"), 400)
    assert "NUL character" in found["detail"]
    found = problem(send(token, "POST", f"{API}/tiers", {"name": "\0"}), 400)
    assert "NUL character" in found["detail"]
    assert b"NUL character" in admin.get("/people/%00").content


PLANS = {
    "a tenant": 'tenants: {"a\\0b": {tier: pro}}',
    "a tier": 'tenants: {acme: {tier: "a\\0b"}}',
    "a title": 'tenants: {acme: {tier: pro, title: "a\\0b"}}',
    "a quota": 'tenants: {acme: {tier: pro, quotas: {"a\\0b": {limit: 1, window_s: 1, burst: 1}}}}',
    "an environment": 'environment: "a\\0b"\ntenants: {}',
    "a section": '"a\\0b": {}',
    "a dependency": 'dependencies: {"a\\0b": {kind: llm}}',
    "a default": 'default_tier: "a\\0b"',
    "an endpoint": (
        "tenants: {acme: {tier: pro, quotas: {q: {limit: 1, window_s: 1, burst: 1, endpoint:"
        ' "POST /a\\0b"}}}}'
    ),
    "a NUL itself": "tenants: {a\0b: {tier: pro}}",
}


@pytest.mark.parametrize("what", PLANS)
@pytest.mark.parametrize("path", ["plan", "what-if", "apply?reason=for+a+test&expected_revision={revision}"])
def test_finding_12_nul_in_a_file_is_refused(token: str, production: str, what: str, path: str) -> None:
    revision = Environment.objects.get(slug=production).revision
    answer = send(
        token,
        "POST",
        f"{API}/{path.format(revision=revision)}",
        PLANS[what].encode(),
        **{"Content-Type": "application/yaml"},
    )
    assert answer.status_code in (400, 422), answer.content


@pytest.mark.parametrize("cell", ["a\0b,pro", "acme,p\0ro", "\0,pro"])
def test_finding_12_nul_in_a_table_is_refused(token: str, cell: str) -> None:
    answer = send(
        token, "POST", f"{API}/plan", f"tenant,tier\n{cell}\n".encode(), **{"Content-Type": "text/csv"}
    )
    assert answer.status_code in (400, 422), answer.content


@pytest.mark.parametrize("bad", [b"%00", b"%FF", b"%C0%80", b"\xff", b"\x00"])
@pytest.mark.parametrize(
    "path", [b"/people/a%b", b"/login?next=%b", b"/api/v1/production/tenants?search=%b", b"/static/%b"]
)
async def test_finding_12_bad_bytes_at_the_socket_are_400_or_404(
    settings: Any, monkeypatch: pytest.MonkeyPatch, path: bytes, bad: bytes
) -> None:
    settings.SECURE_SSL_REDIRECT = False
    monkeypatch.setattr("controlplane.asgi.http", get_asgi_application())
    async with web_wire() as connect:
        connection = await connect()
        await connection.send(b"GET " + path.replace(b"%b", bad) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await connection.head())[0] in REFUSED


def test_every_operation_is_listed() -> None:
    """What these tests walk over; the permission matrix checks that it has every operation."""
    assert len(OPERATIONS) >= sum(len(methods) for methods in api.get_openapi_schema()["paths"].values())
