"""The person who looks at a page, as far as drawing it depends on them."""

from dataclasses import dataclass, field
from functools import partial

from django.http import HttpRequest

from controlplane.accounts.permissions import (
    EVERYWHERE,
    Services,
    administers_everywhere,
    check,
    check_changes,
    environment_in,
    may,
    role_of,
    services_of,
)
from controlplane.audit.actor import Actor
from controlplane.editing.edits.revert import Check
from controlplane.editing.edits.revert_rights import service_of_revert


@dataclass(frozen=True)
class Reader:
    name: str
    role: str
    #: The services for which the role is higher.
    services: Services = ()
    #: Whether they may do what belongs to no environment, such as inviting people.
    administers_everywhere: bool = False
    is_authenticated: bool = field(default=True, init=False)

    def may(self, action: str) -> bool:
        """Whether to offer what needs this right: here, or everywhere if it belongs to no environment."""
        return self.administers_everywhere if action in EVERYWHERE else may(self, action)

    @property
    def operates(self) -> bool:
        """Whether to display the buttons of a breaker."""
        return may(self, "override_breaker")

    @property
    def approves(self) -> bool:
        """Whether to display what waits for approval, and its buttons."""
        return may(self, "approve_change")

    @property
    def administers(self) -> bool:
        """Whether to display the quota forms."""
        return may(self, "edit_quota")


def reader_of(request: HttpRequest) -> Reader | None:
    environment = environment_in(request)
    role = role_of(request.user, environment)
    if not role:
        return None
    return Reader(
        name=request.user.get_username(),
        role=role,
        services=services_of(request.user, environment),
        administers_everywhere=administers_everywhere(request.user),
    )


def check_owner(request: HttpRequest, action: str, service: str) -> None:
    """Refuse a reader who may not do this to what belongs to the service. Raises ``PermissionDenied``.

    The audit then names the role for the service.
    """
    check(request.user, action, environment_in(request), service=service)
    request.service = service  # type: ignore[attr-defined]


def check_reverts(request: HttpRequest, number: int) -> Check:
    """Refuse a reader who may revert nothing of the revision, and return the check of what it changes.

    The audit then names the role for the service. Raises ``PermissionDenied``, as the check does.
    """
    environment = environment_in(request)
    request.service = service_of_revert(request.user, environment, number)  # type: ignore[attr-defined]
    return partial(check_changes, request.user, environment)


def actor_of(request: HttpRequest, *, service: str = "") -> Actor:
    """The person whom the audit names for a form."""
    return Actor(
        name=request.user.get_username(),
        role=role_of(request.user, environment_in(request), service or getattr(request, "service", "")),
        origin="form",
        address=request.META.get("REMOTE_ADDR", ""),
    )


def one_at_a_time_as(request: HttpRequest) -> str:
    """The caller in ``controlplane.one_at_a_time``: the same for the pages and the API of one person."""
    return f"user:{request.user.get_username()}"[:200]
