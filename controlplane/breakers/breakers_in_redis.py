"""Breakers in Redis: read for pages and the API, and overridden by one script."""

from collections.abc import Iterable
from pathlib import Path

import redis

from controlplane.redis.scripts import PROMPT_S, Script, limits
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import StoredBreaker, parse_breaker

APPLY_OVERRIDE = Script(Path(__file__).parent / "lua" / "apply_override.lua")


def stored_breakers(environment: str, dependencies: Iterable[str]) -> dict[str, StoredBreaker | None] | None:
    """Return dependency -> its breaker in Redis, or ``None`` when Redis does not answer."""
    names = list(dependencies)
    if not names:
        return {}
    try:
        with limits(deadline_s=PROMPT_S).pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.get(keys.breaker(environment, name))
            texts = pipeline.execute(raise_on_error=False)
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    return {
        name: parse_breaker(text) if isinstance(text, str) else None
        for name, text in zip(names, texts, strict=True)
    }


def apply_override(
    store: redis.Redis,
    environment: str,
    dependency: str,
    what: str,
    revision: int,
    expires_at_us: int,
    actor: str,
) -> bool:
    """Override a breaker in Redis, end the override or reset it. Return whether anything changed."""
    done, _ = APPLY_OVERRIDE.run(
        store,
        keys=[
            keys.override(environment, dependency),
            keys.breaker(environment, dependency),
            keys.outcomes(environment, dependency),
            keys.evidence(environment, dependency),
            keys.transitions(environment, dependency),
            keys.cooldown(environment, dependency),
            keys.cooldown_claim(environment, dependency),
        ],
        args=[what, revision, expires_at_us, actor],
    )
    return bool(done)
