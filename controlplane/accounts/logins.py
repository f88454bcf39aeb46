"""Sessions that end: every login has a row, and its cookie counts only while the row does.

Sessions are signed cookies, so that they survive an outage of Postgres; a cookie alone could not
be revoked. Ended logins are also kept in memory for as long as claims are trusted, so a copied
cookie gains nothing from an outage that begins right after the logout.
"""

import secrets
import time
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.db import InterfaceError, OperationalError, transaction
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils import timezone

from controlplane import notify_channels
from controlplane.accounts.models import Login, User
from controlplane.accounts.permissions import roles_of
from controlplane.postgres import notify

log = structlog.get_logger(__name__)

#: The key of the login's id in the session.
KEY = "login"
#: The key in the session for whether the login used more than a password.
STRONG = "strong"
#: Longer than claims are trusted.
_REMEMBERED_S = 900

#: Recently ended login id -> when, in Unix seconds.
_ended: dict[str, float] = {}
#: Ended while Postgres was down; still to be written.
_unwritten: set[str] = set()


def open_login(request: HttpRequest, user: User, *, strong: bool) -> None:
    """Begin a session for a user who has just authenticated."""
    login = secrets.token_hex(16)
    Login.objects.create(
        id=login,
        user=user,
        expires_at=timezone.now() + timedelta(seconds=settings.SESSION_COOKIE_AGE),
        address=request.META.get("REMOTE_ADDR", "")[:64],
        browser=request.headers.get("User-Agent", "")[:200],
    )
    request.session[KEY], request.session[STRONG] = login, strong
    needs_factor = not strong and needs_second_factor(user)
    log.info(
        "login.opened", user=user.get_username(), login=login[:8], strong=strong, needs_factor=needs_factor
    )


def close_login(session: SessionBase) -> None:
    """End the session's login. While Postgres is down, it is written later."""
    login = session.get(KEY)
    if not login:
        return
    forget([login])
    _unwritten.add(login)
    write_ended_logins()


def close_logins(user: User, *, but: str = "") -> int:
    """End every login of a user, except ``but``; return how many there were."""
    with transaction.atomic():
        rows = Login.objects.filter(user=user, ended_at__isnull=True).exclude(pk=but)
        ids = list(rows.values_list("pk", flat=True))
        rows.update(ended_at=Now())
        _announce(ids)
    forget(ids)
    return len(ids)


def announce_change(user: User) -> None:
    """Notify web processes that a role changed, so that they check the user's sockets. Needs a
    transaction.
    """
    notify(notify_channels.LOGINS, {"user": user.pk})


def forget(logins: list[str]) -> None:
    """Trust no claims of these logins any more."""
    now = time.time()
    for login, ended in list(_ended.items()):
        if ended < now - _REMEMBERED_S:
            del _ended[login]
    _ended.update(dict.fromkeys(logins, now))


def is_forgotten(session: SessionBase) -> bool:
    """Whether this process knows, without Postgres, that the session's login has ended."""
    return session.get(KEY, "") in _ended


def admitted(session: SessionBase, user: Any) -> Any:
    """``user`` while the session's login lasts, else ``None``. Raises ``OperationalError``.

    Sets ``lacks_second_factor`` when a role, in any environment, requires a second factor that the login
    did not give.
    """
    if not user.is_authenticated:
        return user
    write_ended_logins()
    held = Login.objects.filter(
        pk=session.get(KEY, ""), user_id=user.pk, ended_at__isnull=True, expires_at__gt=timezone.now()
    )
    if not held.exists():
        return None
    # ``needs_second_factor`` asks for the roles, and there are none while this is set.
    user.lacks_second_factor = False
    user.lacks_second_factor = not session.get(STRONG) and needs_second_factor(user)
    return user


def needs_second_factor(user: User) -> bool:
    """Whether one of the user's roles, in any environment, requires a second factor."""
    return bool(roles_of(user) & settings.MFA_ROLES)


def write_ended_logins() -> None:
    """Write logins that ended while Postgres was down."""
    if not _unwritten:
        return
    ids = list(_unwritten)
    try:
        with transaction.atomic():
            Login.objects.filter(pk__in=ids, ended_at__isnull=True).update(ended_at=Now())
            _announce(ids)
    except (OperationalError, InterfaceError) as error:
        log.warning("login.end_not_written", logins=len(ids), error=str(error).splitlines()[0])
        return
    _unwritten.difference_update(ids)


def _announce(ids: list[str]) -> None:
    # A notification holds 8,000 bytes.
    for begin in range(0, len(ids), 100):
        notify(notify_channels.LOGINS, {"logins": ids[begin : begin + 100]})
