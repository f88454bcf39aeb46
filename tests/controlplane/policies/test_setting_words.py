"""The names of settings in forms, differences and advice: what an operator understands without the code."""

import pytest

from controlplane.policies.limit_fields import WORDS
from controlplane.policies.setting_labels import LABELS, name_and_unit
from fuseboard.contract.limit_fields import FIELDS
from fuseboard.contract.protection_fields import CALL_SETTINGS, POD_SETTINGS

#: Field -> its label. Reviewers did not understand those before: "Traffic grows for", "Borrow", "Measure".
SAID = {
    "wait_ms": "Wait this long for room in a limit before refusing, ms",
    "breaker.slow_start_ms": "Ramp up after closing over, ms",
    "breaker.probe_lease_ms": "Give up on a probe after, ms",
    "breaker.minimum_servers": "Pods that must see failures before it opens",
    "breaker.window_calls": "Newest calls that count (0: all)",
    "breaker.minimum_calls": "Least calls before a percentage can open it",
    "protection.tier": "Default priority of calls",
    "protection.bulkhead.borrow": "Bulkhead: lend free slots to other tiers",
    "protection.bulkhead.adaptive": "Bulkhead: adjust queues by waiting time",
    "protection.bulkhead.resize_under_pressure": "Bulkhead: shrink under pressure",
    "protection.retry.floor_milli": "Retries: extra retries, per second",
    "protection.retry.default_retry_after_ms": "Retries: wait after a 429 without Retry-After, ms",
    "protection.retry.idempotent": "Retries: safe to repeat",
    "protection.shedding.queue_max": "Shedding: shed when calls waiting exceed",
    "protection.shedding.p95_percent": "Shedding: shed when p95 exceeds, % of the SLA",
    "protection.shedding.shed_hard_at": "Shedding: refuse all but the highest tier when pressure exceeds, %",
    "protection.observe.shedding_until_us": "Trial mode of shedding",
}
SAID_OF_LIMITS = {
    "lease_above": "Use leases above, calls per second",
    "reserved_percent": "Part usable without Redis, percent",
    "per": "Count separately per",
    "measure": "Unit to count",
}


@pytest.mark.parametrize("field", SAID)
def test_a_setting_has_the_label_that_reviewers_understood(field: str) -> None:
    assert LABELS[field] == SAID[field]


@pytest.mark.parametrize("field", SAID_OF_LIMITS)
def test_a_field_of_a_limit_has_the_label_that_reviewers_understood(field: str) -> None:
    assert WORDS[field].label == SAID_OF_LIMITS[field]


@pytest.mark.parametrize("field", [*LABELS, *(each.name for each in FIELDS)])
def test_no_label_is_the_name_of_a_column(field: str) -> None:
    label = LABELS[field] if field in LABELS else WORDS[field].label
    name, unit = name_and_unit(label)
    assert name[:1].isupper()
    assert "_" not in label
    assert not name.endswith((" ms", " us", " milli", " percent")), "a unit comes after a comma"
    assert unit or ", ms" not in label


def test_every_setting_has_a_label() -> None:
    settings = {f"protection.{setting.path}" for setting in (*CALL_SETTINGS, *POD_SETTINGS)}
    assert settings <= LABELS.keys()
    assert {each.name for each in FIELDS} <= WORDS.keys()
