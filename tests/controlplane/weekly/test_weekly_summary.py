"""The weekly summary from recorded series: what it finds, what it suggests, and what it does not know."""

import json
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from controlplane.alerts.models import Alert
from controlplane.breakers.models import Transition
from controlplane.editing.edits import create_environment
from controlplane.erasure import erase
from controlplane.errors import InvalidEdit
from controlplane.policies.models import Dependency, Tenant, Tier, TierQuota
from controlplane.series import partitions
from controlplane.series.kinds import ABOUT_HOUR, DEPENDENCY, RULE, Kind, tenant_number, tenant_part
from controlplane.series.models import Entity, Writer
from controlplane.series.partitions import SPANS_1H
from controlplane.weekly import keep
from controlplane.weekly.keep import WEEKS_KEPT, forget, last_week, make_due, make_summary
from controlplane.weekly.markdown import as_markdown
from controlplane.weekly.models import WeeklySummary
from controlplane.weekly.sections import Line
from controlplane.weekly.summarize import OFTEN, summarize
from tests.controlplane.alerts.test_alert_evaluator import ADA
from tests.controlplane.calling import API, send, token_of

BEGINS = date(2026, 5, 4)
START = datetime(2026, 5, 4, tzinfo=UTC)
TITLES = ("tenants", "breakers", "too_low", "never", "bulkheads", "flapping")


def sections(environment: str = "production") -> dict[str, dict[str, Any]]:
    with transaction.atomic():
        return dict(zip(TITLES, summarize(environment, BEGINS), strict=True))


def tenant_hour(hour: int, counted: dict[str, tuple[int, int]], *, partial: bool = False) -> None:
    """What a gateway wrote of all tenants in one hour."""
    writer, _ = Writer.objects.get_or_create(
        gateway="g1", environment="production", defaults={"started_at": START}
    )
    at = START + timedelta(hours=hour)
    rows: dict[int, list[tuple[int, int, int]]] = {ABOUT_HOUR: []}
    for tenant, (asked, refused) in counted.items():
        number = tenant_number(tenant)
        rows.setdefault(tenant_part(number), []).append((number, asked, refused))
    with connection.cursor() as cursor:
        for part, things in rows.items():
            ids, asked_for, refused_to = ([thing[place] for thing in things] for place in range(3))
            cursor.execute(
                "INSERT INTO series_tenant_hour VALUES (%s, %s, %s, 3600, %s, %s, %s, %s)",
                [part, at, writer.pk, partial, ids, asked_for, refused_to],
            )


def sealed_day(kind: Kind, name: str, sub: str, hours: dict[int, dict[str, int]]) -> None:
    """Sealed hours of the first day of the week."""
    entity = Entity.objects.create(
        environment="production", kind=kind.number, name=name, sub=sub, first_at=START, last_at=START
    )
    across = SPANS_1H.across
    values: list[int | None] = [360 if hour in hours else None for hour in range(across)]
    for field in kind.fields:
        values += [hours[hour].get(field.name, 0) if hour in hours else None for hour in range(across)]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO series_1h (entity, day, v) VALUES (%s, %s, %s)", [entity.pk, START, values]
        )


def quota(tier: str, limit: int, **columns: Any) -> TierQuota:
    row = Tier.objects.get(environment="production", name=tier)
    row.quotas.all().delete()
    return TierQuota.objects.create(
        tier=row, **{"name": "requests", "limit": limit, "window_s": 60, "burst": 1, **columns}
    )


@pytest.fixture
def may(production: str) -> str:
    """Partitions of the month of the week."""
    partitions.ensure(START)
    return production


def test_without_figures_everything_measured_is_unknown(production: str) -> None:
    found = sections()
    assert all(section["lines"] == () for section in found.values())
    for name in ("tenants", "too_low", "never", "bulkheads"):
        assert found[name]["nothing"].startswith("Unknown: "), name
    assert found["tenants"]["known"] == "Measured in 0 of 168 hours."


def test_tenants_are_by_refused_requests_of_the_week_alone(production: str) -> None:
    tenant_hour(-1, {"acme": (500, 400)})
    tenant_hour(0, {"acme": (1_000, 20), "quiet": (300, 0), "stranger": (90, 60)})
    tenant_hour(167, {"acme": (1_000, 30)}, partial=True)
    tenant_hour(168, {"acme": (500, 400)})
    tenants = sections()["tenants"]
    assert [(line["name"], line["found"], line["key"]) for line in tenants["lines"]] == [
        ("a caller that is not registered", "60 of 90 refused, 66.7 %", ""),
        ("acme", "50 of 2,000 refused, 2.5 %", "acme"),
    ]
    assert tenants["known"] == "Measured in 2 of 168 hours; some tenants are missing in 1 of them."


def test_a_long_list_is_cut_and_counted(production: str) -> None:
    tenant_hour(3, {f"t-{number}": (100, number) for number in range(1, 31)})
    tenants = sections()["tenants"]
    assert (len(tenants["lines"]), tenants["more"]) == (20, 10)
    assert tenants["lines"][0]["found"] == "30 of 100 refused, 30 %"


def test_a_breaker_is_open_until_its_next_transition_also_over_the_ends_of_the_week(production: str) -> None:
    dependency = Dependency.objects.filter(environment="production").order_by("name")[0]
    for generation, (hours, state) in enumerate(
        [
            (-2, "open"),
            (1, "closed"),
            (10, "open"),
            (12, "half_open"),
            (13, "closed"),
            (167, "open"),
            (171, "closed"),
        ]
    ):
        Transition.objects.create(
            dependency=dependency,
            generation=generation + 1,
            at=START + timedelta(hours=hours),
            from_state="closed",
            to_state=state,
            cause="ratio",
        )
    (line,) = sections()["breakers"]["lines"]
    assert (line["name"], line["found"]) == (dependency.name, "open for 4 h, opened 2 times")


def test_a_quota_that_refuses_is_too_low_and_the_size_is_filled_in(may: str) -> None:
    tier = Tenant.objects.get(environment=may, key="acme").tier
    quota(tier.name, 100)
    sealed_day(RULE, "acme", "requests", {9: {"asked": 9_000, "refused": 900}, 10: {"asked": 1_000}})
    found = sections()
    (line,) = found["too_low"]["lines"]
    # 100 * 10,000 / 9,100 is 110; the busiest hour asked 150 per minute.
    assert line == {
        **_line(line),
        "name": f"requests of tier {tier.name}",
        "found": "900 of 10,000 refused, 9 %; limit 100 per 1 min; 1 tenant",
        "suggestion": "Raise it to at least 150.",
        "opens": "tier",
        "key": tier.name,
        "limit": "requests",
        "size": 150,
    }
    assert found["never"]["lines"] == ()


def _line(line: dict[str, Any]) -> dict[str, Any]:
    assert set(line) == set(Line.__dataclass_fields__)
    return line


@pytest.mark.parametrize(
    ("limit", "columns", "suggested"),
    [
        (1_000, {}, 300),
        # Twice the busiest hour needs this limit, or half of it is used.
        (300, {}, None),
        (250, {}, None),
        # Hours say nothing about these.
        (1_000, {"window_s": 86_400}, None),
        (1_000, {"measure": "tokens"}, None),
    ],
)
def test_a_quota_that_is_never_reached_is_suggested_smaller(
    may: str, limit: int, columns: dict[str, Any], suggested: int | None
) -> None:
    tier = Tenant.objects.get(environment=may, key="acme").tier
    quota(tier.name, limit, **columns)
    sealed_day(RULE, "acme", "requests", {9: {"asked": 9_000}})
    never = sections()["never"]
    assert [line["size"] for line in never["lines"]] == ([suggested] if suggested else [])
    assert never["nothing"].startswith("Unknown") == bool(columns)


def test_a_bulkhead_that_refuses_calls_is_suggested_larger(may: str) -> None:
    dependency = Dependency.objects.filter(environment=may).order_by("name")[0]
    Dependency.objects.filter(pk=dependency.pk).update(protection={"bulkhead": {"max_concurrent": 20}})
    sealed_day(
        DEPENDENCY, dependency.name, "", {9: {"ok": 8_000, "critical_full": 1_500, "standard_timed_out": 500}}
    )
    (line,) = sections()["bulkheads"]["lines"]
    assert line["found"] == (
        "its bulkhead refused 2,000 of 10,000 calls, 20 %; 20 slots per pod; measured in 1 of 168 hours"
    )
    assert (line["size"], line["opens"]) == (25, "dependency")


def test_alerts_that_fire_often_or_flapped_are_listed(production: str) -> None:
    def fired(key: str, hour: int, **fields: Any) -> None:
        at = START + timedelta(hours=hour)
        Alert.objects.create(
            environment="production",
            key=key,
            level=2,
            severity="warning",
            worst="warning",
            state="resolved",
            true_since=at,
            level_since=at,
            fired_at=at,
            resolved_at=at + timedelta(minutes=6),
            text="",
            subject_kind="fleet",
            **fields,
        )

    for hour in range(5):
        fired("local", hour)
    for hour in range(4):
        fired("refused", hour)
    fired("lag", 1, flapping_since=START)
    for hour in range(168, 175):
        fired("next-week", hour)
    lines = sections()["flapping"]["lines"]
    assert [(line["name"], line["found"]) for line in lines] == [
        ("local", "fired 5 times, for 30 min in all"),
        ("lag", "fired 1 time, for 6 min in all; it flapped"),
    ]


def test_the_number_of_statements_does_not_depend_on_the_number_of_tenants(may: str) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries, transaction.atomic():
            summarize(may, BEGINS)
        return len(queries)

    before = statements()
    tenant_hour(1, {f"t-{number}": (10, 5) for number in range(500)})
    sealed_day(RULE, "acme", "requests", {9: {"asked": 9_000}})
    # One for the tenants that were not measured before.
    assert statements() == before + 1 <= 15


def test_a_week_is_made_once_and_the_last_13_are_kept(production: str) -> None:
    monday = datetime(2026, 5, 11, 0, 31, tzinfo=UTC)
    assert last_week(monday - timedelta(minutes=2)) == date(2026, 4, 27)
    assert last_week(monday) == BEGINS
    assert make_due(monday) == make_due(monday) + 1 == 1
    for week in range(1, 20):
        WeeklySummary.objects.create(
            environment="production", begins=BEGINS - timedelta(weeks=week), sections=[]
        )
    forget(monday)
    kept = WeeklySummary.objects.order_by("begins").values_list("begins", flat=True)
    assert (len(kept), kept[0]) == (WEEKS_KEPT, BEGINS - timedelta(weeks=12))
    for wrong in (BEGINS + timedelta(days=1), BEGINS + timedelta(weeks=1)):
        with pytest.raises(InvalidEdit):
            make_summary("production", wrong, monday)


def test_no_summary_names_a_tenant_that_was_erased(production: str) -> None:
    tenant_hour(1, {"acme": (10, 5), "globex": (10, 4)})
    for key in ("runaway-tenant:acme", "hot-key:acme/requests", "runaway-tenant:acme-two"):
        for hour in range(OFTEN):
            Alert.objects.create(
                environment=production,
                key=key,
                level=2,
                severity="warning",
                worst="warning",
                state="resolved",
                text="x",
                subject_kind="tenant",
                true_since=START,
                level_since=START,
                fired_at=START + timedelta(hours=hour),
                resolved_at=START + timedelta(hours=hour, minutes=1),
            )
    make_summary(production, BEGINS)
    erase(environment=production, kind="tenant", value="acme", reason="ticket PRIV-12", actor=ADA)
    [summary] = WeeklySummary.objects.all()
    keys = [line["key"] for section in summary.sections for line in section["lines"]]
    assert keys == ["", "runaway-tenant:acme-two"], "of one that is not registered, no name is stored"


def test_an_environment_that_fails_keeps_no_other_from_its_summary(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_environment(environment="a-first", reason="Tests come first", actor=ADA)

    def fails_first(environment: str, begins: date) -> list[dict[str, Any]]:
        if environment == "a-first":
            raise OperationalError("canceling statement due to statement timeout")
        return []

    monkeypatch.setattr(keep, "summarize", fails_first)
    with pytest.raises(ExceptionGroup):
        make_due(datetime(2026, 5, 11, 0, 31, tzinfo=UTC))
    assert [one.environment for one in WeeklySummary.objects.all()] == [production]


def test_markdown_has_every_line_and_no_name_is_a_link(production: str) -> None:
    tenant_hour(1, {"acme": (10, 5)})
    Tenant.objects.filter(key="acme").update(title="[x](http://evil)")
    text = as_markdown(make_summary("production", BEGINS))
    assert text.startswith("# Week of 2026-05-04 to 2026-05-10, UTC: production\n")
    assert "- **acme**: 5 of 10 refused, 50 %." in text
    assert "No breaker was open." in text


def test_a_command_makes_one_on_demand(production: str) -> None:
    out = StringIO()
    call_command("weekly_summary", "production", "--week", "2026-05-04", stdout=out)
    assert out.getvalue().startswith("# Week of 2026-05-04")
    assert WeeklySummary.objects.get().begins == BEGINS
    for arguments, says in (
        (("nowhere",), "There is no environment nowhere"),
        (("production", "--week", "2026-05-05"), "Enter the Monday"),
        (("production", "--week", "may"), "is not a day"),
    ):
        with pytest.raises(CommandError, match=says):
            call_command("weekly_summary", *arguments, stdout=out)


def test_the_api_returns_a_week_or_the_newest(production: str) -> None:
    make_summary("production", BEGINS)
    address = f"{API}/weekly-summary"
    newest = send(token_of("viewer"), "GET", address)
    assert json.loads(newest.content)["begins"] == "2026-05-04"
    assert send(token_of("viewer"), "GET", f"{address}?week=2026-05-04").content == newest.content
    assert send(token_of("viewer"), "GET", f"{address}?week=2026-04-27").status_code == 404
