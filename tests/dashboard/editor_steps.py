"""What the tests of the editor share: its pages as a person without a script uses them."""

import re
from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.editing import edits
from controlplane.policies.models import Environment, TierQuota
from controlplane.usage.models import Demand
from tests.people import BOB

WHY = "CHG-77 asked for by sales"
PRO = "/edit/tier?key=pro"
ACME = "/edit/tenant?key=acme-retail"


def page(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()[:3000]
    text: str = answer.content.decode()
    return text


def base_of(shown: str) -> str:
    found = re.search(r'name="base" value="(\d+)"', shown)
    assert found
    return found[1]


def quota(limit: int = 600, *, actor: Any = BOB, **more: Any) -> int:
    values: dict[str, Any] = {"window_s": 60, "burst": 100, **more}
    return edits.set_tier_quota(
        environment="production",
        tier="pro",
        quota="requests",
        limit=limit,
        expected_version=None,
        reason=WHY,
        actor=actor,
        **values,
    )


def bulk_shown(client: Any, typed: dict[str, Any]) -> dict[str, str]:
    """What the preview of a bulk edit adds to its form: without it, nothing is saved."""
    shown = page(client.post("/tenants/bulk/preview", typed))
    return dict(re.findall(r'name="(seen|previewed)" value="(\w+)"', shown))


def head() -> int:
    return Environment.objects.get(pk="production").revision


def requests_of_pro() -> TierQuota:
    return TierQuota.objects.get(tier__name="pro", name="requests")


def put_demand(tenant: str = "acme-retail", asked: int = 1_500) -> None:
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(hours=1)
    for minute in range(10):
        at = start + timedelta(minutes=minute)
        for name in (tenant, ""):
            Demand.objects.update_or_create(
                environment="production",
                tenant=name,
                grain_s=60,
                at=at,
                defaults={"asked": asked, "refused": 0},
            )
