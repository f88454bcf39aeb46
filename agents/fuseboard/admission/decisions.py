"""Decisions, put into the form an application reads."""

from dataclasses import dataclass

from msgspec.structs import replace

from fuseboard.batching.demand import Demand
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Mode, Reason
from fuseboard.decision import Charge, Decision, LimitStatus
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
        limits: tuple[LimitStatus, ...] = (),
        mode: Mode | None = None,
        *,
        tenant: str = "",
        dependency: str = "",
        charges: tuple[Charge, ...] = (),
        leased: bool = False,
    ) -> Decision:
        return Decision(
            allowed=True,
            tenant=tenant,
            dependency=dependency,
            revision=snapshot.head.revision,
            mode=mode or self.health.mode,
            server=self.server,
            limits=limits,
            charges=charges,
            leased=leased,
        )

    def refuse(
        self,
        snapshot: Snapshot,
        refusal: Refusal,
        limits: tuple[LimitStatus, ...] = (),
        *,
        tenant: str = "",
        dependency: str = "",
    ) -> Decision:
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
            limits=limits,
        )


def statuses(demand: Demand, left: tuple[int, ...] = (), spent: str = "") -> tuple[LimitStatus, ...]:
    """What is left of each limit, as far as it was learned; ``spent`` names one of which nothing is."""
    unlearned = demand.statuses
    if unlearned is None:
        unlearned = demand.statuses = tuple([_status(ref.limit) for ref in demand.refs])
    if not left:
        if not spent:
            return unlearned
        return tuple(
            [
                replace(status, remaining=0, warning=_warns(ref.limit, 0)) if status.name == spent else status
                for status, ref in zip(unlearned, demand.refs, strict=True)
            ]
        )
    if demand.warns:
        return tuple(
            [
                replace(status, remaining=calls, warning=_warns(ref.limit, calls))
                for status, ref, calls in zip(unlearned, demand.refs, left, strict=True)
            ]
        )
    return tuple([replace(status, remaining=calls) for status, calls in zip(unlearned, left, strict=True)])


def _status(limit: Limit) -> LimitStatus:
    return LimitStatus(
        name=limit.name,
        limit=limit.limit,
        window_ms=limit.window_ms,
        algorithm=limit.algorithm,
        measure=limit.measure,
        shadow=limit.shadow,
    )


def _warns(limit: Limit, left: int) -> bool:
    return limit.warn_percent > 0 and (limit.limit - left) * 100 >= limit.warn_percent * limit.limit


def reason_of(limit: Limit, usual: Reason) -> Reason:
    """How a refusal by this limit is called: a spent budget and a full house have words of their own."""
    if limit.algorithm is Algorithm.CONCURRENCY:
        return Reason.CONCURRENCY
    if limit.algorithm is Algorithm.FIXED_WINDOW and limit.measure != "calls":
        return Reason.BUDGET_SPENT
    return usual
