"""Money as people read and type it."""

import pytest

from fuseboard.contract.budgets import MAX_BUDGET
from fuseboard.contract.money import micro_usd_of, usd, usd_decimals, usd_digits


@pytest.mark.parametrize(
    ("micro", "shown", "exact"),
    [
        (0, "0 USD", "0 USD"),
        (1, "0.000001 USD", "0.000001 USD"),
        (4_000, "0.004 USD", "0.004 USD"),
        (75_000, "0.075 USD", "0.075 USD"),
        (99_999, "0.10 USD", "0.099999 USD"),
        (27_331, "0.027 USD", "0.027331 USD"),
        (1_234, "0.0012 USD", "0.001234 USD"),
        (17, "0.000017 USD", "0.000017 USD"),
        (104_999, "0.10 USD", "0.104999 USD"),
        (2_500_000, "2.50 USD", "2.50 USD"),
        (12_505_000, "12.51 USD", "12.505 USD"),
        (50_000_000_000, "50,000.00 USD", "50,000.00 USD"),
        (-4_000, "-0.004 USD", "-0.004 USD"),
        (-1_234_567_890, "-1,234.57 USD", "-1,234.56789 USD"),
        (MAX_BUDGET, "9,007,199,254.74 USD", "9,007,199,254.740991 USD"),
    ],
)
def test_money_has_the_digits_that_matter(micro: int, shown: str, exact: str) -> None:
    assert (usd(micro), usd(micro, exact=True)) == (shown, exact)


@pytest.mark.parametrize(
    ("micro", "beside", "shown"),
    [
        (27_331, 13_000_000, "0.03 USD"),
        (400, 13_000_000, "< 0.01 USD"),
        (-400, 13_000_000, "> -0.01 USD"),
        (0, 13_000_000, "0 USD"),
        (100_400, 27_331, "0.100 USD"),
        (2_000_000, 27_331, "2.000 USD"),
        (99, 99, "0.000099 USD"),
        (4, 0, "< 0.01 USD"),
    ],
)
def test_amounts_beside_each_other_have_the_same_decimals(micro: int, beside: int, shown: str) -> None:
    assert usd(micro, decimals=usd_decimals(beside)) == shown


@pytest.mark.parametrize("micro", [0, 1, 4_000, 75_000, 2_500_000, 50_000_000_000, MAX_BUDGET])
def test_what_a_form_shows_is_what_it_reads(micro: int) -> None:
    assert micro_usd_of(usd_digits(micro)) == micro
    assert micro_usd_of(f" ${usd_digits(micro)} ") == micro


@pytest.mark.parametrize("text", ["", "much", "-1", "1.0000001", "1e3", "\u0661", "12345678901"])
def test_what_is_no_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 2\.50"):
        micro_usd_of(text)
