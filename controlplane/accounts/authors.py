"""The rights of an author when their change takes effect, which can be 400 days after they made it."""

from collections.abc import Callable
from typing import Any

from django.utils import timezone

from controlplane.accounts.models import ApiToken, User
from controlplane.accounts.owned_tokens import owner_of, rights_of, token_user
from controlplane.audit.actor import Actor
from controlplane.errors import EditError


class RightsLost(EditError):
    """The author may not make the change any more. The message says why, and what to do."""


class _Ended(Exception):
    """The account or the token cannot be used any more."""


def lost_rights(author: Actor, allowed: Callable[[Any], bool], *, did: str, needs: str) -> str:
    """Why the author may not make their change now; an empty text if they may.

    ``allowed`` gets the account or the token with its present rights. ``did`` and ``needs`` are words of the
    sentence: what the author did, and which role that needs.
    """
    try:
        user = _user_now(author)
    except _Ended as ended:
        return f"{author.name} {did}, and {ended}."
    if user is None or allowed(user):
        return ""
    return f"{author.name} {did}, and does not have {needs} any more."


def _user_now(author: Actor) -> Any:
    """The account or the token; ``None`` for a command: it needs a shell on the server, and no account."""
    if author.origin == "command":
        return None
    if author.token or author.name.startswith("token "):
        return _token_now(author)
    name = author.person or author.name
    user = User.objects.filter(username=name).first()
    if user is None:
        raise _Ended("this account does not exist any more")
    if not user.is_active:
        raise _Ended("is deactivated now")
    return user


def _token_now(author: Actor) -> Any:
    """A revoked token has no rights. After its time, or its rotation, the rights of its owner count."""
    # The audit of an earlier version names tokens only by their names, which no username can have.
    named = {"selector": author.token} if author.token else {"name": author.name.removeprefix("token ")}
    row = ApiToken.objects.filter(**named).order_by("-pk").first()
    if row is None or row.revoked_at is not None:
        raise _Ended("is revoked now")
    if not row.owner and row.expires_at <= timezone.now():
        raise _Ended("has expired, and no person owns it")
    rights = rights_of(row, owner_of(row))
    if rights.ended:
        raise _Ended(f"its owner, {row.owner}, cannot log in any more")
    return token_user(row, rights)
