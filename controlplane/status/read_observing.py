"""Parts of the protection that only observe, until when, and by whom. Blocking: call it in a thread."""

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from controlplane.policies.models import Change
from controlplane.policies.protection import PROTECTION
from controlplane.status.facts import Observing
from fuseboard.contract.protection_fields import OBSERVED_PARTS


def read_observing(environment: str, protection: Mapping[str, Any]) -> tuple[Observing, ...]:
    """Return the parts that observe now, by the stored protection of pods."""
    now_us = int(time.time() * 1_000_000)
    ends: dict[str, int] = protection.get("observe", {})
    return tuple(
        _observing(environment, part, until_us)
        for part in OBSERVED_PARTS
        if (until_us := ends.get(f"{part}_until_us", 0)) > now_us
    )


@lru_cache(maxsize=64)
def _observing(environment: str, part: str, until_us: int) -> Observing:
    """The person who set this time does not change, so the history is read once, not every second."""
    until = until_us / 1_000_000
    field = {f"{PROTECTION}.observe.{part}_until_us": until_us}
    changes = Change.objects.filter(
        revision__environment=environment, kind="environment", name=environment, after__contains=field
    ).exclude(before__contains=field)
    found = changes.select_related("revision").order_by("-revision__number").first()
    if found is None:
        return Observing(part=part, until=until)
    made = found.revision
    return Observing(part=part, until=until, by=made.actor, since=made.at.timestamp(), reason=made.reason)
