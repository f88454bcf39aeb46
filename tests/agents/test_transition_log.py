"""One WARN line per change of a breaker, with the figures."""

import logging
import re

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.words import BreakerState, Mode, Outcome
from fuseboard.subject import ONE_CALL
from tests.agents.servers import configured, running
from tests.agents.test_late_outcomes import QUICK, admitted, permits, recover, report, state, with_breaker
from tests.waiting import eventually

MOVED = re.compile(
    r"breaker\.moved dependency=payments server=web-1 from=(\w+) to=(\w+) generation=\d+ open_for_ms=(\d+) "
    r"window_calls=(\d+) window_failures=(\d+) consecutive_failures=(\d+)"
)
LOCAL = re.compile(
    r"breaker\.local_moved dependency=payments server=web-1 from=(\w+) to=(\w+) why='([^']+)' "
    r"open_for_ms=(\d+) tripped_calls=(\d+) tripped_failures=(\d+) tripped_slow=0 tripped_consecutive=(\d+)"
)


def lines(caplog: pytest.LogCaptureFixture, pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    records = [record for record in caplog.records if record.name == "fuseboard.breaker"]
    assert all(record.levelno == logging.WARNING for record in records)
    return [found.groups() for record in records if (found := pattern.fullmatch(record.getMessage()))]


async def test_each_change_of_the_fleets_breaker_is_one_line(
    limits: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(redis_url, configuration=configured(with_breaker(QUICK))) as server:
        report(server, await permits(server, 3), Outcome.FAILURE)
        await eventually(lambda: state(server) is BreakerState.OPEN)
        await recover(server)
    found = lines(caplog, MOVED)
    assert [line[:2] for line in found] == [
        ("closed", "open"),
        ("open", "half_open"),
        ("half_open", "closed"),
    ]
    assert 0 < int(found[0][2]) <= 110
    assert found[0][3:] == ("3", "3", "3")


async def test_each_change_of_a_pods_own_breaker_is_one_line(
    valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(valkey.url, configuration=configured(with_breaker(QUICK))) as server:
        valkey.stop()
        await eventually(lambda: server.admission.mode is Mode.LOCAL)
        report(server, await permits(server, 3), Outcome.FAILURE)
        for _ in range(2):
            report(server, [await admitted(server)], Outcome.OK)
    found = lines(caplog, LOCAL)
    assert [line[:3] for line in found] == [
        ("closed", "open", "outcomes of this pod"),
        ("open", "half_open", "its open time is over"),
        ("half_open", "closed", "outcomes of this pod"),
    ]
    assert found[0][4:] == ("3", "3", "3")


async def test_an_inspection_logs_nothing(
    limits: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = msgspec.structs.replace(QUICK, open_ms=60_000, open_max_ms=60_000)
    async with running(redis_url, configuration=configured(with_breaker(long))) as server:
        report(server, await permits(server, 3), Outcome.FAILURE)
        before = await eventually(lambda: lines(caplog, MOVED), "the line of the opening")

        async def is_refused() -> bool:
            # Without an answer of Redis in time, an inspection knows only the configuration.
            expected = await server.admission.inspect().call("payments", ONE_CALL)
            return not expected.decision.allowed

        await eventually(is_refused, "an inspection that finds the breaker open")
        assert lines(caplog, MOVED) == before
