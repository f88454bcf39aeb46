"""The fleet as pages and the API read it."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, Func, Max, Q, QuerySet, Sum, TextField
from django.db.models.functions import Coalesce, Now

from controlplane.fleet.call_figures import CallFigures, add_calls
from controlplane.fleet.models import Event, Figures, Server, ServerState
from fuseboard.contract.words import Reason

#: Figures older than this belong to a gateway that has stopped.
FIGURES_FRESH_FOR = timedelta(seconds=10)

#: A silent pod may still decide calls, but does not count for ever.
SPENDING_FOR = timedelta(hours=1)

#: A gateway that wrote no figures for this long has stopped, and others take over its pods.
GATEWAY_STOPPED_AFTER = timedelta(seconds=5)

#: A gateway lists this many tenants, and so does the sum.
TOP_TENANTS = 20

#: Postgres changes this with each version of a row: the transaction that wrote it, and its place.
_VERSION = Func(
    template="fleet_server.xmin::text || ' ' || fleet_server.ctid::text", output_field=TextField()
)

#: States in which a pod is expected to apply a new revision.
LIVE_STATES = (ServerState.ONLINE, ServerState.LATE, ServerState.UNKNOWN)


@dataclass(frozen=True)
class TenantFigures:
    tenant: str
    requests_per_s: float
    refused_per_s: float


@dataclass(frozen=True)
class RuleFigures:
    """Requests that one quota bound; of all tenants together when ``tenant`` is empty."""

    tenant: str
    rule: str
    asked_per_s: float
    refused_per_s: float
    #: Let through as a shadow, and otherwise refused.
    shadow_per_s: float
    #: Spent from fleet leases, without a question to Redis; and since when some are.
    leased_per_s: float = 0.0
    leased_since: float | None = None


@dataclass(frozen=True)
class DependencyFigures:
    calls_per_s: float = 0.0
    failures_per_s: float = 0.0
    slow_per_s: float = 0.0
    refused_per_s: float = 0.0

    @property
    def refused_share(self) -> float:
        """Part of the calls that pods refused, for whatever reason."""
        asked = self.calls_per_s + self.refused_per_s
        return self.refused_per_s / asked if asked else 0.0


@dataclass(frozen=True)
class StoreFigures:
    """Response times of Redis in microseconds, of the worst gateway; ``None`` when no pod asked Redis."""

    p50_us: int | None = None
    p99_us: int | None = None
    timeouts_per_s: float = 0.0
    errors_per_s: float = 0.0
    asked_per_s: float = 0.0
    #: Primaries, and those of them that did not answer a gateway for some seconds. 0 of 0: none was asked.
    primaries: int = 0
    primaries_down: int = 0

    @property
    def failed_share(self) -> float:
        """Part of the requests to Redis that it did not answer in time, or not at all."""
        failed = self.timeouts_per_s + self.errors_per_s
        return min(1.0, failed / self.asked_per_s) if self.asked_per_s else 0.0


@dataclass(frozen=True)
class FleetFigures:
    """Rates over the whole fleet, smoothed over about 5 s."""

    requests_per_s: float = 0.0
    refused_per_s: float = 0.0
    refused_by_reason: dict[str, float] = field(default_factory=dict)
    tenants: list[TenantFigures] = field(default_factory=list)
    #: Figures of the busiest tenants, and of all together.
    rules: list[RuleFigures] = field(default_factory=list)
    dependencies: dict[str, DependencyFigures] = field(default_factory=dict)
    #: Dependencies with a part of the protection.
    protection: dict[str, CallFigures] = field(default_factory=dict)
    store: StoreFigures = field(default_factory=StoreFigures)
    decided_locally_per_s: float = 0.0
    unknown_tenants_per_s: float = 0.0
    #: Pods of the last ten minutes, the divisor of local shares.
    live_servers: int = 0
    #: So many pods went silent at once that none is marked offline.
    frozen: bool = False
    #: Why: pods that are silent, of those expected, at gateways that froze; and when the last freeze ends.
    frozen_silent: int = 0
    frozen_expected: int = 0
    frozen_until: float | None = None
    #: Pods missing from the rates because their gateway has just started.
    uncounted: int = 0
    #: Heartbeats of the last minute that were refused, because their token brought too many new pods.
    new_pods_refused: int = 0
    #: Gateway -> what Postgres refused to store of it within the last ten minutes.
    writes_refused: dict[str, int] = field(default_factory=dict)
    #: How many gateways these figures come from; 0 means that none measures.
    gateways: int = 0

    @property
    def suspended_per_s(self) -> float:
        """Requests of suspended tenants. An operator wants every one of them refused."""
        return min(self.refused_per_s, self.refused_by_reason.get(Reason.SUSPENDED.value, 0.0))

    @property
    def active_refused_per_s(self) -> float:
        """Refused requests of tenants that are not suspended."""
        return self.refused_per_s - self.suspended_per_s

    @property
    def refused_share(self) -> float:
        """Part of the requests that were refused, and not because an operator suspended the tenant."""
        return self.active_refused_per_s / self.requests_per_s if self.requests_per_s else 0.0


def servers(environment: str) -> list[Server]:
    """Every pod that is not gone, and those gone within the last ten minutes, by name."""
    return _with_age(environment, list(_displayed(environment).order_by("name")))


def server(environment: str, name: str) -> Server | None:
    """One pod, also if it is gone."""
    found = Server.objects.filter(environment=environment, name=name).first()
    return None if found is None else _with_age(environment, [found])[0]


def _with_age(environment: str, rows: list[Server]) -> list[Server]:
    old = stale(environment)
    for row in rows:
        if row.pk in old:
            row.state = ServerState.UNKNOWN
    return rows


def changed_servers(environment: str, known: Mapping[int, str]) -> tuple[dict[int, str], list[Server]]:
    """The versions of the rows of ``servers`` by key, in the same order, and the rows with another version.

    They have the state that was written; see ``stale``.

    A row with all its breakers takes half a millisecond to read, and few change between two looks.
    """
    found = _displayed(environment).annotate(version=_VERSION).order_by("name")
    versions: dict[int, str] = dict(found.values_list("pk", "version"))
    changed = [key for key, version in versions.items() if known.get(key) != version]
    return versions, list(Server.objects.filter(pk__in=changed)) if changed else []


#: The time of its gateway, now, is what it was with the last figures and what passed since by the clock of
#: Postgres. A gateway writes a live pod after each heartbeat, and one that misses some as late or unknown. A
#: gateway that was stopped heard no pod meanwhile: it gives each the usual time again.
_STALE = """
    SELECT server.id FROM fleet_server AS server
    JOIN fleet_figures AS figures USING (environment, gateway)
    WHERE environment = %s AND state IN ('online', 'late') AND figures.document ? 'wall'
      AND (figures.document->>'wall')::float8 + extract(epoch FROM now() - figures.at)
          > greatest(extract(epoch FROM last_seen_at), (figures.document->>'woke')::float8)
            + extract(epoch FROM 3 * (due_at - last_seen_at) + interval '5 seconds')
"""


def stale(environment: str) -> set[int]:
    """Pods whose rows say that they are live, but are so old that no gateway can have written since."""
    with connection.cursor() as cursor:
        cursor.execute(_STALE, [environment])
        return {key for (key,) in cursor.fetchall()}


def _displayed(environment: str) -> QuerySet[Server]:
    recently = Now() - timedelta(minutes=10)
    rows = Server.objects.filter(environment=environment)
    return rows.exclude(state=ServerState.GONE, last_seen_at__lt=recently)


def present(environment: str) -> int:
    """Processes that may send requests, with those that never did: the divisor of such a pod."""
    recently = Now() - SPENDING_FOR
    rows = Server.objects.filter(environment=environment).exclude(state=ServerState.GONE)
    rows = rows.exclude(state=ServerState.OFFLINE, last_seen_at__lte=recently)
    found: int = rows.aggregate(pods=Count("pk") + Coalesce(Sum("rivals"), 0))["pods"]
    return found


def events(environment: str, server: str, *, most: int = 100) -> list[Event]:
    """Events of a pod, newest first."""
    return list(Event.objects.filter(environment=environment, server=server).order_by("-at", "-id")[:most])


def first_event(environment: str) -> datetime | None:
    """When the first pod that is remembered was heard; ``None`` before the first heartbeat."""
    return Event.objects.filter(environment=environment).order_by("at").values_list("at", flat=True).first()


def duplicated(environment: str) -> list[str]:
    """Names that two processes report under."""
    there = Server.objects.filter(environment=environment).exclude(state=ServerState.GONE)
    rows = there.filter(Q(rivals__gt=0) | Q(alternations__gt=1)).order_by("name")
    return [row.name for row in rows if row.duplicated]


def figures(environment: str) -> FleetFigures:
    """The sum over the gateways that reported within the last seconds."""
    fresh = Figures.objects.filter(environment=environment, at__gte=Now() - FIGURES_FRESH_FOR)
    return add_figures(list(fresh.values_list("document", flat=True)))


def last_figures_at(environment: str) -> float | None:
    """When a gateway last wrote figures; ``None`` if none did within a day, for which the rows are kept."""
    found = Figures.objects.filter(environment=environment).aggregate(at=Max("at"))["at"]
    return found.timestamp() if found is not None else None


def divisor(environment: str) -> int:
    """By how much a pod without Redis divides a limit, as ``Facts.divisor``."""
    rows = Server.objects.filter(environment=environment, state__in=(ServerState.ONLINE, ServerState.LATE))
    return max(1, figures(environment).live_servers or rows.count())


def confirmed(environment: str, revision: int, *, epoch: int) -> tuple[int, int]:
    """How many live pods apply ``revision`` of ``epoch`` or a newer one, and how many are live.

    A revision of an older epoch never confirms one of a newer epoch.
    """
    live = Server.objects.filter(environment=environment, state__in=LIVE_STATES)
    applied = list(live.values_list("epoch", "revision"))
    return sum(1 for pair in applied if pair >= (epoch, revision)), len(applied)


def add_figures(documents: list[dict[str, Any]]) -> FleetFigures:
    """Sum the documents of several gateways; percentiles take the worst."""
    if not documents:
        return FleetFigures()
    reasons: Counter[str] = Counter()
    for document in documents:
        reasons.update(document.get("refused_by_reason", {}))
    frozen = [document for document in documents if document.get("frozen", False)]
    return FleetFigures(
        requests_per_s=_sum(documents, "requests_per_s"),
        refused_per_s=_sum(documents, "refused_per_s"),
        refused_by_reason=dict(reasons),
        tenants=_add_tenants(documents),
        rules=_add_rules(documents),
        dependencies=_add_dependencies(documents),
        protection=add_calls(documents),
        store=_add_stores([document.get("store", {}) for document in documents]),
        decided_locally_per_s=_sum(documents, "decided_locally_per_s"),
        unknown_tenants_per_s=_sum(documents, "unknown_tenants_per_s"),
        live_servers=max(int(document.get("live_servers", 0)) for document in documents),
        frozen=bool(frozen),
        frozen_silent=int(_sum(frozen, "frozen_silent")),
        frozen_expected=int(_sum(frozen, "frozen_expected")),
        frozen_until=_highest(frozen, "frozen_until"),
        uncounted=int(_sum(documents, "uncounted")),
        new_pods_refused=int(_sum(documents, "new_pods_refused")),
        writes_refused={
            gateway: int(number)
            for document in documents
            for gateway, number in sorted(document.get("writes_refused", {}).items())
        },
        gateways=len(documents),
    )


def _add_stores(documents: list[dict[str, Any]]) -> StoreFigures:
    return StoreFigures(
        p50_us=_whole(documents, "p50_us"),
        p99_us=_whole(documents, "p99_us"),
        timeouts_per_s=_sum(documents, "timeouts_per_s"),
        errors_per_s=_sum(documents, "errors_per_s"),
        asked_per_s=_sum(documents, "asked_per_s"),
        primaries=_whole(documents, "primaries") or 0,
        primaries_down=_whole(documents, "primaries_down") or 0,
    )


def _add_tenants(documents: list[dict[str, Any]]) -> list[TenantFigures]:
    requests: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for document in documents:
        for row in document.get("tenants", []):
            requests[row["tenant"]] += row["requests_per_s"]
            refused[row["tenant"]] += row["refused_per_s"]
    busiest = sorted(requests, key=lambda tenant: (-refused[tenant], -requests[tenant], tenant))
    return [TenantFigures(tenant, requests[tenant], refused[tenant]) for tenant in busiest[:TOP_TENANTS]]


def _add_rules(documents: list[dict[str, Any]]) -> list[RuleFigures]:
    names = ("asked_per_s", "refused_per_s", "shadow_per_s", "leased_per_s")
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(names))
    since: dict[tuple[str, str], float] = {}
    for document in documents:
        for row in document.get("rules", []):
            key = row["tenant"], row["rule"]
            for place, name in enumerate(names):
                # A gateway of an older version reports no leased requests.
                found[key][place] += row.get(name, 0.0)
            if row.get("leased_since") is not None:
                since[key] = min(since.get(key, row["leased_since"]), row["leased_since"])
    return [
        RuleFigures(tenant, rule, asked, refused, shadow, leased, since.get((tenant, rule)))
        for (tenant, rule), (asked, refused, shadow, leased) in sorted(found.items())
    ]


def _add_dependencies(documents: list[dict[str, Any]]) -> dict[str, DependencyFigures]:
    names = sorted({name for document in documents for name in document.get("dependencies", {})})
    rows = {name: [d["dependencies"][name] for d in documents if name in d["dependencies"]] for name in names}
    return {
        name: DependencyFigures(**{one.name: _sum(seen, one.name) for one in fields(DependencyFigures)})
        for name, seen in rows.items()
    }


def _sum(documents: list[dict[str, Any]], name: str) -> float:
    return float(sum(document.get(name, 0.0) for document in documents))


def _highest(documents: list[dict[str, Any]], name: str) -> float | None:
    return max((d[name] for d in documents if d.get(name) is not None), default=None)


def _whole(documents: list[dict[str, Any]], name: str) -> int | None:
    highest = _highest(documents, name)
    return None if highest is None else int(highest)
