"""Asks Sentinels for the primary, and listens for failovers. Off the hot path."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import hiredis

from fuseboard.cancellation import wait_for_event
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.pipelined_connection import open_pipe
from fuseboard.store.subscription import Subscription

log = logging.getLogger("fuseboard.store")

#: The timeout of each Sentinel.
ASK_TIMEOUT_S = 0.5
#: After losing a Sentinel: full jitter up to this time before listening to the next one.
BACKOFF_S = 0.5
#: The Sentinels are asked at least this often, because a message may be lost.
LOOK_S = 30.0
#: The first pause while the store is not connected to the primary that all Sentinels name; it doubles.
UNSETTLED_S = 0.2

_FAILURES = (OSError, TimeoutError, hiredis.ReplyError)


class Sentinels:
    """The Sentinels of one URL."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._reason = asyncio.Event()
        #: The login of a Sentinel.
        self._own = replace(url, username=url.sentinel_username, password=url.sentinel_password, database=0)

    async def primary(self) -> Address:
        """The primary that most answering Sentinels name. Raises ``ConnectionError`` when none answers."""
        return _winner(await self._votes())

    async def _votes(self) -> Counter[Address]:
        """How many Sentinels name each primary; at least one does. Raises as ``primary``."""
        answers = await asyncio.gather(*map(self._ask, self._url.addresses))
        votes = Counter(answer for answer in answers if isinstance(answer, Address))
        if not votes:
            reasons = "; ".join(str(answer) for answer in answers)
            raise ConnectionError(f"no Sentinel knows a primary named {self._url.primary!r} ({reasons})")
        return votes

    def look(self) -> None:
        """Ask again soon: there is a reason."""
        self._reason.set()

    async def follow(self, on_primary: Callable[[Address], bool]) -> None:
        """Call ``on_primary`` with the primary, and again after every failover, until cancelled.

        It returns whether the store is connected to that primary. If not, or if Sentinels name different
        primaries, it is called again, less and less often.
        """
        addresses = list(self._url.addresses)
        random.shuffle(addresses)
        while True:
            sentinel = addresses.pop(0)
            addresses.append(sentinel)
            try:
                await self._listen(sentinel, on_primary)
            except _FAILURES as error:
                log.debug("sentinel.lost %s: %s", sentinel, error)
            await asyncio.sleep(random.uniform(0, BACKOFF_S))

    async def _listen(self, sentinel: Address, on_primary: Callable[[Address], bool]) -> None:
        failovers = Subscription({b"+switch-master": lambda _: self.look()}, self.look)
        try:
            # Subscribe before asking, so that no message is missed in between.
            await failovers.open(self._own, sentinel, timeout_s=ASK_TIMEOUT_S)
            pause_s = UNSETTLED_S
            while failovers.alive:
                self._reason.clear()
                # Whatever the message says, all are asked: one Sentinel alone may be ahead of the others, or
                # behind. Until they agree, a failover is going on: the server that most of them name may be
                # the old primary, which can still answer.
                votes = await self._votes()
                settled = on_primary(_winner(votes)) and len(votes) == 1
                if await wait_for_event(
                    self._reason, LOOK_S if settled else pause_s * random.uniform(0.8, 1.2)
                ):
                    pause_s = UNSETTLED_S
                else:
                    pause_s = min(LOOK_S, pause_s * 2)
        finally:
            failovers.close()

    async def _ask(self, sentinel: Address) -> Address | str:
        """Its answer, or the reason why there is none."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                pipe = await open_pipe(self._own, sentinel, lambda *_: None, scripts=False)
                try:
                    found = await pipe.insist("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.primary)
                finally:
                    pipe.abort()
        except _FAILURES as error:
            return f"{sentinel}: {type(error).__name__} {error}".rstrip()
        match found:
            case [bytes() as host, bytes() as port] if port.isdigit():
                return Address(host.decode(), int(port))
        return f"{sentinel}: unknown name"


def _winner(votes: Counter[Address]) -> Address:
    return votes.most_common(1)[0][0]
