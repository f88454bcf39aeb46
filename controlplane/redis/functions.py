"""The agent's scripts as Redis functions, for pods that may call functions only (ACL profile ``hardened``).

The name of a function contains a part of the hash of its text. So nothing is ever replaced, and the
functions of an older version remain for its pods.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import redis
from redis.cluster import RedisCluster

from fuseboard.contract.scripts import SCRIPTS

Execute = Callable[..., Any]


def primaries(store: redis.Redis) -> Iterator[Execute]:
    """A function for each primary that executes a command there. Replicas get functions by replication."""
    if isinstance(store, RedisCluster):
        for node in store.get_primaries():
            yield partial(store.execute_command, target_nodes=node)
    else:
        yield store.execute_command


def load_functions(store: redis.Redis) -> int:
    """Load what is missing on any primary; return how many functions were loaded.

    A primary that does not answer does not keep the others from being loaded. Raises ``redis.RedisError``.
    """
    loaded, failure = 0, None
    for execute in primaries(store):
        try:
            known = str(execute("FUNCTION", "LIST", "LIBRARYNAME", "fuseboard_*"))
            for script in SCRIPTS:
                if script.function not in known:
                    loaded += _load(execute, script.library)
        except redis.RedisError as error:
            failure = error
    if failure is not None:
        raise failure
    return loaded


def _load(execute: Execute, library: str) -> bool:
    """``False`` when another worker has loaded it meanwhile."""
    try:
        execute("FUNCTION", "LOAD", library)
    except redis.ResponseError as error:
        if "already exists" not in str(error):
            raise
        return False
    return True
