"""The p99 of the last minute, as the list of breakers displays it."""

from datetime import timedelta

from django.utils import timezone

from controlplane.series.kinds import DEPENDENCY
from controlplane.series.recent import recent_calls, recent_p99_ms
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer


def test_calls_of_all_gateways_in_the_last_minute_count(transactional_db: None) -> None:
    one, two, llm, quiet = writer("g1"), writer("g2"), thing(DEPENDENCY, "llm"), thing(DEPENDENCY, "quiet")
    now = timezone.now() - timedelta(seconds=15)
    fast, slow = row(DEPENDENCY, 90, took_to_10_ms=90), row(DEPENDENCY, 10, took_to_200_ms=10)
    measure(one, 0, DEPENDENCY, {llm: fast, quiet: row(DEPENDENCY, 0)}, hour=now)
    measure(two, 0, DEPENDENCY, {llm: slow}, hour=now)
    long_ago = now - timedelta(minutes=2)
    measure(one, 0, DEPENDENCY, {llm: row(DEPENDENCY, 900, took_longer=900)}, hour=long_ago)

    found = recent_p99_ms("production")

    assert list(found) == ["llm"]
    assert 100 < found["llm"] <= 200, "9 of the 10 slow calls are between these edges"
    assert recent_p99_ms("staging") == {}


def test_calls_are_added_however_they_ended(transactional_db: None) -> None:
    one, two, llm = writer("g1"), writer("g2"), thing(DEPENDENCY, "llm")
    now = timezone.now() - timedelta(seconds=15)
    measure(one, 0, DEPENDENCY, {llm: row(DEPENDENCY, 90, failures=5, blocked=70)}, hour=now)
    measure(two, 0, DEPENDENCY, {llm: row(DEPENDENCY, 4, neutral=1)}, hour=now)
    measure(one, 0, DEPENDENCY, {llm: row(DEPENDENCY, 900)}, hour=now - timedelta(minutes=20))

    assert recent_calls("production", (now - timedelta(minutes=10)).timestamp()) == {"llm": 100}
    assert recent_calls("staging", now.timestamp()) == {}


def test_a_shorter_frame_of_an_earlier_release_is_read(transactional_db: None) -> None:
    llm = thing(DEPENDENCY, "llm")
    measure(writer(), 0, DEPENDENCY, {llm: [5]}, hour=timezone.now() - timedelta(seconds=15))

    assert recent_p99_ms("production") == {}
