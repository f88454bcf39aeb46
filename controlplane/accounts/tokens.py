"""Tokens: ``fb_<selector>_<secret>``, shown once, stored as a hash.

Tokens are not part of the configuration, so they make no revision; the audit records them.
"""

import re
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from hashlib import sha256
from hmac import compare_digest

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from controlplane import notify_channels
from controlplane.accounts.models import AgentToken, ApiToken, Role, TokenColumns
from controlplane.accounts.owned_tokens import TokenUser, rights_now, token_user
from controlplane.accounts.people import person_of
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import NameTaken, NotFound
from controlplane.policies.document import environment_of
from controlplane.postgres import notify, transaction_lock
from controlplane.validation import Problems, check_reason
from fuseboard.contract.words import is_slug

LONGEST = timedelta(days=366)

_TOKEN = re.compile(r"fb_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)


def create_agent_token(
    *,
    environment: str,
    name: str,
    expires_at: datetime,
    reason: str,
    actor: Actor,
    service: str = "",
    name_prefix: str = "",
    only_name: bool = False,
) -> str:
    """Create a token for pods to sync with; return its text, which is not stored.

    With ``service`` or ``name_prefix``, gateways refuse it from other pods.
    With ``only_name``, raises ``NameTaken`` while another valid token of the environment has the name.
    """
    _check(name, expires_at, reason)
    _check_binding(service, name_prefix)
    bound = {"service": service, "name_prefix": name_prefix}
    text, selector, digest = _make()
    with transaction.atomic():
        if only_name:
            _check_name_is_free(AgentToken, name, environment)
        AgentToken.objects.create(
            environment=environment_of(environment).slug,
            name=name,
            selector=selector,
            digest=digest,
            expires_at=expires_at,
            **bound,
        )
        fields = {"environment": environment, "selector": selector, **{k: v for k, v in bound.items() if v}}
        _note("agent_token.created", name, environment, fields, reason, actor)
    return text


def create_api_token(
    *,
    name: str,
    role: str,
    expires_at: datetime,
    reason: str,
    actor: Actor,
    environment: str = "",
    only_name: bool = False,
) -> str:
    """Create an API token for one environment or all; return its text, which is not stored.

    With ``only_name``, raises ``NameTaken`` as ``create_agent_token`` does.
    """
    _check(name, expires_at, reason, role=role)
    text, selector, digest = _make()
    with transaction.atomic():
        if only_name:
            _check_name_is_free(ApiToken, name, environment)
        ApiToken.objects.create(
            name=name,
            role=role,
            environment=environment_of(environment).slug if environment else "",
            owner=person_of(actor),
            selector=selector,
            digest=digest,
            expires_at=expires_at,
        )
        fields = {"role": role, "environment": environment, "selector": selector}
        _note("api_token.created", name, environment, fields, reason, actor)
    return text


def rotate_token(
    *,
    model: type[AgentToken] | type[ApiToken],
    environments: Collection[str],
    selector: str,
    overlap: timedelta,
    expires_at: datetime,
    reason: str,
    actor: Actor,
) -> str:
    """Create a token with the same rights; the old one works for ``overlap`` longer. Return the new text."""
    _check("rotated", expires_at, reason)
    text, successor, digest = _make()
    with transaction.atomic():
        rows = model.objects.select_for_update().filter(environment__in=environments, revoked_at__isnull=True)
        row = rows.filter(selector=selector, expires_at__gt=timezone.now()).first()
        if row is None:
            raise NotFound("token", selector)
        name, until = row.name, min(row.expires_at, timezone.now() + overlap)
        model.objects.filter(pk=row.pk).update(expires_at=until)
        row.pk, row.selector, row.digest, row.expires_at = None, successor, digest, expires_at
        row.created_at = timezone.now()
        if isinstance(row, ApiToken):
            # The person who receives the text must not act in the name of the previous owner.
            row.owner = person_of(actor)
        row.save(force_insert=True)
        fields = {"selector": successor, "replaces": selector, "until": until.isoformat(timespec="seconds")}
        _note("token.rotated", name, row.environment, fields, reason, actor)
    return text


def revoke_token(*, selector: str, reason: str, actor: Actor) -> None:
    """Refuse the token from now on; gateways are notified at once."""
    check_reason(reason)
    with transaction.atomic():
        row = token_of(selector)
        type(row).objects.filter(pk=row.pk).update(revoked_at=Now())
        _note("token.revoked", row.name, row.environment, {"selector": selector}, reason, actor)


def token_of(selector: str) -> AgentToken | ApiToken:
    """The token of either kind, unless it is revoked. Raises ``NotFound``."""
    for model in (AgentToken, ApiToken):
        row = model.objects.filter(selector=selector, revoked_at__isnull=True).first()
        if row is not None:
            return row
    raise NotFound("token", selector)


def user_of(text: str) -> TokenUser | None:
    """The program that an API token authenticates, with the rights that it has now.

    Returns ``None`` for a token that is not valid. Raises ``TokenEnded`` if its owner is deactivated or
    does not exist any more.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    row = ApiToken.objects.filter(selector=match[1]).first()
    if row is None or not _holds(row, match[2]):
        return None
    return token_user(row, rights_now(row))


def _holds(row: TokenColumns, secret: str) -> bool:
    valid = row.revoked_at is None and row.expires_at > timezone.now()
    return compare_digest(sha256(secret.encode()).hexdigest(), row.digest) and valid


def _check_name_is_free(model: type[AgentToken] | type[ApiToken], name: str, environment: str) -> None:
    """Raise ``NameTaken`` if a valid token has the name. Concurrent callers wait for each other."""
    transaction_lock("token names", name)
    same = model.objects.filter(name=name, environment=environment, revoked_at__isnull=True)
    if same.filter(expires_at__gt=timezone.now()).exists():
        where = f" in environment {environment}" if environment else ""
        raise NameTaken(
            f"A token with this name exists{where}: rotate it, revoke it, or choose another name."
        )


def _make() -> tuple[str, str, str]:
    selector, secret = secrets.token_hex(8), secrets.token_hex(32)
    return f"fb_{selector}_{secret}", selector, sha256(secret.encode()).hexdigest()


def _check(name: str, expires_at: datetime, reason: str, *, role: str = Role.VIEWER) -> None:
    problems = Problems()
    problems.text("name", name, 200)
    if not name.strip():
        problems.add("name", "Enter a name that says what the token is for.")
    if role not in ApiToken.ROLES:
        problems.add("role", f"Choose one of: {', '.join(ApiToken.ROLES)}.")
    if not timedelta(0) < expires_at - timezone.now() <= LONGEST:
        problems.add("expires_at", f"Choose a time within the next {LONGEST.days} days.")
    problems.reason(reason)
    problems.settle()


def _check_binding(service: str, name_prefix: str) -> None:
    problems = Problems()
    if service and not is_slug(service):
        problems.add(
            "service",
            "Use the name of a service: at most 64 letters, digits, dots, hyphens, and underscores. Begin and"
            " end with a letter or digit.",
        )
    # A prefix may end with a hyphen, which no name does.
    if name_prefix and (len(name_prefix) > 63 or not is_slug(f"{name_prefix}0")):
        problems.add("name_prefix", "Use the beginning of a pod's name, such as shop-.")
    problems.settle()


def _note(
    action: str, name: str, environment: str, fields: dict[str, str], reason: str, actor: Actor
) -> None:
    record(
        environment=environment,
        actor=actor,
        action=action,
        target_kind="token",
        target_name=name,
        after=fields,
        reason=reason,
    )
    notify(notify_channels.TOKENS, {})
