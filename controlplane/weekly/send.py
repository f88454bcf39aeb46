"""Sends weekly summaries to the receivers that want them, through the deliveries of alerts.

The mark that a summary was sent and its deliveries are one transaction: however many workers run, and
wherever one of them is killed, a receiver gets one message of a week. Its delivery is repeated under one id.
"""

from datetime import date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.alerts.delivery.apprise.services import PAGERS, scheme_of
from controlplane.alerts.delivery.message import address_of_page
from controlplane.alerts.delivery.queue import WEEKLY, enqueue_report
from controlplane.alerts.delivery.receivers import NO_PAGER
from controlplane.alerts.models import Delivery, DeliveryState, Receiver
from controlplane.audit.actor import Actor
from controlplane.errors import InvalidEdit, NotFound, find
from controlplane.weekly.keep import find_summary, last_week
from controlplane.weekly.models import WeeklySummary
from controlplane.weekly.sections import listed, without_tenant

#: Lines of a section in a message. The page has all of them.
MAX_LINES = 5


def send_due(now: datetime | None = None) -> int:
    """Send the summaries of last week that are due; returns how many deliveries were made.

    A receiver that is added after that gets the next week.
    """
    now = now or timezone.now()
    begins = last_week(now)
    if not _is_due(begins, now):
        return 0
    waiting = WeeklySummary.objects.filter(begins=begins, sent_at=None)
    return sum(_send(pk, now) for pk in list(waiting.values_list("pk", flat=True)))


def _is_due(begins: date, now: datetime) -> bool:
    """Whether it is the Monday morning of ``FUSEBOARD_WEEKLY_AT``, or later."""
    at, zone = settings.WEEKLY_AT
    return now >= datetime.combine(begins + timedelta(days=7), at, zone)


def _send(pk: int, now: datetime) -> int:
    with transaction.atomic():
        # Another worker waits here, and then finds the mark.
        summary = WeeklySummary.objects.select_for_update().filter(pk=pk, sent_at=None).first()
        if summary is None:
            return 0
        summary.sent_at = now
        summary.save(update_fields=["sent_at"])
        wanting = Receiver.objects.filter(
            environment=summary.environment, weekly=True, disabled_because=""
        ).order_by("name")
        document = document_of(summary)
        return len([enqueue_report(row, document) for row in wanting])


def send_now(*, environment: str, begins: date | None, receiver: str, actor: Actor) -> Delivery:
    """Send a summary to one receiver, also if it got it before. The log of deliveries displays its result.

    ``begins`` is the Monday of its week, or the newest. Raises ``NotFound``, or ``InvalidEdit``.
    """
    summary = find_summary(environment, begins)
    if summary is None:
        raise NotFound("weekly summary", str(begins) if begins else "of this environment")
    with transaction.atomic():
        row = find(Receiver.objects.filter(environment=environment), "receiver", name=receiver)
        if row.disabled_because:
            raise InvalidEdit({"receiver": [f"{row.disabled_because} Enable it first."]})
        if scheme_of(row.url) in PAGERS:
            raise InvalidEdit({"receiver": [NO_PAGER]})
        return enqueue_report(row, document_of(summary, by=actor.name[:200]))


def document_of(summary: WeeklySummary, *, by: str = "") -> dict[str, Any]:
    """The body of a webhook, but for its time, with the same as text for people."""
    page = address_of_page(summary.environment, f"weekly-summary?week={summary.begins}")
    data = {
        "environment": summary.environment,
        "begins": str(summary.begins),
        "ends": str(summary.begins + timedelta(days=6)),
        "text": f"The week of {summary.begins} in {summary.environment}",
        "title": f"Week of {summary.begins} in {summary.environment}",
        "links": {"page": page, "runbook": None},
        "sent_by": by or None,
        "sections": [_shortened(section) for section in summary.sections],
    }
    return {"type": "summary.weekly", "data": data | {"message": _message(data)}}


def _shortened(section: dict[str, Any]) -> dict[str, Any]:
    lines = section["lines"]
    more = section["more"] + max(0, len(lines) - MAX_LINES)
    return {**section, "lines": lines[:MAX_LINES], "more": more}


def _message(data: dict[str, Any]) -> str:
    paragraphs = [f"{data['sent_by']} sent it."] if data["sent_by"] else []
    paragraphs += [f"{section['title']}\n{listed(section)}" for section in data["sections"]]
    if data["links"]["page"]:
        paragraphs.append(f"Page: {data['links']['page']}")
    return "\n\n".join(paragraphs)


def erase_tenant(environment: str, tenant: str) -> None:
    """Take the lines about a tenant out of the messages that are stored."""
    stored = Delivery.objects.select_for_update().filter(receiver__environment=environment, kind=WEEKLY)
    for row in stored.exclude(state=DeliveryState.SENDING):
        data = row.document["data"]
        sections = without_tenant(data["sections"], tenant)
        if sections != data["sections"]:
            data["sections"] = sections
            data["message"] = _message(data)
            row.save(update_fields=["document"])
