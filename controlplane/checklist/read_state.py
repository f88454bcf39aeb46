"""Reads what the checklist is answered from. Blocking, and bounded: it reads no tenant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.checks import INFO, CheckMessage
from django.core.checks.registry import registry
from django.db.models import Max, Q
from django.utils import timezone
from prometheus_client import REGISTRY

from controlplane import checks
from controlplane.accounts.models import AgentToken, ApiToken, Role, User
from controlplane.accounts.permissions import has_role
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Evaluation, Receiver
from controlplane.alerts.people.routing import warnings
from controlplane.alerts.state.mutes import not_ended
from controlplane.breakers.models import Transition
from controlplane.drills.models import Drill
from controlplane.fleet.models import FailedCalls, Server, ServerState
from controlplane.fleet.stated_limits import Stated, followed_limits, stated_limits
from controlplane.metric_catalogue.edits import DEPRECATED_USE
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, dependency_fields
from controlplane.policies.limits import LimitColumns
from controlplane.policies.models import Dependency, Environment, SubjectLimit, TenantQuota, Tier
from controlplane.series.kinds import DEPENDENCY, FLEET, FULL_FIELDS, TIMED_OUT_FIELDS
from controlplane.series.totals import Total, totals
from controlplane.spending.models import Budget, Model
from controlplane.status.read_facts import read_facts
from controlplane.status.status import Status, status_of
from fuseboard.contract.budgets import MICRO_USD
from fuseboard.contract.words import BreakerState

#: How far back calls and deliveries count, and tests such as drills.
LATELY = timedelta(days=7)
TESTED_WITHIN = timedelta(days=90)
#: Valid tokens that end sooner need a rotation before the deployment.
TOKENS_END_WITHIN = timedelta(days=14)
#: Rows of failed calls that are read: one of each dependency and gateway.
_MAX_SAMPLED = 2_000
_MAX_BUDGETS = 2_000
_HEARD = (ServerState.ONLINE, ServerState.LATE)

CALL_FIELDS = ("ok", "failures", "slow", "neutral")
REFUSED_BY_BULKHEADS = (*FULL_FIELDS, *TIMED_OUT_FIELDS)
FLEET_FIELDS = ("requests", "refused", "unknown_tenants")


@dataclass(frozen=True, kw_only=True)
class CheckedDependency:
    row: Dependency
    fields: Fields
    #: The total of the last days; ``None`` if nothing was measured.
    total: Total | None
    #: When its breaker last opened and last closed.
    opened_at: datetime | None
    closed_at: datetime | None
    #: The trace id of each sample of its failed calls, empty for a call without one.
    traces: tuple[str, ...]
    #: Measures that its limits count, and in which calls of a running pod have stated no cost.
    uncharged: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.row.name

    def part(self, name: str) -> dict[str, Any] | None:
        """A part of its protection; ``None`` if it is off."""
        found = self.row.protection.get(name)
        return dict(found) if found is not None else None


@dataclass(frozen=True, kw_only=True)
class State:
    now: datetime
    environment: Environment
    environments: int
    status: Status
    dependencies: tuple[CheckedDependency, ...]
    tiers: tuple[Tier, ...]
    models: tuple[Model, ...]
    #: Budgets of money.
    budgets: tuple[Budget, ...]
    subject_limits: tuple[SubjectLimit, ...]
    #: Own quotas of tenants that are shadows.
    tenant_shadows: int
    #: Sums of the last days; ``None`` if nothing was measured.
    fleet: Total | None
    receivers: int
    #: Problems of receivers and routes.
    route_warnings: tuple[str, ...]
    sent_at: datetime | None
    gave_up: int
    evaluated_at: datetime | None
    #: Alerts of level 2 and higher.
    open_alerts: tuple[str, ...]
    mutes: int
    #: Dependency and limit -> the number that its vendor states.
    stated: Mapping[tuple[str, str], Stated]
    #: Dependency and limit -> the number that pods apply instead of the configured one.
    followed: Mapping[tuple[str, str], int]
    drill_at: datetime | None
    admins: int
    agent_tokens: tuple[AgentToken, ...]
    metrics_tokens: int
    #: Findings about the web process that answers.
    settings_found: tuple[CheckMessage, ...] = field(default=())
    watchdog: bool = False
    metrics_setting: bool = False
    #: Deprecated name of the API -> its uses since the web process that answers has started.
    old_names: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def vendor_limits(self) -> list[tuple[str, LimitColumns]]:
        return [(one.name, row) for one in self.dependencies for row in one.row.vendor_limits.all()]

    @cached_property
    def tier_quotas(self) -> list[tuple[str, LimitColumns]]:
        return [(tier.name, row) for tier in self.tiers for row in tier.quotas.all()]


def read_state(environment: str) -> State:
    """Raises ``NotFound`` for an unknown environment."""
    row, now = environment_of(environment), timezone.now()
    slug = row.slug
    start, end = now - LATELY, now + timedelta(days=1)
    deliveries = Delivery.objects.filter(receiver__environment=slug)
    alerts = Alert.objects.filter(environment=slug, state=AlertState.FIRING, level__gte=2)
    fleet = totals(slug, FLEET, FLEET_FIELDS, start=_day(start), end=_day(end))
    valid = Q(expires_at__gt=now, revoked_at=None)
    return State(
        now=now,
        environment=row,
        environments=Environment.objects.count(),
        status=status_of(read_facts(slug)),
        dependencies=_dependencies(slug, now),
        tiers=tuple(Tier.objects.filter(environment=row).prefetch_related("quotas").order_by("name")),
        models=tuple(Model.objects.filter(environment=row).prefetch_related("prices").order_by("name")),
        budgets=tuple(
            Budget.objects.filter(environment=row, measure=MICRO_USD).order_by("name")[:_MAX_BUDGETS]
        ),
        subject_limits=tuple(SubjectLimit.objects.filter(environment=row).order_by("name")),
        tenant_shadows=TenantQuota.objects.filter(
            tenant__environment=row, tenant__deleted=False, shadow=True
        ).count(),
        fleet=next((one for one in fleet if one.known_s), None),
        receivers=Receiver.objects.filter(environment=slug, disabled_because="").count(),
        route_warnings=tuple(warnings(slug)),
        sent_at=deliveries.filter(state=DeliveryState.SENT).aggregate(at=Max("sent_at"))["at"],
        gave_up=deliveries.filter(state=DeliveryState.GAVE_UP, created_at__gt=start).count(),
        evaluated_at=Evaluation.objects.filter(environment=slug).values_list("at", flat=True).first(),
        open_alerts=tuple(alerts.order_by("key").values_list("text", flat=True)[:100]),
        mutes=len(not_ended(slug, now)),
        stated=stated_limits(slug),
        followed=followed_limits(slug),
        drill_at=Drill.objects.filter(environment=slug).aggregate(at=Max("began_at"))["at"],
        admins=_admins(slug),
        agent_tokens=tuple(AgentToken.objects.filter(valid, environment=slug).order_by("expires_at")[:1000]),
        metrics_tokens=ApiToken.objects.filter(
            valid, Q(environment="") | Q(environment=slug), role=ApiToken.METRICS
        ).count(),
        settings_found=_settings_found(),
        watchdog=bool(settings.WATCHDOG_URL),
        metrics_setting=bool(settings.METRICS_TOKEN),
        old_names=used_old_names(),
    )


def used_old_names() -> dict[str, int]:
    """Deprecated name of the API -> its uses in this process."""
    found = REGISTRY.restricted_registry([DEPRECATED_USE.name]).collect()
    samples = [sample for family in found for sample in family.samples]
    return {sample.labels["name"]: int(sample.value) for sample in samples if sample.value}


def _dependencies(environment: str, now: datetime) -> tuple[CheckedDependency, ...]:
    rows = Dependency.objects.filter(environment=environment).prefetch_related("vendor_limits")
    found = totals(
        environment,
        DEPENDENCY,
        (*CALL_FIELDS, *REFUSED_BY_BULKHEADS),
        start=_day(now - LATELY),
        end=_day(now + timedelta(days=1)),
    )
    measured = {one.name: one for one in found if one.known_s}
    moves = Transition.objects.filter(dependency__environment=environment, at__gt=now - TESTED_WITHIN)
    moved: dict[tuple[int, str], datetime] = {
        (dependency, state): at
        for dependency, state, at in moves.values_list("dependency", "to_state").annotate(last=Max("at"))
    }
    samples, uncharged = _traces_of_failed_calls(environment), _uncharged(environment)
    return tuple(
        CheckedDependency(
            row=row,
            fields=dependency_fields(row),
            total=measured.get(row.name),
            opened_at=moved.get((row.pk, BreakerState.OPEN.value)),
            closed_at=moved.get((row.pk, BreakerState.CLOSED.value)),
            traces=tuple(samples.get(row.name, ())),
            uncharged=frozenset(measure for name, measure in uncharged if name == row.name),
        )
        for row in rows.order_by("name")
    )


def _traces_of_failed_calls(environment: str) -> dict[str, list[str]]:
    """Dependency -> the trace id of each sample, empty for a call without one."""
    found: dict[str, list[str]] = {}
    rows = FailedCalls.objects.filter(environment=environment).order_by("dependency", "gateway")
    for dependency, document in rows.values_list("dependency", "document")[:_MAX_SAMPLED]:
        found.setdefault(dependency, []).extend(call[6] for call in document["calls"])
    return found


def _uncharged(environment: str) -> set[tuple[str, str]]:
    """Pairs of a dependency and a measure that pods report."""
    rows = Server.objects.filter(environment=environment, state__in=_HEARD).exclude(uncharged=[])
    found = rows.values_list("uncharged", flat=True)[:_MAX_SAMPLED]
    return {(dependency, measure) for pairs in found for dependency, measure in pairs}


def _admins(environment: str) -> int:
    """Active people who are admins of the environment."""
    return sum(has_role(person, Role.ADMIN, environment) for person in User.objects.filter(is_active=True))


def _settings_found() -> tuple[CheckMessage, ...]:
    """Findings of ``manage.py check --deploy`` about this process."""
    ours = [check for check in registry.get_checks(True) if check.__module__ == checks.__name__]
    found = (message for check in ours for message in check(app_configs=None, databases=None))
    return tuple(message for message in found if message.level >= INFO)


def _day(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
