"""Outages as reports name them, and counts that pods lost in them."""

from datetime import datetime, timedelta
from typing import Any

import redis
from django.utils import timezone

from controlplane.fleet.models import Event, Server
from controlplane.reconciliation.copying import note_losses
from controlplane.reconciliation.models import Copying, LostCounts
from controlplane.reconciliation.outages import outages
from controlplane.reconciliation.report import reconciled


def a_pod(name: str, *, seen_ago_s: float = 0.0, **fields: Any) -> None:
    now = timezone.now()
    usual = {
        "environment": "production",
        "boot": f"boot-of-{name}",
        "service": "shop",
        "agent_version": "1",
        "state": "online",
        "mode": "local",
        "mode_since": now - timedelta(minutes=9),
        "config_status": "applied",
        "config_source": "http",
        "started_at": now - timedelta(hours=1),
        "last_seen_at": now - timedelta(seconds=seen_ago_s),
        "due_at": now,
    }
    Server.objects.create(name=name, **{**usual, **fields})


def test_lost_counts_make_the_report_uncertain(production: str, limits: redis.Redis) -> None:
    now = timezone.now()
    a_pod("web-1", alone={"uncounted": 12, "unreported": 3})
    a_pod("web-2", alone={"unreported": 40}, seen_ago_s=900)
    a_pod("web-3", alone={"unreported": 9})
    assert note_losses(now) == 2
    assert note_losses(now) == 0
    found = reconciled("production", now - timedelta(minutes=20), now)
    assert (found.uncounted, found.unreported, found.is_certain) == (12, 40, False)
    # The process was only cut off, and has reported.
    Server.objects.filter(name="web-2").update(alone={"adopted": 1}, last_seen_at=now)
    Server.objects.filter(name="web-1").update(alone={"uncounted": 15})
    note_losses(now)
    assert LostCounts.objects.get(server="web-1").uncounted == 15


def test_journals_of_dead_pods_are_reported_apart_from_calls(production: str, limits: redis.Redis) -> None:
    now = timezone.now()
    outage = (now - timedelta(minutes=20), now - timedelta(minutes=10))
    # It started after the outage, and found the file of a pod that died in it.
    a_pod("web-9", alone={"adopted": 2}, mode_since=now)
    assert note_losses(now) == 1
    assert note_losses(now) == 0
    found = reconciled("production", *outage)
    assert (found.adopted_journals, found.expired_journals, found.uncounted) == (2, 0, 0)
    Copying.objects.update_or_create(pk=1, defaults={"began_at": now})
    assert reconciled("production", *outage).is_certain, "nothing is lost"
    Server.objects.filter(name="web-9").update(alone={"adopted": 2, "expired": 1})
    assert note_losses(now) == 1
    found = reconciled("production", *outage)
    assert (found.adopted_journals, found.expired_journals, found.is_certain) == (2, 1, False)
    assert (
        reconciled("production", now + timedelta(minutes=1), now + timedelta(minutes=2)).adopted_journals == 0
    )


def moved(server: str, detail: str, at: datetime) -> None:
    about = {"environment": "production", "boot": "boot-1", "kind": "mode"}
    Event.objects.create(server=server, detail=detail, at=at, **about)


def test_outages_are_the_times_in_which_some_pod_was_without_redis(production: str) -> None:
    now = timezone.now()
    first, second = now - timedelta(hours=5), now - timedelta(minutes=5)
    for pod, late in (("web-1", 0), ("web-2", 20)):
        begin = first + timedelta(seconds=late)
        moved(pod, "shared -> local: connection refused", begin)
        moved(pod, "local -> ramping", begin + timedelta(minutes=10))
        moved(pod, "ramping -> shared", begin + timedelta(minutes=11))
    moved("web-3", "local: not connected yet", first - timedelta(hours=1))
    moved("web-3", "local -> shared", first - timedelta(hours=1) + timedelta(milliseconds=300))
    moved("web-1", "shared -> drill", second)
    a_pod("web-1", mode="drill")
    found = outages("production", now)
    assert [(one.begin, one.end, one.pods) for one in found] == [
        (second, None, 1),
        (first, first + timedelta(minutes=10, seconds=20), 2),
    ]
