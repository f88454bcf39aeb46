"""Ask about many keys at once, where one server that does not answer must not hide what the others have."""

from collections.abc import Callable, Iterable
from typing import Any

import redis
import structlog
from redis.client import Pipeline
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import AskError, ClusterDownError, NoScriptError, RedisClusterException

from controlplane.redis.scripts import PROMPT_S, Script, limits

log = structlog.get_logger(__name__)

#: Puts one command about a key into a pipeline.
Put = Callable[[Pipeline, str], object]


def read_many(names: Iterable[str]) -> dict[str, Any]:
    """Key -> its text, ``None``, or the error instead. Raises ``redis.RedisError`` if no server answers."""
    return ask_many(names, lambda pipeline, name: pipeline.get(name))


def ask_many(names: Iterable[str], put: Put, *, deadline_s: float = PROMPT_S) -> dict[str, Any]:
    """Key -> the answer to the command that ``put`` made of it, or the error instead.

    Raises ``redis.RedisError`` if no server answers. One question for each server. A pipeline of redis-py for
    a Cluster runs no scripts, and asks again key by key: with a server that hangs, that takes the deadline
    for each of its keys.
    """
    wanted = list(names)
    if not wanted:
        return {}
    store = limits(deadline_s=deadline_s)
    if not isinstance(store, RedisCluster):
        return _ask(store, wanted, put)
    owners = _owners(store, wanted)
    found = _ask_each(store, owners, put)
    unread = [name for name, answer in found.items() if _is_elsewhere(answer)]
    if unread and _learn(store):
        now = _owners(store, unread)
        found |= _ask_each(store, {name: node for name, node in now.items() if node != owners[name]}, put)
    if all(isinstance(answer, redis.ConnectionError | redis.TimeoutError) for answer in found.values()):
        raise found[wanted[0]]
    return found


def run_each(
    script: Script, groups: Iterable[list[str]], args: list[Any], *, deadline_s: float = PROMPT_S
) -> list[Any]:
    """Run a script once for each list of keys. An error is an answer. Raises as ``ask_many``."""
    of = {group[0]: group for group in groups}

    def put(pipeline: Pipeline, name: str) -> None:
        script.put(pipeline, keys=of[name], args=args)

    answers = ask_many(of, put, deadline_s=deadline_s)
    for name, answer in answers.items():
        if isinstance(answer, NoScriptError):
            try:
                answers[name] = script.run(limits(deadline_s=deadline_s), keys=of[name], args=args)
            except redis.RedisError as error:
                answers[name] = error
    return [answers[name] for name in of]


def _is_elsewhere(answer: object) -> bool:
    """Whether another server may have the key. ``MovedError`` is an ``AskError``."""
    return isinstance(answer, redis.ConnectionError | redis.TimeoutError | AskError | ClusterDownError)


def _ask(server: redis.Redis, names: list[str], put: Put) -> dict[str, Any]:
    with server.pipeline(transaction=False) as pipeline:
        for name in names:
            put(pipeline, name)
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


def _ask_each(store: RedisCluster, owners: dict[str, ClusterNode | None], put: Put) -> dict[str, Any]:
    of_server: dict[ClusterNode | None, list[str]] = {}
    for name, node in owners.items():
        of_server.setdefault(node, []).append(name)
    found: dict[str, Any] = {}
    for node, names in of_server.items():
        try:
            if node is None:
                raise redis.ConnectionError("no server has this part of the Cluster")
            found |= _ask(store.get_redis_connection(node), names, put)
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
