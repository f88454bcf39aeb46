"""Audit entries about people."""

from typing import Any

from django.http import HttpRequest

from controlplane.accounts.models import User
from controlplane.audit.actor import Actor
from controlplane.audit.record import record

Fields = dict[str, Any]


def actor_in(request: HttpRequest, user: User) -> Actor:
    """The user of a page as the author of a change."""
    address = request.META.get("REMOTE_ADDR", "")
    return Actor(name=user.get_username(), role=user.role, origin="form", address=address)


def note_user(
    action: str,
    user: User,
    actor: Actor,
    reason: str,
    *,
    before: Fields | None = None,
    after: Fields | None = None,
) -> None:
    record(
        actor=actor,
        action=action,
        target_kind="user",
        target_name=user.get_username(),
        before=before,
        after=after,
        reason=reason,
    )
