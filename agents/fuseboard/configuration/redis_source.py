"""The server that has the configuration now: one primary of a Cluster, or the primary behind Sentinels."""

import asyncio
import random

import hiredis

from fuseboard.contract import keys
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.settings import OFF
from fuseboard.store.cluster_slots import slot_of
from fuseboard.store.pipelined_connection import Pipe, open_pipe
from fuseboard.store.store import Reply, Word
from fuseboard.store.subscription import Subscription

#: How long the server may be silent while it is asked, and how long connecting may take.
IO_TIMEOUT_S = 1.0

#: Errors of a question to Redis for the configuration.
FAILURES = (OSError, TimeoutError, hiredis.ReplyError)


class RedisSource:
    """One connection for questions, made when it is needed. Each question raises one of ``FAILURES``."""

    def __init__(self, *, url: str, environment: str) -> None:
        self._url = StoreUrl(kind="single") if url == OFF else StoreUrl.parse(url)
        # All keys of the configuration have one hash tag. A message published on one node of a Cluster
        # reaches all.
        self._slot = slot_of(keys.config_head(environment).encode())
        self._known = self._url.addresses
        self._address: Address | None = None
        self._pipe: Pipe | None = None

    async def open_subscription(self, subscription: Subscription) -> None:
        """Open it at the server that has the configuration now. Later questions go to the same server."""
        address = await self._locate()
        if address != self._address:
            self.leave()
        await subscription.open(self._url, address, timeout_s=IO_TIMEOUT_S)

    async def ask(self, *commands: tuple[Word, ...]) -> list[Reply]:
        """The replies to commands, in order."""
        return await (await self._connected()).ask_within(IO_TIMEOUT_S, *commands)

    async def transaction(self, *commands: tuple[Word, ...]) -> list[Reply]:
        """The replies to commands that only read, as of one moment."""
        return await (await self._connected()).transaction(IO_TIMEOUT_S, *commands)

    def leave(self) -> None:
        """Disconnect. The next question looks for the server again."""
        pipe, self._pipe, self._address = self._pipe, None, None
        if pipe is not None:
            pipe.abort()

    async def close(self) -> None:
        self.leave()
        # Let the loop close the socket.
        await asyncio.sleep(0)

    async def _connected(self) -> Pipe:
        if self._pipe is not None and self._pipe.open:
            return self._pipe
        address = await self._locate()
        async with asyncio.timeout(IO_TIMEOUT_S):
            pipe = await open_pipe(self._url, address, lambda *_: None, scripts=False)
            try:
                await self._examine(pipe)
            except BaseException:
                pipe.abort()
                raise
        self._pipe, self._address = pipe, address
        return pipe

    async def _examine(self, pipe: Pipe) -> None:
        if self._url.kind == "sentinel":
            role = await pipe.insist("ROLE")
            if not isinstance(role, list) or not role or role[0] != b"master":
                raise ConnectionRefusedError("the server that Sentinels name is not a primary (yet)")

    async def _locate(self) -> Address | None:
        """The right server; ``None`` for the socket of the URL."""
        match self._url.kind:
            case "cluster":
                return await self._in_cluster()
            case "sentinel":
                from fuseboard.store.sentinels import Sentinels

                return await Sentinels(self._url).primary()
        return self._url.addresses[0] if self._url.addresses else None

    async def _in_cluster(self) -> Address:
        from fuseboard.store.cluster_map import ask_for_ranges

        failure: Exception = ConnectionRefusedError("no node of the Cluster has the configuration's slot")
        for asked in random.sample(self._known, len(self._known)):
            try:
                ranges = await ask_for_ranges(self._url, asked)
            except FAILURES as error:
                failure = error
                continue
            self._known = tuple(dict.fromkeys((*(node for _, _, node in ranges), *self._url.addresses)))
            for first, last, node in ranges:
                if first <= self._slot <= last:
                    return node
        raise ConnectionRefusedError(str(failure)) from failure


def has_moved(error: hiredis.ReplyError) -> bool:
    """Whether another node of the Cluster has the keys."""
    return str(error).startswith("MOVED ")
