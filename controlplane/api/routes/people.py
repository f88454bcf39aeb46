"""Who may log in, and with which roles.

Actions that give access to another person's account (a new link, removal of a second factor) are
not here: only an admin can do them, on the dashboard, and no token can.
"""

from typing import Annotated, ClassVar, Literal

from allauth.mfa.models import Authenticator
from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import AfterValidator, ConfigDict, Field

from controlplane.accounts import people as edits
from controlplane.accounts.models import User
from controlplane.accounts.owned_tokens import count_by_owner
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.configuration_out import Done
from controlplane.api.schemas.edits_in import ReasonIn, Slug, Text, one_line

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
_WHY = {"reason": "Joined the on-call rota"}


class RolesIn(ReasonIn):
    model_config = ConfigDict(
        json_schema_extra={"example": {"role": "viewer", "environment_roles": {"staging": "admin"}, **_WHY}}
    )

    role: RoleWord
    environment_roles: Elsewhere = {}  # noqa: RUF012
    service_roles: OfServices = None


class PersonIn(RolesIn):
    model_config = ConfigDict(
        json_schema_extra={"example": {"username": "olga", "email": "", "role": "operator", **_WHY}}
    )

    username: Username
    email: Text = ""


class SwitchIn(ReasonIn):
    model_config = ConfigDict(json_schema_extra={"example": {"active": False, "reason": "Left the company"}})

    active: bool


class PersonOut(Schema):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "username": "olga",
                "email": "",
                "role": "operator",
                "environment_roles": {},
                "service_roles": {"staging": {"shop": "operator"}},
                "is_active": True,
                "second_factor": True,
                "api_tokens": 1,
            }
        }
    )

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
    model_config = ConfigDict(
        json_schema_extra={
            "example": {"username": "olga", "link": "https://fuseboard.example.com/welcome/..."}
        }
    )
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
    edits.change_roles(username=username, actor=actor_of(request), **values.model_dump())
    return Done()


@router.put("/{username}/active", response=Done)
def switch(request: HttpRequest, username: Username, values: SwitchIn) -> Done:
    """Deactivate a person, which ends their sessions and revokes their API tokens at once.

    Or activate them again: sessions and tokens do not come back.
    """
    edits.switch_person(username=username, actor=actor_of(request), **values.model_dump())
    return Done()


@router.post("/{username}/log-out", response=Done)
def log_out(request: HttpRequest, username: Username, values: ReasonIn) -> Done:
    """End every session of a person."""
    edits.log_out_everywhere(username=username, reason=values.reason, actor=actor_of(request))
    return Done()
