from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.deprecated import deprecated
from controlplane.api.http.pages import newest_page
from controlplane.api.schemas.configuration_out import BreakerOut, OverrideOut, RevisionOut
from controlplane.api.schemas.edits_in import (
    Environment,
    ExtendIn,
    Flag,
    HoldIn,
    OverrideIn,
    PageSize,
    ReasonIn,
    RowId,
    Slug,
)
from controlplane.api.schemas.limits import LimitOut
from controlplane.api.schemas.operations_out import TransitionPage
from controlplane.breakers.breakers_in_redis import stored_breakers
from controlplane.breakers.models import Override, Transition
from controlplane.breakers.overrides import end_override, extend_override, override_breaker, reset_breaker
from controlplane.errors import NotFound
from controlplane.policies.document import environment_of
from controlplane.policies.models import BREAKER_RANGES, Dependency, VendorLimit
from fuseboard.contract.breaker_state import StoredBreaker
from fuseboard.contract.words import OverrideMode

router = Router()
overrides = Router()
transitions = Router()


@router.get("", response=list[BreakerOut])
def list_breakers(request: HttpRequest, environment: Environment) -> list[BreakerOut]:
    return _breakers(_dependencies(environment), environment)


@router.get("/{dependency}", response=BreakerOut)
def get_breaker(request: HttpRequest, environment: Environment, dependency: Slug) -> BreakerOut:
    """State, override and policy. Its ETag changes with the state, too; edits need that of the dependency."""
    found = _breakers(_dependencies(environment).filter(name=dependency), environment)
    if not found:
        raise NotFound("dependency", dependency)
    return found[0]


@router.post("/{dependency}/override", response=RevisionOut, auth=needs("override_breaker"))
def override(
    request: HttpRequest, environment: Environment, dependency: Slug, values: OverrideIn
) -> RevisionOut:
    """Override the breaker's decisions; ``forced_open`` trips it."""
    revision = override_breaker(
        environment=environment,
        dependency=dependency,
        mode=OverrideMode(values.mode),
        reason=values.reason,
        expires_at=timezone.now() + timedelta(seconds=values.expires_in_s),
        actor=actor_of(request),
        ticket=values.ticket or "",
    )
    return RevisionOut(revision=revision)


@router.post("/{dependency}/extend", response=RevisionOut, auth=needs("override_breaker"))
def extend(request: HttpRequest, environment: Environment, dependency: Slug, values: ExtendIn) -> RevisionOut:
    """Change when the override ends. Its mode stays."""
    revision = extend_override(
        environment=environment,
        dependency=dependency,
        reason=values.reason,
        expires_at=timezone.now() + timedelta(seconds=values.expires_in_s),
        actor=actor_of(request),
        ticket=values.ticket,
    )
    return RevisionOut(revision=revision)


@router.post("/{dependency}/end-override", response=RevisionOut, auth=needs("end_override"))
def end(request: HttpRequest, environment: Environment, dependency: Slug, values: ReasonIn) -> RevisionOut:
    """End the override: the breaker is automatic again."""
    revision = end_override(
        environment=environment, dependency=dependency, reason=values.reason, actor=actor_of(request)
    )
    return RevisionOut(revision=revision)


@router.post("/{dependency}/reset", response=RevisionOut, auth=needs("reset_breaker"))
def reset(request: HttpRequest, environment: Environment, dependency: Slug, values: ReasonIn) -> RevisionOut:
    """Close the breaker, clear its counts and end an override."""
    revision = reset_breaker(
        environment=environment, dependency=dependency, reason=values.reason, actor=actor_of(request)
    )
    return RevisionOut(revision=revision)


@router.post("/{dependency}/hold", response=RevisionOut, auth=needs("override_breaker"), deprecated=True)
@deprecated("POST /breakers/{dependency}/hold")
def hold(request: HttpRequest, environment: Environment, dependency: Slug, values: HoldIn) -> RevisionOut:
    """Deprecated: use ``override``."""
    return override(request, environment, dependency, values)


@router.post("/{dependency}/release", response=RevisionOut, auth=needs("end_override"), deprecated=True)
@deprecated("POST /breakers/{dependency}/release")
def release(
    request: HttpRequest, environment: Environment, dependency: Slug, values: ReasonIn
) -> RevisionOut:
    """Deprecated: use ``end-override``."""
    return end(request, environment, dependency, values)


@overrides.get("", response=list[OverrideOut])
def list_overrides(
    request: HttpRequest, environment: Environment, in_force: Flag = False, limit: PageSize = 100
) -> QuerySet[Override]:
    """Newest first; with ``in_force`` only those that apply now."""
    rows = Override.objects.filter(dependency__environment=environment_of(environment))
    if in_force:
        rows = rows.filter(ended_at__isnull=True, expires_at__gt=timezone.now())
    return rows.select_related("dependency").order_by("-created_at", "-id")[:limit]


@transitions.get("", response=TransitionPage)
def list_transitions(
    request: HttpRequest,
    environment: Environment,
    dependency: Slug | None = None,
    before: RowId | None = None,
    limit: PageSize = 100,
) -> dict[str, Any]:
    """Transitions of breakers, newest first; ``next`` is the ``before`` of the next page."""
    rows = Transition.objects.filter(dependency__environment=environment_of(environment))
    if dependency:
        rows = rows.filter(dependency__name=dependency)
    return newest_page(rows.select_related("dependency"), limit, before=before)


def _dependencies(environment: str) -> QuerySet[Dependency]:
    limits = Prefetch("vendor_limits", queryset=VendorLimit.objects.order_by("name"))
    held = Prefetch(
        "overrides",
        queryset=Override.objects.filter(ended_at__isnull=True).select_related("dependency"),
        to_attr="holds",
    )
    rows = Dependency.objects.filter(environment=environment_of(environment))
    return rows.prefetch_related(limits, held).order_by("name")


def _breakers(rows: QuerySet[Dependency], environment: str) -> list[BreakerOut]:
    dependencies = list(rows)
    stored = stored_breakers(environment, [row.name for row in dependencies])
    newest = Transition.objects.filter(dependency__in=dependencies).order_by("dependency", "-at")
    history = {row.dependency_id: row for row in newest.distinct("dependency")} if stored is None else {}
    return [
        _breaker(row, stored.get(row.name))
        if stored is not None
        else _breaker(row, None, last=history.get(row.pk), source="history")
        for row in dependencies
    ]


def _breaker(
    row: Dependency,
    stored: StoredBreaker | None,
    *,
    last: Transition | None = None,
    source: Literal["redis", "history"] = "redis",
) -> BreakerOut:
    now = timezone.now()
    state, since, until, cause = "unknown", None, None, ""
    if stored is not None:
        state, cause = stored.state.value, stored.cause
        since, until = _time(stored.since_us), _time(stored.until_us)
    elif last is not None:
        state, since, cause = last.to_state, last.at, last.cause
    elif source == "redis":
        # Redis answered and has no such key: no call was made yet, and the first one will be admitted.
        state = "closed"
    return BreakerOut(
        dependency=row.name,
        title=row.title,
        kind=row.kind,
        owner=row.owner,
        fallback_note=row.fallback_note,
        runbook=row.runbook_id,
        version=row.version,
        state=state,
        since=since,
        until=until,
        cause=cause,
        source=source,
        override=next((OverrideOut.model_validate(hold) for hold in row.holds if hold.in_force(now)), None),  # type: ignore[attr-defined]
        policy={column: getattr(row, column) for column in BREAKER_RANGES}
        | {"timeout_ms": row.timeout_ms, "wait_ms": row.wait_ms},
        vendor_limits=[LimitOut.model_validate(limit) for limit in row.vendor_limits.all()],
    )


def _time(microseconds: int) -> datetime | None:
    """Return store time as a date; ``None`` for 0, and for a value out of range."""
    if not 0 < microseconds < 2**53:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
