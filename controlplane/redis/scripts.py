"""The control plane's access to Redis "limits": few commands, each with a deadline, none retried."""

from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

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
        raise ImproperlyConfigured("FUSEBOARD_REDIS_URL is not set; see `manage.py check`.")
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

    def run_each(self, store: redis.Redis, *, keys: list[list[str]], args: list[Any]) -> list[Any]:
        """Run it once for each list of keys, in one go where Redis is one server. An error is an answer."""
        if isinstance(store, RedisCluster):
            # A pipeline of a Cluster runs no scripts.
            return [self._answer(store, of, args) for of in keys]
        if not keys:
            return []
        with store.pipeline(transaction=False) as pipeline:
            for of in keys:
                pipeline.evalsha(self._sha, len(of), *of, *args)
            answers = pipeline.execute(raise_on_error=False)
        return [
            self._answer(store, of, args) if isinstance(answer, NoScriptError) else answer
            for of, answer in zip(keys, answers, strict=True)
        ]

    def _answer(self, store: redis.Redis, keys: list[str], args: list[Any]) -> Any:
        try:
            return self.run(store, keys=keys, args=args)
        except redis.ResponseError as error:
            return error

    def _load(self, store: redis.Redis, key: str) -> None:
        """Load it where the key is: another primary of a Cluster that is down must not matter."""
        if isinstance(store, RedisCluster):
            node = store.get_node_from_key(key)
            store.execute_command("SCRIPT LOAD", self.text, target_nodes=node)
        else:
            store.script_load(self.text)
