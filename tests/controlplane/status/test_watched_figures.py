"""What alert rules need besides the fleet: tokens, answers of vendors, budgets, usual hours."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from controlplane.accounts.models import AgentToken, ApiToken
from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.models import Alert
from controlplane.alerts.state.evaluate import evaluate, is_blind
from controlplane.fleet.failed_calls import STEP_S
from controlplane.fleet.live import FleetFigures, RuleFigures, TenantFigures
from controlplane.fleet.models import FailedCalls
from controlplane.gateway.servers import failed_calls as counted
from controlplane.policies.models import Dependency, Tenant, TenantQuota, TierQuota, VendorLimit
from controlplane.series.kinds import ABOUT_HOUR, tenant_number, tenant_part
from controlplane.series.models import Writer
from controlplane.series.tenant_hours import read_hourly_rates
from controlplane.status import read_watched
from controlplane.status.read_watched import REFUSED_ACCOUNT, TOO_MANY
from controlplane.status.status import status_of
from controlplane.status.watched import Expiry, VendorAnswers, Watched
from fuseboard.calling import vendor_codes
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period
from tests.controlplane.alerts.alert_facts import NOW, figures
from tests.controlplane.alerts.backlog_alert_cases import backlog
from tests.controlplane.alerts.test_alert_evaluator import measure

pytestmark = pytest.mark.django_db(transaction=True)


def read(environment: str, *tenants: str) -> Watched:
    read_watched.forget()
    busy = [TenantFigures(name, 1.0, 0.0) for name in tenants]
    return read_watched.read_watched(environment, FleetFigures(tenants=busy))


def test_the_codes_of_vendors_are_those_of_the_agent() -> None:
    of = {
        status: {code for code, its in vendor_codes._STATUS.items() if its == status}
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


@pytest.mark.parametrize(
    ("days", "words"),
    [(-0.5, "has expired"), (0.5, "expires in less than a day"), (1.5, "expires in 1 day")],
)
def test_the_words_of_what_expires(days: float, words: str) -> None:
    facts = figures()
    one = Expiry(kind="agent token", name="ci", at=facts.now + days * 86_400)
    status = status_of(replace(facts, watched=Watched(expiring=(one,))))
    assert [found.text for found in evaluate(status) if found.key.startswith("token")] == [
        f"Agent token ci {words}"
    ]


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
    [first] = again.blind
    assert (first.source, first.because) == ("budgets", "Redis does not answer")
    [second] = read_watched.read_watched(production, FleetFigures()).blind
    assert second.since == first.since, "it lasts"
    monkeypatch.undo()
    assert read(production).blind == ()


def test_quotas_of_many_tenants_do_not_push_out_budgets_of_vendors(
    production: str, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar: dict[str, Any] = {"limit": 10, "window_s": 60, "algorithm": "fixed_window", "period": "day"}
    TenantQuota.objects.create(tenant=Tenant.objects.get(key="acme"), name="day", **calendar)
    dependency = Dependency.objects.filter(environment=production).order_by("name")[0]
    VendorLimit.objects.create(dependency=dependency, name="contract", **calendar)
    monkeypatch.setattr("controlplane.usage.budgets.MAX_BUDGETS", 1)
    assert [one.name for one in read(production).spent] == ["contract"]


def write_hours(environment: str, gateway: str, asked: dict[str, list[int | None]]) -> None:
    """The whole hours before now, the newest last; ``None`` is an hour without a row of the tenant."""
    this_hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    writer = Writer.objects.create(gateway=gateway, environment=environment, started_at=this_hour)
    length = max(map(len, asked.values()))
    rows: list[tuple[int, Any, list[int], list[int]]] = [
        (ABOUT_HOUR, this_hour - timedelta(hours=back), [], []) for back in range(length)
    ]
    for tenant, hours in asked.items():
        number = tenant_number(tenant)
        for back, value in enumerate(reversed(hours)):
            if value is not None:
                rows.append((tenant_part(number), this_hour - timedelta(hours=back), [number], [value]))
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO series_tenant_hour VALUES (%s, %s, %s, 3600, false, %s, %s, %s)",
            [(part, hour, writer.pk, ids, counts, [0] * len(ids)) for part, hour, ids, counts in rows],
        )


def test_a_tenant_is_usual_by_the_median_of_its_whole_hours(
    production: str, django_assert_num_queries: Any
) -> None:
    # One hour was wild, in some the tenant did not ask, and the last one, which runs, does not count.
    acme = [36_000] * 20 + [9_999_999] + [0] * 3 + [1]
    write_hours(production, "g1", {"acme": acme, "new": [None] * 13 + [36_000] * 11 + [36_000]})
    # A second gateway measured the same time, and got some of the requests.
    write_hours(production, "g2", {"acme": [7_200] * 20 + [None] * 5})
    assert read(production, "acme", "new").usual_per_s == {"acme": 12.0}, "11 hours are not usual"
    with django_assert_num_queries(1):
        read_hourly_rates(
            production, ["acme", "new", "x"], start=timezone.now() - timedelta(days=7), end=timezone.now()
        )


def test_a_figure_that_cannot_be_read_stays_and_stops_no_evaluation(
    production: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    AgentToken.objects.create(
        environment=production, name="next", selector="next", digest="0" * 64, expires_at=timezone.now()
    )
    before = read(production)
    assert before.expiring

    def too_slow(*_: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(1)")

    monkeypatch.setattr(read_watched, "READ_AGAIN_S", 0.0)
    monkeypatch.setattr(read_watched, "_vendors", too_slow)
    for variable in ("FUSEBOARD_TLS_CERT_FILE", "FUSEBOARD_TLS_KEY_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "being-replaced.pem"))
    with transaction.atomic():
        again = read_watched.read_watched(production, FleetFigures())
        assert Tenant.objects.exists(), "the transaction goes on"
    assert (again.vendors, again.expiring) == (before.vendors, before.expiring)
    assert {one.source: one.because for one in again.blind} == {
        "series": "a reading ended with OperationalError; the log has more",
        "tokens": "a reading ended with ImproperlyConfigured; the log has more",
    }
    quiet, gone = figures(), ("runaway-tenant:acme", "vendor-auth:llm", "token:api-token")
    assert [is_blind(status_of(replace(quiet, blind=again.blind)), key) for key in gone] == [True] * 3
    assert not is_blind(status_of(replace(quiet, blind=again.blind)), "quota:acme/cost")


def test_a_backlog_that_was_not_read_lately_ends_no_alert() -> None:
    key = "backlog-untaken:payments-api"
    assert [is_blind(status_of(backlog(read_at=NOW - age_s)), key) for age_s in (30, 31)] == [False, True]


def test_a_spent_quota_of_a_tier_is_known_after_its_tenant_has_stopped(
    production: str, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a tenant that gives up nor an answer of Redis that is an error resolves the alert."""
    acme = Tenant.objects.get(key="acme")
    TierQuota.objects.create(
        tier=acme.tier, name="month", limit=10, window_s=60, algorithm="fixed_window", period="day"
    )
    began, _ = period_around(int(timezone.now().timestamp() * 1_000_000), Period.DAY, "UTC")
    key = keys.tenant_quota(production, "acme", "month")
    limits.set(key, f"{began} 10")
    monkeypatch.setattr(read_watched, "READ_AGAIN_S", 0.0)
    read_watched.forget()
    rule = RuleFigures(tenant="acme", rule="month", asked_per_s=1.0, refused_per_s=1.0, shadow_per_s=0.0)

    def spent(*rules: RuleFigures) -> list[int]:
        found = read_watched.read_watched(production, FleetFigures(rules=list(rules))).spent
        return [one.spent for one in found if one.key == "acme/month"]

    assert spent() == [], "of tenants that ask now"
    assert spent(rule) == [10]
    assert spent() == [10]
    with monkeypatch.context() as patched:
        patched.setattr("controlplane.usage.budgets._texts", lambda names: dict.fromkeys(names, OSError()))
        assert spent() == [10]
    measure(0.0, rules=[vars(rule)])
    # Another worker, which has never seen this tenant: its alert is open.
    evaluate_environment(production)
    alert = Alert.objects.get(key="quota:acme/month")
    Alert.objects.update(state="firing", fired_at=timezone.now())
    measure(0.0)
    read_watched.forget()
    evaluate_environment(production)
    alert.refresh_from_db()
    assert (alert.state, alert.subject_name) == ("firing", "acme")
