"""Limits that follow their vendor are in the audit."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.policies.models import Environment
from controlplane.suggestions.following import note_following
from controlplane.suggestions.models import Following
from controlplane.suggestions.tasks import note_following as task
from tests.controlplane.suggestions.vendor_rows import report, set_limit

pytestmark = pytest.mark.usefixtures("production")


def entries() -> list[tuple[str, str, object]]:
    rows = Entry.objects.filter(action__startswith="following.").order_by("pk")
    return [(row.action, row.actor, (row.after or {}).get("number")) for row in rows]


WHO = "automatic (vendor limits)"


def test_following_is_recorded_when_it_begins_reaches_the_floor_and_ends() -> None:
    set_limit()
    Environment.objects.update(tuning={"vendor_floor_percent": 10})
    begins = timezone.now()
    report(0, followed=500)
    task()
    task()
    assert entries() == [("following.begun", WHO, 500)]
    report(0, followed=90)
    task()
    task()
    report(0, followed=0)
    note_following(begins + timedelta(seconds=30))
    assert entries()[1:] == [("following.at_floor", WHO, 90)]
    note_following(timezone.now() + timedelta(seconds=61))
    assert entries()[2:] == [("following.ended", WHO, 900)]
    assert not Following.objects.exists()


def test_a_number_that_goes_up_and_down_at_its_floor_is_one_entry() -> None:
    set_limit()
    Environment.objects.update(tuning={"vendor_floor_percent": 10})
    for number in (90, 99, 90, 120, 90):
        report(0, followed=number)
        task()
    assert [action for action, _, _ in entries()] == ["following.begun", "following.at_floor"]
    for number in (180, 90):
        report(0, followed=number)
        task()
    assert [action for action, _, _ in entries()][2:] == ["following.at_floor"]


def test_one_pod_alone_records_nothing() -> None:
    set_limit()
    report(0)
    report(0, followed=1, pods=1)
    task()
    assert entries() == []
