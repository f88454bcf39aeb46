"""Names of models, the price that applies, and what a call costs."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.contract.limits import PolicyError
from fuseboard.contract.models import MAX_PRICE, Model, Price, by_name, micro_usd, price_at, undated
from fuseboard.contract.policy import Policy, Tier, decode_policy, encode_policy

AMOUNTS = st.integers(0, MAX_PRICE)
TOKENS = st.integers(0, 10**7)
PRICES = st.builds(
    Price,
    starts_at_s=st.just(0),
    **dict.fromkeys(("input", "cached", "written", "output"), AMOUNTS),
    **dict.fromkeys(("long_input", "long_cached", "long_written", "long_output"), AMOUNTS),
    batch_percent=st.integers(1, 100),
    long_above=st.integers(0, 10**7),
)
ROW = Price(starts_at_s=100, input=3_000_000, cached=300_000, written=3_750_000, output=15_000_000)


@given(price=PRICES, fresh=TOKENS, cached=TOKENS, written=TOKENS, output=TOKENS, batch=st.booleans())
def test_a_call_costs_the_exact_sum_rounded_up_once(
    price: Price, fresh: int, cached: int, written: int, output: int, batch: bool
):
    is_long = price.long_above > 0 and fresh + cached + written > price.long_above
    rates = [
        Fraction(getattr(price, f"long_{name}" if is_long else name), 1_000_000)
        for name in ("input", "cached", "written", "output")
    ]
    exact = sum(rate * tokens for rate, tokens in zip(rates, (fresh, cached, written, output), strict=True))
    exact *= Fraction(price.batch_percent if batch else 100, 100)
    found = micro_usd(price, fresh=fresh, cached=cached, written=written, output=output, batch=batch)
    assert found == ceil(exact)


def test_the_four_prices_of_the_example_cost_what_their_list_says():
    # 1,000 tokens of input and 500 of output, in micro-USD.
    usual = {
        (3_000_000, 15_000_000): 10_500,
        (2_500_000, 10_000_000): 7_500,
        (150_000, 600_000): 450,
        (800_000, 4_000_000): 2_800,
    }
    for (read, out), cost in usual.items():
        price = Price(starts_at_s=0, input=read, cached=read, written=read, output=out)
        assert micro_usd(price, fresh=1_000, output=500) == cost
        # One token costs less than a micro-USD at some of these prices, and is rounded up.
        assert micro_usd(price, fresh=1) == -(-read // 1_000_000)


def test_a_long_call_costs_the_long_prices_for_all_its_tokens():
    price = Price(
        starts_at_s=0,
        input=1_000_000,
        cached=0,
        written=0,
        output=1_000_000,
        long_above=100,
        long_input=2_000_000,
        long_cached=1_000_000,
        long_output=4_000_000,
    )
    assert micro_usd(price, fresh=60, cached=40, output=10) == 60 + 10
    assert micro_usd(price, fresh=60, cached=41, output=10) == 2 * 60 + 41 + 4 * 10


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gpt-5.2-2026-01-01", "gpt-5.2"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("gpt-5.2", ""),
        ("gpt-5.2-2026-01-01-preview", ""),
        ("gpt-5.2-2026-1-1", ""),
        ("gpt-5.2-99999999", ""),
        ("-2026-01-01", ""),
        ("", ""),
        ("x" * 100_000 + "-2026-01-01", ""),
    ],
)
def test_a_date_at_the_end_of_a_name_is_left_out(name: str, short: str):
    assert undated(name) == short


@pytest.mark.parametrize(
    ("at_s", "starts_at_s"), [(99, None), (100, 100), (199.9, 100), (200, 200), (9e9, 200)]
)
def test_the_newest_price_that_has_begun_applies(at_s: float, starts_at_s: int | None):
    later = Price(starts_at_s=200, input=1, cached=1, written=1, output=1)
    found = price_at(Model(name="m", prices=(ROW, later)), at_s)
    assert (found.starts_at_s if found else None) == starts_at_s


def test_a_name_or_an_alias_finds_its_model():
    one, other = Model(name="one", aliases=("a", "b")), Model(name="other")
    assert by_name((one, other)) == {"one": one, "a": one, "b": one, "other": other}


@pytest.mark.parametrize("second", [Model(name="one"), Model(name="two", aliases=("a",)), Model(name="a")])
def test_a_policy_in_which_a_name_has_two_models_is_refused(second: Model):
    models = (Model(name="one", aliases=("a",)), second)
    policy = Policy(environment="e", default_tier="free", tiers=(Tier(name="free"),), models=models)
    with pytest.raises(PolicyError, match="models"):
        decode_policy(encode_policy(policy))
