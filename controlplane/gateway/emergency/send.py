"""Sends what a gateway has to say, each attempt noted on disk before and after it."""

import asyncio
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import structlog
from django.conf import settings
from msgspec import json

from controlplane.alerts.delivery.addresses import AddressRefused
from controlplane.alerts.delivery.http import NotDelivered, post
from controlplane.alerts.delivery.queue import document_of
from controlplane.alerts.delivery.send import PAUSES_S
from controlplane.alerts.delivery.signing import headers_of
from controlplane.alerts.emergency.journal import Episode, Journal, Message, alert_of, message_id
from controlplane.alerts.emergency.plan import Fields, Plan
from controlplane.alerts.models import Receiver
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts

#: Receivers that are sent to at once. One that answers slowly keeps no other waiting.
AT_ONCE = 8

log = structlog.get_logger(__name__)


def messages_for(episode: Episode, receivers: Iterable[Receiver], plan: Plan) -> list[Message]:
    """The first message of an alert, as the worker would make it, and how old the plan is."""
    document: dict[str, Any] = document_of(alert_of(episode), "fired", ([], 0), place=1)
    document["data"]["sent_by"] = "gateway"
    document["data"]["receivers_as_of"] = datetime.fromtimestamp(plan.at, UTC).isoformat()
    return [
        Message(id=message_id(episode, receiver), receiver=receiver.pk, document=document)
        for receiver in receivers
    ]


class Sender:
    def __init__(self, journal: Journal, clock: Clock, counts: Counts) -> None:
        self._journal, self._clock, self._counts = journal, clock, counts
        self._threads = ThreadPoolExecutor(AT_ONCE, "gateway-sends")
        self._tasks: dict[asyncio.Task[None], Episode] = {}

    def sends(self, episode: Episode) -> bool:
        """Whether a message of it is on its way at this moment."""
        return any(one is episode for one in self._tasks.values())

    def send_due(self, episode: Episode, plan: Plan) -> None:
        """Begin the attempts that are due."""
        now = self._clock.wall()
        receivers = {fields["pk"]: fields for fields in plan.receivers}
        due = [one for one in episode.messages if one.state == "waiting" and one.next_at <= now]
        for message in due:
            message.state, message.attempts = "sending", message.attempts + 1
        if due:
            # Before: after a crash, it is known that they may have arrived.
            self._journal.save()
        for message in due:
            task = asyncio.get_running_loop().create_task(
                self._send(message, receivers.get(message.receiver))
            )
            self._tasks[task] = episode
            task.add_done_callback(self._tasks.pop)

    async def _send(self, message: Message, receiver: Fields | None) -> None:
        if receiver is None:
            message.state, message.result = "gave_up", "The receiver was removed."
        else:
            loop = asyncio.get_running_loop()
            state, said, wait_s = await loop.run_in_executor(
                self._threads, _attempt, message, receiver, self._clock.wall()
            )
            message.result, message.next_at = said, self._clock.wall() + wait_s
            message.sent_at = self._clock.wall() if state == "sent" else None
            # Last: whoever sees it settled sees all of it.
            message.state = state
            name = receiver["name"]
            log.log(30, "oncall.delivery", delivery=message.id, receiver=name, state=state, result=said[:100])
        self._counts.oncall_messages[message.state] += 1
        self._journal.save()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _attempt(message: Message, receiver: Fields, now: float) -> tuple[str, str, float]:
    """The state afterwards, what the receiver said, and seconds until the next attempt."""
    body = json.encode({**message.document, "timestamp": datetime.fromtimestamp(now, UTC).isoformat()})
    versions = [receiver["secret_version"]]
    if (receiver["old_secret_until"] or 0.0) > now:
        versions.append(receiver["secret_version"] - 1)
    headers = {
        "content-type": "application/json",
        "user-agent": "fuseboard-webhooks/1",
        **headers_of(body, identity=message.id, at=int(now), receiver=receiver["pk"], versions=versions),
    }
    pause_s = PAUSES_S[min(message.attempts, len(PAUSES_S)) - 1] * random.uniform(0.8, 1.2)
    try:
        answer = post(receiver["url"], body, headers, allowed=settings.WEBHOOK_NETWORKS)
    except AddressRefused as refused:
        return "gave_up", str(refused)[:500], 0.0
    except NotDelivered as failed:
        return "waiting", str(failed)[:500], pause_s
    if 200 <= answer.status < 300:
        return "sent", f"HTTP {answer.status}", 0.0
    said = f"HTTP {answer.status} {answer.text}".strip()[:500]
    return ("gave_up", said, 0.0) if answer.status == 410 else ("waiting", said, pause_s)
