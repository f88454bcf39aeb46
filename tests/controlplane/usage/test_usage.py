"""Demand stored in rollups, and an edit replayed on it."""

from datetime import UTC, datetime, timedelta
from time import process_time
from typing import Any

import pytest
from django.db.models import F, Sum
from django.utils import timezone

from controlplane.editing import edits
from controlplane.editing.plans import plan_from_document
from controlplane.fleet.models import Figures
from controlplane.usage.models import Demand, RuleDemand
from controlplane.usage.replay import counts_requests, replay
from controlplane.usage.rollups import forget, roll_up, sample
from controlplane.usage.what_if import what_if, what_if_shadow

WHY: dict[str, Any] = {"environment": "production", "reason": "for a test"}
BUCKET = {"limit": 60, "window_s": 60, "burst": 30, "algorithm": "token_bucket"}


def put(tenant: str, *, asked: int, refused: int = 0, minutes_ago: int = 60, count: int = 1) -> None:
    """Demand of a tenant, which is also part of the total."""
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    for number in range(count):
        span: Any = {"environment": "production", "grain_s": 60, "at": start + timedelta(minutes=number)}
        Demand.objects.create(tenant=tenant, asked=asked, refused=refused, **span)
        whole, _ = Demand.objects.get_or_create(tenant="", defaults={"asked": 0, "refused": 0}, **span)
        Demand.objects.filter(pk=whole.pk).update(asked=F("asked") + asked, refused=F("refused") + refused)


def measure(gateway: str, requests: float, refused: float) -> None:
    row = {"tenant": "acme", "requests_per_s": requests, "refused_per_s": refused}
    rule = {"tenant": "acme", "rule": "requests", "asked_per_s": requests, "refused_per_s": refused}
    Figures.objects.update_or_create(
        gateway=gateway,
        environment="production",
        defaults={
            "document": {**row, "tenants": [], "usage": [row], "rules": [rule | {"shadow_per_s": 0.5}]},
            "at": timezone.now(),
        },
    )


def test_samples_of_all_gateways_are_added_and_rolled_up(production: str) -> None:
    measure("g1", 4.0, 1.0)
    measure("g2", 2.0, 0.0)
    # Two minutes of it; each is rolled up twice, as two workers would.
    start = timezone.now().replace(second=0, microsecond=0)
    for seconds in range(0, 120, 10):
        Figures.objects.update(at=start + timedelta(seconds=seconds))
        sample(start + timedelta(seconds=seconds, milliseconds=300))
        sample(start + timedelta(seconds=seconds, milliseconds=900))
    roll_up(start + timedelta(minutes=2))
    roll_up(start + timedelta(minutes=2))
    rows = Demand.objects.filter(tenant="acme")
    assert list(rows.filter(grain_s=60).order_by("at").values_list("asked", "refused")) == [(360, 60)] * 2
    for grain in (10, 60, 3600):
        sums = rows.filter(grain_s=grain).aggregate(asked=Sum("asked"), refused=Sum("refused"))
        assert sums == {"asked": 720, "refused": 120}, grain
        [rule] = (
            RuleDemand.objects.filter(grain_s=grain)
            .values("tenant", "rule")
            .annotate(asked=Sum("asked"), refused=Sum("refused"), shadow=Sum("shadow"))
        )
        assert rule == {"tenant": "acme", "rule": "requests", "shadow": 120, **sums}, grain


def test_a_stopped_gateway_does_not_count(production: str) -> None:
    measure("g1", 4.0, 1.0)
    assert sample(timezone.now() + timedelta(minutes=1)) == 0
    assert not Demand.objects.exists()


def test_each_span_is_kept_as_long_as_configured(production: str, settings: Any) -> None:
    settings.USAGE_KEPT_10S_H, settings.USAGE_KEPT_MINUTES_D, settings.USAGE_KEPT_HOURS_D = 1, 2, 3
    now = timezone.now()
    for grain, age in ((10, 1.0), (60, 48.0), (3600, 72.0)):
        for hours in (age - 0.5, age + 0.5):
            Demand.objects.create(
                environment="production",
                tenant="acme",
                grain_s=grain,
                at=now - timedelta(hours=hours),
                asked=1,
                refused=0,
            )
    old = RuleDemand(environment="production", rule="requests", grain_s=10, at=now - timedelta(hours=2))
    old.asked = old.refused = old.shadow = 0
    old.save()
    assert forget(now) == 4
    assert (Demand.objects.count(), RuleDemand.objects.count()) == (3, 0)


@pytest.mark.parametrize(
    ("limits", "demand", "refused"),
    [
        ([BUCKET], [90, 60, 61], [0, 0, 1]),
        ([BUCKET], [0, 100, 60], [0, 10, 0]),
        ([BUCKET | {"limit": 0}], [40, 1], [10, 1]),
        ([{"limit": 100, "window_s": 3600, "algorithm": "sliding_window"}], [60, 60, 60], [0, 20, 60]),
        ([{"limit": 2, "window_s": 1, "algorithm": "sliding_window"}], [130], [10]),
        (
            [{"limit": 100, "window_s": 86_400, "algorithm": "fixed_window", "period": "day"}],
            [70, 70],
            [0, 40],
        ),
        ([BUCKET, {"limit": 50, "window_s": 60, "algorithm": "sliding_window"}], [80], [30]),
        ([], [1_000_000], [0]),
    ],
)
def test_demand_is_put_through_limits_minute_by_minute(
    limits: list[Any], demand: list[int], refused: list[int]
) -> None:
    noon = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp())
    found = replay([(noon + 60 * number, count) for number, count in enumerate(demand)], limits)
    allowed = [demand[number] - refused[number] for number in range(len(demand))]
    assert list(found.allowed.values()) == allowed
    assert (found.asked, found.refused) == (sum(demand), sum(refused))


def test_a_bucket_fills_again_while_nobody_asks() -> None:
    found = replay([(6000, 90), (6060, 90), (12_000, 90)], [BUCKET])
    assert list(found.allowed.values()) == [90, 60, 90]


def test_limits_of_something_else_than_requests_are_left_out() -> None:
    assert counts_requests(BUCKET)
    for more in ({"measure": "tokens"}, {"per": ["user"]}, {"dependency": "x"}, {"endpoints": ["/a"]}):
        assert not counts_requests(BUCKET | more)
    assert not counts_requests(BUCKET | {"algorithm": "concurrency"})


def test_an_edit_is_replayed_on_the_last_days(production: str) -> None:
    edits_of = {"tenants": {"acme": {"quotas": {"requests": {"limit": 600, "window_s": 60, "burst": 1}}}}}
    put("acme", asked=1_500, refused=450, count=10)
    put("other", asked=2_400, count=10)
    put("acme", asked=9_000, minutes_ago=60 * 24 * 8)
    found = what_if("production", plan_from_document(edits_of))
    [acme] = found.tenants
    # Its tier allows 1,000 a minute, and a burst of 100 once.
    assert (acme.asked, acme.refused_before) == (15_000, 15_000 - 10 * 1_000 - 100)
    assert acme.refused_after == 15_000 - 10 * 600 - 1
    assert found.peak_before == (1_100 + 2_400) / 60
    assert found.peak_after == (601 + 2_400) / 60
    assert found.others_at_peak == 40.0
    assert (found.minutes_known, found.unmeasured) == (10, 0)
    assert found.rules == ()

    # An edit of a limit is replayed on the requests under that limit, also when it has endpoints.
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=60)
    for minute in range(10):
        span: Any = {"environment": "production", "grain_s": 60, "at": start + timedelta(minutes=minute)}
        RuleDemand.objects.create(tenant="acme", rule="exports", asked=90, refused=0, shadow=0, **span)
    limit = {"limit": 60, "window_s": 60, "burst": 1, "endpoints": ["GET /exports"]}
    found = what_if("production", plan_from_document({"tenants": {"acme": {"quotas": {"exports": limit}}}}))
    [exports] = found.rules
    assert (exports.rule, exports.asked, exports.refused_before, exports.refused_after) == (
        "exports",
        900,
        0,
        900 - 10 * 60 - 1,
    )
    assert found.refused_after == found.refused_before + 299


def test_a_tier_is_replayed_for_tenants_that_use_it(production: str, ada: Any) -> None:
    edits.create_tenant(tenant="own", tier="pro", actor=ada, **WHY)
    edits.set_tenant_quota(
        tenant="own",
        quota="requests",
        limit=10,
        window_s=60,
        burst=1,
        expected_version=None,
        actor=ada,
        **WHY,
    )
    for tenant in ("acme", "own", "stranger"):
        put(tenant, asked=500)
    plan = plan_from_document({"tiers": {"pro": {"quotas": {"requests": {"limit": 100, "burst": 1}}}}})
    found = what_if("production", plan)
    assert [one.tenant for one in found.tenants] == ["acme"]
    assert (found.refused_before, found.refused_after) == (0, 500 - 101)
    found = what_if("production", plan_from_document({"tenants": {"acme": {"suspended": True}}}))
    assert found.refused_after == 500
    found = what_if("production", plan_from_document({"tenants": {"quiet": {"tier": "pro"}}}))
    assert (found.tenants, found.unmeasured) == ((), 1)


def test_a_shadow_limit_reports_what_it_would_have_refused(production: str, ada: Any) -> None:
    put("acme", asked=500, count=3)
    edits.set_tenant_quota(
        tenant="acme",
        quota="requests",
        limit=100,
        window_s=60,
        burst=1,
        shadow=True,
        expected_version=None,
        actor=ada,
        **WHY,
    )
    found = what_if_shadow("production", "acme", "requests")
    assert (found.asked, found.refused_before, found.refused_after) == (1_500, 0, 1_500 - 301)


def test_a_week_is_replayed_within_a_request(production: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO usage_demand (environment, tenant, grain_s, at, asked, refused)"
            " SELECT 'production', tenant, 60, m, 1200, 7 FROM unnest('{acme,other,\"\"}'::text[]) tenant,"
            " generate_series(date_trunc('minute', now()) - interval '6 days', now(), '1 minute') m"
        )
    plan = plan_from_document({"tenants": {"acme": {"quotas": {"requests": {"limit": 600, "window_s": 60}}}}})
    # CPU time of this process alone: other processes may keep the machine busy.
    began = process_time()
    found = what_if("production", plan)
    assert found.asked > 8_000 * 1_200
    assert process_time() - began < 10.0
