"""The local rate: a bucket that refuses, and that gives back what was not used."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.contract.protection import LocalRate as Settings
from fuseboard.protection import local_rate
from fuseboard.protection.local_rate import LocalRate
from tests.agents.mutating import Mutant, mutated

EIGHTY = Settings(limit=80, window_ms=60_000)


def taken(rate: LocalRate, now: float, calls: int) -> int:
    return sum(rate.take(now) == 0.0 for _ in range(calls))


class TestRate:
    def make(self, settings: Settings = EIGHTY) -> LocalRate:
        return LocalRate(settings)

    def test_all_at_once_and_then_one_each_three_quarters_of_a_second(self):
        rate = self.make()
        assert taken(rate, 1000.0, 100) == 80
        assert rate.take(1000.0) == pytest.approx(0.75, abs=0.01)
        assert taken(rate, 1000.75, 10) == 1
        assert taken(rate, 1002.0, 10) == 1
        assert taken(rate, 1062.0, 100) == 80

    def test_an_idle_bucket_saves_no_more_than_its_limit(self):
        rate = self.make()
        rate.take(1.0)
        assert taken(rate, 100_000.0, 200) == 80

    def test_a_look_spends_nothing_and_agrees(self):
        rate = self.make()
        for _ in range(200):
            assert rate.peek(5.0) == 0.0
        assert taken(rate, 5.0, 80) == 80
        assert rate.peek(5.0) == rate.take(5.0) > 0

    def test_what_was_not_used_can_be_spent_again(self):
        rate = self.make()
        taken(rate, 1000.0, 80)
        rate.put_back()
        assert rate.left(1000.0) == 1
        assert taken(rate, 1000.0, 10) == 1

    def test_new_settings_keep_what_was_spent(self):
        rate = self.make()
        taken(rate, 1000.0, 40)
        rate.resize(Settings(limit=800, window_ms=60_000), 1000.0)
        assert taken(rate, 1000.0, 1000) == 400
        rate.resize(Settings(limit=8, window_ms=60_000), 1000.0)
        assert taken(rate, 1000.0, 10) == 0

    def test_new_settings_at_an_earlier_time_take_no_more_than_the_bucket(self):
        rate = self.make()
        taken(rate, 1000.0, 80)
        # Another thread read the clock before these calls.
        rate.resize(Settings(limit=8, window_ms=10_000), 990.0)
        assert rate.peek(990.0) == pytest.approx(1.25, abs=0.01)
        assert taken(rate, 1000.0, 10) == 8

    def test_new_settings_of_an_idle_bucket_give_all_of_it_and_no_more(self):
        rate = self.make()
        taken(rate, 1000.0, 80)
        rate.resize(Settings(limit=8, window_ms=10_000), 5000.0)
        assert rate.left(5000.0) == 8
        assert taken(rate, 5000.0, 100) == 8
        assert rate.left(5000.0) == 0
        assert self.make().left(5000.0) == 80


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30), st.booleans()), max_size=40), st.integers(1, 50)
)
def test_never_more_than_the_limit_and_what_a_window_adds(steps: list[tuple[float, int, bool]], limit: int):
    rate, now, made = LocalRate(Settings(limit=limit, window_ms=10_000)), 1000.0, 0
    for pause, calls, undone in steps:
        now += pause
        got = taken(rate, now, calls)
        if undone and got:
            rate.put_back()
            got -= 1
        made += got
        assert made <= limit + limit * (now - 1000.0) / 10.0 + 0.01
        assert (rate.peek(now) == 0.0) == (rate.left(now) >= 1)


MUTANTS = [
    Mutant("what is put back is lost", "        self._full_at -= self._gap_s\n", "        pass\n"),
    Mutant("one too many", "        wait_s = full_at + self._gap_s * 0.999", "        wait_s = full_at"),
    Mutant(
        "an idle bucket saves up",
        "(full_at if full_at > now else now) + self._gap_s",
        "full_at + self._gap_s",
    ),
    Mutant(
        "an earlier time spends more",
        "min(1.0, (self._full_at - now) / self.window_s)",
        "(self._full_at - now) / self.window_s",
    ),
    Mutant("new settings spend a part", "min(1.0, (self", "min(0.5, (self"),
    Mutant("new settings spend more", "min(1.0, (self", "min(2.0, (self"),
    Mutant("an idle bucket shows more", "max(0.0, self._full_at - now)", "(self._full_at - now)"),
    Mutant("new settings refill it", "self._full_at = now + spent * self.window_s", "self._full_at = now"),
    Mutant(
        "a look differs",
        "wait_s = self._full_at + self._gap_s * 0.999",
        "wait_s = self._full_at + self._gap_s * 2",
    ),
]


def examples(module: ModuleType) -> None:
    holder = TestRate()
    holder.make = lambda settings=EIGHTY: module.LocalRate(settings)  # type: ignore[method-assign]
    for name in dir(holder):
        if name.startswith("test_"):
            getattr(holder, name)()


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_noticed(mutant: Mutant):
    with pytest.raises(AssertionError):
        examples(mutated(local_rate, mutant))
