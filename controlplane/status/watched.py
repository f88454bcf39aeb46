"""Figures that alert rules need and that change slowly, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from django.conf import settings

from controlplane.ledger.invoices import Drift
from controlplane.ledger.reading import SpendJump, Unpriced
from controlplane.refusals.callers import RefusedCaller

#: Where figures come from that an evaluation reads itself. ``tokens`` has certificates too. ``redis`` is
#: about its servers, and ``budgets`` about what is spent, which Redis keeps too: one can be missing alone.
Source = Literal["budgets", "redis", "series", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Blind:
    """A source of figures that cannot be read."""

    source: Source
    #: ``None`` if only an observer over time can know.
    since: float | None
    #: The error, without secrets.
    because: str
    #: The parts that cannot be read, named as in the keys of alerts; empty for all.
    only: frozenset[str] = frozenset()


#: A server of Redis is degraded above one of these, or if it does not answer.
MAX_OPS_SHARE = 0.9
MAX_MEMORY_SHARE = 0.9
MAX_REPLICATION_LAG_S = 10.0


#: Below this part of a core, the CPU per command says little.
MIN_CPU_SHARE = 0.1


def capacity_of(ops_per_s: float | None, cpu_share: float | None) -> int:
    """How many commands per second a server bears, by the setting; 0 for unknown.

    Without the setting: how many use a whole core, because a server executes them in one thread.
    """
    if settings.REDIS_CAPACITY_OPS:
        return settings.REDIS_CAPACITY_OPS
    if not ops_per_s or cpu_share is None or cpu_share < MIN_CPU_SHARE:
        return 0
    return round(ops_per_s / cpu_share)


@dataclass(frozen=True, kw_only=True)
class RedisServer:
    """A server of Redis, as the worker last read it."""

    address: str
    role: str = "primary"
    #: It answered the worker within the last minute. The figures of one that did not are of before.
    answers: bool = True
    ops_per_s: float = 0.0
    #: Commands per second that it bears; 0 if that is not known.
    capacity_ops: int = 0
    #: Part of its memory limit that is used; 0 without a limit.
    memory_share: float = 0.0
    #: How far a replica is behind its primary.
    lag_s: float = 0.0

    @property
    def used(self) -> float:
        """The part of its capacity that is in use."""
        return self.ops_per_s / self.capacity_ops if self.capacity_ops else 0.0

    @property
    def degraded_because(self) -> tuple[str, ...]:
        """Empty for a server that is well."""
        busy = self.answers and self.used > MAX_OPS_SHARE
        also = (f"is at {self.used * 100:.0f} % of its capacity",) if busy else ()
        return (*self.ill_because, *also)

    @property
    def ill_because(self) -> tuple[str, ...]:
        """The lines without its load, about which there is an alert for each server."""
        if not self.answers:
            return ("does not answer",)
        found = []
        if self.lag_s > MAX_REPLICATION_LAG_S:
            found.append(f"is {self.lag_s:.0f} s behind its primary")
        if self.memory_share > MAX_MEMORY_SHARE:
            found.append(f"uses {self.memory_share * 100:.0f} % of its memory limit")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class VendorAnswers:
    """The answers of a dependency in the last minutes."""

    minutes: int
    #: All that ended, however they ended.
    calls: int
    #: 429, and codes of vendors that mean it.
    too_many: int = 0
    #: 401, 402 and 403, and codes that mean them: a person must act.
    refused_account: int = 0


def spent_key(tenant: str, dependency: str, name: str) -> str:
    return "/".join(part for part in (tenant, dependency, name) if part)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The spent part of a quota, or of a vendor limit, with a calendar period."""

    #: Empty for a limit of a dependency on all tenants together.
    tenant: str
    dependency: str
    name: str
    spent: int
    limit: int
    measure: str
    #: It only counts.
    shadow: bool
    #: When the period ends, in unix seconds.
    ends: float
    #: Only of a budget: its name in the configuration, its account, and at how many percent it warns.
    title: str = ""
    account: str = ""
    warn_percent: int = 0
    #: The part of its period after which it is spent, if spending goes on like this; ``None`` if it lasts.
    gone_after: float | None = None
    #: When that is, in unix seconds.
    gone_at: float | None = None

    @property
    def share(self) -> float:
        return self.spent / self.limit if self.limit else 1.0

    @property
    def owner(self) -> str:
        """The owner of a budget, in words."""
        return self.tenant or self.dependency or f"account {self.account}"

    @property
    def key(self) -> str:
        return spent_key(self.tenant, self.dependency, self.name)


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """The token, or the certificate, that expires next."""

    kind: Literal["agent token", "API token", "certificate"]
    #: The name of the token, or of the file without its folder.
    name: str
    at: float


@dataclass(frozen=True, kw_only=True)
class FollowedLimit:
    """A limit of which pods apply a lower number than the configured one."""

    dependency: str
    limit: str
    number: int
    configured: int

    @property
    def share(self) -> float:
        return self.number / self.configured if self.configured else 1.0


#: A smaller part of refused calls counts as this part: nothing can be compared with 0.
MIN_REFUSED_SHARE = 0.005


@dataclass(frozen=True, kw_only=True)
class OddPod:
    """The pod that a vendor refuses most often, and the others with calls to it, in the last 10 minutes."""

    dependency: str
    pod: str
    refused: int
    sent: int
    others: int
    others_refused: int
    others_sent: int

    @property
    def share(self) -> float:
        return self.refused / self.sent if self.sent else 0.0

    @property
    def others_share(self) -> float:
        return self.others_refused / self.others_sent if self.others_sent else 0.0

    @property
    def times(self) -> float:
        # Rounded, so that three times as much is three times as much.
        return round(self.share / max(self.others_share, MIN_REFUSED_SHARE), 3)


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Secrets that were encrypted with a key that neither ``FUSEBOARD_SECRET_KEY`` nor its fallbacks have."""

    #: Their URLs are read as empty texts.
    receivers: int = 0
    #: Their second factors; in the main environment only.
    people: int = 0


@dataclass(frozen=True, kw_only=True)
class Watched:
    #: Tenant -> requests per second in a usual hour, of the busiest tenants of now.
    usual_per_s: Mapping[str, float] = field(default_factory=dict)
    vendors: Mapping[str, VendorAnswers] = field(default_factory=dict)
    #: The most spent first.
    spent: tuple[Spent, ...] = ()
    expiring: tuple[Expiry, ...] = ()
    unreadable: Unreadable = field(default_factory=Unreadable)
    #: Callers that were refused most in the last 10 minutes, by digest.
    callers: tuple[RefusedCaller, ...] = ()
    #: The cost of calls to models today, in micro-USD; ``None`` if there were none.
    spent_today: int | None = None
    #: Models that had calls without a price within two hours, and the hour that cost most above its usual.
    unpriced: tuple[Unpriced, ...] = ()
    spend_jump: SpendJump | None = None
    #: Limits that follow their vendor, below the configured number; and a pod of each vendor that is refused.
    followed: tuple[FollowedLimit, ...] = ()
    odd_pods: tuple[OddPod, ...] = ()
    #: Invoices of the last months that are over, with the ledger beside them.
    drifts: tuple[Drift, ...] = ()
    #: Sources whose figures above are older, or missing.
    blind: tuple[Blind, ...] = ()
