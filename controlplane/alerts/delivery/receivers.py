"""Edits of receivers: add, remove, change the secret, enable, and test."""

from datetime import timedelta
from urllib.parse import urlsplit

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.alerts.delivery.apprise.jobs import Job
from controlplane.alerts.delivery.apprise.program import SenderPool
from controlplane.alerts.delivery.apprise.services import (
    PAGERS,
    SERVICES,
    WEBHOOK_SCHEMES,
    is_webhook,
    scheme_of,
    shown_address,
)
from controlplane.alerts.delivery.queue import enqueue_test
from controlplane.alerts.delivery.signing import secret_of
from controlplane.alerts.models import Delivery, Receiver
from controlplane.alerts.people.audit_entries import record_named
from controlplane.alerts.people.routing import routes_of
from controlplane.audit.actor import Actor
from controlplane.errors import InvalidEdit, NameTaken, find
from controlplane.policies.models import Environment
from controlplane.validation import Problems, check_reason, is_printable

#: Receivers of one environment. Each message goes to all of them.
MAX_RECEIVERS = 50
#: The old secret signs too for this time.
OVERLAP = timedelta(hours=24)
#: The characters of a URL.
MAX_URL = 2_000
SEVERITIES = ("warning", "critical")
LEVELS = (1, 2, 3)


#: Why a receiver cannot get the weekly summary.
NO_PAGER = "A pager gets alerts only. Send the weekly summary to a chat, to mail or to a webhook."


def add_receiver(
    *,
    environment: str,
    name: str,
    url: str,
    least_level: int,
    least_severity: str,
    weekly: bool = False,
    reason: str,
    actor: Actor,
) -> tuple[Receiver, str]:
    """The new receiver and its secret, which only webhooks have. Raises ``InvalidEdit`` or ``NameTaken``."""
    problems = Problems()
    problems.reason(reason)
    problems.slug("name", name)
    if (wrong := _wrong_url(url)) is not None:
        problems.add("url", wrong)
    if least_level not in LEVELS:
        problems.add("least_level", "Choose a level from 1 to 3.")
    if least_severity not in SEVERITIES:
        problems.add("least_severity", "Choose warning or critical.")
    if weekly and scheme_of(url) in PAGERS:
        problems.add("weekly", NO_PAGER)
    if Receiver.objects.filter(environment=environment).count() >= MAX_RECEIVERS:
        problems.add("name", f"An environment has at most {MAX_RECEIVERS} receivers. Remove one first.")
    problems.settle()
    try:
        with transaction.atomic():
            row = Receiver.objects.create(
                environment=environment,
                name=name,
                url=url,
                least_level=least_level,
                least_severity=least_severity,
                weekly=weekly,
            )
            record_named(row, "receiver.created", reason, actor, after=_shown(row))
    except IntegrityError:
        text = "A receiver with this name exists. Choose another name, or remove that receiver first."
        raise NameTaken(text) from None
    row.refresh_from_db()
    return row, secret_of(row.pk, row.secret_version) if is_webhook(url) else ""


def remove_receiver(*, environment: str, name: str, reason: str, actor: Actor) -> None:
    """Remove it with its log of deliveries. Raises ``NotFound``, or ``InvalidEdit`` while a route uses it."""
    check_reason(reason)
    with transaction.atomic():
        # Before the receiver, as an edit of a route does: that one may name it at this moment.
        Environment.objects.select_for_update().filter(pk=environment).first()
        row = _locked(environment, name)
        for route in routes_of(environment):
            if any(name in names for _, names in route.steps):
                raise InvalidEdit({"name": [f"The route {route.name} sends to it. Change the route first."]})
        record_named(row, "receiver.removed", reason, actor, before=_shown(row))
        row.delete()


def change_secret(*, environment: str, name: str, reason: str, actor: Actor) -> str:
    """A new secret. The old one signs too for 24 hours. Raises ``NotFound`` or ``InvalidEdit``."""
    check_reason(reason)
    with transaction.atomic():
        row = _locked(environment, name)
        if not is_webhook(row.url):
            raise InvalidEdit(
                {"name": ["Only webhooks have a secret. Add the receiver again with its new URL."]}
            )
        row.secret_version += 1
        row.old_secret_until = timezone.now() + OVERLAP
        row.save(update_fields=["secret_version", "old_secret_until"])
        record_named(row, "receiver.secret_changed", reason, actor)
    return secret_of(row.pk, row.secret_version)


def enable_receiver(*, environment: str, name: str, reason: str, actor: Actor) -> None:
    """Send news again to a receiver that answered 410. Raises ``NotFound``."""
    check_reason(reason)
    with transaction.atomic():
        row = _locked(environment, name)
        row.disabled_because = ""
        row.save(update_fields=["disabled_because"])
        record_named(row, "receiver.enabled", reason, actor)


def set_weekly(*, environment: str, name: str, weekly: bool, reason: str, actor: Actor) -> None:
    """Send the weekly summary to it, or not any more. Raises ``NotFound`` or ``InvalidEdit``."""
    check_reason(reason)
    with transaction.atomic():
        row = _locked(environment, name)
        if weekly and scheme_of(row.url) in PAGERS:
            raise InvalidEdit({"weekly": [NO_PAGER]})
        before, row.weekly = _shown(row), weekly
        row.save(update_fields=["weekly"])
        record_named(row, "receiver.weekly_set", reason, actor, before=before, after=_shown(row))


def test_receiver(*, environment: str, name: str, actor: Actor) -> Delivery:
    """Send a test as soon as the worker can; the log of deliveries displays its result."""
    with transaction.atomic():
        row = _locked(environment, name)
        return enqueue_test(row, by=actor.name[:200])


def address_of(row: Receiver) -> str:
    """The part of its URL that people may read."""
    return shown_address(row.url)


def _wrong_url(url: str) -> str | None:
    if not url.isascii() or not is_printable(url) or any(blank in url for blank in " \t\r\n"):
        return "Use plain characters without blanks; encode others with %."
    if len(url) > MAX_URL:
        return f"Use at most {MAX_URL:,} characters."
    if scheme_of(url) in SERVICES:
        return _wrong_for_apprise(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "This is not a URL."
    if parts.scheme not in WEBHOOK_SCHEMES or not parts.hostname:
        return (
            "Enter a URL that begins with https:// or http:// for a webhook, or with a service and ://,"
            f" such as slack://. Services: {', '.join(SERVICES)}."
        )
    if parts.username or parts.password:
        return "Leave out user and password: the signature proves who sends."
    if port == 0:
        return "Choose another port."
    return None


def _wrong_for_apprise(url: str) -> str | None:
    """In the process that also sends, because only there is the library that knows the service."""
    senders = SenderPool()
    try:
        result = senders.run(Job(url=url, check=True))
    finally:
        senders.rest()
    return None if result.state == "sent" else result.said


def _locked(environment: str, name: str) -> Receiver:
    return find(Receiver.objects.select_for_update().filter(environment=environment), "receiver", name=name)


def _shown(row: Receiver) -> dict[str, object]:
    return {
        "url": address_of(row),
        "least_level": row.least_level,
        "least_severity": row.least_severity,
        "weekly": row.weekly,
    }
