"""Builds the decisions that an application reads."""

from msgspec import Struct

from fuseboard.batching.demand import Demand
from fuseboard.batching.redis_question import RedisAnswer
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.words import Mode, Reason
from fuseboard.decision import Account, Charge, Decision, LimitStatus, Signer
from fuseboard.store.health import StoreHealth


class Refusal(Struct, frozen=True):
    """Why a request or call is refused now, and for how long: ``refuse`` makes a decision of it."""

    reason: Reason
    rule: str
    wait_s: float = 0.0


class DecisionBuilder(Struct, frozen=True):
    """Adds this pod's name, the revision of the configuration, and the mode of the decision.

    The mode is that of the pod, unless the caller gives another one: when Redis is late, a pod in shared
    mode decides alone, and the decision has mode local.
    """

    server: str
    health: StoreHealth
    #: Signs the tokens of refusals.
    signer: Signer | None = None

    def charge(self, domain: str, demand: Demand, answer: RedisAnswer) -> Charge:
        """The charge that ``answer`` made in Redis."""
        account = Account(self, answer.uncounted)
        return Charge(domain, demand, answer.at_us, answer.token, account=account)

    def local_charge(self, demand: Demand, now: float) -> Charge:
        """The charge to this pod's own shares. ``now`` is monotonic seconds."""
        at_us = int(now * 1_000_000)
        return Charge(domain="", demand=demand, at_us=at_us, token="", local=True, account=Account(self))

    def allow(
        self,
        snapshot: Snapshot,
        limits: tuple[LimitStatus, ...] = (),
        mode: Mode | None = None,
        *,
        tenant: str = "",
        dependency: str = "",
        charges: tuple[Charge, ...] = (),
        parts: tuple[Decision, ...] = (),
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
            parts=parts,
            leased=leased,
        )

    def refuse(
        self,
        snapshot: Snapshot,
        refusal: Refusal,
        limits: tuple[LimitStatus, ...] = (),
        mode: Mode | None = None,
        *,
        tenant: str = "",
        dependency: str = "",
    ) -> Decision:
        return Decision(
            allowed=False,
            reason=refusal.reason,
            # Rounded up: a caller that asks a fraction of a millisecond early is refused again.
            retry_after_ms=int(refusal.wait_s * 1000) + 1 if refusal.wait_s > 0 else 0,
            rule=refusal.rule,
            tenant=tenant,
            dependency=dependency,
            revision=snapshot.head.revision,
            mode=mode or self.health.mode,
            server=self.server,
            limits=limits,
            signer=self.signer,
        )
