"""The text in a breaker's key, as Lua writes it and both sides read it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.contract.breaker_state import StoredBreaker, StoredOverride, parse_breaker, parse_override
from fuseboard.contract.words import BreakerState, OverrideMode

NUMBERS = st.integers(min_value=0, max_value=2**53)
WORDS = st.from_regex(r"[a-z_]{1,20}", fullmatch=True)
TOKENS = st.from_regex(r"[A-Za-z0-9.:/-]{1,40}", fullmatch=True)

BREAKERS = st.builds(
    StoredBreaker,
    state=st.sampled_from(BreakerState),
    generation=NUMBERS,
    until_us=NUMBERS,
    since_us=NUMBERS,
    attempt=NUMBERS,
    successes=NUMBERS,
    cause=WORDS,
    permits=st.dictionaries(TOKENS, NUMBERS, max_size=5),
)


def text_of(breaker):
    """Written here once more, by hand, as the scripts do it in Lua."""
    numbers = (breaker.generation, breaker.until_us, breaker.since_us, breaker.attempt, breaker.successes)
    permits = [f"{token}={expires_us}" for token, expires_us in breaker.permits.items()]
    return " ".join([breaker.state, *map(str, numbers), breaker.cause, *permits])


@given(BREAKERS)
def test_what_is_written_is_what_is_read(breaker):
    assert parse_breaker(text_of(breaker)) == breaker


def test_a_breaker_reads_as_an_operator_sees_it():
    text = "half_open 1800000000000001 1800000060000000 1800000000000001 2 1 ratio pod-1:7=1800000030000000"
    assert parse_breaker(text) == StoredBreaker(
        state=BreakerState.HALF_OPEN,
        generation=1_800_000_000_000_001,
        until_us=1_800_000_060_000_000,
        since_us=1_800_000_000_000_001,
        attempt=2,
        successes=1,
        cause="ratio",
        permits={"pod-1:7": 1_800_000_030_000_000},
    )


@given(st.sampled_from(OverrideMode), NUMBERS, NUMBERS)
def test_an_override_is_read_as_written(mode, expires_at_us, revision):
    assert parse_override(f"{mode} {expires_at_us} {revision}") == StoredOverride(
        mode=mode, expires_at_us=expires_at_us, revision=revision
    )


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "open",
        "ajar 1 2 3 4 5 ratio",
        "open 1 2 3 4 5",
        "open -1 2 3 4 5 ratio",
        "open 1.5 2 3 4 5 ratio",
        "open 1 2 3 4 5 ratio token",
        "open 1 2 3 4 5 ratio token=soon",
        " open 1 2 3 4 5 ratio",
        "open  1 2 3 4 5 ratio",
        "{}",
    ],
)
def test_what_does_not_parse_is_no_breaker_at_all(text):
    assert parse_breaker(text) is None


@pytest.mark.parametrize("text", [None, "", "forced_open", "forced_open 1", "wishful 1 2", "forced_open 1 x"])
def test_what_does_not_parse_is_no_override(text):
    assert parse_override(text) is None


@given(st.text(max_size=80))
def test_no_text_makes_reading_fail(text):
    parse_breaker(text)
    parse_override(text)
