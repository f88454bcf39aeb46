"""Tokens of agents and programs. Their text is shown once, at creation; only hashes are stored."""

from datetime import datetime, timedelta
from typing import Any, Literal

from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from controlplane.accounts import tokens
from controlplane.accounts.models import AgentToken, ApiToken
from controlplane.accounts.owned_tokens import OwnedToken, with_rights
from controlplane.accounts.permissions import may
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.configuration_out import ApiTokenOut, Done, NewTokenOut, TokenOut, TokenRow
from controlplane.api.schemas.edits_in import ApiTokenIn, Environment, Reason, RotateIn, Slug, TokenIn
from controlplane.errors import NotFound
from controlplane.policies.document import environment_of

agents = Router(auth=needs("manage_tokens"))
programs = Router(auth=needs("manage_tokens"))

Scope = Literal["read", "operate", "admin", "metrics"]
_ROLES: dict[Scope, str] = {
    "read": "viewer",
    "operate": "operator",
    "admin": "admin",
    "metrics": ApiToken.METRICS,
}
_SCOPES = {role: scope for scope, role in _ROLES.items()}


@agents.get("", response=list[TokenOut])
def list_agent_tokens(request: HttpRequest, environment: Environment) -> Any:
    """Valid tokens, and those that ended in the last 30 days."""
    return _recent(AgentToken.objects.filter(environment=environment_of(environment).slug))


@agents.post("", response={201: NewTokenOut})
def create_agent_token(request: HttpRequest, environment: Environment, values: TokenIn) -> NewTokenOut:
    """Create a token for pods to sync with this environment; of one service or one prefix, if you want.

    409 while a valid one has the same name.
    """
    expires_at = timezone.now() + timedelta(seconds=values.expires_in_s)
    text = tokens.create_agent_token(
        environment=environment,
        name=values.name,
        expires_at=expires_at,
        reason=values.reason,
        actor=actor_of(request),
        service=values.service,
        name_prefix=values.name_prefix,
        only_name=True,
    )
    return _new(text, expires_at)


@agents.post("/{selector}/rotate", response={201: NewTokenOut})
def rotate_agent_token(
    request: HttpRequest, environment: Environment, selector: Slug, values: RotateIn
) -> NewTokenOut:
    """Create a replacement; the old token works for ``overlap_s`` longer, so that pods can switch."""
    return _rotate(request, AgentToken, environment, selector, values)


@agents.delete("/{selector}", response=Done)
def revoke_agent_token(
    request: HttpRequest, environment: Environment, selector: Slug, reason: Reason
) -> Done:
    """Revoke it. Pods that use it continue with the configuration they have."""
    return _revoke(request, AgentToken, environment, selector, reason)


@programs.get("", response=list[ApiTokenOut])
def list_api_tokens(request: HttpRequest, environment: Environment) -> list[ApiTokenOut]:
    """Valid tokens, and those that ended in the last 30 days.

    Tokens of all environments are listed for admins of all environments.
    """
    rows = _recent(ApiToken.objects.filter(environment__in=_places(request, ApiToken, environment)))
    return [_described(owned) for owned in with_rights(list(rows))]


@programs.post("", response={201: NewTokenOut})
def create_api_token(request: HttpRequest, environment: Environment, values: ApiTokenIn) -> NewTokenOut:
    """Create a token for the API in this environment, limited to its scope.

    409 while a valid one has the same name.
    """
    expires_at = timezone.now() + timedelta(seconds=values.expires_in_s)
    text = tokens.create_api_token(
        environment=environment,
        name=values.name,
        role=_ROLES[values.scope],
        expires_at=expires_at,
        reason=values.reason,
        actor=actor_of(request),
        only_name=True,
    )
    return _new(text, expires_at)


@programs.post("/{selector}/rotate", response={201: NewTokenOut})
def rotate_api_token(
    request: HttpRequest, environment: Environment, selector: Slug, values: RotateIn
) -> NewTokenOut:
    """Create a replacement of the same scope; the old token works for ``overlap_s`` longer."""
    return _rotate(request, ApiToken, environment, selector, values)


@programs.delete("/{selector}", response=Done)
def revoke_api_token(request: HttpRequest, environment: Environment, selector: Slug, reason: Reason) -> Done:
    """Revoke it."""
    return _revoke(request, ApiToken, environment, selector, reason)


def _described(owned: OwnedToken) -> ApiTokenOut:
    row = owned.token
    fields = TokenRow.model_validate(row).model_dump()
    return ApiTokenOut(**fields, scope=_SCOPES[row.role], owner=row.owner, state=owned.state)


def _recent(rows: Any) -> Any:
    month = timezone.now() - timedelta(days=30)
    return rows.filter(Q(revoked_at=None) | Q(revoked_at__gt=month), expires_at__gt=month).order_by("-id")


def _rotate(
    request: HttpRequest,
    model: type[AgentToken] | type[ApiToken],
    environment: str,
    selector: str,
    values: RotateIn,
) -> NewTokenOut:
    expires_at = timezone.now() + timedelta(seconds=values.expires_in_s)
    text = tokens.rotate_token(
        model=model,
        environments=_places(request, model, environment),
        selector=selector,
        overlap=timedelta(seconds=values.overlap_s),
        expires_at=expires_at,
        reason=values.reason,
        actor=actor_of(request),
    )
    return _new(text, expires_at)


def _revoke(
    request: HttpRequest,
    model: type[AgentToken] | type[ApiToken],
    environment: str,
    selector: str,
    reason: str,
) -> Done:
    # The admin of one environment must not revoke another's tokens.
    places = _places(request, model, environment)
    if not model.objects.filter(environment__in=places, selector=selector).exists():
        raise NotFound("token", selector)
    tokens.revoke_token(selector=selector, reason=reason, actor=actor_of(request))
    return Done()


def _places(
    request: HttpRequest, model: type[AgentToken] | type[ApiToken], environment: str
) -> tuple[str, ...]:
    """The environments whose tokens the caller may manage here."""
    here = environment_of(environment).slug
    everywhere = model is ApiToken and may(request.auth, "manage_tokens")  # type: ignore[attr-defined]
    return (here, "") if everywhere else (here,)


def _new(text: str, expires_at: datetime) -> NewTokenOut:
    return NewTokenOut(selector=text.split("_")[1], token=text, expires_at=expires_at)
