"""A difference is written in the words of the forms: names with units, values before and after."""

from typing import Any

import pytest

from controlplane.policies.history import Changed
from controlplane.policies.models import BREAKER_RANGES
from controlplane.policies.setting_labels import BREAKER, LABELS
from dashboard.words.change_words import change_words, field_words
from dashboard.words.setting_lines import setting_words
from fuseboard.contract.limit_fields import FIELDS
from fuseboard.contract.protection_fields import CALL_SETTINGS, POD_SETTINGS

RATE: dict[str, Any] = {"algorithm": "token_bucket", "limit": 100, "window_s": 60, "burst": 1}
LIMIT: dict[str, Any] = {**RATE, "failure_policy": "fail_open", "shadow": False}
AT_ONCE: dict[str, Any] = {**LIMIT, "algorithm": "concurrency", "limit": 20}
TIER: dict[str, Any] = {"title": "", "priority": 50}


def quotas(name: str, **columns: Any) -> dict[str, Any]:
    return {f"quotas.{name}.{column}": value for column, value in columns.items()}


def lines(kind: str, before: Any, after: Any, *tiers: Any) -> list[tuple[str, str, str]]:
    found = change_words(Changed(kind, "x", before, after), *tiers)
    return [(line.name, line.before, f"{line.after} {line.share}".strip()) for line in found]


@pytest.mark.parametrize(
    ("kind", "before", "after", "shown"),
    [
        (
            "tier",
            TIER | quotas("requests", **LIMIT),
            TIER | quotas("requests", **(LIMIT | {"limit": 200, "failure_policy": "fail_closed"})),
            [
                ("requests, without Redis", "Allow", "Refuse"),
                ("requests", "100 per min, burst 1", "200 per min, burst 1 (+100 %)"),
            ],
        ),
        (
            "tenant",
            {"tier": "pro", **quotas("a.b", **LIMIT)},
            {"tier": "pro", **quotas("a.b", **LIMIT, expires_at="2030-01-31T18:00:00+01:00")},
            [("a.b, ends", "never", "31 Jan 2030 17:00 UTC")],
        ),
        (
            "tenant",
            {"tier": "pro", **quotas("r", **LIMIT, template="standard", own=["limit"])},
            {"tier": "pro", **quotas("r", **LIMIT, template="standard", own=[])},
            [("r, own values beside its template", "limit", "none")],
        ),
        ("tenant", {"tier": "pro"}, {"tier": "pro", "parent": "acme"}, [("Parent tenant", "none", "acme")]),
        (
            "template",
            {"title": "", **LIMIT},
            {"title": "", **LIMIT, "warn_percent": 80},
            [("Warn at", "no warning", "80 %")],
        ),
        (
            "template",
            {"title": "", **LIMIT},
            None,
            [("Title", "empty", ""), ("Rate", "100 per min, burst 1", "removed")],
        ),
        ("dependency", {"breaker.open_ms": 1}, {"breaker.open_ms": 2}, [("Open time", "1 ms", "2 ms")]),
        (
            "dependency",
            {"kind": "llm"},
            {"kind": "llm", "wait_ms": 50},
            [("Wait this long for room in a limit before refusing", "0 ms", "50 ms")],
        ),
        (
            "dependency",
            {"kind": "llm"},
            {"kind": "llm", "protection.bulkhead.shares": [60, 30, 10], "protection.bulkhead.borrow": True},
            [
                ("Bulkhead: lend free slots to other tiers", "off", "yes"),
                ("Bulkhead: share", "off", "critical 60 %, standard 30 %, optional 10 %"),
            ],
        ),
        (
            "environment",
            {"tuning.ramp_ms": 1_000},
            {"tuning.ramp_ms": 2_000},
            [("Ramp up after Redis returns", "1,000 ms", "2,000 ms")],
        ),
    ],
)
def test_a_change_is_in_words(kind: str, before: Any, after: Any, shown: Any) -> None:
    assert sorted(lines(kind, before, after)) == sorted(shown)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        # What cannot be compared has no percentage.
        (LIMIT, AT_ONCE, [("r", "100 per min, burst 1", "20 calls at once")]),
        (AT_ONCE, LIMIT, [("r", "20 calls at once", "100 per min, burst 1")]),
        (
            LIMIT,
            {**LIMIT, "measure": "tokens", "limit": 300},
            [("r, unit to count", "calls", "tokens"), ("r", "100 per min, burst 1", "300 per min, burst 1")],
        ),
        (
            AT_ONCE,
            {**AT_ONCE, "limit": 1, "window_s": 120},
            [
                ("r, longest time of a call", "60 s", "120 s"),
                ("r", "20 calls at once", "1 call at once (-95 %)"),
            ],
        ),
        (
            AT_ONCE,
            {**AT_ONCE, "window_s": 30},
            [("r, longest time of a call", "60 s", "30 s")],
        ),
    ],
)
def test_a_rate_and_calls_at_once_are_not_compared(before: Any, after: Any, shown: Any) -> None:
    found = lines("tier", TIER | quotas("r", **before), TIER | quotas("r", **after))
    assert sorted(found) == sorted(shown)


@pytest.mark.parametrize(
    ("before", "after", "shown", "shrinks"),
    [
        (
            {"limit": 120, "window_s": 1, "burst": 120},
            {"limit": 200, "window_s": 1, "burst": 1},
            "200 per s, burst 1 (+67 %, burst -99 %)",
            True,
        ),
        ({"burst": 5}, {"burst": 4}, "100 per min, burst 4 (burst -20 %)", True),
        ({"burst": 10}, {"limit": 50, "burst": 5}, "50 per min, burst 5 (-50 %)", True),
        ({"burst": 5}, {"limit": 150, "burst": 5}, "150 per min, burst 5 (+50 %)", False),
        ({"limit": 100_000}, {"limit": 99_999}, "99,999 per min, burst 1", True),
        (AT_ONCE, {**AT_ONCE, "limit": 10}, "10 calls at once (-50 %)", True),
        (AT_ONCE, {**AT_ONCE, "window_s": 30}, "30 s", True),
        ({"warn_percent": 80}, {"warn_percent": 70}, "70 %", True),
    ],
)
def test_the_burst_is_always_printed_and_what_shrinks_is_marked(
    before: dict[str, Any], after: dict[str, Any], shown: str, shrinks: bool
) -> None:
    states = [{"tier": "pro", **quotas("r", **{**LIMIT, **columns})} for columns in (before, after)]
    [line] = change_words(Changed("tenant", "x", *states))
    assert f"{line.after} {line.share}".strip() == shown
    assert line.shrinks is shrinks


def test_what_applies_after_a_temporary_quota_is_in_words() -> None:
    ends = LIMIT | {"expires_at": "2030-01-31T18:00:00+01:00"}
    before, after = (
        {"tier": "pro", **quotas("r", **ends, returns_to=LIMIT | {"limit": number})} for number in (5, 9)
    )
    assert lines("tenant", before, after) == [("r, afterwards", "5 per min, burst 1", "9 per min, burst 1")]


def test_a_tenant_without_an_own_quota_has_that_of_its_tier() -> None:
    own = {"tier": "pro", **quotas("requests", **(LIMIT | {"limit": 150}))}

    def tiers(name: str) -> dict[str, Any]:
        return {"requests": LIMIT} if name == "pro" else {}

    gets = ("requests", "100 per min, burst 1 (tier pro)", "150 per min, burst 1 (+50 %)")
    loses = ("requests", "150 per min, burst 1", "100 per min, burst 1 (tier pro) (-33 %)")
    assert lines("tenant", {"tier": "pro"}, own, tiers, tiers) == [gets]
    assert lines("tenant", own, {"tier": "pro"}, tiers, tiers) == [loses]
    same = {"tier": "pro", **quotas("requests", **LIMIT)}
    shared = ("requests", "100 per min, burst 1", "100 per min, burst 1 (tier pro)")
    assert lines("tenant", same, {"tier": "pro"}, tiers, tiers) == [shared], "it follows the tier from now on"
    kept = [("requests", "100 per min, burst 1 (tier pro)", "100 per min, burst 1")]
    assert lines("tenant", {"tier": "pro"}, same, tiers, tiers) == kept
    moved = lines("tenant", own, {"tier": "free"}, tiers, tiers)
    assert moved == [("requests", "150 per min, burst 1", "removed"), ("Tier", "pro", "free")]


def test_a_tenant_that_moves_shows_the_quotas_of_both_tiers() -> None:
    of = {
        "free": {"requests": LIMIT | {"limit": 4}, "exports": LIMIT, "uploads": LIMIT},
        "pro": {"requests": LIMIT | {"limit": 120, "failure_policy": "local_share"}, "exports": LIMIT},
    }
    moved = lines("tenant", {"tier": "free"}, {"tier": "pro"}, of.__getitem__, of.__getitem__)
    assert sorted(moved) == [
        ("Tier", "free", "pro"),
        ("requests", "4 per min, burst 1", "120 per min, burst 1 (+2900 %)"),
        ("requests, without Redis", "Allow", "Local share"),
        ("uploads", "100 per min, burst 1", "removed"),
    ], "exports has one value in both"
    own = quotas("requests", **LIMIT)
    kept = lines("tenant", {"tier": "free", **own}, {"tier": "pro", **own}, of.__getitem__, of.__getitem__)
    assert sorted(kept)[1:] == [("uploads", "100 per min, burst 1", "removed")], "its own quota stays"


def test_one_field_of_a_limit_is_in_words_when_the_rest_is_not_known() -> None:
    found = field_words("quotas.requests.window_s of tier pro", 60, 30)
    assert (found.name, found.before, found.after) == ("requests, window (tier pro)", "60 s", "30 s")
    assert field_words("quotas.requests.limit", None, 1_500).after == "1,500"


def test_every_field_has_words_and_its_path_is_only_a_tooltip() -> None:
    fields = [
        *(f"breaker.{column}" for column in BREAKER_RANGES),
        *(f"protection.{setting.path}" for setting in (*CALL_SETTINGS, *POD_SETTINGS)),
    ]
    assert BREAKER.keys() == BREAKER_RANGES.keys()
    assert set(fields) <= LABELS.keys()
    words = [setting_words(field) for field in fields]
    words += [setting_words(f"vendor_limits.x.{field.name}") for field in FIELDS]
    assert [text for text in words if "_" in text or "." in text] == []
    assert len(set(words)) == len(words), "two fields have the same words"
