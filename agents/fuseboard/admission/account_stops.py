"""Stops the calls to all pools of an account that its vendor does not serve: one without credit, or closed.

A pod that records such an answer stops itself. When two pods record it, or the only one, all stop: see
``lua/account_stop.lua``. After a minute, one call of the fleet tries the account again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic

from msgspec import Struct

from fuseboard.breaker.fleet_breaker import ACCOUNT_STOP_S, FleetBreaker
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract import keys
from fuseboard.contract.budgets import Account
from fuseboard.contract.scripts import ACCOUNT_STOP
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import Reply, Store

logger = logging.getLogger("fuseboard.accounts")

#: A message of the breaker channel that begins with this is about an account. No dependency has this name.
PREFIX = b"account:"
#: How long a call waits for the permission to try the account.
ANSWER_S = 0.25
#: Other calls ask again after this time, while one asks.
ASKING_S = 1.0
#: The pods that must record it before all stop.
WITNESSES = 2


class AccountStop(Struct, eq=False):
    """Times are monotonic seconds."""

    account: str
    until: float = 0.0
    #: Until then, other calls do not try the account: one asks whether it may, or tries it.
    trying_until: float = 0.0
    #: A call of this pod tries the account.
    probing: bool = False
    #: This pod has recorded the answer itself.
    own: bool = False


class AccountStops:
    """Belongs to the event loop."""

    def __init__(
        self,
        *,
        environment: str,
        server: str,
        configuration: Configuration,
        store: Store,
        health: StoreHealth,
        breakers: Mapping[str, FleetBreaker],
    ) -> None:
        self._environment = environment
        self._server = server
        self._configuration = configuration
        self._store = store
        self._health = health
        self._breakers = breakers
        self._stops: dict[str, AccountStop] = {}
        #: The accounts of the configuration whose stops were looked up.
        self._looked_up: set[str] = set()
        #: Pool -> the stop of its account. Nearly always empty.
        self.stopped: dict[str, AccountStop] = {}

    def refused(self, dependency: str) -> bool:
        """The vendor does not serve the account of this call. ``False`` if its account is not known."""
        account = self._configuration.snapshot.account_of(dependency)
        if account is None:
            return False
        stop = self._stops.get(account.name)
        # The calls that were under way report it late. They prolong nothing.
        if stop is None or stop.until <= monotonic():
            stop = self._stop(account, ACCOUNT_STOP_S)
        stop.own = True

        def answered(left_us: int) -> None:
            if left_us > 0:
                self._stop(account, left_us / 1_000_000)

        self._ask("refused", account.name, answered)
        return True

    def served(self, dependency: str) -> None:
        """A call has succeeded: if it was the probe of a stopped account, the stop is over."""
        stop = self.stopped.get(dependency)
        if stop is not None and stop.probing:
            self._end(stop.account)
            self._ask("served", stop.account, lambda _: None)

    def left_s(self, dependency: str) -> float:
        """Seconds for which no call may be made; 0 if one may try the account. Changes nothing."""
        stop = self.stopped.get(dependency) if self.stopped else None
        return 0.0 if stop is None else max(0.0, max(stop.until, stop.trying_until) - monotonic())

    async def wait_s(self, dependency: str, stop: AccountStop) -> float:
        """Seconds until a call may try the account; 0 if this call may be made."""
        if (left_s := self.left_s(dependency)) > 0:
            return left_s
        stop.trying_until = monotonic() + ASKING_S
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ask("probe", stop.account, lambda us: None if answer.done() else answer.set_result(us))
        await asyncio.wait({answer}, timeout=ANSWER_S)
        # Without Redis, each pod tries it once a minute.
        left_us = answer.result() if answer.done() else -1
        if left_us > 0:
            stop.trying_until = monotonic() + left_us / 1_000_000
            return left_us / 1_000_000
        if left_us == 0 and not stop.own:
            self._end(stop.account)
            return 0.0
        stop.probing, stop.trying_until = True, monotonic() + ACCOUNT_STOP_S
        return 0.0

    def message(self, name: bytes, left_us: int) -> None:
        """Another pod has stopped an account, or has ended its stop."""
        found = name.removeprefix(PREFIX).decode("utf-8", "replace")
        for account in self._configuration.snapshot.policy.accounts:
            if account.name == found:
                if left_us:
                    self._stop(account, min(left_us / 1_000_000, ACCOUNT_STOP_S))
                else:
                    self._end(found)

    def look(self) -> None:
        """Redis answers again: learn which accounts are stopped."""
        for account in self._configuration.snapshot.policy.accounts:

            def answered(left_us: int, account: Account = account) -> None:
                if left_us > 0:
                    self._stop(account, left_us / 1_000_000)

            self._ask("look", account.name, answered)

    def adopt(self, snapshot: Snapshot) -> None:
        """A pool may belong to another account now."""
        self.stopped = {
            pool: stop
            for account in snapshot.policy.accounts
            if (stop := self._stops.get(account.name)) is not None
            for pool in account.pools
        }
        names = {account.name for account in snapshot.policy.accounts}
        if not names <= self._looked_up:
            self.look()
        self._looked_up = names

    def _stop(self, account: Account, seconds: float) -> AccountStop:
        stop = self._stops.get(account.name)
        if stop is None:
            logger.warning("account.stopped account=%s for_s=%.0f", account.name, seconds)
            stop = self._stops[account.name] = AccountStop(account.name)
        stop.until, stop.trying_until, stop.probing = monotonic() + seconds, 0.0, False
        for pool in account.pools:
            self.stopped[pool] = stop
            if (breaker := self._breakers.get(pool)) is not None:
                breaker.end_leases()
        return stop

    def _end(self, account: str) -> None:
        if self._stops.pop(account, None) is not None:
            logger.warning("account.served account=%s", account)
            self.stopped = {pool: stop for pool, stop in self.stopped.items() if stop.account != account}

    def _ask(self, what: str, account: str, answered: Callable[[int], None]) -> None:
        key = keys.account_stop(self._environment, account).encode()
        if not self._health.usable or not self._store.serves(key):
            return

        def on_reply(reply: Reply) -> None:
            if isinstance(reply, int):
                answered(reply)
            elif isinstance(reply, Exception):
                logger.info("account.not_asked account=%s: %s", account, reply)

        witnesses = min(WITNESSES, self._configuration.live_servers)
        channel, name = keys.breaker_channel(self._environment), f"{PREFIX.decode()}{account}"
        arguments = (what, self._server, witnesses, int(ACCOUNT_STOP_S * 1_000_000), channel, name)
        self._store.run(ACCOUNT_STOP, (key,), arguments, on_reply)
