"""Decides who may log in with OpenID Connect, and with which role.

A person may log in when they were invited under the email address that the provider has verified,
or when they are in a group that FUSEBOARD_OIDC_ROLES names. Groups are read at every login: a
person who leaves a group keeps the role until the next login, for one session at most. A person who is
in none of the groups any more has the role from before, or can no longer log in.
"""

from typing import Any, NoReturn

import structlog
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
from django.db import transaction
from django.http import HttpRequest
from django.shortcuts import render

from controlplane.accounts import logins
from controlplane.accounts.id_tokens import Provider, check_id_token
from controlplane.accounts.models import Role, User
from controlplane.accounts.people_audit import note_user
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.metric_catalogue import edits as catalogue

log = structlog.get_logger(__name__)

failed = catalogue.PROVIDER_LOGINS_FAILED.make()

#: The actor of what groups changed. No username contains a space.
_GROUPS = "OpenID Connect"
_ORDER = (Role.ADMIN.value, Role.OPERATOR.value, Role.VIEWER.value)


class Adapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    def get_provider(self, request: HttpRequest, provider: str, client_id: str | None = None) -> Provider:
        found = super().get_provider(request, provider, client_id)
        return Provider(request, app=found.app)

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Link the login to the invited person, and assign the role of their groups.

        Raises ``OAuth2Error`` if the answer was not issued for this login.
        """
        check_id_token(sociallogin)
        claims = _claims(sociallogin)
        role = role_by_groups(claims.get("groups"))
        if not sociallogin.is_existing:
            if not _is_verified(claims):
                # Another person may own it, and log in with it later.
                sociallogin.user.email, sociallogin.email_addresses = "", []
            invited = _invited(request, claims)
            if invited is not None:
                sociallogin.connect(request, invited)
            elif not role:
                _refuse(request, claims, "not invited")
            else:
                sociallogin.user.role = role
                return
        if role:
            _assign(sociallogin.user, role, request)
        elif not _left_groups(sociallogin.user, request):
            _refuse(request, claims, "left the groups")

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return bool(role_by_groups(_claims(sociallogin).get("groups")))

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> AbstractBaseUser:
        with transaction.atomic():
            user: User = super().save_user(request, sociallogin, form)
            _record(user, request, before=None)
        return user

    def on_authentication_error(self, request: HttpRequest, provider: Any, **kwargs: Any) -> None:
        error, cause = kwargs.get("error"), kwargs.get("exception")
        failed.inc()
        log.warning("login.provider_failed", error=str(error), cause=str(cause))
        raise ImmediateHttpResponse(render(request, "account/provider_failed.html", status=502))


def role_by_groups(groups: Any) -> str:
    """The highest role of these groups; empty for none."""
    listed = groups if isinstance(groups, list) else []
    held = {settings.OIDC_ROLES.get(group) for group in listed if isinstance(group, str)}
    return next((role for role in _ORDER if role in held), "")


def _claims(sociallogin: Any) -> dict[str, Any]:
    """The claims of the provider about this person."""
    data = sociallogin.account.extra_data
    found: dict[str, Any] = {**(data.get("id_token") or {}), **(data.get("userinfo") or {})}
    return found


def _is_verified(claims: dict[str, Any]) -> bool:
    return claims.get("email_verified") is True


def _invited(request: HttpRequest, claims: dict[str, Any]) -> User | None:
    """The person with this address, unless another identity of the provider has their account already."""
    email = claims.get("email")
    if not isinstance(email, str) or not email or not _is_verified(claims):
        return None
    # The database compares in capital letters. An i without its dot has the same one as an i.
    same = [user for user in User.objects.filter(email__iexact=email) if user.email.lower() == email.lower()]
    if same and not any(user.is_active for user in same):
        _refuse(request, claims, "deactivated")
    taken = SocialAccount.objects.filter(user__in=same, extra_data__id_token__iss=claims["iss"])
    free = [user for user in same if user.is_active and user.pk not in taken.values_list("user", flat=True)]
    # Two people share the address, so the person is unknown.
    return free[0] if len(free) == 1 else None


def _refuse(request: HttpRequest, claims: dict[str, Any], why: str) -> NoReturn:
    log.warning("login.refused", subject=str(claims.get("sub", ""))[:200], why=why)
    raise ImmediateHttpResponse(render(request, "account/refused.html", status=403))


def _assign(user: User, role: str, request: HttpRequest) -> None:
    if user.role == role:
        return
    before, user.role = user.role, role
    with transaction.atomic():
        _record(user, request, before=before)
        User.objects.filter(pk=user.pk).update(role=role)
        logins.announce_change(user)


def _left_groups(user: User, request: HttpRequest) -> bool:
    """Take back what groups gave to a person who is in none of them now; return whether they may log in."""
    earlier = _role_without_groups(user)
    _assign(user, earlier or Role.VIEWER, request)
    if not earlier:
        logins.close_logins(user)
    return bool(earlier)


def _role_without_groups(user: User) -> str:
    """The role that a person or a command gave; empty if the account exists because of groups only."""
    entries = Entry.objects.filter(
        target_kind="user",
        target_name=user.get_username(),
        action__in=("user.created", "user.invited", "user.role_changed"),
    ).order_by("-id")
    role = user.role
    for entry in entries:
        if entry.actor != _GROUPS:
            if entry.action == "user.role_changed" and _role(entry.before) == _role(entry.after):
                # A person changed the roles in environments only.
                continue
            break
        if entry.action == "user.created":
            return ""
        role = _role(entry.before)
    return role


def _role(fields: dict[str, Any] | None) -> str:
    return str((fields or {}).get("role", Role.VIEWER))


def _record(user: User, request: HttpRequest, *, before: str | None) -> None:
    address = request.META.get("REMOTE_ADDR", "")
    note_user(
        "user.role_changed" if before else "user.created",
        user,
        Actor(name=_GROUPS, role="admin", origin="form", address=address),
        "Role assigned from identity provider groups.",
        before={"role": before} if before else None,
        after={"role": user.role},
    )
