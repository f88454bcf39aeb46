"""``Idempotency-Key``: a write that is sent twice is made once.

The reply is stored in the transaction of the edit, so that a crash cannot separate them. A concurrent
request with the same key waits at the row's unique index and then gets the same reply; after a
timeout it gets 409. Replies to refused edits are not stored: they changed nothing.
"""

import re
from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.crypto import salted_hmac
from ninja.errors import HttpError
from pydantic import BaseModel

from controlplane.api.http.auth import caller_of
from controlplane.api.http.uploads import upload_of
from controlplane.api.models import KEPT_FOR, KeptReply
from controlplane.api.schemas.proposals import accepted
from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.proposals import Proposed
from controlplane.postgres import others_hold_lock

#: Visible ASCII without commas: two headers of one name arrive as one with a comma.
_KEY = re.compile(r"[!-+\--~]{1,200}")


#: In a stored reply, in place of a document: the change request that the edit became.
_WAITS = "urn:fuseboard:change-request"


class Reused(Exception):
    """The key was used for another request."""


class InProgress(Exception):
    """Another request with the same key is still in progress."""


def idempotent(view: Callable[..., Any]) -> Callable[..., Any]:
    """Runs after validation: a request that the schema refuses never uses a key."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        header = request.headers.get("Idempotency-Key")
        if header is None or request.method == "GET" or is_read_only(view):
            return view(request, *args, **kwargs)
        if not _KEY.fullmatch(header):
            raise HttpError(400, "Idempotency-Key must be one header of 1 to 200 visible ASCII characters.")
        with transaction.atomic():
            kept, mine = _claim(
                caller_of(request), header, fingerprints_of(request, _body_digest(view, request))
            )
            if not mine:
                request.replayed = True  # type: ignore[attr-defined]
                return _again(kept.reply)
            try:
                reply = view(request, *args, **kwargs)
            except Proposed as proposed:
                # The request is stored with the reply, or neither is.
                KeptReply.objects.filter(pk=kept.pk).update(reply={_WAITS: proposed.request.pk})
                return accepted(proposed.request)
            KeptReply.objects.filter(pk=kept.pk).update(reply=_kept_form(reply))
        return reply

    return answer


def changes_nothing(view: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a POST that changes nothing: it may be repeated, and needs neither a key nor an approval."""
    view.changes_nothing = True  # type: ignore[attr-defined]
    return view


def is_read_only(view: Callable[..., Any]) -> bool:
    """Whether ``changes_nothing`` marks the view."""
    return hasattr(view, "changes_nothing")


def reads_file(view: Callable[..., Any]) -> Callable[..., Any]:
    """Mark an operation whose body is a file, see ``uploads``."""
    view.reads_file = True  # type: ignore[attr-defined]
    return view


def _body_digest(view: Callable[..., Any], request: HttpRequest) -> str:
    return upload_of(request)[1] if hasattr(view, "reads_file") else sha256(request.body).hexdigest()


def fingerprints_of(request: HttpRequest, body_digest: str) -> tuple[str, ...]:
    """First the fingerprint that is stored; then those of earlier secret keys, and of a release up to 0.1.

    Replies are kept for a day, so a request can be repeated after the secret key was replaced.
    """
    parts = (request.method or "", request.get_full_path(), request.headers.get("If-Match", ""), body_digest)
    # With a key: a body can name a caller to erase, whom no list of guesses may find in a stored digest.
    text = "\n".join(parts)
    keyed = [
        salted_hmac("fuseboard.idempotency", text, secret=secret, algorithm="sha256").hexdigest()
        for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    ]
    return (*keyed, sha256(text.encode()).hexdigest())


def _claim(caller: str, key: str, fingerprints: tuple[str, ...]) -> tuple[KeptReply, bool]:
    """The row of this key, and whether it is new."""
    old = KeptReply.objects.filter(caller=caller, key=key, created_at__lt=Now() - KEPT_FOR)
    old.delete()
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO api_keptreply (caller, key, fingerprint) VALUES (%s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                [caller, key, fingerprints[0]],
            )
            mine = cursor.rowcount == 1
    except OperationalError as error:
        if others_hold_lock(error):
            raise InProgress from error
        raise
    kept = KeptReply.objects.get(caller=caller, key=key)
    if kept.fingerprint not in fingerprints:
        raise Reused
    return kept, mine


def _again(reply: Any) -> Any:
    """Reply for an edit that became a change request: the state of that request."""
    if isinstance(reply, dict) and reply.keys() == {_WAITS}:
        return accepted(ChangeRequest.objects.get(pk=reply[_WAITS]))
    return reply


def _kept_form(reply: Any) -> Any:
    if not isinstance(reply, BaseModel):
        raise TypeError("Only documents can be stored; give the operation a response schema.")
    secrets: frozenset[str] = getattr(reply, "secrets", frozenset())
    return reply.model_dump(mode="json") | dict.fromkeys(secrets)
