"""Every class of bad value at each entrance: the API, the sync of agents, and plans."""

import io
import json
from typing import Any

import msgspec
import pytest

from controlplane.audit.models import Entry
from controlplane.editing.plans import PlanErrors, difference, read_plan
from controlplane.policies.models import Environment, Tenant, Tier
from tests.controlplane.calling import API, problem, send, token_of
from tests.controlplane.gateway.manual_gateway import beat, post, ready_gateway

#: JSON values that are not a number of calls.
NUMBERS = [
    "true",
    "null",
    '"50"',
    '"1_000"',
    '"\uff11\uff12"',
    '"\u0663"',
    '" 7 "',
    '"+5"',
    '"nan"',
    '"0x10"',
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "1.5",
    "1e-3",
    "-5",
    "-0.0",
    str(2**63),
    str(2**53 + 1),
    "9" * 25,
    "9" * 5000,
    "[50]",
    '{"limit": 50}',
    '"\\u0000"',
]
#: Invalid names of tiers, dependencies, services and pods.
NAMES = [
    "",
    " ",
    "a b",
    "x" * 65,
    "x" * 100_000,
    "../../etc",
    "a/b",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "{% debug %}",
    "=cmd()",
    "a:b",
    "{t:acme}",
    "*",
    "free\r\nX-Injected: 1",
    "\x1b[31mred",
    "nul\x00byte",
    "\ud800",
    "\u202egpj.exe",
    "zero\u200dwidth",
    "fr\u0435e",
    "cafe\u0301",
    "-free",
    "free.",
]
#: Keys that look like another key, or that cannot be stored.
KEYS = ["", "x" * 201, "nul\x00byte", "\ud800", "cafe\u0301", "ac\u200bme", "\u202eemca", " acme", "acme\n"]
KEYS += ["acm\u0435", "\u0391cme", "\uff41cme", "\U0001d4eame"]
REASONS = [
    "",
    "short",
    "x" * 501,
    "with a \x00 in it",
    "half of a \ud800 pair",
    "\x1b[2Jgone, all of it",
    "\x9b1m eight",
    "\u200b" * 12,
    "turned \u202eround",
]


@pytest.fixture
def admin(production: str) -> Any:
    token = token_of("admin")
    return lambda method, path, body=None, **headers: send(token, method, path, body, **headers)


def untouched() -> tuple[Any, ...]:
    head = Environment.objects.get(pk="production")
    return head.revision, Entry.objects.count(), Tenant.objects.count(), Tier.objects.count()


def refused(answer: Any) -> None:
    assert answer.status_code in (400, 422), (answer.status_code, answer.content[:300])
    problem(answer, answer.status_code)


NUMBERS_OF_THE_API = [
    (
        "PUT",
        "/tenants/acme/quotas/requests",
        {"limit": 5, "window_s": 60, "burst": 5, "expected_version": 1},
        name,
    )
    for name in ("limit", "window_s", "burst", "expected_version", "warn_percent")
] + [
    ("POST", "/breakers/openai/override", {"mode": "forced_open", "expires_in_s": 60}, "expires_in_s"),
    ("POST", "/breakers/openai/extend", {"expires_in_s": 60}, "expires_in_s"),
    ("POST", "/tiers", {"name": "gold", "priority": 5}, "priority"),
    ("POST", "/api-tokens", {"name": "ci", "scope": "read", "expires_in_s": 600}, "expires_in_s"),
    ("POST", "/rollback", {"to_revision": 1, "expected_revision": 1}, "to_revision"),
]
#: Null counts as left out here.
OPTIONAL = {(name, "null") for name in ("limit", "window_s", "burst", "expected_version", "warn_percent")}


def test_numbers_of_the_api_accept_only_numbers(admin: Any) -> None:
    before = untouched()
    for method, path, good, field in NUMBERS_OF_THE_API:
        for value in NUMBERS:
            if (field, value) in OPTIONAL:
                continue
            fields = {name: json.dumps(each) for name, each in (good | {"reason": "for a test"}).items()}
            body = ", ".join(f'"{name}": {text}' for name, text in (fields | {field: value}).items())
            refused(admin(method, f"{API}{path}", "{" + body + "}"))
    assert untouched() == before


@pytest.mark.parametrize(
    "value", ["-1", "0", "1_0", "+5", " 5", "\uff15", "5.0", "1e2", "nan", "", "9" * 30, "true"]
)
def test_numbers_in_an_address_accept_only_numbers(admin: Any, value: str) -> None:
    for query in (f"tenants?limit={value}", f"audit?before={value}", f"audit/export?after=-{value}"):
        refused(admin("GET", f"{API}/{query.replace(' ', '%20').replace('+', '%2B')}"))


def test_names_of_the_api_accept_only_names(admin: Any) -> None:
    before = untouched()
    for name in NAMES:
        refused(admin("POST", f"{API}/tiers", {"name": name, "reason": "for a test"}))
        refused(admin("POST", f"{API}/dependencies", {"name": name, "kind": "llm", "reason": "for a test"}))
    for key in KEYS:
        refused(admin("POST", f"{API}/tenants", {"key": key, "tier": "free", "reason": "for a test"}))
    for reason in REASONS:
        refused(admin("POST", f"{API}/tenants", {"key": "new", "tier": "free", "reason": reason}))
    assert untouched() == before


QUERIES = [
    "tenants?suspended=1",
    "tenants?suspended=yes",
    "tenants?serach=acme",
    "tenants?limit=5&limit=6",
    "tenants?tier__name=free",
    "tenants?order_by=environment__slug",
    "audit?since=2026-05-04",
    "audit?since=2026-05-04T10:00:00",
    "audit?since=1777888800",
    "audit?since=0000-01-01T00:00:00Z",
    "audit?since=9999-12-31T23:59:59Z",
    "audit?since=2026-02-30T10:00:00Z",
    "audit?since=infinity",
    "audit?since=2026-05-04T10:00:00%2B25:00",
    "export?format=xml",
]


def test_invalid_queries_are_refused(admin: Any) -> None:
    for query in QUERIES:
        refused(admin("GET", f"{API}/{query}"))


BODIES = {
    "keys that stand twice": ('{"reason": "for a test", "reason": "for another"}', 400),
    "a key twice, deep inside": ('{"tuning": {"a": 1, "a": 2}}', 400),
    "nested without end": ("[" * 100_000, 400),
    "more than one document": ('{"reason": "for a test"} {}', 400),
    "a comment": ('{"reason": "for a test" /* why */}', 400),
    "a byte order mark": (b"\xef\xbb\xbf{}", 400),
    "UTF-16": ('{"reason": "for a test"}'.encode("utf-16"), 400),
    "Latin-1": ('{"reason": "f\xfcr einen Test"}'.encode("latin-1"), 400),
    "an array": ("[]", 422),
    "a million numbers": ("[" + "1," * 300_000 + "1]", 422),
    "more than a megabyte": (json.dumps({"reason": "x" * 1_100_000}), 413),
}


def test_invalid_bodies_are_refused(admin: Any) -> None:
    for body, status in BODIES.values():
        problem(admin("POST", f"{API}/breakers/openai/reset", body), status)


KINDS = [
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "application/json; charset=utf-16"},
    {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Encoding": "gzip"},
]


def test_bodies_that_are_not_json_get_415(admin: Any) -> None:
    before = untouched()
    for headers in KINDS:
        problem(admin("POST", f"{API}/breakers/openai/reset", {"reason": "for a test"}, **headers), 415)
    problem(admin("POST", f"{API}/plan", "tenants: {}", **{"Content-Type": "text/html"}), 415)
    assert untouched() == before


def test_a_refusal_names_the_allowed_values(admin: Any) -> None:
    body = {
        "limit": -5,
        "window_s": 10**12,
        "burst": 1.5,
        "reason": "short",
        "is_staff": True,
        "shadow": "no",
    }
    answer = admin("PUT", f"{API}/tenants/acme/quotas/requests", body)
    said = {found["field"]: found["message"] for found in answer.json()["errors"]}
    assert said.pop("window_s").startswith("Enter a number of at most ")
    assert said == {
        "limit": "Enter a number of at least 0.",
        "burst": "Enter a whole number.",
        "shadow": "Enter true or false.",
        "reason": "Use at least 8 characters.",
        "is_staff": "Unknown field.",
    }
    missing = admin("PUT", f"{API}/tenants/acme/quotas/requests", {"limit": 5}).json()["errors"]
    assert missing == [{"field": "reason", "message": "This field is required."}]


TAGS = ["*", "7", 'W/"1"', '"1", "2"', '"x"', '""', "\uff11", '"' + "9" * 30 + '"']


def test_an_if_match_without_a_version_is_refused(admin: Any) -> None:
    body = {"limit": 5, "window_s": 60, "burst": 5, "reason": "for a test"}
    for tag in TAGS:
        answer = admin("PUT", f"{API}/tenants/acme/quotas/requests", body, **{"If-Match": tag})
        assert answer.status_code == (409 if tag == "7" else 400), tag


def test_other_methods_are_refused_whatever_headers_say(admin: Any) -> None:
    for method in ("HEAD", "OPTIONS", "TRACE", "PATCH", "BREW"):
        answer = admin(method, f"{API}/tenants", **{"X-HTTP-Method-Override": "POST"})
        assert answer.status_code == 405, method


ADDRESSES = [
    "tenants/%252e%252e",
    "tenants/nobody%2F..%2Facme",
    "tiers/free/",
    "tiers//free",
    "breakers/%00",
    "servers/OPENAI%20",
]


def test_unknown_addresses_get_a_problem_document(admin: Any) -> None:
    for address in ADDRESSES:
        answer = admin("GET", f"{API}/{address}")
        assert answer.status_code in (400, 404, 422)
        problem(answer, answer.status_code)


GOOD_BEAT = msgspec.to_builtins(beat())


@pytest.mark.parametrize(
    "field", ["sequence", "up_ms", "mode_for_ms", "counters.requests", "applied.revision"]
)
async def test_numbers_of_a_heartbeat_accept_only_numbers(field: str) -> None:
    gateway = ready_gateway()
    outer, _, inner = field.partition(".")
    for value in NUMBERS:
        # Exceptions: totals go up to 2**63, and msgspec accepts a float without a fraction.
        if value in (str(2**53 + 1), "-0.0"):
            continue
        fields = {name: json.dumps(each) for name, each in GOOD_BEAT.items()}
        fields[outer] = f'{{"{inner}": {value}}}' if inner else value
        body = "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"
        answer = await post(gateway, body.encode())
        assert answer.status_code in (400, 422), (value[:30], answer.status_code)
        assert answer.headers["content-type"] == "application/problem+json"
    assert not gateway.fleets or not gateway.fleets["production"].servers


async def test_names_of_a_heartbeat_accept_only_names() -> None:
    gateway = ready_gateway()
    for field in ("server", "service"):
        for name in NAMES:
            answer = await post(gateway, json.dumps({**GOOD_BEAT, field: name}).encode())
            assert answer.status_code in (400, 422), (name[:30], answer.status_code)
    for key in ("", "x" * 201, "nul\x00byte", "\ud800"):
        answer = await post(gateway, json.dumps({**GOOD_BEAT, "want": [key]}).encode())
        assert answer.status_code in (400, 422), (key[:30], answer.status_code)
    assert not gateway.fleets or not gateway.fleets["production"].servers


@pytest.mark.parametrize("field", ["limit", "window_s", "burst"])
def test_numbers_of_a_plan_accept_only_numbers(field: str) -> None:
    good = {"limit": "5", "window_s": "60", "burst": "5"}
    # Values that JSON does not allow and that YAML does not convert.
    for value in [*NUMBERS, "0x10", "1_000", "1,000", "1e3", "12:30", "~", "yes", "0o17"]:
        columns = ", ".join(f"{name}: {text}" for name, text in (good | {field: value}).items())
        text = f"tenants:\n  acme:\n    tier: pro\n    quotas:\n      requests: {{{columns}}}\n"
        with pytest.raises(PlanErrors) as failure:
            read_plan(io.BytesIO(text.encode()))
        assert failure.value.found[0].line, value


def test_names_of_a_plan_accept_only_names(production: str) -> None:
    before = untouched()
    for kind, names in (("tiers", NAMES), ("tenants", KEYS)):
        fields = "{tier: free}" if kind == "tenants" else "{priority: 5}"
        for name in names:
            text = f"{kind}:\n  {json.dumps(name)}: {fields}\n"
            with pytest.raises(PlanErrors):
                difference("production", read_plan(io.BytesIO(text.encode("utf-8", "surrogatepass"))))
    assert untouched() == before
