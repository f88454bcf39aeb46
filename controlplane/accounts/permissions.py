"""The role that each action needs, and where. Views and the API check it before they call an edit."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from controlplane.accounts.models import ApiToken, Role
from controlplane.page_addresses import split_address

#: Service -> a role, in the order of the services.
Services = tuple[tuple[str, str], ...]

_RANK = {Role.VIEWER.value: 1, Role.OPERATOR.value: 2, Role.ADMIN.value: 3}

#: Action -> the lowest role that may do it.
ACTIONS: dict[str, Role] = {
    "view": Role.VIEWER,
    # A token of the role ``metrics`` may do this and nothing else.
    "read_metrics": Role.VIEWER,
    "override_breaker": Role.OPERATOR,
    "end_override": Role.OPERATOR,
    "reset_breaker": Role.OPERATOR,
    # It spends what the dependency admits, or loses work.
    "change_dead_jobs": Role.OPERATOR,
    "clear_counter": Role.OPERATOR,
    "edit_quota": Role.ADMIN,
    "edit_tenant": Role.ADMIN,
    "edit_breaker_policy": Role.ADMIN,
    "manage_tokens": Role.ADMIN,
    "manage_people": Role.ADMIN,
    "export_audit": Role.ADMIN,
    "manage_receivers": Role.ADMIN,
    "change_alert_rules": Role.ADMIN,
    #: All customers in one file.
    "export_configuration": Role.ADMIN,
    "run_drills": Role.ADMIN,
    "acknowledge_alert": Role.OPERATOR,
    "mute_alerts": Role.OPERATOR,
    "edit_incident": Role.OPERATOR,
    #: A pipeline marks deployments with its token.
    "add_marker": Role.OPERATOR,
    # People copy its commands into the shells of production.
    "edit_runbook": Role.ADMIN,
    "forget_pod": Role.OPERATOR,
    "share_view": Role.OPERATOR,
    "lift_freeze": Role.OPERATOR,
    # Operators answer for what runs, and an approval alone changes nothing: another person proposed it.
    "approve_change": Role.OPERATOR,
    "set_approvals": Role.ADMIN,
    "freeze_edits": Role.ADMIN,
    "erase": Role.ADMIN,
}
#: A role for one service covers these, on the dependencies that the service owns and on its pods. All other
#: actions are decided by the role in the environment. See docs/adr/0029-roles-for-one-service.md.
OF_SERVICE = frozenset(
    {
        *("override_breaker", "end_override", "reset_breaker", "change_dead_jobs"),
        *("edit_breaker_policy", "forget_pod"),
    }
)
#: These belong to no environment, so only the role for all environments counts.
EVERYWHERE = frozenset({"manage_people", "edit_runbook"})


def role_of(user: Any, environment: str = "", service: str = "") -> str:
    """The user's role in an environment, or an empty text for a user without one there.

    Without an environment: the role that applies wherever no other was given. With a service: the role for
    it, if that is higher. It counts only beside a role in the environment.
    """
    if not getattr(user, "is_authenticated", False) or not getattr(user, "is_active", True):
        return ""
    if getattr(user, "lacks_second_factor", False):
        return ""
    if getattr(user, "is_superuser", False):
        return Role.ADMIN.value
    everywhere = str(getattr(user, "role", ""))
    there = str((getattr(user, "environment_roles", None) or {}).get(environment, everywhere))
    own = str((getattr(user, "service_roles", None) or {}).get(environment, {}).get(service, ""))
    return own if _RANK.get(own, 0) > _RANK.get(there, 0) > 0 else there


def services_of(user: Any, environment: str) -> Services:
    """Each service for which the user has a higher role than in the environment, with this role."""
    there = role_of(user, environment)
    own = (getattr(user, "service_roles", None) or {}).get(environment, {})
    found = ((service, role_of(user, environment, service)) for service in sorted(own))
    return tuple((service, role) for service, role in found if role != there)


def covered(services: Services, action: str) -> frozenset[str]:
    """The services of which the user may do this, beside what the role in the environment permits."""
    least = _RANK[ACTIONS[action]]
    return frozenset(name for name, role in services if action in OF_SERVICE and _RANK[role] >= least)


def roles_of(user: Any) -> frozenset[str]:
    """The user's roles: the one for all environments, and those of single environments and services."""
    everywhere = role_of(user)
    if getattr(user, "is_superuser", False) or not getattr(user, "is_active", True):
        return frozenset({everywhere}) - {""}
    there = (getattr(user, "environment_roles", None) or {}).values()
    own = (getattr(user, "service_roles", None) or {}).values()
    return frozenset({everywhere, *there, *(role for roles in own for role in roles.values())}) - {""}


def lower_role(one: str, other: str) -> str:
    """The role of the two that may do less; an empty text if either is not a role.

    ``one`` can be ``metrics``, which is less than any role.
    """
    if one == ApiToken.METRICS and other in _RANK:
        return one
    return min(one, other, key=lambda role: _RANK.get(role, 0)) if one in _RANK and other in _RANK else ""


def has_role(user: Any, role: str, environment: str = "", service: str = "") -> bool:
    """Whether the user has this role or a higher one."""
    return _RANK.get(role_of(user, environment, service), 0) >= _RANK[role]


def may(user: Any, action: str, environment: str = "", *, service: str = "") -> bool:
    """Whether the user may do this in ``environment``; without one, in everything that has no environment.

    ``service`` is the owner of the dependency that is changed, or the service of the pod.
    """
    where = "" if action in EVERYWHERE else environment
    if action == "read_metrics" and role_of(user, where) == ApiToken.METRICS:
        return True
    return has_role(user, ACTIONS[action], where, service if action in OF_SERVICE else "")


def administers_everywhere(user: Any) -> bool:
    """Whether the user may do every action of ``EVERYWHERE``."""
    return all(may(user, action) for action in EVERYWHERE)


def reads_of_people(user: Any) -> bool:
    """Whether the user may read who got which role: not one to whom an environment is closed.

    Entries of people belong to no environment, and name environments and addresses.
    """
    closed = not all((getattr(user, "environment_roles", None) or {}).values())
    return bool(role_of(user)) and (getattr(user, "is_superuser", False) or not closed)


def may_for_some(user: Any, action: str, environment: str) -> bool:
    """Whether the user may do this in the environment, or for one service at least."""
    return may(user, action, environment) or bool(covered(services_of(user, environment), action))


def check(user: Any, action: str, environment: str, *, service: str) -> None:
    """Raise ``PermissionDenied`` unless the user may do this to what belongs to the service."""
    if not may(user, action, environment, service=service):
        owner = f", or the same role for service {service}" if service else ""
        raise PermissionDenied(f"This needs the role {ACTIONS[action].value}{owner}.")


def check_changes(user: Any, environment: str, changes: Iterable[Any]) -> None:
    """Raise ``PermissionDenied`` unless the user may make all these changes. Each has what is there now.

    A role for a service covers changes of dependencies that it owns, as long as it owns them afterwards.
    """
    if may(user, "edit_quota", environment):
        return
    for change in changes:
        now, after = change.before or {}, change.after or {}
        owner = str(now.get("owner", ""))
        own = change.kind == "dependency" and owner and owner == after.get("owner")
        if not own or not may(user, "edit_breaker_policy", environment, service=owner):
            raise PermissionDenied(
                f"It also changes {change.kind} {change.name}, which needs the role admin."
                if change.kind != "dependency" or now.get("owner") == after.get("owner")
                else f"It also decides who owns {change.name}, which needs the role admin."
            )


def environment_in(request: HttpRequest) -> str:
    """Return the environment that a page shows and edits: its address alone decides."""
    return split_address(request.path)[0]


View = Callable[..., HttpResponseBase]


def require_role(role: str) -> Callable[[View], View]:
    """Redirect anonymous visitors to the login page; answer 403 to users whose role is too low."""
    if role not in _RANK:
        raise ValueError(f"There is no role {role!r}")
    return _require(
        lambda user, environment: has_role(user, role, environment), f"This needs the role {role}."
    )


def require(action: str) -> Callable[[View], View]:
    """``require_role`` for users who may do ``action``."""
    least = ACTIONS[action].value

    def allowed(user: Any, environment: str) -> bool:
        # A page has the frame of its environment, also if its action belongs to none.
        return may(user, action, environment) and bool(role_of(user, environment))

    return _require(allowed, f"This needs the role {least}.")


def _require(allowed: Callable[[Any, str], bool], otherwise: str) -> Callable[[View], View]:
    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if getattr(request.user, "lacks_second_factor", False):
                return redirect("mfa_activate_totp")
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            if not allowed(request.user, environment_in(request)):
                raise PermissionDenied(otherwise)
            return view(request, *args, **kwargs)

        return guarded

    return decorate
