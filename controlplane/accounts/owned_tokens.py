"""The rights of API tokens that belong to a person: never more than the person has now.

A token without an owner was made on the command line of the server, or by such a token. It keeps its role.
"""

from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import structlog
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from controlplane import notify_channels
from controlplane.accounts.models import ApiToken, User
from controlplane.accounts.permissions import lower_role, role_of, services_of
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.metric_catalogue import edits as catalogue
from controlplane.postgres import notify
from fuseboard.contract.portable import Portable

log = structlog.get_logger(__name__)

refused = catalogue.TOKENS_REFUSED.make()


#: ``limited``: the owner has a lower role. ``ended``: the owner is deactivated or deleted.
TokenState = Literal["works", "limited", "expired", "revoked", "ended"]


#: A token that ended is logged once in this time, and the newest of these tokens are remembered.
LOG_AGAIN_S = 60.0
_MAX_LOGGED = 1_000
#: Selector -> when it was logged, monotonic.
_logged: dict[str, float] = {}


class TokenEnded(Portable, Exception):
    """The owner of the token may not use Fuseboard any more."""

    def __init__(self, why: str, selector: str = "") -> None:
        super().__init__(f"{why} This token has ended. Ask an admin to create or rotate one.")
        self.selector = selector


@dataclass(frozen=True)
class Rights:
    """The rights of a token at this moment."""

    #: The role in all environments; empty for none, and for a token of one environment.
    everywhere: str = ""
    #: Environment -> role, where it differs.
    there: dict[str, str] = field(default_factory=dict)
    #: Environment -> service -> role, where the owner has a higher one than in the environment.
    services: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Why the token has ended, or an empty text.
    ended: str = ""
    #: Whether the owner has fewer rights than the token was made with.
    reduced: bool = False


@dataclass(frozen=True)
class OwnedToken:
    """A token of a person, for lists."""

    token: ApiToken
    rights: Rights

    @property
    def state(self) -> TokenState:
        if self.token.revoked_at is not None:
            return "revoked"
        if self.token.expires_at <= timezone.now():
            return "expired"
        if self.rights.ended:
            return "ended"
        return "limited" if self.rights.reduced else "works"

    @property
    def works(self) -> bool:
        return self.state in ("works", "limited")

    @property
    def role_now(self) -> str:
        """The role that the token still has where it was made for; empty for none."""
        place = self.token.environment
        return self.rights.there.get(place, self.rights.everywhere)


@dataclass(frozen=True)
class TokenUser:
    """A program with an API token, as far as its rights depend on it."""

    name: str
    #: The role in all environments; empty for a token of one environment.
    role: str
    #: Environment -> role, for a token of one environment, and where its owner has another role.
    environment_roles: dict[str, str] = field(default_factory=dict)
    #: Environment -> service -> role.
    service_roles: dict[str, dict[str, str]] = field(default_factory=dict)
    #: The public part of the token.
    selector: str = ""
    #: Username of the person who owns the token.
    owner: str = ""
    #: Whether the owner's roles are lower than the role of the token.
    reduced: bool = False
    is_authenticated: Literal[True] = True
    is_active: Literal[True] = True

    def get_username(self) -> str:
        return f"token {self.name}"


def rights_of(row: ApiToken, owner: User | None) -> Rights:
    """The token's rights now. ``owner`` is the account that ``row.owner`` names, if there is one."""
    place = row.environment
    if not row.owner:
        return Rights("", {place: row.role}) if place else Rights(row.role)
    if owner is None:
        return Rights(ended=f"The account of its owner, {row.owner}, does not exist any more.")
    if not owner.is_active:
        return Rights(ended=f"Its owner, {row.owner}, is deactivated.")
    services = {
        environment: {
            service: lower_role(row.role, role) for service, role in services_of(owner, environment)
        }
        for environment in owner.service_roles
        if place in ("", environment)
    }
    if place:
        there = {place: lower_role(row.role, role_of(owner, place))}
        return Rights("", there, services, reduced=there[place] != row.role)
    everywhere = lower_role(row.role, role_of(owner))
    elsewhere = {} if owner.is_superuser else owner.environment_roles
    there = {name: lower_role(row.role, role) for name, role in elsewhere.items()}
    reduced = any(role != row.role for role in (everywhere, *there.values()))
    return Rights(everywhere, there, services, reduced=reduced)


def token_user(row: ApiToken, rights: Rights) -> TokenUser:
    return TokenUser(
        name=row.name,
        role=rights.everywhere,
        environment_roles=rights.there,
        service_roles=rights.services,
        selector=row.selector,
        owner=row.owner,
        reduced=rights.reduced,
    )


def owner_of(row: ApiToken) -> User | None:
    return User.objects.filter(username=row.owner).first() if row.owner else None


def rights_now(row: ApiToken) -> Rights:
    """``rights_of`` with the owner as Postgres has it now. Raises ``TokenEnded``."""
    owner = owner_of(row)
    rights = rights_of(row, owner)
    if rights.ended:
        refused.labels("owner_deactivated" if owner else "owner_deleted").inc()
        if _is_to_be_logged(row.selector):
            log.warning("token.refused", token=row.name, selector=row.selector, problem=rights.ended)
        raise TokenEnded(rights.ended, row.selector)
    return rights


def _is_to_be_logged(selector: str) -> bool:
    now = monotonic()
    if now - _logged.get(selector, float("-inf")) < LOG_AGAIN_S:
        return False
    _logged.pop(selector, None)
    while len(_logged) >= _MAX_LOGGED:
        _logged.pop(next(iter(_logged)), None)
    _logged[selector] = now
    return True


def tokens_of(user: User) -> list[OwnedToken]:
    """The newest 100 tokens of the person; valid ones first."""
    rows = ApiToken.objects.filter(owner=user.get_username())
    newest = rows.order_by(F("revoked_at").desc(nulls_first=True), "-expires_at")[:100]
    return [OwnedToken(row, rights_of(row, user)) for row in newest]


def with_rights(rows: list[ApiToken]) -> list[OwnedToken]:
    """Tokens of any owners, with their rights."""
    owners = User.objects.in_bulk({row.owner for row in rows if row.owner}, field_name="username")
    return [OwnedToken(row, rights_of(row, owners.get(row.owner))) for row in rows]


def count_by_owner() -> dict[str, int]:
    """Owner -> how many of their tokens are neither revoked nor expired."""
    counts: dict[str, int] = {}
    valid = ApiToken.objects.filter(revoked_at__isnull=True, expires_at__gt=timezone.now()).exclude(owner="")
    for owner in valid.values_list("owner", flat=True):
        counts[owner] = counts.get(owner, 0) + 1
    return counts


def revoke_tokens_of(user: User, *, reason: str, actor: Actor) -> int:
    """Revoke every valid token of a person; return how many there were. Needs a transaction."""
    rows = ApiToken.objects.select_for_update().filter(owner=user.get_username(), revoked_at__isnull=True)
    valid = list(rows.filter(expires_at__gt=timezone.now()).order_by("pk"))
    for row in valid:
        record(
            actor=actor,
            action="token.revoked",
            target_kind="token",
            target_name=row.name,
            after={"selector": row.selector, "owner": row.owner},
            reason=reason,
        )
    ApiToken.objects.filter(pk__in=[row.pk for row in valid]).update(revoked_at=Now())
    notify(notify_channels.TOKENS, {})
    return len(valid)
