"""Refuses calls that leave the pod: the least important ones, while a dependency is too slow for the rest."""

import logging

from fuseboard.contract.protection import Shedding
from fuseboard.contract.words import CallTier
from fuseboard.protection.switch import Switch

logger = logging.getLogger("fuseboard.shedding")

#: The limits are looked at this often.
LOOK_S = 0.25
#: Each state lasts at least this long. A limit is left at this part of it.
STEADY_S = 2.0
EXIT = 0.8
#: At this multiple of a limit, standard calls are refused too.
FAR_OVER = 1.5
#: One call of so many passes, so that the dependency is still measured.
PASSES_EVERY = 20
RETRY_AFTER_S = 2.0


class CallShedder:
    """The calls of one pod to one dependency. Critical calls always pass.

    ``refuses`` is the first step of a call, before the deny cache, the local rate and the bulkhead: it
    takes nothing, so that nothing has to be given back. ``fuseboard.admission`` calls it when both the pod's
    shedding and the dependency's protection are configured.
    """

    def __init__(self, dependency: str, settings: Shedding, sla_ms: int) -> None:
        self.dependency = dependency
        #: Totals: refused calls, and how often what is refused changed.
        self.refused = 0
        self.changes = 0
        self._over, self._far = Switch(STEADY_S), Switch(STEADY_S)
        #: Before this moment nothing is refused, and no figure is due.
        self.quiet_until = self._look_at = float("-inf")
        self._asked = 0
        self.configure(settings, sla_ms)

    def configure(self, settings: Shedding, sla_ms: int) -> None:
        self._queue_max = settings.queue_max
        #: Without an SLA, latency says nothing.
        self._p95_limit_s = sla_ms / 1000 * settings.p95_percent / 100

    def due(self, now: float) -> bool:
        """Whether ``look`` wants new figures."""
        return now >= self._look_at

    def look(self, now: float, waiting: int, p95_s: float | None) -> None:
        """``waiting``: calls that wait for a slot. ``p95_s``: of the last seconds; ``None`` for few calls."""
        self._look_at = now + LOOK_S
        queue = waiting / self._queue_max
        latency = p95_s / self._p95_limit_s if p95_s is not None and self._p95_limit_s else 0.0
        worst = max(queue, latency)
        before = self._over.changes + self._far.changes
        self._over.judge(now, worst > 1, worst < EXIT)
        self._far.judge(now, worst > FAR_OVER, worst < FAR_OVER * EXIT)
        # ``_far`` may last a little longer than ``_over``, and refuses nothing then.
        self.quiet_until = float("-inf") if self._over.on else self._look_at
        if self._over.changes + self._far.changes != before:
            self.changes += 1
            logger.warning(
                "shedding.calls dependency=%s refused=%s waiting=%d queue_max=%d p95_ms=%s p95_limit_ms=%d",
                *(self.dependency, self.refuses_what(), waiting, self._queue_max),
                *("-" if p95_s is None else int(p95_s * 1000), self._p95_limit_s * 1000),
            )

    def refuses_what(self) -> str:
        """The tiers that are refused, in words."""
        return "standard,optional" if self._far.on else "optional" if self._over.on else "none"

    def refuses(self, tier: CallTier) -> float:
        """In how many seconds the call can be tried again; 0 when it may go on now."""
        if not self._over.on or tier is CallTier.CRITICAL:
            return 0.0
        if tier is CallTier.STANDARD and not self._far.on:
            return 0.0
        self._asked += 1
        if self._asked % PASSES_EVERY == 0:
            return 0.0
        self.refused += 1
        return RETRY_AFTER_S
