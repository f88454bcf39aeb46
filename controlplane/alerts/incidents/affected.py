"""Tenants that an incident affected: those that its cause refused, not those that spent their own quota."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, Sum

from controlplane.alerts.incidents.reading import subjects_of
from controlplane.alerts.models import Incident
from controlplane.alerts.rules.rule import OF_TENANT
from controlplane.policies.models import VendorLimit
from controlplane.refusals.models import RefusalSample
from fuseboard.contract.words import Mode, Reason

MAX_TENANTS = 20
#: Dependencies that the words name.
_MAX_NAMES = 3
#: The tenant itself is the cause, whichever dependency it called.
_TENANTS_OWN = (Reason.QUOTA, Reason.SUSPENDED)
#: A limit of the tenant, or one of the dependency: its name distinguishes them.
_OF_EITHER = (Reason.CONCURRENCY, Reason.BUDGET_SPENT)
#: Pods refuse with these, whichever dependency is called.
_OF_PODS = (Reason.STORE_UNAVAILABLE, Reason.LOCAL_RATE, Reason.SHED)
_LIMITS = (Reason.QUOTA, Reason.VENDOR_LIMIT, *_OF_EITHER)


@dataclass(frozen=True, kw_only=True)
class AffectedTenant:
    tenant: str
    #: Estimated from samples.
    refused: int


@dataclass(frozen=True, kw_only=True)
class Affected:
    tenants: tuple[AffectedTenant, ...]
    #: Further tenants, beyond those that are listed.
    more: int
    #: The requests that count. It names no tenant, because people without an account read it too.
    counted: str


def affected_by(incident: Incident, end: datetime) -> Affected:
    """The most refused first, from the beginning of the incident until ``end``."""
    condition, counted = _refused_by(incident)
    samples = RefusalSample.objects.filter(
        condition, environment=incident.environment, at__gte=incident.started_at, at__lt=end
    ).exclude(tenant="")
    rows = samples.values("tenant").annotate(refused=Sum("weight")).order_by("-refused", "tenant")
    found = tuple(
        AffectedTenant(tenant=row["tenant"], refused=round(row["refused"])) for row in rows[:MAX_TENANTS]
    )
    more = max(0, rows.count() - len(found)) if len(found) == MAX_TENANTS else 0
    return Affected(tenants=found, more=more, counted=f"{counted} The numbers are estimated from samples.")


def _refused_by(incident: Incident) -> tuple[Q, str]:
    """The refusals that its alerts are about, and words for them."""
    subjects = subjects_of(incident)
    kinds = {kind for kind, _ in subjects}
    if "tenants" in kinds:
        return Q(), "Counts all refused requests, because an alert is about all of them."
    condition, words = Q(pk__in=()), []
    if dependencies := sorted({name for kind, name in subjects if kind == "breaker"}):
        condition |= _by_dependencies(incident.environment, dependencies)
        words.append(f"refused by {_named(dependencies)}, and not by a quota of the tenant itself")
    if tenants := {name for kind, name in subjects if kind in OF_TENANT and name}:
        condition |= Q(tenant__in=tenants)
        words.append("of the tenant that the alert is about")
    if kinds - OF_TENANT - {"breaker"}:
        condition |= _without_redis()
        words.append("refused without Redis or by the protection of pods")
    return condition, f"Counts requests {', or '.join(words)}." if words else "No alert names a cause."


def _named(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _MAX_NAMES else f"{len(names)} dependencies"


def _by_dependencies(environment: str, names: list[str]) -> Q:
    limits = VendorLimit.objects.filter(dependency__environment=environment, dependency__name__in=names)
    own = Q(reason__in=_TENANTS_OWN) | (Q(reason__in=_OF_EITHER) & ~Q(rule__in=limits.values("name")))
    return Q(dependency__in=names) & ~own


def _without_redis() -> Q:
    """A pod without Redis applies its share of a limit, which can be spent before the limit is."""
    return Q(reason__in=_OF_PODS) | (Q(reason__in=_LIMITS) & ~Q(mode=Mode.SHARED))
