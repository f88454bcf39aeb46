"""What answers say about limits: recorded headers of vendors, and headers that nobody should send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.learning.headers import MAX_AMOUNT, MAX_RESET_S, StatedLimit, is_cached, stated_limits
from fuseboard.learning.remaining import left_of
from tests.agents.limit_kinds import bucket, window

DATE = "Sun, 29 Nov 2026 16:00:00 GMT"
#: As vendors have published or sent them.
RECORDED: dict[str, tuple[dict[str, str], tuple[StatedLimit, ...]]] = {
    "OpenAI": (
        {
            "x-ratelimit-limit-requests": "5000",
            "x-ratelimit-remaining-requests": "4999",
            "x-ratelimit-reset-requests": "12ms",
            "x-ratelimit-limit-tokens": "160000",
            "x-ratelimit-remaining-tokens": "159976",
            "x-ratelimit-reset-tokens": "9ms",
        },
        (
            StatedLimit("calls", 5000, 4999, 0.012, 60_000),
            StatedLimit("tokens", 160_000, 159_976, 0.009, 60_000),
        ),
    ),
    "OpenAI, nearly spent": (
        {
            "X-RateLimit-Limit-Tokens": "150000",
            "X-RateLimit-Remaining-Tokens": "0",
            "X-RateLimit-Reset-Tokens": "1m0s",
        },
        (StatedLimit("tokens", 150_000, 0, 60.0, 60_000),),
    ),
    "Groq, whose requests are per day": (
        {
            "x-ratelimit-limit-requests": "14400",
            "x-ratelimit-remaining-requests": "14370",
            "x-ratelimit-reset-requests": "2m59.56s",
        },
        (StatedLimit("calls", 14_400, 14_370, 179.56, 86_188_800),),
    ),
    "Anthropic": (
        {
            "date": DATE,
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "25",
            "anthropic-ratelimit-requests-reset": "2026-11-29T16:00:30Z",
            "anthropic-ratelimit-input-tokens-limit": "40000",
            "anthropic-ratelimit-input-tokens-remaining": "40000",
            "anthropic-ratelimit-input-tokens-reset": "2026-11-29T16:00:00Z",
            "anthropic-ratelimit-output-tokens-limit": "8000",
            "anthropic-ratelimit-output-tokens-remaining": "6000",
            "anthropic-ratelimit-output-tokens-reset": "2026-11-29T16:00:15Z",
            "request-id": "req_018EeWyXxfu5pfWkrYcMdjWG",
        },
        (
            StatedLimit("calls", 50, 25, 30.0, 60_000),
            StatedLimit("input_tokens", 40_000, 40_000, 0.0),
            StatedLimit("output_tokens", 8_000, 6_000, 15.0, 60_000),
        ),
    ),
    "GitHub": (
        {
            "Date": DATE,
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": "4987",
            "X-RateLimit-Reset": "1795968000",
            "X-RateLimit-Used": "13",
            "X-RateLimit-Resource": "core",
        },
        (StatedLimit("calls", 5000, 4987, 0.0),),
    ),
    "Okta": (
        {"x-rate-limit-limit": "600", "x-rate-limit-remaining": "598", "x-rate-limit-reset": "17"},
        (StatedLimit("calls", 600, 598, 17.0),),
    ),
    "IETF, third draft": (
        {"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "40", "RateLimit-Reset": "20"},
        (StatedLimit("calls", 100, 40, 20.0, 60_000),),
    ),
    "IETF, third draft with two policies": (
        {"RateLimit-Limit": "10, 10;w=1, 50;w=60", "RateLimit-Remaining": "4", "RateLimit-Reset": "1"},
        (StatedLimit("calls", 10, 4, 1.0),),
    ),
    "IETF, seventh draft": (
        {"RateLimit": "limit=100, remaining=50, reset=30", "RateLimit-Policy": "100;w=60"},
        (StatedLimit("calls", 100, 50, 30.0, 60_000),),
    ),
    "IETF, tenth draft": (
        {"RateLimit": '"default";r=50;t=30', "RateLimit-Policy": '"default";q=100;w=60'},
        (StatedLimit("calls", 100, 50, 30.0, 60_000),),
    ),
    "IETF, two policies": (
        {"RateLimit": '"a";r=50;t=30, "b";r=5;t=1', "RateLimit-Policy": '"a";q=100;w=60, "b";q=10;w=1'},
        (),
    ),
    "Azure, which does not know": (
        {
            "x-ratelimit-limit-requests": "-1",
            "x-ratelimit-remaining-requests": "-1",
            "x-ratelimit-limit-tokens": "0",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "32",
        },
        (),
    ),
    "more left than there is": ({"x-ratelimit-limit": "10", "x-ratelimit-remaining": "11"}, ()),
    "nothing about limits": ({"content-type": "application/json", "x-operate": "1"}, ()),
}


@pytest.mark.parametrize("vendor", RECORDED)
def test_what_a_vendor_has_sent_is_understood(vendor: str):
    headers, expected = RECORDED[vendor]
    assert stated_limits(headers) == expected


def test_a_moment_without_the_date_of_the_vendor_is_judged_by_the_clock_of_the_pod():
    headers = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "50",
        "anthropic-ratelimit-requests-reset": "2020-01-01T00:00:00Z",
    }
    assert stated_limits(headers) == (StatedLimit("calls", 50, 50, 0.0),)


def test_an_answer_of_a_cache_is_recognized():
    assert is_cached({"age": "3"})
    assert not is_cached({"age": "0"})
    assert not is_cached({})


NAMES = sorted({name for headers, _ in RECORDED.values() for name in headers} | {"RateLimit-Policy", "Date"})
NUMBERS = st.one_of(
    st.integers(-(10**25), 10**25).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["", "-1", "0", "1e9", "٣", "²", "1,000", "1_000", "nan", "inf", "0x10", "1;w=0", "5;w=60"]
    ),
)
DURATIONS = st.sampled_from(["1h2m3.5s", "9999999999d", "1s1s", "1m 2s", "s", "-5s", "9" * 150 + "s"])
MOMENTS = st.sampled_from(["2026-11-29T16:00:30Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "T"])
HEADERS = st.dictionaries(
    st.one_of(st.sampled_from(NAMES), st.text(max_size=30)),
    st.one_of(NUMBERS, DURATIONS, MOMENTS, st.text(max_size=40), st.text(min_size=190, max_size=210)),
    max_size=12,
)


@given(HEADERS)
def test_no_header_raises_and_nothing_impossible_is_believed(headers: dict[str, str]):
    for one in stated_limits(headers):
        assert 1 <= one.limit <= MAX_AMOUNT
        assert 0 <= one.remaining <= one.limit
        assert one.reset_s is None or 0 <= one.reset_s <= MAX_RESET_S
        assert one.window_ms is None or 1 <= one.window_ms <= MAX_RESET_S * 1000


class TestWhichLimit:
    """A vendor may have several limits of one measure, and we may have others."""

    MINUTE, DAY = window(600, 60, name="minute"), window(10_000, 86_400, name="day")
    TOKENS = bucket(30_000, seconds=60, name="tokens", measure="tokens")

    def test_the_window_decides_where_it_is_known(self):
        limits = (self.MINUTE, self.DAY, self.TOKENS)
        assert left_of(limits, (StatedLimit("calls", 500, 7, None, 61_000),)) == {"minute": (7, 500)}
        assert left_of(limits, (StatedLimit("calls", 14_400, 9, None, 86_188_800),)) == {"day": (9, 14_400)}
        assert left_of(limits, (StatedLimit("calls", 10, 3, None, 1_000),)) == {}
        assert left_of(limits, (StatedLimit("tokens", 40_000, 11, None, 59_000),)) == {"tokens": (11, 40_000)}

    def test_the_number_decides_where_no_window_is_known(self):
        limits = (self.MINUTE, self.DAY)
        assert left_of(limits, (StatedLimit("calls", 5_000, 7),)) == {"day": (7, 5_000)}
        assert left_of(limits, (StatedLimit("calls", 30, 1),)) == {}

    @pytest.mark.parametrize(("reset_s", "left"), [(59.0, {"minute": (3, 1_000)}), (40_000.0, {})])
    def test_a_limit_that_is_full_again_later_has_a_longer_window(self, reset_s: float, left: object):
        assert left_of((self.MINUTE,), (StatedLimit("calls", 1_000, 3, reset_s),)) == left

    def test_the_smaller_of_two_reports_counts(self):
        reports = (StatedLimit("calls", 600, 7, None, 60_000), StatedLimit("calls", 600, 5))
        assert left_of((self.MINUTE,), reports) == {"minute": (5, 600)}
        assert left_of((self.MINUTE,), reports[::-1]) == {"minute": (5, 600)}
