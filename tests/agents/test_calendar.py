"""Calendar periods: every moment is in exactly one, and each begins where the last one ends."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Period
from fuseboard.without_redis import local_counters
from fuseboard.without_redis.local_counters import CalendarPeriod, PodPortion

S = 1_000_000
#: With changes by an hour and by half of one, at midnight, at one, and with offsets of quarters.
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Africa/Cairo",
    "Asia/Beirut",
    "Atlantic/Azores",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Asia/Kathmandu",
)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * S


def around_changes(zone: str) -> list[int]:
    """Hours of 2026 in which the clocks of a zone change."""
    first, place = at("2026-01-01") // S, ZoneInfo(zone)
    hours = range(first, first + 366 * 86_400, 3_600)
    offsets = [datetime.fromtimestamp(hour, place).utcoffset() for hour in hours]
    return [hour for hour, one, next_one in zip(hours, offsets, offsets[1:], strict=False) if one != next_one]


CHANGES = {zone: around_changes(zone) for zone in ZONES}


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=200)
@given(
    now_us=st.integers(at("2026-01-01"), at("2036-01-01")),
    beside_s=st.none() | st.integers(-3 * 3_600, 3 * 3_600),
    period=st.sampled_from(Period),
)
@example(now_us=0, beside_s=3_599, period=Period.HOUR)
def test_every_moment_is_in_one_period_and_they_follow_each_other(zone, now_us, beside_s, period):
    if beside_s is not None and CHANGES[zone]:
        now_us = (CHANGES[zone][now_us % len(CHANGES[zone])] + beside_s) * S
    begun, ended = period_around(now_us, period, zone)
    assert begun <= now_us < ended
    assert period_around(ended - 1, period, zone) == (begun, ended)
    assert period_around(ended, period, zone)[0] == ended
    here = datetime.fromtimestamp(ended // S, ZoneInfo(zone))
    assert here.minute == 0


@pytest.mark.parametrize(
    ("zone", "now", "period", "hours"),
    [
        ("Europe/Berlin", "2026-03-29T05:00", Period.DAY, 23),
        ("Europe/Berlin", "2026-10-25T05:00", Period.DAY, 25),
        ("Europe/Berlin", "2026-10-25T05:00", Period.WEEK, 7 * 24 + 1),
        ("Europe/Berlin", "2026-03-29T05:00", Period.MONTH, 31 * 24 - 1),
        ("Europe/Berlin", "2026-10-25T00:30", Period.HOUR, 1),
        ("Africa/Cairo", "2026-04-24T05:00", Period.DAY, 23),
        ("Australia/Lord_Howe", "2026-10-03T15:40", Period.HOUR, 1.5),
        ("Australia/Lord_Howe", "2026-04-04T15:10", Period.HOUR, 1.5),
    ],
)
def test_where_clocks_change_a_period_is_as_long_as_it_is(zone, now, period, hours):
    begun, ended = period_around(at(now), period, zone)
    assert (ended - begun) / S / 3_600 == hours


def test_a_server_alone_looks_a_period_up_once_and_again_when_clock_or_limit_leave_it(monkeypatch):
    looked_up, wall = [], [at("2026-03-28T12:00") // S]

    def counted(*arguments):
        looked_up.append(arguments)
        return period_around(*arguments)

    monkeypatch.setattr(local_counters, "period_around", counted)
    monkeypatch.setattr(local_counters, "time", lambda: wall[0])
    limit = Limit(
        name="exports", limit=2, window_ms=86_400_000, algorithm=Algorithm.FIXED_WINDOW, period=Period.DAY
    )
    counter, portion = CalendarPeriod(), PodPortion(2, 0)

    def admits(by=limit) -> bool:
        if counter.wait(portion, by, 1, 0.0) > 0:
            return False
        counter.spend(portion, by, 1, 0.0)
        return True

    assert [admits() for _ in range(4)] == [True, True, False, False]
    assert len(looked_up) == 1
    wall[0] += 86_400
    assert [admits() for _ in range(3)] == [True, True, False]
    assert len(looked_up) == 2
    wall[0] -= 86_400
    assert admits(), "the clock was set back: another day"
    assert len(looked_up) == 3
    monthly = msgspec.structs.replace(limit, period=Period.MONTH)
    assert admits(monthly), "the limit was edited: another period"
    assert len(looked_up) == 4
