"""Forms, plans and previews say what happens to spent calls when people change how a limit counts."""

from itertools import permutations
from typing import Any

import pytest

from controlplane.policies.carried_counts import carried, carried_words
from controlplane.policies.history import Changed

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


def test_a_bulk_edit_has_one_sentence_for_all_its_tenants() -> None:
    def quota(name: str, columns: dict[str, Any]) -> dict[str, Any]:
        return {f"quotas.{name}.{column}": value for column, value in columns.items()}

    changes = [
        Changed("tenant", f"t{number}", quota("requests", BUCKET), quota("requests", WINDOW))
        for number in range(1000)
    ]
    changes.append(Changed("tier", "free", None, quota("requests", WINDOW)))
    changes.append(Changed("template", "reads", BUCKET, SLOTS))
    assert list(carried(changes)) == [
        "tenant t0, tenant t1, tenant t2 and 997 more, requests: "
        "spent calls that are not refilled yet are carried over.",
        "template reads: slots start empty: calls in progress occupy none.",
    ]
