"""Callers that are refused most, by digest: each caller once, whatever refused it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.refusals.callers import most_refused
from controlplane.refusals.models import RefusalSample

pytestmark = pytest.mark.django_db(transaction=True)
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def sample(minutes_ago: float, weight: float, **fields: Any) -> None:
    usual = {"reason": "quota", "mode": "shared", "rule": "logins", "ip": "aa" * 8}
    RefusalSample.objects.create(
        **usual | fields,
        environment="production",
        service="web",
        server="web-1",
        at=NOW - timedelta(minutes=minutes_ago),
        revision=1,
        retry_after_ms=0,
        weight=weight,
    )


def test_a_caller_is_one_whatever_limit_refused_it() -> None:
    sample(1, 100)
    sample(2, 50, rule="requests", tenant="acme")
    sample(3, 120, ip="bb" * 8)
    sample(4, 30, ip="", user="cc" * 8)
    sample(11, 9_000)
    found = most_refused("production", NOW - timedelta(minutes=10), NOW)
    assert [(one.column, one.digest[:2], one.refused, one.samples) for one in found] == [
        ("ip", "aa", 150, 2),
        ("ip", "bb", 120, 1),
        ("user", "cc", 30, 1),
    ]
