import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts import tokens
from controlplane.accounts.models import ApiToken
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.policies.models import TenantQuota
from fuseboard.contract.limit_fields import NUMBERS, QUOTAS, fields_of
from tests.controlplane.calling import API, problem, send, token_of
from tests.people import create_person
from tests.tenants import create_tenants

QUOTA = f"{API}/tenants/acme/quotas/requests"
GOOD = {"limit": 50, "window_s": 60, "burst": 5, "expected_version": 1, "reason": "agreed with acme"}


def test_a_quota_is_set_and_read_back(call: Any) -> None:
    answer = call("admin", "PUT", QUOTA, GOOD)
    assert answer.status_code == 200
    tenant = call("viewer", "GET", f"{API}/tenants/acme")
    assert tenant["ETag"] == '"2"'
    assert tenant.json()["quotas"] == [
        {
            "name": "requests",
            **{field.name: field.default for field in fields_of(QUOTAS)},
            **{"per": [], "endpoints": [], "failure_policy": "fail_open"},
            **{name: GOOD[name] for name in NUMBERS},
            "template": "",
            "own": [],
            "expires_at": None,
        }
    ]
    entry = Entry.objects.filter(action="tenant_quota.set").get()
    assert (entry.actor, entry.role, entry.origin) == ("token test admin", "admin", "api")
    assert entry.reason == "agreed with acme"


BAD = [
    ("limit", "-1"),
    ("limit", "1.5"),
    ("limit", "50.0"),
    ("limit", "NaN"),
    ("limit", "Infinity"),
    ("limit", "1e400"),
    ("limit", "true"),
    ("limit", '"50"'),
    ("limit", "null"),
    ("limit", "1000000001"),
    ("limit", "9" * 25),
    ("limit", "9" * 5000),
    ("limit", "[50]"),
    ("window_s", "0"),
    ("window_s", "34560001"),
    ("burst", "0"),
    ("burst", "false"),
    ("reason", '"short"'),
    ("reason", "7"),
    ("algorithm", '"leaky_bucket"'),
    ("failure_policy", '"hope"'),
    ("shadow", "1"),
    ("period", '"fortnight"'),
    ("period", '"day"'),
    ("time_zone", '"Europe/Atlantis"'),
    ("per", '"ip"'),
    ("endpoints", '"GET /"'),
    ("dependency", '"nobody"'),
    ("warn_percent", "101"),
    ("lease_above", "-1"),
    ("reserved_percent", "-2"),
    ("reserved_percent", "101"),
    ("expected_version", '"1"'),
    ("is_staff", "true"),
]


def test_bad_values_are_refused_by_the_name_of_their_field(call: Any) -> None:
    for field, value in BAD:
        fields = {name: json.dumps(good) for name, good in GOOD.items()} | {field: value}
        body = "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"
        document = problem(call("admin", "PUT", QUOTA, body), 422)
        assert [error["field"] for error in document["errors"]] == [field], value[:30]
    assert not TenantQuota.objects.exists()


WRONG_ADDRESSES = [
    "/api/v1/production/tenants/" + "x" * 201,
    "/api/v1/production/tiers/..%20",
    "/api/v1/no%20slug/tenants",
    "/api/v1/production/tenants?limit=0",
    "/api/v1/production/tenants?limit=501",
    "/api/v1/production/tenants?limit=x",
    "/api/v1/production/audit?before=-1",
    "/api/v1/production/audit?before=99999999999999999999999",
]


def test_bad_addresses_are_refused(call: Any) -> None:
    for path in WRONG_ADDRESSES:
        problem(call("viewer", "GET", path), 422)


NOT_THERE = [
    "/api/v1/production/tenants/nobody",
    "/api/v1/production/tiers/none",
    "/api/v1/production/breakers/none",
    "/api/v1/staging/tenants",
    "/api/v1/staging/servers",
    "/api/nonsense",
]


def test_text_that_no_row_can_hold_is_a_bad_request(call: Any) -> None:
    for path in ("tenants/%00", "tiers/..%00", "tenants?after=%00"):
        problem(call("viewer", "GET", f"{API}/{path}"), 400)
    for reason in (r'"with a \u0000 in it"', r'"with half of \ud800 a pair"'):
        body = json.dumps(GOOD).replace(json.dumps(GOOD["reason"]), reason)
        assert "NUL" in problem(call("admin", "PUT", QUOTA, body), 400)["detail"]


def test_404_is_a_problem_document(call: Any) -> None:
    for path in NOT_THERE:
        problem(call("viewer", "GET", path), 404)


def test_405_is_a_problem_document(call: Any) -> None:
    assert "GET" in call("viewer", "PATCH", f"{API}/tenants")["Allow"]
    problem(call("viewer", "PATCH", f"{API}/tenants"), 405)


def test_the_second_of_two_editors_gets_a_409_with_the_changes(call: Any) -> None:
    assert call("admin", "PUT", QUOTA, GOOD).status_code == 200
    document = problem(call("admin", "PUT", QUOTA, GOOD | {"limit": 70}), 409)
    assert document["current_version"] == 2
    assert document["changed"]["quotas.requests.limit"] == 50
    assert document["changed_by"] == "token test admin"


def test_the_version_may_come_as_if_match(call: Any) -> None:
    body = {name: value for name, value in GOOD.items() if name != "expected_version"}
    problem(call("admin", "PUT", QUOTA, body), 428)
    problem(call("admin", "PUT", QUOTA, body, **{"If-Match": "*"}), 400)
    problem(call("admin", "PUT", QUOTA, body, **{"If-Match": '"7"'}), 409)
    assert call("admin", "PUT", QUOTA, body, **{"If-Match": '"1"'}).status_code == 200


def test_a_quota_is_removed(call: Any) -> None:
    call("admin", "PUT", QUOTA, GOOD)
    answer = call("admin", "DELETE", f"{QUOTA}?reason=no+longer+needed&expected_version=2")
    assert answer.status_code == 200
    assert not TenantQuota.objects.exists()
    problem(call("admin", "DELETE", f"{QUOTA}?expected_version=3"), 422)


def test_tenants_with_slashes_can_be_addressed(call: Any, ada: Any) -> None:
    edits.create_tenant(
        environment="production", tenant="org/eu:1", tier="free", reason="for a test", actor=ada
    )
    assert call("viewer", "GET", f"{API}/tenants/org/eu:1").json()["tier"] == "free"


def test_tenants_are_listed_in_pages(call: Any, ada: Any) -> None:
    create_tenants(
        tenants=[(f"t{number}", "free", "") for number in range(5)],
        actor=ada,
    )
    seen, after = [], ""
    while after is not None:
        page = call("viewer", "GET", f"{API}/tenants?limit=2" + (f"&after={after}" if after else "")).json()
        seen += [item["key"] for item in page["items"]]
        after = page["next"]
    assert seen == ["acme", "t0", "t1", "t2", "t3", "t4"]


def test_a_breaker_is_tripped_and_reset(call: Any, text_limits: Any) -> None:
    hold = {"mode": "forced_open", "reason": "vendor is down", "expires_in_s": 600}
    assert call("operator", "POST", f"{API}/breakers/openai/override", hold).status_code == 200
    breaker = call("viewer", "GET", f"{API}/breakers/openai").json()
    assert (breaker["state"], breaker["cause"], breaker["source"]) == ("open", "forced", "redis")
    assert breaker["override"]["actor"] == "token test operator"
    [override] = call("viewer", "GET", f"{API}/overrides?in_force=true").json()
    assert override["reason"] == "vendor is down"
    reset = call("operator", "POST", f"{API}/breakers/openai/reset", {"reason": "vendor is back"})
    assert reset.status_code == 200
    breaker = call("viewer", "GET", f"{API}/breakers/openai").json()
    assert (breaker["state"], breaker["override"]) == ("closed", None)
    problem(call("operator", "POST", f"{API}/breakers/openai/end-override", {"reason": "nothing held"}), 404)


BAD_HOLDS: list[tuple[str, Any]] = [
    ("expires_in_s", 0),
    ("expires_in_s", 86_401),
    ("expires_in_s", True),
    ("mode", "ajar"),
    ("reason", ""),
]


def test_a_bad_override_names_the_field(call: Any) -> None:
    for field, value in BAD_HOLDS:
        body = {"mode": "forced_open", "reason": "vendor is down", "expires_in_s": 600} | {field: value}
        document = problem(call("operator", "POST", f"{API}/breakers/openai/override", body), 422)
        assert [error["field"] for error in document["errors"]] == [field]


def test_breakers_are_read_from_history_while_redis_is_down(
    call: Any, settings: Any, text_limits: Any, ada: Any
) -> None:
    from controlplane.breakers.collect import collect_transitions

    hold = {"mode": "forced_open", "reason": "vendor is down", "expires_in_s": 600}
    call("operator", "POST", f"{API}/breakers/openai/override", hold)
    collect_transitions("production")
    settings.REDIS_URL = "redis://127.0.0.1:1"
    [breaker] = call("viewer", "GET", f"{API}/breakers").json()
    assert (breaker["state"], breaker["source"]) == ("open", "history")
    # Edits still work.
    assert (
        call(
            "operator", "POST", f"{API}/breakers/openai/end-override", {"reason": "vendor is back"}
        ).status_code
        == 200
    )


def test_revoked_expired_and_misspelt_tokens_are_refused(production: str, ada: Any) -> None:
    def get(text: str) -> Any:
        return Client().get(f"{API}/tiers", headers={"Authorization": f"Bearer {text}"}, secure=True)

    text = tokens.create_api_token(
        name="x",
        role="viewer",
        expires_at=timezone.now() + timedelta(hours=1),
        reason="for a test",
        actor=ada,
    )
    assert get(text).status_code == 200
    for wrong in (text[:-1], text + "0", text.replace("fb_", "fx_"), "", "fb__", text[:-1] + "g"):
        assert problem(get(wrong), 401)
    assert text.split("_")[2] not in str(ApiToken.objects.values().get())
    ApiToken.objects.update(expires_at=timezone.now())
    problem(get(text), 401)
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    tokens.revoke_token(selector=text.split("_")[1], reason="for a test", actor=ada)
    problem(get(text), 401)


def test_a_session_needs_the_csrf_token_to_write(production: str) -> None:
    user = create_person("bob")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    assert client.get(f"{API}/tiers", secure=True).status_code == 200
    problem(client.put(QUOTA, GOOD, content_type="application/json", secure=True), 403)
    page = client.get("/api/v1/docs", secure=True)
    assert page.status_code == 200
    token = page.content.decode().partition('data-csrf-token="')[2].partition('"')[0]
    answer = client.put(
        QUOTA,
        GOOD,
        content_type="application/json",
        secure=True,
        headers={"X-CSRFToken": token, "Referer": "https://testserver/"},
    )
    assert answer.status_code == 200
    assert Entry.objects.latest("id").actor == "bob"


def test_a_wrong_token_does_not_pass_because_of_a_cookie(production: str) -> None:
    client = Client()
    client.force_login(create_person("bob"))
    problem(client.get(f"{API}/tiers", headers={"Authorization": "Bearer fb_x_y"}, secure=True), 401)


@pytest.mark.parametrize("environment", ["", "production"])
def test_every_valid_token_reads_the_openapi_document(production: str, environment: str) -> None:
    """It redirected a token to the login page."""
    address = "/api/v1/openapi.json"
    answer = send(token_of("viewer", environment=environment), "GET", address)
    assert answer.status_code == 200
    assert "/api/v1/{environment}/tenants" in answer.json()["paths"]
    problem(send("fb_x_y", "GET", address), 401)
    client = Client()
    client.force_login(create_person("vera"))
    problem(client.get(address, headers={"Authorization": "Bearer fb_x_y"}, secure=True), 401)


def test_the_description_needs_a_login_and_has_no_inline_code(production: str) -> None:
    assert Client().get("/api/v1/docs", secure=True).status_code == 302
    assert Client().get("/api/v1/openapi.json", secure=True).status_code == 302
    client = Client()
    client.force_login(create_person("vera"))
    page = client.get("/api/v1/docs", secure=True)
    assert "https://" not in page.content.decode()
    assert "script-src 'self'" in page["Content-Security-Policy"]
    assert "data:" in page["Content-Security-Policy"]
    assert "unsafe" not in page["Content-Security-Policy"]
    schema = client.get("/api/v1/openapi.json", secure=True).json()
    assert "/api/v1/{environment}/tenants" in schema["paths"]
