"""Who may do what. Asked by views and the API before they call an edit."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from controlplane.accounts.models import Role

_RANK = {Role.VIEWER.value: 1, Role.OPERATOR.value: 2, Role.ADMIN.value: 3}

#: Action -> the least role that may do it.
ACTIONS: dict[str, Role] = {
    "view": Role.VIEWER,
    "hold_breaker": Role.OPERATOR,
    "end_override": Role.OPERATOR,
    "reset_breaker": Role.OPERATOR,
    "edit_quota": Role.ADMIN,
    "edit_tenant": Role.ADMIN,
    "edit_breaker_policy": Role.ADMIN,
    "manage_tokens": Role.ADMIN,
}


def role_of(user: Any) -> str:
    """The user's role, or an empty text for somebody who is not logged in."""
    if not getattr(user, "is_authenticated", False) or not getattr(user, "is_active", True):
        return ""
    if getattr(user, "is_superuser", False):
        return Role.ADMIN.value
    return str(getattr(user, "role", ""))


def has_role(user: Any, role: str) -> bool:
    """Whether the user has this role or a higher one."""
    return _RANK.get(role_of(user), 0) >= _RANK[role]


def may(user: Any, action: str) -> bool:
    return has_role(user, ACTIONS[action])


View = Callable[..., HttpResponseBase]


def require_role(role: str) -> Callable[[View], View]:
    """Send strangers to the login page; answer 403 to users whose role is too low."""
    if role not in _RANK:
        raise ValueError(f"There is no role {role!r}")

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not role_of(request.user):
                return redirect_to_login(request.get_full_path())
            if not has_role(request.user, role):
                raise PermissionDenied(f"This needs the role {role}.")
            return view(request, *args, **kwargs)

        return guarded

    return decorate
