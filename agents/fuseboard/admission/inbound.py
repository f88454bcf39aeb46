"""Requests that enter the service, before any limit is checked: measured, and shed while there are too many.

A request that is shed costs no quota and no question to Redis.
"""

import asyncio
from collections.abc import Callable
from threading import Lock
from typing import Any

from msgspec.structs import replace

from fuseboard.admission.call_pressure import CallShedding, GuardLoads
from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.batching.domains import MAX_LANES
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.load import PodLoad
from fuseboard.contract.protection import PodProtection
from fuseboard.contract.words import Reason
from fuseboard.decision import Decision
from fuseboard.protection.pod import Pod, ServedRequest
from fuseboard.protection.shedding import Shed
from fuseboard.reporting.counters import Counters
from fuseboard.settings import MAX_SUBJECTS, scaled
from fuseboard.subject import Subject

#: Tenants whose refused requests are counted separately between two ticks.
MAX_TENANTS = 1000

_TEXTS = {
    "queue": "System overloaded - queue full",
    "latency": "Service temporarily overloaded",
    "pressure": "Service under pressure - {tier} tier temporarily limited",
}


class Priorities:
    """The priorities of the tenants that were here since a change of the configuration.

    For any thread: it is read and extended, and a new one replaces it.
    """

    __slots__ = ("changes", "of")

    def __init__(self, changes: int) -> None:
        self.changes = changes
        self.of: dict[str, int] = {}


class Inbound:
    """``enter`` is for any thread. Everything else belongs to the agent's event loop.

    ``on_change``: a gateway should know soon that the pod asks to be unready, or no longer does. Nothing is
    measured or shed if not ``enabled``.
    """

    def __init__(
        self,
        *,
        configuration: Configuration,
        counters: Counters,
        decisions: DecisionBuilder,
        on_change: Callable[[], None],
        calls: GuardLoads | None = None,
        call_shedding: CallShedding | None = None,
        make: Callable[..., Pod] = Pod,
        enabled: bool = True,
        most_subjects: int = MAX_SUBJECTS,
    ) -> None:
        #: ``None`` while nothing is configured: then nothing is measured either.
        self.pod: Pod | None = None
        self._configuration, self._counters = configuration, counters
        self._decisions = decisions
        self._on_change = on_change
        self._calls, self._call_shedding = calls, call_shedding
        self._make = make
        self.priorities = Priorities(configuration.changes)
        self._most_priorities = scaled(MAX_LANES, most_subjects)
        #: Kept while it is switched off: its counts continue, and requests in flight belong to it.
        self._pod: Pod | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = False
        self._lock = Lock()
        self._shed: dict[str, int] = {}
        if enabled:
            configuration.listen(self.adopt)

    # The life of the agent

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self.pod is not None:
            self.pod.start(loop)

    def stop(self) -> None:
        self._loop = None
        if self._pod is not None:
            self._pod.stop()
        self._count()

    def adopt(self, snapshot: Snapshot) -> None:
        """Measure and shed as this configuration says."""
        policy = snapshot.policy
        settings = policy.protection
        if settings is None and any(one.protection is not None for one in policy.dependencies):
            settings = PodProtection()  # bulkheads want to know how much CPU and memory is left
        if settings is None:
            if self._pod is not None:
                self._pod.stop()
            self.pod = None
            return
        priorities = tuple(tier.priority for tier in policy.tiers)
        if self._pod is None:
            self._pod = self._make(
                settings,
                priorities,
                calls=self._calls,
                server_us=self._configuration.clock.now_us,
                on_tick=self._ticked,
            )
        else:
            self._pod.configure(settings, priorities)
        self.pod = self._pod
        if self._loop is not None:
            self.pod.start(self._loop)

    # Requests

    def enter(
        self, tenant: str | None, subject: Subject, method: str, path: str
    ) -> ServedRequest | Decision | None:
        """Serve a request, or refuse it with a decision. ``None`` when it is neither measured nor shed.

        A caller with neither tenant nor subject always passes: a health check must not fail because the
        pod has much to do. A request without a tenant has the default tier: what it says of itself is not
        verified.
        """
        pod = self.pod
        if pod is None:
            return None
        if tenant is None:
            source = subject.api_key or subject.user or subject.ip
            if not source:
                return None
            priority = self._configuration.snapshot.tier_of("").priority
        else:
            source, known = tenant, self.priorities
            if known.changes != self._configuration.changes:
                known = self.priorities = Priorities(self._configuration.changes)
            found = known.of.get(tenant)
            priority = self._find_priority(tenant, known) if found is None else found
        entered = pod.enter(f"{method} {path}", priority, source, subject.endpoint)
        if isinstance(entered, Shed):
            self._note(tenant)
            return self._refuse(entered, tenant or "")
        return entered

    def _find_priority(self, tenant: str, known: Priorities) -> int:
        priority = self._configuration.snapshot.tier_of(tenant).priority
        if len(known.of) < self._most_priorities:
            known.of[tenant] = priority
        return priority

    def _refuse(self, shed: Shed, tenant: str) -> Decision:
        snapshot = self._configuration.snapshot
        refusal = Refusal(Reason.SHED, shed.cause, shed.retry_after_s)
        decision = self._decisions.refuse(snapshot, refusal, tenant=tenant)
        return replace(decision, message=_TEXTS[shed.cause].format(tier=snapshot.tier_of(tenant).name))

    def _note(self, tenant: str | None) -> None:
        with self._lock:
            name = tenant or "-"
            if name not in self._shed and len(self._shed) >= MAX_TENANTS:
                name = "-"
            self._shed[name] = self._shed.get(name, 0) + 1

    # The timer

    def _ticked(self) -> None:
        self._count()
        asks = self._pod is not None and self._pod.readiness.asks
        if asks != self._asked:
            self._asked = asks
            self._on_change()

    def _count(self) -> None:
        """Count what was shed, and ask for the records of tenants that are new here."""
        with self._lock:
            shed, self._shed = self._shed, {}
        configuration, wanted = self._configuration, False
        for tenant, times in shed.items():
            tally = self._counters.tally(tenant, ())
            for _ in range(times):
                self._counters.request_refused(tally, Reason.SHED, "")
            if tenant != "-" and not configuration.snapshot.quotas_of(tenant).loaded:
                configuration.want(tenant)
                wanted = True
        if wanted and configuration.fetch is not None:
            configuration.fetch()

    # Heartbeats

    def load(self) -> PodLoad | None:
        if self.pod is None:
            return None
        load = self.pod.load()
        calls = self._call_shedding
        return replace(load, observed=load.observed + calls.observed) if calls is not None else load

    def grant(self, unready_ms: int, asked_at: float) -> None:
        """Apply the answer of a gateway to the heartbeat of ``asked_at``, on the monotonic clock."""
        if self.pod is not None:
            self.pod.grant(unready_ms, asked_at)

    def describe(self) -> dict[str, Any]:
        """The protected requests, for ``Agent.resilience``."""
        described = self.pod.as_dict() if self.pod is not None else {}
        if self._calls is not None and self._call_shedding is not None:
            described["dependencies"] = self._calls.describe(self._call_shedding)
        return described
