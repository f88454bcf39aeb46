"""What clients read of limits: units in headers, when to return, and the refusal in plain words."""

import json
from datetime import UTC, datetime
from time import time
from typing import Any

import pytest

from fuseboard.contract.words import Algorithm, Period, Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.integrations.problem import header_pairs, limit_headers, refusal

REQUESTS = LimitStatus(name="requests", limit=10, window_ms=60_000, remaining=7)
TOKENS = LimitStatus(name="model-tokens", limit=10_000, window_ms=3_600_000, remaining=3, measure="tokens")
MONEY = LimitStatus(
    name="budget",
    limit=500,
    window_ms=31 * 86_400_000,
    remaining=0,
    measure="micro_usd",
    algorithm=Algorithm.FIXED_WINDOW,
    period=Period.MONTH,
)
OPEN = LimitStatus(name="open", limit=4, window_ms=30_000, remaining=0, algorithm=Algorithm.CONCURRENCY)


def headers_of(*limits: LimitStatus, wait_s: int = 0, **fields: Any) -> dict[str, str]:
    decision = Decision(allowed=not wait_s, limits=limits, **fields)
    return dict(limit_headers(decision, legacy=True, wait_s=wait_s))


def refused(
    *limits: LimitStatus, rule: str = "", wait_ms: int = 45_000, reason: Reason = Reason.QUOTA
) -> Decision:
    return Decision(
        allowed=False, reason=reason, rule=rule or limits[0].name, retry_after_ms=wait_ms, limits=limits
    )


def answer(decision: Decision) -> tuple[dict[str, str], dict[str, Any]]:
    _, headers, body = refusal(decision, legacy=True)
    return dict(headers), json.loads(body)


class TestUnits:
    def test_a_quota_that_does_not_count_requests_names_its_unit(self):
        assert headers_of(REQUESTS, TOKENS, MONEY, OPEN)["ratelimit-policy"] == (
            '"requests";q=10;w=60, "model-tokens";q=10000;qu="tokens";w=3600,'
            ' "budget";q=500;qu="micro_usd";w=2678400, "open";q=4;qu="concurrent-requests"'
        )

    def test_the_short_way_of_one_limit_names_it_too(self):
        found = dict(header_pairs(Decision(allowed=True, limits=(TOKENS,))))
        assert found[b"ratelimit-policy"] == b'"model-tokens";q=10000;qu="tokens";w=3600'

    @pytest.mark.parametrize("order", [(REQUESTS, TOKENS, OPEN), (OPEN, TOKENS, REQUESTS)])
    def test_the_older_headers_are_those_of_requests(self, order: tuple[LimitStatus, ...]):
        found = headers_of(*order)
        assert (found["x-ratelimit-limit"], found["x-ratelimit-remaining"]) == ("10", "7")

    def test_without_a_limit_of_requests_there_are_no_older_headers(self):
        assert not [name for name in headers_of(TOKENS, OPEN) if name.startswith("x-")]


class TestOlderHeaders:
    def test_an_answer_that_is_not_a_refusal_says_when_the_limit_is_whole_again(self):
        before = time()
        assert before + 60 <= int(headers_of(REQUESTS)["x-ratelimit-reset"]) <= time() + 61

    @pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
    def test_a_calendar_limit_is_whole_again_when_its_period_ends(self, zone: str):
        from zoneinfo import ZoneInfo

        daily = LimitStatus(
            name="daily",
            limit=10,
            window_ms=86_400_000,
            remaining=7,
            algorithm=Algorithm.FIXED_WINDOW,
            period=Period.DAY,
            time_zone=zone,
        )
        reset = datetime.fromtimestamp(int(headers_of(daily)["x-ratelimit-reset"]), UTC)
        here = reset.astimezone(ZoneInfo(zone))
        assert (here.hour, here.minute, here.second) == (0, 0, 0)
        assert 0 < reset.timestamp() - time() <= 90_000

    @pytest.mark.parametrize("limits", [(REQUESTS,), (TOKENS, REQUESTS), (OPEN, REQUESTS)])
    def test_a_refusal_agrees_with_retry_after_and_leaves_nothing(self, limits: tuple[LimitStatus, ...]):
        for _ in range(20):
            now = time()
            headers, _ = answer(refused(*limits))
            assert headers["x-ratelimit-remaining"] == "0"
            passed_s = time() - now
            assert (
                0 <= int(headers["x-ratelimit-reset"]) - now - int(headers["retry-after"]) <= passed_s + 1.5
            )

    def test_a_pod_that_decides_alone_does_not_invent_a_remainder(self):
        unknown = LimitStatus(name="requests", limit=10, window_ms=60_000)
        assert "x-ratelimit-remaining" not in headers_of(unknown)
        assert headers_of(unknown)["x-ratelimit-limit"] == "10"


@pytest.mark.parametrize("wait_ms", [1, 1_000, 45_000, 3_600_000, 3 * 86_400_000, 31 * 86_400_000])
def test_retry_after_is_never_before_the_reset_and_at_most_a_minute_later(wait_ms: int):
    waits = [int(answer(refused(REQUESTS, wait_ms=wait_ms))[0]["retry-after"]) for _ in range(200)]
    assert wait_ms / 1000 <= min(waits)
    assert max(waits) <= min(wait_ms / 1000 * 1.1 + 1, wait_ms / 1000 + 60)


class TestWords:
    def test_the_limit_its_window_and_the_wait_are_named(self):
        _, body = answer(refused(REQUESTS))
        wait_s = body["retry_after"]
        assert body["detail"] == (
            f"The limit 'requests' of 10 requests per minute is spent. Try again in {wait_s} seconds."
        )

    @pytest.mark.parametrize(
        ("limit", "words"),
        [
            (TOKENS, "of 10,000 tokens per hour is spent."),
            (MONEY, "of 500 micro usd per month is spent."),
            (OPEN, "of 4 requests at once is reached."),
            (LimitStatus(name="odd", limit=5, window_ms=1_500), "of 5 requests per 1.5 seconds is spent."),
            (
                LimitStatus(name="half", limit=5, window_ms=1_800_000),
                "of 5 requests per 30 minutes is spent.",
            ),
        ],
    )
    def test_each_kind_of_limit_has_its_unit_and_window(self, limit: LimitStatus, words: str):
        detail = answer(refused(limit))[1]["detail"]
        assert detail.startswith(f"The limit {limit.name!r} {words} Try again in ")

    def test_a_long_wait_has_two_units_and_is_not_too_short(self):
        assert answer(refused(MONEY, wait_ms=3 * 86_400_000))[1]["detail"].endswith(
            "Try again in 3 days and 1 hour."
        )

    def test_a_request_that_no_wait_helps_is_not_asked_to_wait(self):
        assert answer(refused(REQUESTS, wait_ms=0))[1]["detail"] == (
            "The limit 'requests' of 10 requests per minute has no room for this request."
        )
        blocked = LimitStatus(name="none", limit=0, window_ms=60_000)
        assert answer(refused(blocked, wait_ms=0))[1]["detail"] == "The limit 'none' allows no requests."
