"""Links that let one person set a password once: the first admin, an invited person, a forgotten password."""

import re
import secrets
from datetime import timedelta
from hashlib import sha256
from hmac import compare_digest

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.accounts import logins
from controlplane.accounts.models import Ticket, User
from controlplane.audit.actor import Actor
from controlplane.audit.record import acting, record
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

    Raises ``NotFound`` when the link was used, has expired or never existed, and ``InvalidEdit`` for a
    weak password; the link then still works.
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
        record(
            actor=actor,
            action="user.password_set",
            target_kind="user",
            target_name=user.get_username(),
            before=None,
            after=None,
            reason="Set through a one-time link.",
        )
    return user


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
    return ticket if ticket.user.is_active else None
