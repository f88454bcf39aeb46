"""Edits of people and their roles. They make no revision; the audit records them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from allauth.mfa.models import Authenticator
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import Q

from controlplane.accounts import logins
from controlplane.accounts.models import Role, User
from controlplane.accounts.owned_tokens import revoke_tokens_of
from controlplane.accounts.people_audit import note_user
from controlplane.accounts.single_use_links import issue_link
from controlplane.audit.actor import Actor
from controlplane.audit.record import acting
from controlplane.errors import find
from controlplane.policies.models import Environment
from controlplane.validation import Problems, check_reason
from fuseboard.contract.words import is_slug

INVITED = timedelta(days=3)
#: In ``environment_roles``: no role there, whatever the role is elsewhere.
NO_ROLE = ""
#: Roles that differ for one service: every viewer of an environment sees all of it.
OF_SERVICE = (Role.OPERATOR.value, Role.ADMIN.value)
#: Services for which one person has a role, in all environments together.
MAX_SERVICES = 20

#: Environment -> service -> role.
ServiceRoles = Mapping[str, Mapping[str, str]]


def names_of_admins() -> list[str]:
    """The names of those who give roles: active admins of all environments."""
    rows = User.objects.filter(Q(role=Role.ADMIN) | Q(is_superuser=True), is_active=True)
    return list(rows.order_by("username").values_list("username", flat=True))


def invite_person(
    *,
    username: str,
    role: str,
    reason: str,
    actor: Actor,
    email: str = "",
    environment_roles: Mapping[str, str] | None = None,
    service_roles: ServiceRoles | None = None,
    valid: timedelta = INVITED,
) -> str:
    """Create a person without a password; return the path of the link to set one."""
    roles, own = dict(environment_roles or {}), _of_services(service_roles or {})
    problems = Problems()
    _check_name(problems, username, email)
    _check_roles(problems, role, roles)
    _check_service_roles(problems, own)
    problems.reason(reason)
    problems.settle()
    with transaction.atomic():
        acting(actor)
        user = User(username=username, email=email, role=role, environment_roles=roles, service_roles=own)
        user.set_unusable_password()
        user.save(force_insert=True)
        note_user("user.invited", user, actor, reason, after=_fields(user))
        return issue_link(user, valid=valid)


def change_roles(
    *,
    username: str,
    role: str,
    environment_roles: Mapping[str, str],
    reason: str,
    actor: Actor,
    service_roles: ServiceRoles | None = None,
) -> None:
    """Change a person's roles; their open pages follow within seconds.

    ``None`` keeps the roles for services.
    """
    roles = dict(environment_roles)
    problems = Problems()
    _check_roles(problems, role, roles)
    own = None if service_roles is None else _of_services(service_roles)
    _check_service_roles(problems, own or {})
    problems.reason(reason)
    problems.settle()
    with _changing(username, actor, "user.role_changed", reason) as user:
        if role != Role.ADMIN:
            _keep_an_admin(user, "role")
        user.role, user.environment_roles = role, roles
        user.service_roles = user.service_roles if own is None else own
        user.save(update_fields=["role", "environment_roles", "service_roles"])
        logins.announce_change(user)


def switch_person(*, username: str, active: bool, reason: str, actor: Actor) -> None:
    """Deactivate a person, which ends their sessions and revokes their API tokens at once; or activate
    them again, without sessions and tokens.

    Activation revokes too: a person deactivated with SQL, or by version 0.1.0, still has both.
    """
    check_reason(reason)
    with _changing(username, actor, "user.switched_on" if active else "user.switched_off", reason) as user:
        if not active:
            _keep_an_admin(user, "active")
        if active != user.is_active or not active:
            logins.close_logins(user)
            revoke_tokens_of(user, reason=reason, actor=actor)
        user.is_active = active
        user.save(update_fields=["is_active"])


def log_out_everywhere(*, username: str, reason: str, actor: Actor) -> int:
    """End every session of a person; return how many there were."""
    check_reason(reason)
    with _changing(username, actor, "user.logged_out", reason) as user:
        return logins.close_logins(user)


def send_new_link(*, username: str, reason: str, actor: Actor, valid: timedelta = INVITED) -> str:
    """Return the path of a link to set a new password; the old password works until then.

    The identity at the provider is disconnected. The next one with the same verified address is connected.
    """
    check_reason(reason)
    with _changing(username, actor, "user.link_made", reason) as user:
        if user.email:
            # Only processes with pages have this table among their models.
            cast(Any, user).socialaccount_set.all().delete()
        return issue_link(user, valid=valid)


def remove_second_factor(*, username: str, reason: str, actor: Actor) -> None:
    """Remove a lost second factor: the password alone is enough again, and all sessions end."""
    check_reason(reason)
    with _changing(username, actor, "user.second_factor_removed", reason) as user:
        Authenticator.objects.filter(user=user).delete()
        logins.close_logins(user)


@contextmanager
def _changing(username: str, actor: Actor, action: str, reason: str) -> Iterator[User]:
    with transaction.atomic():
        acting(actor)
        user = find(User.objects.select_for_update(), "user", username=username)
        before = _fields(user)
        yield user
        note_user(action, user, actor, reason, before=before, after=_fields(user))


def _keep_an_admin(user: User, field: str) -> None:
    """Refuse to take the role from the last admin. Concurrent calls wait for each other."""
    rows = User.objects.select_for_update().filter(role=Role.ADMIN, is_active=True)
    admins = list(rows.order_by("pk").values_list("pk", flat=True))
    if admins == [user.pk]:
        problems = Problems()
        problems.add(field, "This is the only admin. Give another person the admin role first.")
        problems.settle()


def _check_name(problems: Problems, username: str, email: str) -> None:
    problems.text("username", username, 150)
    try:
        UnicodeUsernameValidator()(username)
    except ValidationError:
        problems.add("username", "Use letters, digits and @ . + - _ only.")
    if User.objects.filter(username__iexact=username).exists():
        problems.add("username", "This username is taken.")
    if email:
        try:
            validate_email(email)
        except ValidationError:
            problems.add("email", "Enter an email address, or leave it empty.")
        if User.objects.filter(email__iexact=email).exists():
            problems.add("email", "This email address is taken.")


def _check_roles(problems: Problems, role: str, environment_roles: Mapping[str, str]) -> None:
    if role not in Role.values:
        problems.add("role", f"Choose one of: {', '.join(Role.values)}.")
    known = set(Environment.objects.filter(slug__in=environment_roles).values_list("slug", flat=True))
    for environment, there in environment_roles.items():
        if environment not in known:
            problems.add("environment_roles", f"There is no environment {environment}.")
        if there not in (NO_ROLE, *Role.values):
            problems.add("environment_roles", f"Choose one of: none, {', '.join(Role.values)}.")


def _of_services(given: ServiceRoles) -> dict[str, dict[str, str]]:
    return {environment: dict(roles) for environment, roles in given.items() if roles}


def _check_service_roles(problems: Problems, given: ServiceRoles) -> None:
    known = set(Environment.objects.filter(slug__in=given).values_list("slug", flat=True))
    for environment in given.keys() - known:
        problems.add("service_roles", f"There is no environment {environment}.")
    pairs = [pair for roles in given.values() for pair in roles.items()]
    if len(pairs) > MAX_SERVICES:
        # They are in the cookie of each session.
        problems.add("service_roles", f"Give roles for at most {MAX_SERVICES} services.")
    for service, role in pairs:
        if not is_slug(service):
            problems.add(
                "service_roles", f"Use the name that pods of the service report, not {service[:64]!r}."
            )
        if role not in OF_SERVICE:
            problems.add("service_roles", f"Choose one of: {', '.join(OF_SERVICE)}.")


def _fields(user: User) -> dict[str, Any]:
    elsewhere = {f"role in {name}": role or "none" for name, role in sorted(user.environment_roles.items())}
    own = {
        f"role in {environment} for {service}": role
        for environment, roles in sorted(user.service_roles.items())
        for service, role in sorted(roles.items())
    }
    return {"role": user.role, "active": user.is_active, "email": user.email, **elsewhere, **own}


def person_of(actor: Actor) -> str:
    """Username of the person behind an actor; empty for a program without an owner."""
    name = actor.person or actor.name
    return name if User.objects.filter(username=name).exists() else ""
