"""Reactions to every login and logout, whether by allauth, a test or Django itself.

These are signals of Django and allauth, and the only place that sees every login.
"""

from dataclasses import replace
from typing import Any

import structlog
from allauth.account.authentication import get_authentication_records
from allauth.mfa.signals import authentication_failed, authenticator_added, authenticator_removed
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.http import HttpRequest

from controlplane.accounts import logins
from controlplane.accounts.models import User
from controlplane.accounts.people_audit import actor_in, note_user
from controlplane.metric_catalogue import edits as catalogue

log = structlog.get_logger(__name__)

wrong_codes = catalogue.WRONG_CODES.make()

#: Ways to log in that are stronger than a password; the provider enforces its own second factor.
_STRONG = frozenset(("mfa", "socialaccount"))


def listen() -> None:
    user_logged_in.connect(_logged_in, dispatch_uid="fuseboard-login")
    user_logged_out.connect(_logged_out, dispatch_uid="fuseboard-logout")
    authenticator_added.connect(_added, dispatch_uid="fuseboard-mfa-added")
    authentication_failed.connect(_code_refused, dispatch_uid="fuseboard-mfa-failed")
    authenticator_removed.connect(_removed, dispatch_uid="fuseboard-mfa-removed")


def _logged_in(*, request: HttpRequest, user: User, **_: Any) -> None:
    methods = {proof["method"] for proof in get_authentication_records(request, user)}
    logins.open_login(request, user, strong=bool(methods & _STRONG))


def _logged_out(*, request: HttpRequest, **_: Any) -> None:
    logins.close_login(request.session)


def _added(*, request: HttpRequest, user: User, authenticator: Any, **_: Any) -> None:
    request.session[logins.STRONG] = True
    # Sessions that began with a password alone end.
    logins.close_logins(user, but=request.session.get(logins.KEY, ""))
    _note(request, user, "user.second_factor_added", authenticator)


def _removed(*, request: HttpRequest, user: User, authenticator: Any, **_: Any) -> None:
    request.session[logins.STRONG] = False
    _note(request, user, "user.second_factor_removed", authenticator)


def _code_refused(*, request: HttpRequest, user: User, reauthentication: bool = False, **_: Any) -> None:
    """A code was wrong, at a login or in a session that asks for it again.

    The limits of failed logins bound how many entries this can make.
    """
    actor = actor_in(request, user)
    wrong_codes.inc()
    log.warning("login.code_refused", user=actor.name, address=actor.address, in_session=reauthentication)
    if reauthentication:
        note_user("user.second_factor_failed", user, actor, "A wrong code in a session.")
        return
    # At a login, the password alone is proven, so there is no role.
    reason = "A wrong code after a correct password."
    note_user("user.second_factor_failed", user, replace(actor, role=""), reason)


def _note(request: HttpRequest, user: User, action: str, authenticator: Any) -> None:
    after = {"type": str(authenticator.type)}
    note_user(action, user, actor_in(request, user), "Changed by the user.", after=after)
