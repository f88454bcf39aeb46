"""One attempt to send one message: by a signed webhook, or by apprise. The worker and gateways share it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from django.conf import settings
from msgspec import json

from controlplane.alerts.delivery.addresses import AddressRefused
from controlplane.alerts.delivery.apprise.jobs import Job, Kind, without_middle
from controlplane.alerts.delivery.apprise.program import SenderPool
from controlplane.alerts.delivery.apprise.services import is_webhook
from controlplane.alerts.delivery.http import MAX_S, Answer, NotDelivered, post
from controlplane.alerts.delivery.signing import headers_of
from controlplane.alerts.models import DeliveryState, Receiver

#: PagerDuty accepts 255 characters.
_LONGEST_KEY = 255
_LONGEST_TITLE = 250
#: Characters. If each has four bytes, the job is still shorter than ``MAX_BYTES``.
_LONGEST_BODY = 7_000
#: Before each repetition; the last one counts for all further ones.
PAUSES_S = (5, 30, 120, 300, 900, 1_800, 3_600)
_LONGEST_WAIT_S = 3_600
_SHOWN = 500

Post = Callable[..., Answer]


class NeverDelivered(Exception):
    """Another attempt is useless: the URL is wrong. The message has no secrets."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message to one receiver."""

    #: It stays the same for each attempt.
    id: str
    #: From 1.
    attempt: int
    document: dict[str, Any]
    receiver: int
    url: str
    #: The secrets that sign it.
    versions: Sequence[int]


@dataclass(frozen=True)
class Outcome:
    """The state of a message after one attempt. ``WAITING`` for one that may be repeated."""

    state: DeliveryState
    result: str
    #: Until the next attempt.
    wait_s: float = 0.0
    #: Why the receiver gets no more news; empty if it does.
    disable: str = ""


def send_once(
    receiver: Receiver,
    senders: SenderPool,
    at: datetime,
    *,
    identity: str,
    number: int,
    document: dict[str, Any],
    webhook: Post = post,
) -> Outcome:
    """Make attempt ``number``, from 1, to send this document."""
    versions = [receiver.secret_version]
    if receiver.old_secret_until is not None and receiver.old_secret_until > at:
        versions.append(receiver.secret_version - 1)
    message = Message(
        id=identity,
        attempt=number,
        document=document,
        receiver=receiver.pk,
        url=receiver.url,
        versions=versions,
    )
    try:
        return outcome_of(attempt(message, at, senders, webhook), message)
    except (AddressRefused, NeverDelivered) as refused:
        return Outcome(DeliveryState.GAVE_UP, str(refused)[:_SHOWN])
    except NotDelivered as failed:
        return _again(str(failed)[:_SHOWN], message)


def outcome_of(answer: Answer, message: Message) -> Outcome:
    """The result of an answer. Only 2xx counts as delivered: a redirect is not followed."""
    text = f"HTTP {answer.status} {answer.text}".strip()[:_SHOWN]
    if 200 <= answer.status < 300:
        # The answer of a webhook is its own; the text of apprise names the service.
        shown = f"HTTP {answer.status}" if is_webhook(message.url) else answer.text
        return Outcome(DeliveryState.SENT, shown)
    if answer.status == 410:
        return Outcome(DeliveryState.GAVE_UP, text, disable="The receiver answered 410 Gone.")
    return _again(text, message, at_least_s=answer.retry_after_s)


def _again(text: str, message: Message, *, at_least_s: float = 0.0) -> Outcome:
    usual = PAUSES_S[min(message.attempt, len(PAUSES_S)) - 1] * random.uniform(0.8, 1.2)
    return Outcome(DeliveryState.WAITING, text, wait_s=max(usual, min(at_least_s, _LONGEST_WAIT_S)))


def attempt(message: Message, at: datetime, senders: SenderPool, webhook: Post = post) -> Answer:
    """Raises ``AddressRefused``, ``NeverDelivered`` or ``NotDelivered``."""
    if not message.url:
        raise NeverDelivered(
            "The URL was encrypted with a key that is not in FUSEBOARD_SECRET_KEY or"
            " FUSEBOARD_SECRET_KEY_FALLBACKS. Add the key, or remove the receiver and add it again."
        )
    if not is_webhook(message.url):
        return _by_apprise(message, senders)
    body = json.encode({**message.document, "timestamp": at.isoformat()})
    headers = {
        "content-type": "application/json",
        "user-agent": "fuseboard-webhooks/1",
        **headers_of(
            body,
            identity=message.id,
            at=int(at.timestamp()),
            receiver=message.receiver,
            versions=message.versions,
        ),
    }
    return webhook(message.url, body, headers, allowed=settings.WEBHOOK_NETWORKS, most_s=MAX_S)


def _by_apprise(message: Message, senders: SenderPool) -> Answer:
    result = senders.run(job_of(message))
    if result.state == "refused":
        raise NeverDelivered(result.said)
    if result.state == "failed":
        raise NotDelivered(result.said)
    return Answer(200, result.said)


def job_of(message: Message) -> Job:
    data = message.document["data"]
    kind = message.document["type"].removeprefix("alert.")
    # A worker of a release before the services may have made the document: it has no title and message.
    body = without_middle(data.get("message", data["text"]), _LONGEST_BODY)
    if message.attempt > 1:
        body += "\nRepeated: an earlier attempt may have arrived."
    return Job(
        url=message.url,
        # A message that belongs to no alert has no severity.
        kind=Kind(kind) if kind in (Kind.RESOLVED, Kind.TEST) else Kind(data.get("severity", Kind.REPORT)),
        title=data.get("title", data["text"])[:_LONGEST_TITLE],
        body=body,
        key=_key(data, message),
        link=(data.get("links") or {}).get("page") or "",
    )


def _key(data: dict[str, Any], message: Message) -> str:
    """One for each alert and without its time, so that the worker and each gateway have the same."""
    key = f"fb:{data['environment']}:{data['key']}" if "key" in data else f"fb:test:{message.id}"
    return key if len(key) <= _LONGEST_KEY else f"fb:{sha256(key.encode()).hexdigest()}"
