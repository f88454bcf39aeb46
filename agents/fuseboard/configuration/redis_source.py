"""The server that has the configuration now: one primary of a Cluster, or the primary behind Sentinels."""

import logging
import random
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from fuseboard.contract import keys
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.cluster_map import ask_for_ranges
from fuseboard.store.cluster_slots import slot_of
from fuseboard.store.sentinels import Sentinels

logger = logging.getLogger("fuseboard.configuration")

IO_TIMEOUT_S = 1.0

_OPTIONS: dict[str, Any] = {
    "socket_timeout": IO_TIMEOUT_S,
    "socket_connect_timeout": IO_TIMEOUT_S,
    "health_check_interval": 5,
    "retry": Retry(NoBackoff(), 0),
    "max_connections": 4,
}


class RedisSource:
    """Provides one client, of the right server."""

    def __init__(self, *, url: str, environment: str) -> None:
        self._text = url
        self._url = StoreUrl.parse(url)
        # All keys of the configuration have one hash tag. A message published on one node of a Cluster
        # reaches all.
        self._slot = slot_of(keys.config_head(environment).encode())
        self._known = self._url.addresses
        self._address: Address | None = None
        self._client: Redis | None = None

    @property
    def client(self) -> Redis:
        """The client that ``locate`` found last."""
        if self._client is None:
            raise ConnectionError("not located yet")
        return self._client

    async def locate(self) -> Redis:
        """A client of the right server. Raises ``OSError`` or ``TimeoutError`` when it cannot be found."""
        if self._url.kind == "single":
            self._client = self._client or self._from_text()
            return self._client
        address = await (
            self._in_cluster() if self._url.kind == "cluster" else Sentinels(self._url).primary()
        )
        if self._client is None or address != self._address:
            await self.close()
            self._address, self._client = address, self._at(address)
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                await client.aclose()
            except (RedisError, OSError) as error:
                logger.debug("source.close: %s", error)

    async def _in_cluster(self) -> Address:
        failure: Exception = ConnectionRefusedError("no node of the Cluster has the configuration's slot")
        for asked in random.sample(self._known, len(self._known)):
            try:
                ranges = await ask_for_ranges(self._url, asked)
            except (OSError, TimeoutError, hiredis.ReplyError) as error:
                failure = error
                continue
            self._known = tuple(dict.fromkeys((*(node for _, _, node in ranges), *self._url.addresses)))
            for first, last, node in ranges:
                if first <= self._slot <= last:
                    return node
        raise ConnectionRefusedError(str(failure)) from failure

    def _from_text(self) -> Redis:
        client: Redis = Redis.from_url(self._text, **_OPTIONS)
        return client

    def _at(self, address: Address) -> Redis:
        return Redis(
            host=address.host,
            port=address.port,
            username=self._url.username or None,
            password=self._url.password or None,
            db=self._url.database,
            ssl=self._url.tls,
            ssl_ca_certs=self._url.ca_file or None,
            **_OPTIONS,
        )
