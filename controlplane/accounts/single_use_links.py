"""Links that let one person set a password once: the first admin, an invited person, a forgotten password."""

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from hmac import compare_digest

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.accounts import logins
from controlplane.accounts.authors import lost_rights
from controlplane.accounts.models import Ticket, User
from controlplane.accounts.people_audit import note_user
from controlplane.accounts.permissions import may
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.audit.record import acting, actor_of, record
from controlplane.errors import InvalidEdit, NotFound

_TEXT = re.compile(r"([0-9a-f]{16})-([0-9a-f]{64})", re.ASCII)
PATH = "/welcome/"


def issue_link(user: User, *, valid: timedelta) -> str:
    """The path of a new link; earlier links of the same person stop working."""
    selector, secret = secrets.token_hex(8), secrets.token_hex(32)
    Ticket.objects.filter(user=user, used_at__isnull=True).update(used_at=Now())
    Ticket.objects.create(
        selector=selector,
        digest=sha256(secret.encode()).hexdigest(),
        user=user,
        expires_at=timezone.now() + valid,
    )
    return f"{PATH}{selector}-{secret}"


def person_of(text: str) -> User | None:
    """The user that the link was made for, while the link is valid."""
    ticket = _ticket(text)
    return ticket.user if ticket else None


def use_link(*, text: str, password: str, address: str) -> User:
    """Set the password of the user of this link, and end their sessions.

    Raises ``NotFound`` when the link was used, has expired or never existed, or when the admin who made it is
    not one any more. Raises ``InvalidEdit`` for a weak password; the link then still works.
    """
    with transaction.atomic():
        ticket = _ticket(text, lock=True)
        if ticket is None:
            raise NotFound("link", "used, expired or mistyped")
        user = ticket.user
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise InvalidEdit({"password": error.messages}) from error
        actor = Actor(name=user.get_username(), role=user.role, origin="form", address=address)
        acting(actor)
        Ticket.objects.filter(pk=ticket.pk).update(used_at=Now())
        user.set_password(password)
        user.save(update_fields=["password"])
        logins.close_logins(user)
        note_user("user.password_set", user, actor, "Set through a one-time link.")
    return user


@dataclass(frozen=True)
class Link:
    """A link that was not used yet."""

    to: str
    until: datetime
    #: Why it does not work with the present rights of the person who made it; empty if it does.
    lost: str


def links_by(username: str) -> list[Link]:
    """The links that the person, or a token of theirs, made for other people."""
    return [Link(ticket.user.get_username(), ticket.expires_at, lost) for ticket, lost in _by(username)]


def end_links_by(username: str, *, to: str, reason: str, actor: Actor) -> int:
    """End the link that the person made for ``to``. Return how many there were. Needs a transaction."""
    acting(actor)
    found = [ticket.pk for ticket, _ in _by(username) if ticket.user.get_username() == to]
    ended = Ticket.objects.filter(pk__in=found, used_at__isnull=True).update(used_at=Now())
    if ended:
        record(
            actor=actor,
            action="user.link_ended",
            target_kind="user",
            target_name=to,
            after={"made_by": username},
            reason=reason,
        )
    return ended


def _by(username: str) -> Iterator[tuple[Ticket, str]]:
    waiting = Ticket.objects.filter(used_at__isnull=True, expires_at__gt=timezone.now(), user__is_active=True)
    tickets = list(waiting.exclude(user__username=username).select_related("user"))
    makers, lost = _makers(ticket.user.get_username() for ticket in tickets), cache(_lost)
    for ticket in tickets:
        maker = makers.get(ticket.user.get_username())
        if maker is not None and username in (maker.name, maker.person):
            yield ticket, lost(maker)


def _makers(usernames: Iterable[str]) -> dict[str, Actor]:
    """Person -> the person or program that made their newest link, as the audit recorded it."""
    made = Entry.objects.filter(
        target_kind="user",
        target_name__in=set(usernames),
        action__in=("user.invited", "user.link_made"),
    )
    newest = made.order_by("target_name", "-id").distinct("target_name")
    return {entry.target_name: actor_of(entry) for entry in newest}


def _lost(maker: Actor) -> str:
    return lost_rights(
        maker, lambda user: may(user, "manage_people"), did="made this link", needs="the role admin"
    )


def _ticket(text: str, *, lock: bool = False) -> Ticket | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    rows = Ticket.objects.select_related("user")
    if lock:
        rows = rows.select_for_update(of=("self",))
    ticket = rows.filter(selector=match[1], used_at__isnull=True, expires_at__gt=timezone.now()).first()
    if ticket is None or not compare_digest(sha256(match[2].encode()).hexdigest(), ticket.digest):
        return None
    name = ticket.user.get_username()
    maker = _makers([name]).get(name)
    # A link of an admin who is not one any more would give a role that this person may not give.
    return ticket if ticket.user.is_active and not (maker and _lost(maker)) else None
