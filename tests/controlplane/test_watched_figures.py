"""What alert rules need besides the fleet: tokens, answers of vendors, budgets, usual hours."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts.models import AgentToken, ApiToken
from controlplane.fleet.failed_calls import STEP_S
from controlplane.fleet.live import FleetFigures, TenantFigures
from controlplane.fleet.models import FailedCalls
from controlplane.gateway.servers import failed_calls as counted
from controlplane.policies.models import Tenant, TenantQuota
from controlplane.status import read_watched
from controlplane.status.read_watched import REFUSED_ACCOUNT, TOO_MANY
from controlplane.status.watched import VendorAnswers, Watched
from fuseboard.calling import codes
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period

pytestmark = pytest.mark.django_db(transaction=True)


def read(environment: str, *tenants: str) -> Watched:
    read_watched.forget()
    busy = [TenantFigures(name, 1.0, 0.0) for name in tenants]
    return read_watched.read_watched(environment, FleetFigures(tenants=busy))


def test_the_codes_of_vendors_are_those_of_the_agent() -> None:
    of = {
        status: {code for code, its in codes._STATUS.items() if its == status}
        for status in (401, 402, 403, 429)
    }
    assert {"HTTP 429"} | of[429] == TOO_MANY
    assert {"HTTP 401", "HTTP 402", "HTTP 403"} | of[401] | of[402] | of[403] == REFUSED_ACCOUNT
    assert STEP_S == counted.STEP_S


def test_the_next_token_of_each_kind_is_found(production: str) -> None:
    now = timezone.now()
    AgentToken.objects.all().delete()
    ApiToken.objects.all().delete()

    def token(model: Any, name: str, days: float, **fields: Any) -> None:
        usual = {"selector": name, "digest": "0" * 64, "expires_at": now + timedelta(days=days)}
        model.objects.create(name=name, **usual, **fields)

    token(AgentToken, "later", 30, environment=production)
    token(AgentToken, "next", 3, environment=production)
    token(AgentToken, "old", -2, environment=production)
    token(AgentToken, "revoked", 1, environment=production, revoked_at=now)
    token(AgentToken, "other", 1, environment="staging")
    token(ApiToken, "everywhere", 9, role="viewer", environment="")
    found = read(production).expiring
    assert [(one.kind, one.name) for one in found] == [("agent token", "next"), ("API token", "everywhere")]
    assert [one.name for one in read("staging").expiring] == ["other"], "those of all are named in one"


def test_what_vendors_answered_is_of_the_last_minutes_only(production: str) -> None:
    step = int(timezone.now().timestamp()) // STEP_S * STEP_S
    kinds = [
        [step - 2 * STEP_S, {"HTTP 429": 900}],
        [step - STEP_S, {"HTTP 429": 5, "rate_limit_error": 1, "HTTP 503": 70}],
        [step, {"invalid_api_key": 2, "HTTP 403": 1}],
    ]
    usual = {"environment": production, "document": {"since": 0, "calls": [], "kinds": kinds}}
    FailedCalls.objects.create(gateway="g1", dependency="llm", **usual)
    FailedCalls.objects.create(gateway="g2", dependency="llm", **usual)
    quiet = {"since": 0, "calls": [], "kinds": [[step, {"HTTP 503": 9}]]}
    FailedCalls.objects.create(gateway="g1", environment=production, dependency="search", document=quiet)
    found = read(production).vendors
    assert set(found) == {"llm"}
    answers = found["llm"]
    assert 5 <= answers.minutes <= 10
    # No series of calls is there: at least those that were refused were made.
    assert answers == VendorAnswers(minutes=answers.minutes, calls=18, too_many=12, refused_account=6)


def test_what_is_spent_is_remembered_while_redis_does_not_answer(
    production: str, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = Tenant.objects.get(key="acme")
    TenantQuota.objects.create(
        tenant=acme,
        name="cost",
        limit=10,
        window_s=60,
        algorithm="fixed_window",
        period="day",
        measure="cents",
    )
    began, _ = period_around(int(timezone.now().timestamp() * 1_000_000), Period.DAY, "UTC")
    limits.set(keys.tenant_quota(production, "acme", "cost"), f"{began} 8")
    [spent] = [one for one in read(production).spent if one.name == "cost"]
    assert (spent.tenant, spent.share, spent.measure, spent.key) == ("acme", 0.8, "cents", "acme/cost")
    monkeypatch.setattr("controlplane.usage.budgets._texts", lambda _: None)
    monkeypatch.setattr(read_watched, "READ_AGAIN_S", 0.0)
    again = read_watched.read_watched(production, FleetFigures())
    assert [one for one in again.spent if one.name == "cost"] == [spent]


def test_a_tenant_is_usual_by_the_median_of_its_whole_hours(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hours:
        start = int((timezone.now() - timedelta(hours=24)).timestamp()) // 3600 * 3600
        known_s = (3600,) * 25
        # One hour was wild, in some nobody asked, and the one that runs does not count.
        fields: dict[str, Any] = {"asked": [36_000] * 20 + [9_999_999] + [0] * 3 + [1]}  # noqa: RUF012

    monkeypatch.setattr(read_watched, "read_hours", lambda *_, **__: Hours)
    assert read(production, "acme").usual_per_s == {"acme": 10.0}
    Hours.fields = {"asked": [None] * 14 + [36_000] * 11}
    assert read(production, "acme").usual_per_s == {}, "11 hours are not usual"
