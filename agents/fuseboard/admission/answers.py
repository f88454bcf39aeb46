"""Decisions, put into the form an application reads."""

from dataclasses import dataclass

from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.store.health import StoreHealth


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, and for how long, before it is known who asked."""

    reason: Reason
    rule: str
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Signs decisions with this server's name, mode and revision."""

    server: str
    health: StoreHealth

    def allow(
        self,
        snapshot: Snapshot,
        limits: tuple[Limit, ...] = (),
        left: tuple[int, ...] = (),
        *,
        tenant: str = "",
        dependency: str = "",
    ) -> Decision:
        return Decision(
            allowed=True,
            tenant=tenant,
            dependency=dependency,
            revision=snapshot.head.revision,
            mode=self.health.mode,
            server=self.server,
            limits=_statuses(limits, left),
        )

    def refuse(
        self,
        snapshot: Snapshot,
        refusal: Refusal,
        limits: tuple[Limit, ...] = (),
        left: tuple[int, ...] = (),
        *,
        tenant: str = "",
        dependency: str = "",
    ) -> Decision:
        if not left:
            left = tuple(0 if limit.name == refusal.rule else -1 for limit in limits)
        return Decision(
            allowed=False,
            reason=refusal.reason,
            # Rounded up: asking again a fraction of a millisecond early would be refused again.
            retry_after_ms=int(refusal.wait_s * 1000) + 1 if refusal.wait_s > 0 else 0,
            rule=refusal.rule,
            tenant=tenant,
            dependency=dependency,
            revision=snapshot.head.revision,
            mode=self.health.mode,
            server=self.server,
            limits=_statuses(limits, left),
        )


def most_at_once(limit: Limit) -> int:
    """What fits in an empty limit: a higher cost could never be admitted, however long one waits."""
    if limit.limit == 0:
        return 0
    return limit.limit if limit.algorithm is Algorithm.SLIDING_WINDOW else limit.burst


def _statuses(limits: tuple[Limit, ...], left: tuple[int, ...]) -> tuple[LimitStatus, ...]:
    if not left:
        left = (-1,) * len(limits)
    return tuple(
        LimitStatus(
            name=limit.name,
            limit=limit.limit,
            window_ms=limit.window_ms,
            remaining=calls if calls >= 0 else None,
        )
        for limit, calls in zip(limits, left, strict=True)
    )
