"""How allauth logs people in: sign-up is closed, and password guessing is throttled.

Attempts are counted per address and per account, in Postgres. An account under attack stays open
to its owner: a browser that logged in before has a separate count.
"""

from typing import Any

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import LoginForm
from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.messages import SUCCESS
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from controlplane.accounts import guesses, logins
from controlplane.accounts.models import User
from controlplane.accounts.people_audit import actor_in, note_user

log = structlog.get_logger(__name__)

_SALT = "fuseboard.known-browser"
KNOWN_FOR_S = 180 * 86_400
#: The page itself says it.
_UNSAID = frozenset(("account/messages/logged_in.txt", "account/messages/logged_out.txt"))


class Adapter(DefaultAccountAdapter):  # type: ignore[misc]
    error_messages = {  # noqa: RUF012 - allauth's own way to change the words
        **DefaultAccountAdapter.error_messages,
        "username_password_mismatch": "No account has this name and password. Both are case-sensitive.",
        "too_many_login_attempts": "Too many failed attempts. Wait a few minutes and try again.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def add_message(self, request: HttpRequest, level: int, *args: Any, **kwargs: Any) -> None:
        template = kwargs.get("message_template") or (args[0] if args else "")
        if template not in _UNSAID or level != SUCCESS:
            super().add_message(request, level, *args, **kwargs)

    def set_password(self, user: User, password: str) -> None:
        """Change the user's password and end all their other sessions."""
        with transaction.atomic():
            super().set_password(user, password)
            actor = actor_in(self.request, user)
            note_user("user.password_changed", user, actor, "Changed by themselves.")
            logins.close_logins(user, but=self.request.session.get(logins.KEY, ""))

    def post_login(self, request: HttpRequest, user: AbstractBaseUser, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = super().post_login(request, user, **kwargs)
        response.set_signed_cookie(
            _cookie(),
            user.get_username(),
            salt=_SALT,
            max_age=KNOWN_FOR_S,
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )
        return response

    def authenticate(self, request: HttpRequest, **credentials: Any) -> AbstractBaseUser | None:
        entry = self.count_attempt()
        user: AbstractBaseUser | None = super().authenticate(request, **credentials)
        if user is not None:
            guesses.give_back(entry)
        return user

    def count_attempt(self) -> str:
        """Count an attempt with a password or a code against its address; see ``guesses.take``.

        Raises ``ValidationError`` after too many failed attempts.
        """
        address = self.get_client_ip(self.request)
        entry = guesses.take(address)
        if entry is None:
            log.warning("login.too_many_failures", address=address)
            message = self.error_messages["too_many_login_attempts"]
            raise ValidationError(message, code="too_many_login_attempts")
        return entry

    def authentication_failed(self, request: HttpRequest, **credentials: Any) -> None:
        log.warning(
            "login.failed",
            user=str(credentials.get("username", ""))[:150],
            address=request.META.get("REMOTE_ADDR", ""),
        )

    def _get_login_attempts_cache_key(self, request: HttpRequest, **credentials: Any) -> str:
        name = str(credentials.get("username", "")).lower()
        return f"{name}:known" if _is_known(request, name) else name


class Form(LoginForm):  # type: ignore[misc]
    """allauth's, with the field's name that browsers have stored passwords under."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["login"].error_messages["max_length"] = "Use at most %(limit_value)d characters."

    def add_prefix(self, field_name: str) -> str:
        return "username" if field_name == "login" else str(super().add_prefix(field_name))


def _is_known(request: HttpRequest, name: str) -> bool:
    """Whether this browser has logged in to this account before."""
    try:
        known = request.get_signed_cookie(_cookie(), default="", salt=_SALT, max_age=KNOWN_FOR_S)
    except signing.BadSignature:
        return False
    return bool(name) and str(known).lower() == name


def _cookie() -> str:
    return "fuseboard-known" if settings.PLAIN_HTTP else "__Host-fuseboard-known"
