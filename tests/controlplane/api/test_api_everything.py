"""What each operation does, from creating a thing to reading it; and the headers they share."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts.models import AgentToken, ApiToken
from controlplane.audit.models import Entry
from controlplane.breakers.models import Transition
from controlplane.policies.models import Dependency, Tenant
from controlplane.schedules.due import run_due
from controlplane.schedules.models import Schedule
from tests.controlplane.accounts.permission_lists import RUNBOOK
from tests.controlplane.calling import API, problem, send, token_of

WHY = {"reason": "for a test"}


@pytest.fixture
def admin(call: Any) -> Any:
    """Sends as an admin; returns the response, which must be a success."""

    def admin(method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = call("admin", method, path if path[0] == "/" else f"{API}/{path}", body, **headers)
        assert answer.status_code in (200, 201), answer.content
        return answer

    return admin


def test_a_tenant_moves_is_suspended_resumed_and_forgotten(admin: Any, call: Any) -> None:
    revision = admin(
        "PATCH", "tenants/acme", {"tier": "free", "suspended": True, "expected_version": 1, **WHY}
    )
    tenant = admin("GET", "tenants/acme").json()
    assert (tenant["tier"], tenant["suspended"], tenant["version"]) == ("free", True, 3)
    assert admin("GET", "configuration").json()["revision"] == revision.json()["revision"]
    admin("PATCH", "tenants/acme", {"suspended": False, **WHY}, **{"If-Match": '"3"'})
    document = problem(call("admin", "PATCH", f"{API}/tenants/acme", {"expected_version": 4, **WHY}), 422)
    assert "Nothing to change" in document["detail"]
    # The second of two changes fails: the first one was not made either.
    body = {"tier": "none", "suspended": True, "expected_version": 4, **WHY}
    problem(call("admin", "PATCH", f"{API}/tenants/acme", body), 404)
    assert not Tenant.objects.get().suspended
    admin("DELETE", "tenants/acme?reason=for+a+test&expected_version=4")
    problem(call("admin", "GET", f"{API}/tenants/acme"), 404)
    assert admin("GET", "tenants/acme/effective").json()[0]["source"] == "default tier"


def test_tenants_are_filtered(admin: Any) -> None:
    for key, tier in (("acme-eu", "free"), ("acme-us", "pro"), ("globex", "pro")):
        admin("POST", "tenants", {"key": key, "tier": tier, **WHY})
    admin("PATCH", "tenants/globex", {"suspended": True, "expected_version": 1, **WHY})

    def found(query: str) -> list[str]:
        return [tenant["key"] for tenant in admin("GET", f"tenants?{query}").json()["items"]]

    assert found("tier=pro") == ["acme", "acme-us", "globex"]
    assert found("prefix=acme-") == ["acme-eu", "acme-us"]
    assert found("suspended=true") == ["globex"]
    assert found("suspended=false&tier=pro&search=us") == ["acme-us"]
    assert found("tier=pro&after=acme&limit=1") == ["acme-us"]


def test_a_tier_is_created_gets_a_quota_and_becomes_the_default(admin: Any) -> None:
    admin("POST", "tiers", {"name": "gold", "title": "Gold", "priority": 80, **WHY})
    quota = {"limit": 9, "window_s": 60, "burst": 3, "expected_version": 1, **WHY}
    admin("PUT", "tiers/gold/quotas/requests", quota)
    admin("PUT", "configuration/default-tier", {"tier": "gold", **WHY})
    tier = admin("GET", "tiers/gold")
    assert (tier["ETag"], tier.json()["quotas"][0]["limit"]) == ('"2"', 9)
    assert admin("GET", "configuration").json()["default_tier"] == "gold"
    admin("DELETE", "tiers/gold/quotas/requests?reason=for+a+test&expected_version=2")
    assert admin("GET", "tiers/gold").json()["quotas"] == []


def test_a_dependency_is_created_described_and_limited(admin: Any, call: Any) -> None:
    admin("PUT", "/api/v1/runbooks/maps", {"title": "Maps", "body": RUNBOOK, **WHY})
    body = {"name": "maps", "kind": "external", "breaker": {"probes": 2}, "runbook": "maps", **WHY}
    admin("POST", "dependencies", body)
    admin("PATCH", "dependencies/maps/breaker", {"breaker": {"open_ms": 500}, "expected_version": 1, **WHY})
    admin("PUT", "dependencies/maps/description", {"owner": "geo", "expected_version": 2, **WHY})
    limit = {"limit": 10, "window_s": 1, "expected_version": 3, **WHY}
    admin("PUT", "dependencies/maps/vendor-limits/contract", limit)
    maps = admin("GET", "dependencies/maps")
    assert maps["ETag"] == '"4"'
    found = maps.json()
    assert (found["breaker"]["probes"], found["breaker"]["open_ms"], found["owner"]) == (2, 500, "geo")
    assert found["vendor_limits"][0]["failure_policy"] == "reserved"
    wrong = {"breaker": {"probes": 101, "luck": 1}, "expected_version": 4, **WHY}
    document = problem(call("admin", "PATCH", f"{API}/dependencies/maps/breaker", wrong), 422)
    assert {error["field"] for error in document["errors"]} == {"probes", "luck"}
    admin("DELETE", "dependencies/maps/vendor-limits/contract?reason=for+a+test&expected_version=4")
    assert admin("GET", "dependencies/maps").json()["vendor_limits"] == []


def test_the_fleets_timings_are_changed_by_name(admin: Any, call: Any) -> None:
    admin("PATCH", "configuration/tuning", {"tuning": {"ramp_ms": 5000}, **WHY})
    assert admin("GET", "configuration").json()["tuning"]["ramp_ms"] == 5000
    problem(call("admin", "PATCH", f"{API}/configuration/tuning", {"tuning": {"luck": 1}, **WHY}), 422)
    problem(call("admin", "PATCH", f"{API}/configuration/tuning", {"tuning": {}, **WHY}), 422)


def test_a_quota_expires(admin: Any) -> None:
    body = {"limit": 5000, "window_s": 60, "burst": 9, "expires_in_s": 60, "expected_version": 1, **WHY}
    admin("PUT", "tenants/acme/quotas/requests", body)
    [quota] = admin("GET", "tenants/acme").json()["quotas"]
    assert quota["expires_at"] is not None
    values = {value["name"]: value for value in admin("GET", "tenants/acme/effective").json()}
    assert values["quotas.requests.limit"]["source"] == "expiring override"
    assert values["quotas.requests.limit"]["instead_of"] == 1000


def test_a_scheduled_change_is_applied_or_cancelled(admin: Any, call: Any) -> None:
    first, second = (
        (timezone.now() + timedelta(hours=hours)).isoformat(timespec="seconds") for hours in (1, 2)
    )
    body = {"due_at": first, "document": {"tenants": {"acme": {"tier": "enterprise"}}}, **WHY}
    made = [admin("POST", "schedules", body | {"due_at": due_at}).json() for due_at in (first, second)]
    assert made[0]["state"] == "waiting"
    problem(call("admin", "POST", f"{API}/schedules", body), 422)  # the same change at the same time
    cancelled = admin("DELETE", f"schedules/{made[1]['id']}?reason=for+a+test").json()
    assert cancelled["state"] == "cancelled"
    Schedule.objects.filter(pk=made[0]["id"]).update(due_at=timezone.now())
    run_due()
    assert admin("GET", f"schedules/{made[0]['id']}").json()["state"] == "applied"
    assert admin("GET", "tenants/acme").json()["tier"] == "enterprise"
    [waiting] = admin("GET", "schedules?state=applied").json()["items"]
    assert waiting["id"] == made[0]["id"]
    wrong = body | {"document": {"tenants": {"acme": {"tier": "none"}}}}
    problem(call("admin", "POST", f"{API}/schedules", wrong), 422)
    problem(call("admin", "POST", f"{API}/schedules", body | {"due_at": "2020-01-01T00:00:00Z"}), 422)


def test_an_override_is_extended_in_its_mode(admin: Any, call: Any) -> None:
    problem(call("admin", "POST", f"{API}/breakers/openai/extend", {"expires_in_s": 600, **WHY}), 404)
    admin("POST", "breakers/openai/override", {"mode": "metrics_only", "expires_in_s": 60, **WHY})
    admin("POST", "breakers/openai/extend", {"expires_in_s": 600, **WHY})
    held, ended = admin("GET", "overrides").json()
    assert (held["mode"], held["ended_at"]) == ("metrics_only", None)
    assert ended["ended_at"] is not None
    row = Dependency.objects.get()
    Transition.objects.create(
        dependency=row, generation=1, at=timezone.now(), from_state="closed", to_state="open", cause="ratio"
    )
    [moved] = admin("GET", "transitions?dependency=openai").json()["items"]
    assert (moved["to_state"], moved["cause"]) == ("open", "ratio")
    assert admin("GET", "transitions?dependency=other").json()["items"] == []


def test_the_audit_is_filtered_and_exported(admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    admin("PATCH", "tenants/acme", {"suspended": True, "expected_version": 1, **WHY})

    def found(query: str) -> set[str]:
        return {entry["action"] for entry in admin("GET", f"audit?{query}").json()["items"]}

    assert found("target=acme&kind=tenant") == {"tenant.created", "tenant.suspended"}
    assert found("actor=token+test+admin&action=tenant.suspended") == {"tenant.suspended"}
    assert found("since=2999-01-01T00:00:00Z") == set()
    monkeypatch.setattr("controlplane.api.routes.history.audit._EXPORTED", 3)
    whole, address = [], "audit/export"
    while address:
        answer = admin("GET", address)
        whole += answer.content.decode().splitlines()
        address = answer.get("Link", "").partition(">")[0].removeprefix(f"<{API}/")
    assert len(whole) >= Entry.objects.exclude(action="audit.exported").count() - 1


def test_a_token_is_rotated_with_an_overlap_and_revoked(admin: Any, call: Any) -> None:
    body = {"name": "ci", "scope": "operate", "expires_in_s": 3600, **WHY}
    old = admin("POST", "api-tokens", body).json()
    new = admin(
        "POST", f"api-tokens/{old['selector']}/rotate", {"expires_in_s": 7200, "overlap_s": 60, **WHY}
    ).json()
    for text in (old["token"], new["token"]):
        assert send(text, "GET", f"{API}/tiers").status_code == 200
        problem(send(text, "PUT", f"{API}/configuration/default-tier", {"tier": "free", **WHY}), 403)
    listed = {row["selector"]: row for row in admin("GET", "api-tokens").json()}
    assert listed[new["selector"]]["scope"] == "operate"
    assert "token" not in listed[new["selector"]]
    rows = {row.selector: row for row in ApiToken.objects.all()}
    assert rows[old["selector"]].expires_at < timezone.now() + timedelta(seconds=61)
    assert rows[new["selector"]].expires_at > timezone.now() + timedelta(seconds=7000)
    ApiToken.objects.filter(selector=old["selector"]).update(expires_at=timezone.now())
    problem(send(old["token"], "GET", f"{API}/tiers"), 401)
    problem(
        call("admin", "POST", f"{API}/api-tokens/{old['selector']}/rotate", {"expires_in_s": 7200, **WHY}),
        404,
    )
    admin("DELETE", f"api-tokens/{new['selector']}?reason=for+a+test")
    problem(send(new["token"], "GET", f"{API}/tiers"), 401)
    assert Entry.objects.filter(action="token.rotated").get().after["replaces"] == old["selector"]


def test_agent_tokens_belong_to_their_environment(admin: Any) -> None:
    made = admin("POST", "agent-tokens", {"name": "pods", "expires_in_s": 3600, **WHY}).json()
    assert AgentToken.objects.get().environment == "production"
    other = token_of("admin", environment="production")
    assert send(other, "GET", "/api/v1/staging/agent-tokens").status_code == 403
    assert (
        send(other, "DELETE", f"{API}/agent-tokens/{made['selector']}?reason=for+a+test").status_code == 200
    )


def test_a_person_is_invited_gets_roles_and_is_deactivated(admin: Any, call: Any) -> None:
    body = {"username": "olga", "role": "operator", "environment_roles": {"production": "admin"}, **WHY}
    key = {"Idempotency-Key": "invite-olga"}
    link = admin("POST", "/api/v1/people", body, **key).json()["link"]
    assert "/welcome/" in link
    assert admin("POST", "/api/v1/people", body, **key).json()["link"] is None
    admin("PUT", "/api/v1/people/olga/roles", {"role": "viewer", **WHY})
    admin("PUT", "/api/v1/people/olga/active", {"active": False, **WHY})
    [olga] = admin("GET", "/api/v1/people").json()
    assert (olga["role"], olga["is_active"], olga["environment_roles"]) == ("viewer", False, {})
    wrong = body | {"username": "otto", "environment_roles": {"nowhere": "admin"}}
    problem(call("admin", "POST", "/api/v1/people", wrong), 422)
    # The admin of one environment manages no people.
    scoped = token_of("admin", environment="production")
    problem(send(scoped, "GET", "/api/v1/people"), 403)


def test_unchanged_content_is_answered_304(admin: Any, call: Any) -> None:
    for path in ("tenants/acme", "tenants", "breakers", "configuration", "tiers/free", "fleet"):
        first = admin("GET", path)
        again = call("admin", "GET", f"{API}/{path}", **{"If-None-Match": first["ETag"]})
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"]), path
        assert "RateLimit" in again
        assert first["Cache-Control"] == "private, no-cache"
    tag = admin("GET", "tenants")["ETag"]
    admin("PATCH", "tenants/acme", {"suspended": True, "expected_version": 1, **WHY})
    assert call("admin", "GET", f"{API}/tenants", **{"If-None-Match": tag}).status_code == 200


def test_a_rate_limited_caller_gets_retry_after(call: Any, settings: Any) -> None:
    # A request comes back each hour: none does while the test runs.
    settings.API_RATE_PER_S, settings.API_BURST = 1 / 3_600, 3
    answers = [call("viewer", "GET", f"{API}/tiers") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0]["RateLimit-Policy"] == '"caller";q=3;w=10800'
    assert [answer["RateLimit"] for answer in answers] == [
        '"caller";r=2',
        '"caller";r=1',
        '"caller";r=0',
        f'"caller";r=0;t={answers[3]["Retry-After"]}',
    ]
    assert 3_000 < int(answers[3]["Retry-After"]) <= 3_600
    problem(answers[3], 429)
    # Other callers are not slowed down by it.
    assert call("operator", "GET", f"{API}/tiers").status_code == 200


def test_an_edit_succeeds_even_when_publishing_fails(admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("an unexpected error")

    monkeypatch.setattr("controlplane.editing.revise.publish_promptly", fail)
    monkeypatch.setattr("controlplane.breakers.overrides.enforce_promptly", fail)
    admin("POST", "breakers/openai/override", {"mode": "forced_open", "expires_in_s": 60, **WHY})
    assert admin("GET", "overrides?in_force=true").json()[0]["mode"] == "forced_open"
