"""The control plane's access to Redis "limits": few commands, each with a deadline, none retried."""

from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.client import Pipeline
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

from controlplane.installation import COMMAND
from controlplane.redis.clients import connect

#: Inside a request: after one missed answer the sweep takes over.
PROMPT_S = 0.5
#: In the background, where a whole configuration may travel.
PATIENT_S = 5.0


@lru_cache(maxsize=4)
def _client(url: str, deadline_s: float) -> redis.Redis:
    return connect(
        url,
        deadline_s=deadline_s,
        decode_responses=True,
        # A damaged key reads as garbage, not as an exception.
        encoding_errors="replace",
        health_check_interval=0,
        client_name="fuseboard-control",
    )


def limits(*, deadline_s: float = PROMPT_S) -> redis.Redis:
    """A client that waits at most ``deadline_s`` for each answer. Raises ``redis.RedisError``."""
    if not settings.REDIS_URL:
        raise ImproperlyConfigured(f"FUSEBOARD_REDIS_URL is not set; see `{COMMAND} check`.")
    return _client(settings.REDIS_URL, deadline_s)


class Script:
    """One Lua file, or its text; loaded again after Redis was restarted."""

    def __init__(self, source: Path | str) -> None:
        self.text = source if isinstance(source, str) else source.read_text(encoding="utf-8")
        self._sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def run(self, store: redis.Redis, *, keys: list[str], args: list[Any]) -> Any:
        try:
            return store.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:
            # Nothing ran, so a second attempt cannot write twice.
            self._load(store, keys[0])
            return store.evalsha(self._sha, len(keys), *keys, *args)

    def put(self, pipeline: Pipeline, *, keys: list[str], args: list[Any]) -> None:
        """Run it with the other commands of a pipeline. The answer may be ``NoScriptError``."""
        pipeline.evalsha(self._sha, len(keys), *keys, *args)

    def _load(self, store: redis.Redis, key: str) -> None:
        """Load it where the key is: another primary of a Cluster that is down must not matter."""
        if isinstance(store, RedisCluster):
            node = store.get_node_from_key(key)
            store.execute_command("SCRIPT LOAD", self.text, target_nodes=node)
        else:
            store.script_load(self.text)
