"""Forms, plans and previews say what happens to spent calls when people change how a limit counts."""

from itertools import permutations
from typing import Any

import pytest
from django.utils import timezone

from controlplane.editing import edits
from controlplane.editing.plans import difference, plan_from_document
from controlplane.fleet.models import Server
from controlplane.policies.carried_counts import carried, carried_words
from controlplane.policies.history import Changed
from controlplane.usage import budgets
from tests.controlplane.calling import API, send, token_of

WINDOW = {"algorithm": "sliding_window", "limit": 10, "window_s": 60}
BUCKET = {"algorithm": "token_bucket", "limit": 10, "window_s": 60, "burst": 5}
DAY = {"algorithm": "fixed_window", "limit": 10, "window_s": 86_400, "period": "day"}
SLOTS = {"algorithm": "concurrency", "limit": 10, "window_s": 60}


@pytest.mark.parametrize(("before", "after"), list(permutations((WINDOW, BUCKET, DAY, SLOTS), 2)))
def test_each_change_of_the_algorithm_has_words(before: dict[str, Any], after: dict[str, Any]) -> None:
    words = carried_words(before, after)
    if SLOTS in (before, after):
        assert "start" in words
        assert "carried over" not in words or "not carried over" in words
    else:
        assert "carried over" in words


def test_a_change_of_the_period_says_what_the_new_one_includes() -> None:
    assert carried_words(DAY, DAY | {"period": "month"}).startswith(
        "the month in UTC includes all that the day in UTC includes now, and nothing from before it"
    )
    assert "the day in Europe/Berlin includes" in carried_words(DAY, DAY | {"time_zone": "Europe/Berlin"})


@pytest.mark.parametrize("limit", [WINDOW, BUCKET, DAY, SLOTS])
def test_another_size_or_failure_policy_needs_no_words(limit: dict[str, Any]) -> None:
    assert carried_words(limit, limit | {"limit": 7, "failure_policy": "reserved", "shadow": True}) == ""


def test_another_counter_or_unit_has_words() -> None:
    assert "counting starts at 0" in carried_words(BUCKET, BUCKET | {"per": ["ip"]})
    assert "counting starts at 0" in carried_words(BUCKET, BUCKET | {"service": "shop"})
    assert "without conversion" in carried_words(BUCKET, BUCKET | {"measure": "tokens"})


@pytest.mark.django_db(transaction=True)
def test_a_bulk_edit_has_one_sentence_for_all_its_tenants(production: str) -> None:
    def quota(name: str, columns: dict[str, Any]) -> dict[str, Any]:
        return {f"quotas.{name}.{column}": value for column, value in columns.items()}

    changes = [
        Changed("tenant", f"t{number}", quota("requests", BUCKET), quota("requests", WINDOW))
        for number in range(1000)
    ]
    changes.append(Changed("tier", "free", None, quota("requests", WINDOW)))
    changes.append(Changed("template", "reads", BUCKET, SLOTS))
    assert list(carried(production, changes)) == [
        "tenant t0, tenant t1, tenant t2 and 997 more, requests: "
        "spent calls that are not refilled yet are carried over.",
        "template reads: slots start empty: calls in progress occupy none.",
    ]


@pytest.mark.django_db(transaction=True)
def test_a_plan_and_a_bulk_edit_say_it(production: str, ada: Any) -> None:
    token = token_of("admin")
    plan = (
        "tiers: {free: {quotas: {requests: {limit: 600, window_s: 60, algorithm: sliding_window, burst: 1}}}}"
    )
    planned = send(token, "POST", f"{API}/plan", plan).json()
    assert "advice" in planned, planned
    said = "tier free, requests: spent calls that are not refilled yet are carried over."
    assert planned["advice"] == [said]
    assert f"warning: {said}" in planned["text"]
    edits.create_tenant(environment=production, tenant="zenith", tier="free", reason="for a test", actor=ada)
    edits.set_tenant_quota(
        environment=production, tenant="zenith", quota="exports", expected_version=1, reason="for a test",
        actor=ada, algorithm="fixed_window", period="day", limit=10, window_s=86_400,
    )  # fmt: skip
    body = {
        "filter": {"keys": ["zenith"]},
        "change": {"quotas": {"exports": {"algorithm": "concurrency", "window_s": 60}}},
        "reason": "for a test",
    }
    bulk = send(token, "POST", f"{API}/bulk/preview", body)
    assert bulk.status_code == 200, bulk.content
    assert bulk.json()["advice"] == [
        "tenant zenith, exports: slots start empty: calls in progress occupy none."
    ]


@pytest.mark.django_db(transaction=True)
def test_a_plan_says_it_of_a_tenant_that_moves_or_gets_its_own_quota(production: str, ada: Any) -> None:
    common: dict[str, Any] = {"environment": production, "reason": "for a test", "actor": ada}
    edits.create_tenant(tenant="zenith", tier="free", **common)
    edits.create_tier(tier="windowed", title="Windowed", priority=1, **common)
    edits.set_tier_quota(tier="windowed", quota="requests", expected_version=1, **WINDOW, **common)
    said = "tenant zenith, requests: spent calls that are not refilled yet are carried over."
    own = {"quotas": {"requests": {**WINDOW, "burst": 1}}}
    for tenant in ({"tier": "windowed"}, {"tier": "free", **own}, {"tier": "windowed", **own}):
        assert difference(production, plan_from_document({"tenants": {"zenith": tenant}})).advice == [said]
    stays = plan_from_document({"tenants": {"zenith": {"title": "Zenith"}}})
    assert difference(production, stays).advice == []
    both = plan_from_document({"tenants": {"zenith": {"title": "Zenith"}}, "tiers": {"free": own}})
    assert [text.split(",")[0] for text in difference(production, both).advice] == ["tier free"]


@pytest.mark.django_db(transaction=True)
def test_a_plan_names_live_pods_with_older_scripts(production: str, ada: Any) -> None:
    now = timezone.now()
    common: dict[str, Any] = {
        "environment": production, "boot": "boot-0001", "service": "shop", "mode": "shared",
        "mode_since": now, "config_status": "applied", "config_source": "redis", "started_at": now,
        "last_seen_at": now, "due_at": now,
    }  # fmt: skip
    for name, state, carries in (
        ("old-1", "online", False),
        ("old-2", "late", False),
        ("old-3", "gone", False),
        ("new-1", "online", True),
    ):
        Server.objects.create(name=name, state=state, carries_counts=carries, **common)
    changed, same = (
        f"tiers: {{free: {{quotas: {{requests: {{limit: 600, window_s: 60, {more}}}}}}}}}"
        for more in ("algorithm: sliding_window, burst: 1", "burst: 7")
    )
    token = token_of("admin")
    *_, said = send(token, "POST", f"{API}/plan", changed).json()["advice"]
    assert said.startswith("2 pods run an older agent (old-1, old-2): after this change they may refuse")
    assert send(token, "POST", f"{API}/plan", same).json()["advice"] == []


@pytest.mark.parametrize(
    ("text", "spent"),
    [("1000 8", 8), ("1500 8", 8), ("2000 8", 0), ("900 8", 0), (None, 0), ("a ring", None)],
)
def test_a_budget_shows_what_a_shorter_period_has_counted(text: str | None, spent: int | None) -> None:
    assert budgets._spent(text, 1000, 2000) == spent
