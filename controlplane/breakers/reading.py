"""Reads breakers from Redis, for pages and the API."""

from collections.abc import Iterable

import redis

from controlplane.redis.scripts import PROMPT_S, limits
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import StoredBreaker, parse_breaker


def stored_breakers(
    environment: str, dependencies: Iterable[str], *, deadline_s: float = PROMPT_S
) -> dict[str, StoredBreaker | None] | None:
    """Return dependency -> its breaker in Redis, or ``None`` when Redis does not answer."""
    names = list(dependencies)
    if not names:
        return {}
    try:
        with limits(deadline_s=deadline_s).pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.get(keys.breaker(environment, name))
            texts = pipeline.execute(raise_on_error=False)
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    return {
        name: parse_breaker(text) if isinstance(text, str) else None
        for name, text in zip(names, texts, strict=True)
    }
