"""Read many keys at once, where one server that does not answer must not hide what the others have."""

from collections.abc import Iterable
from typing import Any

import redis
import structlog
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException

from controlplane.redis.scripts import PROMPT_S, limits

log = structlog.get_logger(__name__)


def read_many(names: Iterable[str]) -> dict[str, Any]:
    """Key -> its text, ``None``, or the error instead. Raises ``redis.RedisError`` if no server answers.

    One question for each server. A pipeline of redis-py for a Cluster asks again key by key: with a server
    that hangs, that takes the deadline for each of its keys.
    """
    wanted = list(names)
    if not wanted:
        return {}
    store = limits(deadline_s=PROMPT_S)
    if not isinstance(store, RedisCluster):
        return _ask(store, wanted)
    owners = _owners(store, wanted)
    found = _ask_each(store, owners)
    unread = [name for name, answer in found.items() if isinstance(answer, Exception)]
    if unread and _learn(store):
        now = _owners(store, unread)
        found |= _ask_each(store, {name: node for name, node in now.items() if node != owners[name]})
    if all(isinstance(answer, redis.ConnectionError | redis.TimeoutError) for answer in found.values()):
        raise found[wanted[0]]
    return found


def _ask(server: redis.Redis, names: list[str]) -> dict[str, Any]:
    with server.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.get(name)
        return dict(zip(names, pipeline.execute(raise_on_error=False), strict=True))


def _owners(store: RedisCluster, names: list[str]) -> dict[str, ClusterNode | None]:
    """Key -> the server that has it, as far as the client knows."""
    found: dict[str, ClusterNode | None] = {}
    for name in names:
        try:
            found[name] = store.get_node_from_key(name)  # type: ignore[no-untyped-call]
        except RedisClusterException:
            found[name] = None
    return found


def _ask_each(store: RedisCluster, owners: dict[str, ClusterNode | None]) -> dict[str, Any]:
    of_server: dict[ClusterNode | None, list[str]] = {}
    for name, node in owners.items():
        of_server.setdefault(node, []).append(name)
    found: dict[str, Any] = {}
    for node, names in of_server.items():
        try:
            if node is None:
                raise redis.ConnectionError("no server has this part of the Cluster")
            found |= _ask(store.get_redis_connection(node), names)
        except redis.RedisError as error:
            found |= dict.fromkeys(names, error)
    return found


def _learn(store: RedisCluster) -> bool:
    """Ask the Cluster who has which part now: a replica may have taken over."""
    try:
        store.nodes_manager.initialize()
    except (redis.RedisError, RedisClusterException) as error:
        log.warning("redis.cluster_unknown", error=type(error).__name__)
        return False
    return True
