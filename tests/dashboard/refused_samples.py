"""Samples of refusals as gateways write them: rows put directly into their table."""

from datetime import timedelta
from typing import Any

#: The number of the first sample, and so the address of its explanation.
FIRST = 4711


def put_samples() -> list[Any]:
    """Two of the last minutes, by one rule, that stand for 100 refusals; and one of three hours ago."""
    from django.utils import timezone

    from controlplane.policies.models import Environment
    from controlplane.refusals.models import RefusalSample, RefusalService

    now = timezone.now()
    RefusalService.objects.create(environment="production", service="shop", last_on=now.date())
    usual = {
        "environment": "production",
        "at": now - timedelta(minutes=2),
        "service": "shop",
        "server": "web-1",
        "rule": "requests",
        "reason": "quota",
        "mode": "shared",
        "tenant": "acme-retail",
        "endpoint": "POST /v1/orders",
        "revision": Environment.objects.get(pk="production").revision,
        "retry_after_ms": 12_400,
        "weight": 90.0,
    }
    return [
        RefusalSample.objects.create(**usual, pk=FIRST),
        RefusalSample.objects.create(**usual | {"endpoint": "GET /v1/items", "weight": 10.0}, pk=FIRST + 1),
        RefusalSample.objects.create(
            **usual | {"tenant": "=cmd()", "at": now - timedelta(hours=3)}, pk=FIRST + 2
        ),
    ]


def sample_of(**of: Any) -> Any:
    """One more sample, of this moment."""
    from django.utils import timezone

    from controlplane.refusals.models import RefusalSample

    usual = {
        "environment": "production",
        "at": timezone.now(),
        "service": "shop",
        "server": "web-1",
        "rule": "requests",
        "reason": "quota",
        "mode": "shared",
        "tenant": "acme-retail",
        "endpoint": "POST /v1/orders",
        "revision": 1,
        "retry_after_ms": 0,
        "weight": 1.0,
    }
    return RefusalSample.objects.create(**usual | of)
