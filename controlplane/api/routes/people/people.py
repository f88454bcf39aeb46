"""People who may log in, and their roles.

Actions that give access to another person's account (a new link, removal of a second factor) are
not here: only an admin can do them, on the dashboard, and no token can.
"""

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from allauth.mfa.models import Authenticator
from django.db import transaction
from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import AfterValidator, Field

from controlplane.accounts import people as edits
from controlplane.accounts.models import User
from controlplane.accounts.owned_tokens import count_by_owner
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.configuration_out import Done
from controlplane.api.schemas.edits_in import ReasonIn, Slug, Text, one_line
from controlplane.change_requests.waiting import Waiting, cancel_lost, seen_by, waiting_of
from controlplane.errors import NotFound

router = Router(auth=needs("manage_people"))

Username = Annotated[str, Field(min_length=1, max_length=150), AfterValidator(one_line)]
RoleWord = Literal["viewer", "operator", "admin"]
Elsewhere = Annotated[
    dict[Slug, RoleWord | Literal[""]],
    Field(max_length=100, description="Environment -> role, where it differs; empty for no role."),
]
OfServices = Annotated[
    dict[Slug, dict[Slug, Literal["operator", "admin"]]] | None,
    Field(
        max_length=100,
        description="Environment -> service -> the role for what the service owns; null keeps the present.",
    ),
]


CancelWaiting = Annotated[
    bool,
    Field(description="Also cancel the waiting changes of the person that would fail from now on."),
]


class GivenRoles(ReasonIn):
    role: RoleWord
    environment_roles: Elsewhere = {}  # noqa: RUF012
    service_roles: OfServices = None


class RolesIn(GivenRoles):
    cancel_waiting: CancelWaiting = False


class PersonIn(GivenRoles):
    username: Username
    email: Text = ""


class SwitchIn(ReasonIn):
    active: bool
    cancel_waiting: CancelWaiting = False


class WaitingOut(Schema):
    kind: Literal["schedule", "change_request", "link"]
    #: The number of the schedule or the change request; 0 for a link to set a password.
    number: int
    #: Empty for a link.
    environment: str
    #: The title of a link is the person for whom it is.
    title: str
    #: When it is due, or when the request or the link ends.
    at: datetime
    #: Why it fails with the present rights of the person; empty if it does not.
    lost: str


class PersonOut(Schema):
    username: str
    email: str
    role: str
    environment_roles: dict[str, str]
    #: Environment -> service -> the role for what the service owns.
    service_roles: dict[str, dict[str, str]]
    is_active: bool
    second_factor: bool
    #: API tokens that they own and that are neither revoked nor expired. Deactivation revokes them.
    api_tokens: int = 0


class InvitedOut(Schema):
    secrets: ClassVar[frozenset[str]] = frozenset({"link"})

    username: str
    #: The path of the link to set a password, once. Shown only now; a repetition returns null.
    link: str | None


@router.get("", response=list[PersonOut])
def list_people(request: HttpRequest) -> list[PersonOut]:
    """By name; the first 500."""
    with_factor = set(Authenticator.objects.filter(type="totp").values_list("user_id", flat=True))
    tokens = count_by_owner()
    return [
        PersonOut(
            username=user.username,
            email=user.email,
            role=user.role,
            environment_roles=user.environment_roles,
            service_roles=user.service_roles,
            is_active=user.is_active,
            second_factor=user.pk in with_factor,
            api_tokens=tokens.get(user.username, 0),
        )
        for user in User.objects.order_by("username")[:500]
    ]


@router.post("", response={201: InvitedOut})
def invite(request: HttpRequest, values: PersonIn) -> InvitedOut:
    """Create a person without a password; return the link to set one."""
    link = edits.invite_person(actor=actor_of(request), **values.model_dump())
    return InvitedOut(username=values.username, link=request.build_absolute_uri(link))


@router.put("/{username}/roles", response=Done)
def change_roles(request: HttpRequest, username: Username, values: RolesIn) -> Done:
    """Change a person's roles; their API tokens follow at once, and open pages within seconds."""
    with transaction.atomic():
        given = values.model_dump(exclude={"cancel_waiting"})
        edits.change_roles(username=username, actor=actor_of(request), **given)
        _cancel(request, username, values)
    return Done()


@router.put("/{username}/active", response=Done)
def switch(request: HttpRequest, username: Username, values: SwitchIn) -> Done:
    """Deactivate a person, which ends their sessions and revokes their API tokens at once.

    Or activate them again: sessions and tokens do not come back.
    """
    with transaction.atomic():
        edits.switch_person(
            username=username, active=values.active, reason=values.reason, actor=actor_of(request)
        )
        _cancel(request, username, values)
    return Done()


@router.get("/{username}/waiting", response=list[WaitingOut])
def list_waiting(request: HttpRequest, username: Username) -> list[Waiting]:
    """What waits in the name of a person: scheduled changes, change requests, and password links for others.

    Fuseboard looks at the rights of the person then. Leaves out environments that you may not read.
    """
    if not User.objects.filter(username=username).exists():
        raise NotFound("user", username)
    return seen_by(request.auth, waiting_of(username))  # type: ignore[attr-defined]


def _cancel(request: HttpRequest, username: str, values: RolesIn | SwitchIn) -> None:
    if values.cancel_waiting:
        reader = request.auth  # type: ignore[attr-defined]
        cancel_lost(username=username, reader=reader, reason=values.reason, actor=actor_of(request))


@router.post("/{username}/log-out", response=Done)
def log_out(request: HttpRequest, username: Username, values: ReasonIn) -> Done:
    """End every session of a person."""
    edits.log_out_everywhere(username=username, reason=values.reason, actor=actor_of(request))
    return Done()
