"""How long a condition must last before it fires, and how long it must be gone before it is resolved."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controlplane.status.watched import Source


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Who has to know of an alert, and when. Times are seconds."""

    #: 1: handled automatically, and reported. 2: on call. 3: at once.
    level: int
    for_s: float
    keep_s: float


#: Rule -> its timing. A figure that jumps must last longer than a state that the product decided.
_OF_RULE = {
    "429": Timing(level=1, for_s=120, keep_s=300),
    "ahead": Timing(level=2, for_s=0, keep_s=60),
    "all-local": Timing(level=3, for_s=10, keep_s=30),
    "all-refused": Timing(level=2, for_s=30, keep_s=60),
    "audit-export": Timing(level=2, for_s=60, keep_s=60),
    "backlog-dead": Timing(level=2, for_s=30, keep_s=60),
    "backlog-full": Timing(level=2, for_s=60, keep_s=120),
    "backlog-untaken": Timing(level=2, for_s=10, keep_s=60),
    "blind": Timing(level=2, for_s=60, keep_s=60),
    "bulkhead": Timing(level=1, for_s=60, keep_s=120),
    "bulkhead-queue": Timing(level=1, for_s=60, keep_s=120),
    "certificate": Timing(level=1, for_s=0, keep_s=10),
    "check-errors": Timing(level=1, for_s=60, keep_s=120),
    "check-failures": Timing(level=2, for_s=60, keep_s=120),
    "drill": Timing(level=1, for_s=0, keep_s=10),
    "duplicated": Timing(level=1, for_s=30, keep_s=60),
    "frozen": Timing(level=2, for_s=10, keep_s=30),
    "gateway-away": Timing(level=2, for_s=30, keep_s=30),
    "hot-key": Timing(level=2, for_s=60, keep_s=60),
    "lag": Timing(level=1, for_s=10, keep_s=30),
    "local": Timing(level=2, for_s=10, keep_s=30),
    "lock-failures": Timing(level=1, for_s=60, keep_s=120),
    "lock-held": Timing(level=1, for_s=0, keep_s=60),
    "lock-lost": Timing(level=2, for_s=0, keep_s=60),
    "lua-error": Timing(level=2, for_s=0, keep_s=60),
    "near": Timing(level=1, for_s=60, keep_s=120),
    "new-pods": Timing(level=2, for_s=30, keep_s=60),
    "observing": Timing(level=1, for_s=0, keep_s=10),
    "open": Timing(level=2, for_s=0, keep_s=60),
    "open-share": Timing(level=2, for_s=0, keep_s=60),
    "outbox": Timing(level=2, for_s=10, keep_s=30),
    "overdue": Timing(level=2, for_s=0, keep_s=30),
    "override": Timing(level=1, for_s=0, keep_s=10),
    "p99": Timing(level=2, for_s=60, keep_s=120),
    "postgres-down": Timing(level=3, for_s=10, keep_s=30),
    "pressure": Timing(level=2, for_s=60, keep_s=120),
    "quota": Timing(level=1, for_s=60, keep_s=120),
    "redis-down": Timing(level=3, for_s=5, keep_s=30),
    "redis-node": Timing(level=1, for_s=60, keep_s=120),
    "redis-nodes": Timing(level=2, for_s=60, keep_s=120),
    "redis-ops": Timing(level=2, for_s=120, keep_s=120),
    "refused-caller": Timing(level=1, for_s=60, keep_s=300),
    "rejected": Timing(level=2, for_s=0, keep_s=60),
    "retry-budget": Timing(level=1, for_s=60, keep_s=120),
    "runaway-tenant": Timing(level=2, for_s=60, keep_s=60),
    "schedules": Timing(level=2, for_s=0, keep_s=10),
    "shed": Timing(level=1, for_s=60, keep_s=120),
    "silent": Timing(level=1, for_s=30, keep_s=60),
    "token": Timing(level=1, for_s=0, keep_s=10),
    "uncounted": Timing(level=1, for_s=30, keep_s=60),
    "unhealthy": Timing(level=1, for_s=60, keep_s=120),
    "unknown-revision": Timing(level=2, for_s=30, keep_s=60),
    "unlimited": Timing(level=3, for_s=0, keep_s=10),
    "vendor-429": Timing(level=1, for_s=60, keep_s=120),
    "vendor-auth": Timing(level=2, for_s=60, keep_s=120),
    "worker-away": Timing(level=3, for_s=0, keep_s=30),
    "writes-refused": Timing(level=2, for_s=0, keep_s=60),
}
#: Of a rule that this version does not know: another version stored its alert, and it is resolved here.
_UNKNOWN = Timing(level=1, for_s=0, keep_s=60)
#: Rules that see Postgres only. The others see nothing while no gateway reports.
NEEDS_NO_GATEWAY = frozenset(
    (
        *("ahead", "observing", "overdue", "override", "schedules"),
        *("gateway-away", "postgres-down", "redis-ops", "unlimited", "worker-away"),
        *("audit-export", "backlog-dead", "backlog-full", "blind", "certificate", "open-share", "outbox"),
        *("redis-node", "redis-nodes", "token"),
    )
)
#: Source of figures -> the rules that conclude nothing while it cannot be read.
NEEDED_BY: Mapping[Source, tuple[str, ...]] = MappingProxyType(
    {
        "budgets": ("quota",),
        "redis": ("redis-node", "redis-nodes", "redis-ops"),
        "series": ("refused-caller", "runaway-tenant", "vendor-429", "vendor-auth"),
        "tokens": ("certificate", "token"),
    }
)
#: Rules whose alerts are about one dependency, which has an owner.
OF_DEPENDENCY = frozenset(
    (
        *("all-refused", "bulkhead", "bulkhead-queue", "near", "open", "open-share", "override"),
        *("backlog-dead", "backlog-full", "backlog-untaken", "retry-budget", "vendor-429", "vendor-auth"),
    )
)
#: Rules of which people should know, but whose alerts no person has to take: they do not escalate.
FOR_AWARENESS = frozenset(("backlog-dead", "hot-key", "runaway-tenant"))
#: What a page displays, but what is no news to a person who is called: it was planned.
NOT_ALERTS = frozenset(("soon",))


def timing_of(key: str) -> Timing:
    """The timing of an alert by its key: ``open:payments-api`` has that of ``open``."""
    return _OF_RULE.get(rule_of(key), _UNKNOWN)


def rule_of(key: str) -> str:
    return key.partition(":")[0]
