"""What is spent of limits of vendors, as the scripts of the agents have counted it."""

from typing import Any

import pytest
import redis
from msgspec.structs import replace

from controlplane.policies.models import VendorLimit
from controlplane.suggestions.spent_limits import spent_limits, spent_of
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency
from tests.agents.limit_kinds import bucket, daily, slots, window
from tests.agents.servers import BREAKER, POLICY, configured, running


async def test_each_counter_is_read_as_it_was_written(
    limits: redis.Redis, redis_url: str, settings: Any
) -> None:
    settings.REDIS_URL = redis_url
    found = (
        window(100, 3_600, name="hour"),
        bucket(1_000, 1_000, seconds=36_000, name="burst"),
        daily(100),
        slots(9),
    )
    policy = replace(POLICY, dependencies=(Dependency(name="vendor", vendor_limits=found, breaker=BREAKER),))
    async with running(redis_url, configuration=configured(policy)) as server:
        for _ in range(7):
            await server.admission.admit_call("vendor")
        for limit in found:
            key = keys.vendor_limit("production", "vendor", limit.name)
            now_us = sum(part * unit for part, unit in zip(limits.time(), (10**6, 1), strict=True))
            stored = limits.zcard(key) if limit.algorithm == "concurrency" else limits.get(key)
            assert spent_of(limit.algorithm, stored, now_us) == 7, limit.name
        rows = [
            VendorLimit(name=limit.name, algorithm=limit.algorithm, limit=limit.limit, window_s=1)
            for limit in found
        ]
        assert spent_limits("production", "vendor", rows) == dict.fromkeys([one.name for one in found], 7)


@pytest.mark.parametrize("algorithm", ["sliding_window", "token_bucket", "fixed_window"])
def test_what_cannot_be_read_is_unknown(algorithm: str) -> None:
    for stored in (b"", b"garbage", b"\0" * 8, b"\0" * 32, redis.ConnectionError("lost")):
        assert spent_of(algorithm, stored, 1e15) in (None, 0), stored
    assert spent_of(algorithm, None, 1e15) == 0


def test_without_redis_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise redis.ConnectionError("no connection")

    monkeypatch.setattr("controlplane.suggestions.spent_limits.ask_many", down)
    limit = VendorLimit(name="rate", algorithm="sliding_window", limit=9, window_s=60)
    assert spent_limits("production", "openai", [limit]) == {}
