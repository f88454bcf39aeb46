"""The limits by which a pod decides while Redis cannot be asked, and its later report to Redis."""

from msgspec import Struct

from fuseboard.batching.known_spending import KnownSpending
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.sync import AllowedAlone
from fuseboard.contract.words import Mode
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import Store
from fuseboard.without_redis.drain import Drain
from fuseboard.without_redis.kept_budgets import KeptBudgets
from fuseboard.without_redis.local_limits import LocalLimits
from fuseboard.without_redis.reserved_share import ReservedShare


class RedisFallback(Struct, frozen=True):
    #: The part of reserved limits that this pod may spend without Redis.
    share: ReservedShare
    limits: LocalLimits
    #: Reports to Redis what was decided without it.
    drain: Drain
    #: Puts back what Redis has lost.
    budgets: KeptBudgets

    def mode_changed(self, mode: Mode) -> None:
        if mode is Mode.LOCAL and self.limits.offline.changed:
            self.drain.noted()
        elif mode is Mode.SHARED:
            self.drain.begin(orphans=True)
        if mode is not Mode.LOCAL:
            self.budgets.look_at_all()

    def allowed_alone(self) -> AllowedAlone | None:
        """The figures for the heartbeat; ``None`` while there is nothing to say."""
        drain, offline = self.drain, self.limits.offline
        expired = drain.journal.expired if drain.journal is not None else 0
        if not (offline.segment.totals or offline.closed or offline.uncounted or drain.adopted or expired):
            return None
        return AllowedAlone(
            unreported=offline.unreported,
            uncounted=offline.uncounted,
            adopted=drain.adopted,
            expired=expired,
        )


def compose_redis_fallback(
    *, configuration: Configuration, store: Store, health: StoreHealth, spending: KnownSpending
) -> RedisFallback:
    """Everything for decisions without Redis, with its hook in ``health``."""
    share, clock = ReservedShare(), configuration.clock
    limits = LocalLimits(
        lambda: configuration.live_servers,
        share=share,
        spending=spending,
        fleet_offset_s=lambda: clock.offset_us / 1_000_000 if clock.learned else None,
    )
    drain = Drain(store=store, health=health, local=limits)
    limits.offline.on_change = drain.noted
    health.before_ramp = drain.before_ramp
    budgets = KeptBudgets(store=store, health=health, spending=spending)
    return RedisFallback(share, limits, drain, budgets)
