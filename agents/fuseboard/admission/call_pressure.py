"""The figures of guarded calls that the pod's protection needs, and which of these calls are shed."""

from typing import Any

from fuseboard.admission.call_guard import CallGuard, CallGuards
from fuseboard.admission.guarded_calls import GuardedCalls
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.protection import PodProtection
from fuseboard.contract.words import CallTier
from fuseboard.protection.bulkhead import UNLIMITED, Tier
from fuseboard.protection.call_shedding import CallShedder
from fuseboard.protection.signals import ENOUGH_SAMPLES


class GuardLoads:
    """Implements ``CallLoads``: the bulkheads of all dependencies together.

    Together, because a bulkhead isolates: one dependency that is slow must not have the pod shed requests
    that do not need it.
    """

    def __init__(self, guards: CallGuards) -> None:
        self._guards = guards

    def waiting(self) -> int:
        return sum(guard.waiting for guard in self._guards.every())

    def refused(self) -> int:
        return sum(guard.refused for guard in self._guards.every())

    def slots(self) -> float:
        if not self.waiting():
            return 0.0
        pools = [
            pool
            for guard in self._guards.every()
            if guard.bulkhead is not None
            for pool in guard.bulkhead.pools
            if 0 < pool.share < UNLIMITED
        ]
        used, limits = sum(pool.in_flight for pool in pools), sum(pool.share for pool in pools)
        return used / limits if limits else 0.0

    def resize_for_pressure(self, cpu: float | None, memory: float | None, now: float) -> None:
        for guard in self._guards.every():
            if guard.bulkhead is not None:
                guard.bulkhead.resize_for_pressure(cpu, memory, now)

    def describe(self, shedding: "CallShedding") -> dict[str, Any]:
        """The protected dependencies, for ``Agent.resilience``."""
        return {guard.name: _described(guard, shedding) for guard in self._guards.every()}


def _described(guard: CallGuard, shedding: "CallShedding") -> dict[str, Any]:
    # Read once: another thread asks, and a new configuration may switch the rate off meanwhile.
    now, rate = guard.clock(), guard.local_rate
    return {
        "in_flight": guard.in_flight,
        "waiting": guard.waiting,
        "mean_ms": _ms(guard.latency.mean(now)),
        "p95_ms": _ms(guard.latency.quantile(0.95, now)),
        "wait_p95_ms": _ms(guard.waits.quantile(0.95, now)),
        "shed": shedding.refuses_what(guard.name),
        "local_rate": {"limit": rate.settings.limit, "left": rate.left(now)} if rate is not None else None,
        "reclaimed": guard.reclaimed,
        "nested": guard.nested,
        "tiers": {
            str(tier.name): {
                "limit": tier.limit,
                "active": tier.active,
                "waiting": len(tier.waiters),
                "places": tier.queue_limit if tier.queues else 0,
                "full": tier.full,
                "timed_out": tier.timed_out,
                "borrowed": tier.borrowed,
            }
            for tier in _tiers(guard)
        },
    }


def _tiers(guard: CallGuard) -> tuple[Tier, ...]:
    # Read once: another thread asks, and a new configuration may switch the bulkhead off meanwhile.
    bulkhead = guard.bulkhead
    return bulkhead.tiers if bulkhead is not None else ()


class CallShedding:
    """The first step of a guarded call, while the pod's shedding is configured.

    ``GuardedCalls`` calls ``refuses`` before anything else; otherwise its ``shed`` is ``None``.
    """

    def __init__(self, configuration: Configuration, guarded: GuardedCalls) -> None:
        self._configuration = configuration
        self._guarded = guarded
        self._protection = PodProtection()
        self._shedders: dict[str, CallShedder] = {}
        #: Total of calls that observe mode let pass.
        self.observed = 0

    def adopt(self, snapshot: Snapshot) -> None:
        """Shed calls as this configuration says."""
        self._protection = snapshot.policy.protection or PodProtection()
        on = self._protection.shedding is not None
        self._guarded.shed = self.refuses if on else None
        names = {one.name for one in snapshot.policy.dependencies if on and one.protection is not None}
        for name in self._shedders.keys() - names:
            del self._shedders[name]

    def refuses(self, guard: CallGuard, tier: CallTier, now: float) -> float | None:
        """In how many seconds the call can be tried again; ``None`` when it may go on.

        ``now`` is a moment on the clock of the guards.
        """
        shedder = self._shedders.get(guard.name)
        # The usual call: nothing else has to be asked.
        if shedder is not None and now < shedder.quiet_until:
            return None
        settings = self._protection.shedding
        if settings is None:
            return None
        if shedder is None:
            shedder = self._shedders[guard.name] = CallShedder(guard.name, settings, 0)
        if shedder.due(now):
            shedder.configure(settings, int(guard.sla_s * 1000))
            p95_s = guard.latency.quantile(0.95, now, at_least=ENOUGH_SAMPLES)
            shedder.look(now, guard.waiting, p95_s)
        wait_s = shedder.refuses(tier)
        if wait_s and self._observes():
            self.observed += 1
            return None
        return wait_s or None

    def refuses_what(self, dependency: str) -> str:
        shedder = self._shedders.get(dependency)
        return shedder.refuses_what() if shedder is not None else "none"

    def _observes(self) -> bool:
        return self._configuration.clock.now_us() < self._protection.observe.shedding_until_us


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
