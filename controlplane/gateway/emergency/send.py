"""Sends the messages of a gateway. Each attempt is noted on disk before and after it."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import structlog
from django.conf import settings

from controlplane.alerts.delivery.apprise.program import SenderPool
from controlplane.alerts.delivery.apprise.services import is_webhook
from controlplane.alerts.delivery.attempt import send_once
from controlplane.alerts.delivery.message import handled
from controlplane.alerts.delivery.queue import document_of
from controlplane.alerts.emergency.journal import Episode, Journal, Message, alert_of, message_id
from controlplane.alerts.emergency.plan import EmergencyPlan, receiver_rows
from controlplane.alerts.models import Receiver
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts

#: Receivers that are sent to at once. One that answers slowly keeps no other waiting.
AT_ONCE = 8
#: Chat, pagers and mail at once. Each has a program of about 50 MB, which ends when all is sent.
SENDERS_AT_ONCE = 3

log = structlog.get_logger(__name__)


def messages_for(episode: Episode, receivers: Iterable[Receiver], plan: EmergencyPlan) -> list[Message]:
    """The first message of an alert, as the worker would make it, and how old the plan is."""
    alert = alert_of(episode)
    document: dict[str, Any] = document_of(alert, "fired", ([], 0), handled(alert, stored=False), place=1)
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
        self._sender_threads = ThreadPoolExecutor(SENDERS_AT_ONCE, "gateway-senders")
        self._senders = SenderPool(settings.WEBHOOK_NETWORKS, most=SENDERS_AT_ONCE)
        self._tasks: dict[asyncio.Task[None], Episode] = {}

    def sends(self, episode: Episode) -> bool:
        """Whether a message of it is on its way at this moment."""
        return any(one is episode for one in self._tasks.values())

    def send_due(self, episode: Episode, plan: EmergencyPlan) -> None:
        """Begin the attempts that are due."""
        now = self._clock.wall()
        receivers = {row.pk: row for row in receiver_rows(plan)}
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
            task.add_done_callback(self._ended)

    async def _send(self, message: Message, receiver: Receiver | None) -> None:
        if receiver is None:
            message.state, message.result = "gave_up", "The receiver was removed."
        else:
            outcome = await asyncio.get_running_loop().run_in_executor(
                self._threads if is_webhook(receiver.url) else self._sender_threads,
                lambda: send_once(
                    receiver,
                    self._senders,
                    datetime.fromtimestamp(self._clock.wall(), UTC),
                    identity=message.id,
                    number=message.attempts,
                    document=message.document,
                ),
            )
            state, result = outcome.state.value, outcome.result
            message.result, message.next_at = result, self._clock.wall() + outcome.wait_s
            message.sent_at = self._clock.wall() if state == "sent" else None
            # Last: a reader that finds it settled finds all of it.
            message.state = state
            log.log(
                30,
                "oncall.delivery",
                delivery=message.id,
                receiver=receiver.name,
                state=state,
                result=result[:100],
            )
        self._counts.oncall_messages[message.state] += 1
        self._journal.save()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task)
        if not self._tasks:
            self._senders.rest()

    def close(self) -> None:
        for threads in (self._threads, self._sender_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        self._senders.close()
