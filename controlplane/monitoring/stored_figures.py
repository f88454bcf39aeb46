"""Figures for ``/metrics`` from Postgres: the fleet as the last evaluation of the alerts saw it, and more."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from threading import Lock
from time import monotonic, time

from django.db.models import Count, Min
from django.db.models.functions import Now
from django.utils import timezone
from prometheus_client.core import Metric

from controlplane import tls
from controlplane.accounts.models import AgentToken, ApiToken
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Evaluation
from controlplane.alerts.rules.thresholds import BACKLOG_SHARE
from controlplane.audit_export.waiting import not_exported, waiting_exports
from controlplane.fleet import live
from controlplane.fleet.models import RedisNode, Server, ServerState
from controlplane.metric_catalogue import alerts as alert_metrics
from controlplane.metric_catalogue import edits as edit_metrics
from controlplane.metric_catalogue import traffic
from controlplane.publishing.models import OutboxEntry
from controlplane.status.read_facts import REDIS_FRESH_FOR
from controlplane.status.read_watched import certificate_expires_at, read_unreadable
from controlplane.status.watched import capacity_of
from controlplane.usage.budgets import Budget, budgets
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

#: Figures of an evaluation are left out when it is older: a stopped worker must not look like a quiet fleet.
FRESH_FOR = timedelta(seconds=60)
#: Budgets are read from Redis at most this often, however often a process is scraped.
BUDGETS_FOR_S = 60.0
#: A name that no environment, tenant or version has as a label.
_OTHER = traffic.OTHER


def stored_figures(environments: Iterable[str]) -> list[Metric]:
    environments = list(environments)
    return [
        *_evaluated(),
        *_tenants(environments),
        *_quotas(environments),
        *_versions(),
        *_alerts(),
        *_waiting(),
        *_expiry(),
        _unreadable(environments),
        *_redis(),
    ]


def _evaluated() -> list[Metric]:
    at, lag = alert_metrics.EVALUATED.family(), traffic.CONFIG_LAG.family()
    rejected, state = traffic.CONFIG_REJECTED.family(), traffic.BREAKER_STATE.family()
    ratio, unlimited = traffic.BREAKER_OPEN_RATIO.family(), traffic.UNLIMITED.family()
    jobs, used = traffic.BACKLOG_JOBS.family(), traffic.BACKLOG_USED.family()
    wait, untaken = traffic.BACKLOG_WAIT.family(), traffic.BACKLOG_UNTAKEN.family()
    now = timezone.now()
    for row in Evaluation.objects.order_by("environment"):
        at.add_metric([row.environment], row.at.timestamp())
        if now - row.at > FRESH_FOR or not row.measured:
            continue
        lag.add_metric([row.environment], row.measured["lag_s"])
        rejected.add_metric([row.environment], row.measured["rejected"])
        unlimited.add_metric([row.environment], row.measured["unlimited"])
        for name, (number, part) in list(row.measured["breakers"].items())[: traffic.MAX_DEPENDENCIES]:
            state.add_metric([row.environment, name], number)
            ratio.add_metric([row.environment, name], part)
        # A row of an older version has none.
        backlogs = sorted(row.measured.get("backlogs", {}).items(), key=lambda one: _rank(one[1]))
        for name, figures in backlogs[: traffic.MAX_BACKLOGS]:
            of = [row.environment, name]
            for word in ("ready", "delayed", "leased", "dead"):
                jobs.add_metric([*of, word], figures[word])
            used.add_metric(of, figures["used"])
            wait.add_metric(of, figures["wait_s"])
            untaken.add_metric(of, figures["untaken_s"])
    return [at, lag, rejected, unlimited, state, ratio, jobs, used, wait, untaken]


def _rank(backlog: Mapping[str, float]) -> tuple[bool, float]:
    """Quotas about which there is an alert come first, then the fullest."""
    fine = not backlog["dead"] and not backlog["untaken_s"] and backlog["used"] <= BACKLOG_SHARE
    return fine, -backlog["used"]


def _tenants(environments: list[str]) -> list[Metric]:
    requests, refused = traffic.TENANT_REQUESTS.family(), traffic.TENANT_REFUSED.family()
    hot = traffic.HOT_KEYS.family()
    for environment in environments:
        figures = live.figures(environment)
        top = figures.tenants[: traffic.TOP]
        for tenant in top:
            requests.add_metric([environment, tenant.tenant], tenant.requests_per_s)
            refused.add_metric([environment, tenant.tenant], tenant.refused_per_s)
        others = figures.requests_per_s - sum(tenant.requests_per_s for tenant in top)
        requests.add_metric([environment, _OTHER], max(0.0, others))
        others = figures.refused_per_s - sum(tenant.refused_per_s for tenant in top)
        refused.add_metric([environment, _OTHER], max(0.0, others))
        hot.add_metric([environment], sum(rule.leased_since is not None for rule in figures.rules))
    return [requests, refused, hot]


def _quotas(environments: list[str]) -> list[Metric]:
    used, states = traffic.QUOTA_USED.family(), traffic.QUOTAS.family()
    for environment in environments:
        rows = _budgets.of(environment)
        for state, count in sorted(Counter(row.state for row in rows).items()):
            states.add_metric([environment, state], count)
        known = [row for row in rows if row.percent is not None]
        for row in known[: traffic.TOP]:
            of = [environment, row.tenant, row.dependency, row.name, row.measure, row.state]
            used.add_metric(of, (row.percent or 0.0) / 100)
    return [used, states]


class _Budgets:
    """The budgets of each environment, as last read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: dict[str, tuple[float, list[Budget]]] = {}

    def of(self, environment: str) -> list[Budget]:
        with self._lock:
            at, rows = self._read.get(environment, (-BUDGETS_FOR_S, []))
            if monotonic() - at >= BUDGETS_FOR_S:
                rules = live.figures(environment).rules
                busy = {(rule.tenant, rule.rule) for rule in rules if rule.tenant}
                rows = budgets(environment, busy, now=time()).rows
                self._read[environment] = (monotonic(), rows)
            return rows


_budgets = _Budgets()


def _versions() -> list[Metric]:
    family = traffic.AGENT_VERSIONS.family()
    there = Server.objects.exclude(state=ServerState.GONE).values_list("environment", "agent_version")
    found: dict[str, list[tuple[str, int]]] = {}
    for environment, version, count in there.annotate(pods=Count("pk")).order_by("-pods", "agent_version"):
        found.setdefault(environment, []).append((version, count))
    for environment, versions in sorted(found.items()):
        for version, count in versions[: traffic.MAX_VERSIONS]:
            family.add_metric([environment, version], count)
        if others := sum(count for _, count in versions[traffic.MAX_VERSIONS :]):
            family.add_metric([environment, _OTHER], others)
    return [family]


def _alerts() -> list[Metric]:
    family = alert_metrics.ALERTS.family()
    rows = Alert.objects.exclude(state=AlertState.RESOLVED)
    of = rows.values_list("environment", "level", "severity", "state").annotate(Count("pk")).order_by()
    for environment, level, severity, state, count in of:
        family.add_metric([environment, str(level), severity, state], count)
    return [family]


def _waiting() -> list[Metric]:
    """How late the worker is."""
    now = timezone.now()
    waiting = OutboxEntry.objects.filter(published_at__isnull=True)
    edited = waiting.aggregate(oldest=Min("created_at"))["oldest"]
    due = Delivery.objects.filter(state=DeliveryState.WAITING, not_before__lt=now)
    sent = due.aggregate(oldest=Min("not_before"))["oldest"]
    ages = [
        family.family((now - oldest).total_seconds() if oldest else 0.0)
        for family, oldest in ((edit_metrics.OUTBOX_OLDEST, edited), (alert_metrics.DELIVERY_OLDEST, sent))
    ]
    unexported = alert_metrics.AUDIT_EXPORT_WAITING.family()
    for target, number in not_exported().items():
        unexported.add_metric([target], number)
    unexported_s = alert_metrics.AUDIT_EXPORT_OLDEST.family()
    for one in waiting_exports():
        unexported_s.add_metric([one.target], max(0.0, now.timestamp() - one.at))
    return [*ages, unexported, unexported_s]


def _expiry() -> list[Metric]:
    family = traffic.TOKEN_EXPIRY.family()
    for kind, model in (("agent", AgentToken), ("api", ApiToken)):
        valid = model.objects.filter(revoked_at__isnull=True, expires_at__gt=Now())
        for environment, at in valid.values_list("environment").annotate(Min("expires_at")).order_by():
            family.add_metric([environment, kind], at.timestamp())
    file = tls.uvicorn_options().get("ssl_certfile")
    if file is None:
        return [family]
    return [
        family,
        traffic.CERTIFICATE_EXPIRY.family(certificate_expires_at(file, Path(file).stat().st_mtime_ns)),
    ]


def _unreadable(environments: Iterable[str]) -> Metric:
    family = traffic.UNREADABLE_SECRETS.family()
    for environment in environments:
        found = read_unreadable(environment)
        family.add_metric([environment, "receiver"], found.receivers)
        if environment == DEFAULT_ENVIRONMENT:
            family.add_metric([environment, "second_factor"], found.people)
    return family


def _redis() -> list[Metric]:
    up, ops = traffic.REDIS_UP.family(), traffic.REDIS_OPS.family()
    memory, limit = traffic.REDIS_MEMORY.family(), traffic.REDIS_MEMORY_LIMIT.family()
    lag, capacity = traffic.REDIS_LAG.family(), traffic.REDIS_CAPACITY.family()
    oldest, bears = timezone.now() - REDIS_FRESH_FOR, []
    for node in RedisNode.objects.order_by("role", "address")[: traffic.REDIS_UP.most]:
        answers = node.up and node.read_at > oldest
        up.add_metric([node.address, node.role], float(answers))
        if not answers:
            continue
        if node.lag_s is not None:
            lag.add_metric([node.address], node.lag_s)
        ops.add_metric([node.address], node.ops_per_s or 0.0)
        if most := capacity_of(node.ops_per_s, node.cpu_share):
            bears.append(((node.ops_per_s or 0.0) / most, node.address, most))
        memory.add_metric([node.address], node.memory_bytes)
        if node.memory_limit_bytes:
            limit.add_metric([node.address], node.memory_limit_bytes)
    for _, address, most in sorted(bears, reverse=True)[: traffic.REDIS_CAPACITY.most]:
        capacity.add_metric([address], most)
    return [up, ops, memory, limit, lag, capacity]
