"""Writes to Postgres what gateways sent, and holds the evaluator back until all gateways have done so."""

from collections.abc import Iterable
from datetime import UTC, datetime

from django.db import connection, transaction
from django.db.models import Max

from controlplane.alerts.delivery.queue import end_for
from controlplane.alerts.emergency.journal import Episode, alert_of
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import EVALUATION_LOCK, Alert, Delivery, Evaluation, Receiver
from controlplane.postgres import transaction_lock

#: A gateway that does not return after an outage keeps others from sending for this time.
LONGEST_WAIT_S = 60

#: A gateway that reports has something to hand in; or one that reported before the pause does not yet.
_WAITS = """
    SELECT EXISTS (
        SELECT FROM fleet_figures
        WHERE environment = %(environment)s AND (
            at > now() - interval '10 s' AND COALESCE((document->>'unhanded')::int, 0) > 0
            OR %(waiting)s AND at < now() - interval '10 s'
                AND at > %(paused)s::timestamptz - interval '10 s'
        )
    )
"""


def gateways_may_have_sent(alert: Alert, now: float) -> bool:
    """Whether a gateway may have sent this alert, and Postgres does not know yet."""
    if alert.fired_at is None or now - alert.fired_at.timestamp() >= LONGEST_WAIT_S:
        return False
    environment = alert.environment
    last = Evaluation.objects.filter(environment=environment).first()
    paused = last.paused_at if last is not None else None
    resumed = last.resumed_at.timestamp() if last is not None and last.resumed_at else 0.0
    facts: dict[str, str | bool | datetime] = {
        "environment": environment,
        "waiting": paused is not None and now - resumed < LONGEST_WAIT_S,
        "paused": paused or datetime.fromtimestamp(0, UTC),
    }
    with connection.cursor() as cursor:
        cursor.execute(_WAITS, facts)
        return bool(cursor.fetchone()[0])


def hand_in(episodes: Iterable[Episode]) -> None:
    """Write alerts and deliveries as if the evaluator had. Twice is as good as once.

    Raises ``django.db.Error``, and then nothing of that environment is written.
    """
    by_environment: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_environment.setdefault(episode.environment, []).append(episode)
    for environment, own in sorted(by_environment.items()):
        with transaction.atomic():
            # The evaluator holds it during an evaluation.
            transaction_lock(EVALUATION_LOCK, environment)
            for episode in sorted(own, key=lambda one: one.fired_at):
                _hand_in(episode)


def _hand_in(episode: Episode) -> None:
    ids = [message.id for message in episode.messages]
    if ids and Delivery.objects.filter(pk__in=ids).count() == len(ids):
        return
    row, ended = _row_of(episode)
    there = set(
        Receiver.objects.filter(pk__in=[one.receiver for one in episode.messages]).values_list(
            "pk", flat=True
        )
    )
    for message in episode.messages:
        if message.receiver not in there or Delivery.objects.filter(pk=message.id).exists():
            continue
        places = Delivery.objects.filter(receiver=message.receiver, alert=row)
        Delivery.objects.create(
            id=message.id,
            receiver_id=message.receiver,
            alert=row,
            kind="fired",
            place=(places.aggregate(last=Max("place"))["last"] or 0) + 1,
            document=message.document,
            # The worker sends a message that is on its way, with the same id.
            state="waiting" if message.open else message.state,
            attempts=message.attempts,
            result=message.result[:500],
            sent_at=datetime.fromtimestamp(message.sent_at, UTC) if message.sent_at else None,
        )
    if ended:
        end_for(row, there)


def _row_of(episode: Episode) -> tuple[Alert, bool]:
    """The alert of the episode, and whether it was resolved meanwhile."""
    rows = Alert.objects.filter(environment=episode.environment, key=episode.key)
    row = rows.exclude(state=AlertState.RESOLVED).first()
    fired_at = datetime.fromtimestamp(episode.fired_at, UTC)
    if row is None:
        ended = rows.filter(fired_at__isnull=False, resolved_at__gte=fired_at).order_by("resolved_at").first()
        if ended is not None:
            return ended, True
        row = alert_of(episode)
    row.state = AlertState.FIRING
    row.level, row.severity, row.worst = episode.level, episode.severity, episode.severity
    row.true_since = min(row.true_since, datetime.fromtimestamp(episode.true_since, UTC))
    row.fired_at = min(row.fired_at or fired_at, fired_at)
    row.notified = row.notified or episode.severity
    row.escalations = row.escalations or episode.escalations
    row.clear_since = None
    row.save()
    return row, False
