"""Ends a script that blocks Redis, which only a pod with stolen credentials would start.

Redis answers BUSY when a script has run for ``busy-reply-threshold`` (5 s). No script of Fuseboard
takes a hundredth of that. A script that has written cannot be killed: only ``SHUTDOWN NOSAVE`` ends it.
"""

from collections.abc import Iterator

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from controlplane.redis.scripts import PROMPT_S, limits
from fuseboard.contract.store_url import StoreUrl

#: The server is blocked by a script that has written.
UNKILLABLE = "unkillable"
KILLED = "killed"


def kill_endless_scripts(url: str) -> Iterator[str]:
    """Kill the script of every primary that answers BUSY: for each, ``KILLED`` or ``UNKILLABLE``.

    A primary that does not answer does not keep the others from being asked. Raises ``redis.RedisError`` at
    the end.
    """
    failure = None
    for server in _servers(StoreUrl.parse(url)):
        with server:
            try:
                if _is_busy(server):
                    yield _kill(server)
            except redis.RedisError as error:
                failure = error
    if failure is not None:
        raise failure


def _is_busy(server: redis.Redis) -> bool:
    try:
        server.ping()
    except redis.ResponseError as error:
        if not str(error).startswith("BUSY"):
            raise
        return True
    return False


def _kill(server: redis.Redis) -> str:
    for kind in ("SCRIPT", "FUNCTION"):
        try:
            server.script_kill() if kind == "SCRIPT" else server.function_kill()
        except redis.ResponseError as error:
            if str(error).startswith("UNKILLABLE"):
                return UNKILLABLE
            if not str(error).startswith(("BUSY", "NOTBUSY")):
                raise
        else:
            return KILLED
    return KILLED  # it ended meanwhile


def _servers(url: StoreUrl) -> Iterator[redis.Redis]:
    """A new connection to each primary. While a script blocks it, a server takes AUTH, but no other greeting:
    no name of the client, no database.
    """
    if url.socket:
        yield connection(url, unix_socket_path=url.socket)
    for host, port in primary_addresses(url):
        yield connection(url, host=host, port=port, ssl=url.tls, ssl_ca_certs=url.ca_file or None)


def primary_addresses(url: StoreUrl) -> list[tuple[str, int]]:
    if url.socket:
        return []
    if url.kind == "single":
        return [(url.addresses[0].host, url.addresses[0].port)]
    store = limits()
    if isinstance(store, RedisCluster):
        # The client knows them: a blocked node cannot be asked.
        return [(node.host, node.port) for node in store.get_primaries()]
    sentinel: Sentinel = store.connection_pool.sentinel_manager  # type: ignore[attr-defined]
    return [sentinel.discover_master(url.primary)]  # type: ignore[no-untyped-call]


def connection(url: StoreUrl, **where: object) -> redis.Redis:
    return redis.Redis(
        username=url.username or None,
        password=url.password or None,
        socket_connect_timeout=PROMPT_S,
        socket_timeout=PROMPT_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        driver_info=None,
        **where,  # type: ignore[arg-type]
    )
