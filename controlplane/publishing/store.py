"""The control plane's way to Redis "limits": few questions, each with a deadline, none retried."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Inside a request: one missed answer and the sweep takes over.
PROMPT_S = 0.5
#: In the background, where a whole configuration may travel.
PATIENT_S = 5.0


@lru_cache(maxsize=4)
def _client(url: str, deadline_s: float) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=min(deadline_s, 1.0),
        socket_timeout=deadline_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
        # A key somebody damaged reads as garbage, not as an exception.
        encoding_errors="replace",
        health_check_interval=0,
        client_name="fuseboard-control",
    )


def limits(*, deadline_s: float = PROMPT_S) -> redis.Redis:
    """A client that waits at most ``deadline_s`` for each answer."""
    if not settings.REDIS_URL:
        raise ImproperlyConfigured("FUSEBOARD_REDIS_URL is not set; see `manage.py check`.")
    return _client(settings.REDIS_URL, deadline_s)


class Script:
    """One Lua file; loaded again by itself when Redis was restarted."""

    def __init__(self, file: Path) -> None:
        self.text = file.read_text(encoding="utf-8")

    def run(self, store: redis.Redis, *, keys: list[str], args: list[Any]) -> Any:
        return store.register_script(self.text)(keys=keys, args=args)
