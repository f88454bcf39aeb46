from pathlib import Path

import redis

from controlplane.redis.scripts import Script
from fuseboard.contract import keys

APPLY_OVERRIDE = Script(Path(__file__).parent / "lua" / "apply_override.lua")


def apply(
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
        ],
        args=[what, revision, expires_at_us, actor],
    )
    return bool(done)
