"""Sends what waits, one message at a time to each receiver.

A process claims a delivery for 60 s and commits; then it sends. One that is killed in between leaves a claim
that ends, and the message is sent again under the same id: at least once, never lost.
"""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.alerts.delivery.apprise.program import SenderPool
from controlplane.alerts.delivery.apprise.services import is_webhook
from controlplane.alerts.delivery.attempt import Outcome, Post, send_once
from controlplane.alerts.delivery.http import post
from controlplane.alerts.models import Delivery, DeliveryState, Receiver
from controlplane.metric_catalogue import alerts as catalogue
from controlplane.postgres import transaction_lock

log = structlog.get_logger(__name__)

DELIVERIES = catalogue.DELIVERIES.make()

LEASE_S = 60
#: Receivers that are sent to at once, over all workers.
MAX_AT_ONCE = 4
#: So many of these are for receivers to which an attempt failed: those that hang leave room for the others.
MAX_REPEATED_AT_ONCE = 2
#: Messages of one receiver within 5 minutes. What needs a person at once is not held back.
MAX_IN_5_MIN = 30
#: After this time, the news is of no use.
GIVE_UP_AFTER = timedelta(hours=24)

#: The oldest delivery that may be sent now: the first of its alert, to a receiver that no process sends to.
_CLAIM = """
    WITH failing AS (
        -- Receivers to which an attempt failed that is made again, and how many messages that are.
        SELECT receiver_id, count(*) AS messages FROM alerts_delivery
        WHERE state = 'waiting' AND attempts > 0 GROUP BY receiver_id)
    UPDATE alerts_delivery SET state = 'sending', fence = fence + 1, attempts = attempts + 1,
           lease_until = statement_timestamp() + make_interval(secs => %(lease)s)
    WHERE id = (
        SELECT waiting.id FROM alerts_delivery waiting
        LEFT JOIN alerts_alert alert ON alert.id = waiting.alert_id
        LEFT JOIN failing ON failing.receiver_id = waiting.receiver_id
        WHERE (waiting.state = 'waiting' AND waiting.not_before <= statement_timestamp()
               OR waiting.state = 'sending' AND waiting.lease_until <= statement_timestamp())
          AND NOT EXISTS (
            SELECT FROM alerts_delivery earlier
            WHERE earlier.receiver_id = waiting.receiver_id AND earlier.alert_id = waiting.alert_id
              AND earlier.place < waiting.place AND earlier.state IN ('waiting', 'sending'))
          AND NOT EXISTS (
            SELECT FROM alerts_delivery other
            WHERE other.receiver_id = waiting.receiver_id AND other.state = 'sending'
              AND other.lease_until > statement_timestamp())
          AND (alert.level = 3 OR waiting.alert_id IS NULL OR (
            SELECT count(*) FROM alerts_delivery sent
            WHERE sent.receiver_id = waiting.receiver_id
              AND sent.sent_at > statement_timestamp() - interval '5 minutes'
          ) < %(most)s)
          AND (%(repeats)s OR alert.level = 3 AND waiting.attempts = 0
               OR waiting.attempts = 0 AND failing.messages IS NULL)
        -- What needs a person at once; then receivers that work, so that one that hangs delays no other,
        -- neither with repetitions nor with first attempts. Of those that fail, the one with least to repeat.
        ORDER BY (alert.level = 3 AND waiting.attempts = 0) DESC NULLS LAST,
                 waiting.attempts > 0 OR failing.messages IS NOT NULL,
                 alert.level = 3 DESC NULLS LAST, failing.messages NULLS FIRST,
                 waiting.not_before, waiting.created_at LIMIT 1
        FOR UPDATE OF waiting SKIP LOCKED
    )
    RETURNING id
"""
_SENDING = """
    WITH failing AS (
        -- Receivers to which an attempt failed that is made again, and how many messages that are.
        SELECT receiver_id, count(*) AS messages FROM alerts_delivery
        WHERE state = 'waiting' AND attempts > 0 GROUP BY receiver_id)
    SELECT count(*), count(*) FILTER (WHERE attempts > 1 OR failing.messages IS NOT NULL)
    FROM alerts_delivery LEFT JOIN failing USING (receiver_id)
    WHERE state = 'sending' AND lease_until > statement_timestamp()
"""
_WAITS = """
    SELECT EXISTS (
        SELECT FROM alerts_delivery WHERE state = 'waiting' AND not_before <= statement_timestamp()
        OR state = 'sending' AND lease_until <= statement_timestamp())
"""


def something_waits() -> bool:
    """Whether a delivery is due. One that the limits of its receiver hold back counts too."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITS)
        return bool(cursor.fetchone()[0])


def send_waiting(*, for_s: float = 10.0, send: Post = post) -> int:
    """Send what waits, one message after the other, for about ``for_s`` seconds.

    Returns how many attempts were made. One may begin near the end of the time, and takes at most 20 s, with
    the start of a sender 40 s.
    None begins while the process ends: what waits is for other workers, or for the next start.
    """
    ends, made = time.monotonic() + for_s, 0
    senders = SenderPool(settings.WEBHOOK_NETWORKS)
    try:
        while time.monotonic() < ends and threading.main_thread().is_alive():
            delivery = _claim()
            if delivery is None:
                break
            if _fired_again(delivery):
                _note(
                    delivery, Outcome(DeliveryState.SUPERSEDED, "The alert fired again before this was sent.")
                )
                continue
            _attempt(delivery, send, senders)
            made += 1
    finally:
        senders.rest()
    return made


def _claim() -> Delivery | None:
    with transaction.atomic(), connection.cursor() as cursor:
        # Two claims at once could both count one sender too few.
        transaction_lock("fuseboard.deliveries")
        cursor.execute(_SENDING)
        sending, repeated = cursor.fetchone()
        if sending >= MAX_AT_ONCE:
            return None
        repeats = repeated < MAX_REPEATED_AT_ONCE
        cursor.execute(_CLAIM, {"lease": LEASE_S, "most": MAX_IN_5_MIN, "repeats": repeats})
        row: Sequence[UUID] | None = cursor.fetchone()
        if row is None:
            return None
        return Delivery.objects.select_related("receiver", "alert").get(pk=row[0])


def _attempt(delivery: Delivery, send: Post, senders: SenderPool) -> None:
    now = timezone.now()
    outcome = send_once(
        delivery.receiver,
        senders,
        now,
        identity=str(delivery.pk),
        number=delivery.attempts,
        document=delivery.document,
        webhook=send,
    )
    old = now - delivery.created_at >= GIVE_UP_AFTER
    if outcome.state is DeliveryState.WAITING and (old or delivery.kind == "test"):
        outcome = Outcome(DeliveryState.GAVE_UP, outcome.result)
    _note(delivery, outcome)


def _fired_again(delivery: Delivery) -> bool:
    """Whether a resolve would end a later alert of the same key, which the receiver got meanwhile.

    Pagers join all messages of a key. Webhooks name each alert by its id.
    """
    if delivery.kind != "resolved" or delivery.alert is None or is_webhook(delivery.receiver.url):
        return False
    later = Delivery.objects.filter(
        receiver=delivery.receiver_id,
        alert__environment=delivery.alert.environment,
        alert__key=delivery.alert.key,
        alert__pk__gt=delivery.alert.pk,
        attempts__gt=0,
    )
    return later.exists()


def _note(delivery: Delivery, outcome: Outcome) -> None:
    fields: dict[str, Any] = {"state": outcome.state, "result": outcome.result, "lease_until": None}
    if outcome.state is DeliveryState.SENT:
        fields["sent_at"] = Now()
    if outcome.state is DeliveryState.WAITING:
        fields["not_before"] = Now() + timedelta(seconds=outcome.wait_s)
    with transaction.atomic():
        # A process that was paused for longer than its lease finds another fence.
        mine = Delivery.objects.filter(pk=delivery.pk, fence=delivery.fence).update(**fields)
        if mine and outcome.disable:
            Receiver.objects.filter(pk=delivery.receiver_id).update(disabled_because=outcome.disable)
    DELIVERIES.labels(outcome.state.value).inc()
    log.log(
        20 if outcome.state is DeliveryState.SENT else 30,
        "alert.delivery",
        delivery=str(delivery.pk),
        receiver=delivery.receiver.name,
        environment=delivery.receiver.environment,
        kind=delivery.kind,
        attempt=delivery.attempts,
        state=outcome.state.value,
        result=outcome.result[:100],
        mine=bool(mine),
    )
