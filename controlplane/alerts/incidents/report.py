"""The report of an incident: when it began, was noticed, taken and over, what was done, and whom it hit."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.alerts.incidents.affected import AffectedTenant, affected_by
from controlplane.alerts.incidents.follow import detected_at
from controlplane.alerts.incidents.timeline import Line, timeline
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Incident
from controlplane.audit.models import Entry
from controlplane.phrases import count
from controlplane.reconciliation.outages import KEPT, SINGLE_DECISIONS, outages
from controlplane.reconciliation.report import NOT_AMONG_ALLOWED, reconciled
from controlplane.series.kinds import FLEET
from controlplane.series.reading import read

MAX_ACTIONS = 100
#: An action of a person that a report lists.
_ACTIONS = ("override", "edit", "other", "step")
NOT_RECONCILED = "Not reconciled yet."
NOT_KNOWN = "Limits counted no call without Redis, but some counts were lost."


@dataclass(frozen=True, kw_only=True)
class Report:
    incident: Incident
    started_at: datetime
    #: When the first message was sent; ``None`` if none was.
    detected_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str
    #: When the last alert was resolved; ``None`` while one is not.
    recovered_at: datetime | None
    #: Oldest first.
    actions: tuple[Line, ...]
    tenants: tuple[AffectedTenant, ...]
    #: Further tenants, beyond those that are listed.
    more_tenants: int
    #: The refused requests that these numbers count.
    counted: str
    #: The calls that limits admitted at most.
    bound: str
    #: The calls that pods admitted without Redis, as they were counted later.
    usage: str
    #: Newest first.
    lines: tuple[Line, ...]


def report_of(incident: Incident) -> Report:
    lines = timeline(incident)
    end = incident.closed_at or timezone.now()
    acknowledged = _acknowledged(incident, end)
    affected = affected_by(incident, end)
    recovered = _recovered(incident)
    done = [
        line
        for line in reversed(lines)
        if line.human and line.kind in _ACTIONS and line.at >= incident.started_at
    ]
    return Report(
        incident=incident,
        started_at=incident.started_at,
        detected_at=incident.detected_at or detected_at([incident]).get(incident.pk),
        acknowledged_at=acknowledged.at if acknowledged else None,
        acknowledged_by=acknowledged.actor if acknowledged else "",
        recovered_at=recovered,
        actions=tuple(done[:MAX_ACTIONS]),
        tenants=affected.tenants,
        more_tenants=affected.more,
        counted=affected.counted,
        bound=_bound(incident, end),
        # After the recovery, nothing is added: so it is known before the incident is closed.
        usage=_usage(incident, min(recovered or end, end)),
        lines=tuple(lines),
    )


def _usage(incident: Incident, end: datetime) -> str:
    """The calls that pods admitted without Redis, compared with the limits, once pods reported them."""
    found = reconciled(incident.environment, incident.started_at, end)
    if not found.complete:
        return NOT_RECONCILED
    if not found.without_redis:
        return "Limits counted no call without Redis." if found.is_certain else NOT_KNOWN
    over = f"{found.over_calls:,} of them were over a limit"
    return (
        f"Limits counted {found.allowed.words} without Redis;"
        f" {over if found.is_certain else f'at least {over}'}. {NOT_AMONG_ALLOWED}"
    )


def _acknowledged(incident: Incident, end: datetime) -> Entry | None:
    keys = list(Alert.objects.filter(incident=incident).values_list("key", flat=True).distinct()[:100])
    rows = Entry.objects.filter(
        environment=incident.environment,
        action="alert.acknowledged",
        target_kind="alert",
        target_name__in=keys,
        at__gte=incident.started_at,
        at__lte=end,
    )
    return rows.order_by("id").first()


def _recovered(incident: Incident) -> datetime | None:
    rows = Alert.objects.filter(incident=incident)
    if rows.exclude(state=AlertState.RESOLVED).exists():
        return None
    last = rows.order_by("-resolved_at").first()
    return last.resolved_at if last is not None else None


def _bound(incident: Incident, end: datetime) -> str:
    """The bound that docs/guarantees.md promises, for the number of pods of that time."""
    series = read(
        incident.environment,
        FLEET,
        fields=("decided_locally", "pods_local"),
        start=incident.started_at,
        end=end,
    )
    local, pods = (
        [value for value in series.fields[name] if value is not None]
        for name in ("decided_locally", "pods_local")
    )
    if not local:
        return "It is not known whether pods decided locally: no figures are stored of this time."
    if not sum(local):
        return "No pod decided locally, so every limit held."
    most = max(pods, default=0)
    how = f"up to {count(most, 'pod')} at once" if most else _in_fallback(incident, end)
    divisor = incident.divisor
    share = f"1/{divisor} of a limit" if divisor > 1 else "a whole limit"
    return (
        f"Pods decided {sum(local):,} calls locally, {how}."
        f" Of limits with a local share, each of {divisor} pod{'s' if divisor > 1 else ''} allowed {share}:"
        " together at most the limit in a window, and at most twice the limit in a window in which pods"
        " switched. Reserved limits never allowed more than the limit, limits that fail closed allowed"
        " nothing, and limits that fail open allowed every call."
    )


def _in_fallback(incident: Incident, end: datetime) -> str:
    """Some figures have no pod on local fallback: minutes miss one that was there for seconds."""
    now = timezone.now()
    found = [one for one in outages(incident.environment, now) if one.overlaps(incident.started_at, end)]
    if not found and incident.started_at < now - KEPT:
        return "and it is not stored any more whether a pod was in fallback"
    if not found:
        return f"as {SINGLE_DECISIONS}"
    pods = f"{count(max(one.pods for one in found), 'pod')} in fallback"
    brief = all(one.until(now) - one.begin < timedelta(minutes=1) for one in found)
    return f"{pods}, each for less than a minute" if brief else pods
