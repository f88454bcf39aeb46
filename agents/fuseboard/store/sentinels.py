"""Asking Sentinels who the primary is, and being told when it is another one. Off the hot path."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import hiredis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.pipe import open_pipe

log = logging.getLogger("fuseboard.store")

#: How long each Sentinel may take to answer.
ASK_TIMEOUT_S = 0.5
#: After losing a Sentinel: full jitter up to this, before the next one is listened to.
BACKOFF_S = 0.5
#: The longest silence before the Sentinels are asked all the same: a message may be lost.
LOOK_S = 30.0

_FAILURES = (RedisError, OSError, TimeoutError)


class Sentinels:
    """The Sentinels of one URL."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        #: How to log in with a Sentinel.
        self._own = replace(url, username=url.sentinel_username, password=url.sentinel_password, database=0)

    async def primary(self) -> Address:
        """Whom most of those that answer call the primary. Raises ``ConnectionError`` when none does."""
        answers = await asyncio.gather(*map(self._ask, self._url.addresses))
        votes = Counter(answer for answer in answers if isinstance(answer, Address))
        if not votes:
            reasons = "; ".join(str(answer) for answer in answers)
            raise ConnectionError(f"no Sentinel knows a primary named {self._url.primary!r} ({reasons})")
        return votes.most_common(1)[0][0]

    async def follow(self, tell: Callable[[Address], None]) -> None:
        """Call ``tell`` with the primary, and again after every failover, until cancelled."""
        addresses = list(self._url.addresses)
        random.shuffle(addresses)
        while True:
            sentinel = addresses.pop(0)
            addresses.append(sentinel)
            try:
                await self._listen(sentinel, tell)
            except _FAILURES as error:
                log.debug("sentinel.lost %s: %s", sentinel, error)
            await asyncio.sleep(random.uniform(0, BACKOFF_S))

    async def _listen(self, sentinel: Address, tell: Callable[[Address], None]) -> None:
        client = self._client(sentinel)
        pubsub = client.pubsub()
        try:
            await pubsub.subscribe("+switch-master")
            # Wait for the confirmation, so that nothing falls between the question and the first message.
            if await pubsub.get_message(timeout=ASK_TIMEOUT_S) is None:
                raise TimeoutError("the subscription was not confirmed")
            while True:
                tell(await self.primary())
                # Whatever it says, all are asked: one Sentinel alone may be behind the others.
                await pubsub.get_message(ignore_subscribe_messages=True, timeout=LOOK_S)
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]
            await client.aclose()

    async def _ask(self, sentinel: Address) -> Address | str:
        """Its answer, or why there is none."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                pipe = await open_pipe(self._own, sentinel, lambda *_: None, scripts=False)
                try:
                    found = await pipe.insist("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.primary)
                finally:
                    pipe.abort()
        except (OSError, TimeoutError, hiredis.ReplyError) as error:
            return f"{sentinel}: {type(error).__name__} {error}".rstrip()
        match found:
            case [bytes() as host, bytes() as port] if port.isdigit():
                return Address(host.decode(), int(port))
        return f"{sentinel}: unknown name"

    def _client(self, sentinel: Address) -> Redis:
        return Redis(
            host=sentinel.host,
            port=sentinel.port,
            username=self._own.username or None,
            password=self._own.password or None,
            ssl=self._url.tls,
            socket_timeout=ASK_TIMEOUT_S,
            socket_connect_timeout=ASK_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
