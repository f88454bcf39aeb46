"""A redis-py client for any URL of ``fuseboard.contract.store_url``. Imports no Django."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, ClusterPipeline, RedisCluster
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from fuseboard.contract.store_url import StoreUrl


def connect(url: str, *, deadline_s: float, **options: Any) -> redis.Redis:
    """A client that waits at most ``deadline_s`` for each answer and retries nothing.

    Raises ``ValueError`` for an unsupported URL. A Cluster is asked for its nodes here:
    ``redis.RedisError`` when no node answers.
    """
    parsed = StoreUrl.parse(url)
    options |= {
        "socket_connect_timeout": min(deadline_s, 1.0),
        "socket_timeout": deadline_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if parsed.kind == "single":
        return redis.Redis.from_url(url, **options)
    options |= {
        "username": parsed.username or None,
        "password": parsed.password or None,
        "ssl": parsed.tls,
        **_trust(parsed),
    }
    return _of_cluster(parsed, options) if parsed.kind == "cluster" else _of_sentinels(parsed, options)


def _trust(url: StoreUrl) -> dict[str, Any]:
    """TLS options, for a client that was not made from the URL itself."""
    return {"ssl_ca_certs": url.ca_file} if url.tls and url.ca_file else {}


def _of_sentinels(url: StoreUrl, options: dict[str, Any]) -> redis.Redis:
    """Each new connection asks the Sentinels; a connection to a demoted server is closed."""
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        list(url.addresses),
        sentinel_kwargs={
            "username": url.sentinel_username or None,
            "password": url.sentinel_password or None,
            "ssl": url.tls,
            **_trust(url),
            "socket_timeout": options["socket_connect_timeout"],
            "socket_connect_timeout": options["socket_connect_timeout"],
            "retry": options["retry"],
        },
    )
    client: redis.Redis = sentinels.master_for(url.primary, db=url.database, **options)  # type: ignore[no-untyped-call]
    return client


def _of_cluster(url: StoreUrl, options: dict[str, Any]) -> redis.Redis:
    nodes = [ClusterNode(address.host, address.port) for address in url.addresses]  # type: ignore[no-untyped-call]
    with _as_redis_errors():
        # A Cluster has the same commands; nothing that only a single server has is used.
        return cast(redis.Redis, _Cluster(startup_nodes=nodes, require_full_coverage=False, **options))


class _Cluster(RedisCluster):
    """Raise ``redis.RedisError`` where redis-py has exceptions of another family for a Cluster."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        with _as_redis_errors():
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool | None = None, shard_hint: Any = None) -> "_Pipeline":
        made = super().pipeline(transaction, shard_hint)  # type: ignore[no-untyped-call]
        made.__class__ = _Pipeline
        return cast(_Pipeline, made)


class _Pipeline(ClusterPipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:
        with _as_redis_errors():
            return super().execute(raise_on_error)


@contextmanager
def _as_redis_errors() -> Iterator[None]:
    try:
        yield
    except RedisClusterException as error:
        raise redis.ConnectionError(str(error)) from error
