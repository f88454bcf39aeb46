"""Bulkheads: shares, pools, pressure, and the bugs that others had."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.contract.protection import Bulkhead as Settings
from fuseboard.contract.words import Reason, WhenFull
from fuseboard.protection import pressure_steps
from fuseboard.protection.bulkhead import Bulkhead, NoSlotError, SlotKind, slots_of
from fuseboard.protection.pressure_steps import PressureSteps
from tests.agents.mutating import Mutant, mutated
from tests.virtual_loop import run_virtually

QUEUE = WhenFull.QUEUE
SMALL = Settings(max_concurrent=3, queues=(2, 2, 2), when_full=(QUEUE, QUEUE, QUEUE), queue_timeout_ms=1_000)


def seat(bulkhead: Bulkhead, tier: int = 0) -> SlotKind:
    got = bulkhead.try_enter(tier)
    assert got is not None
    return got


async def waiting(bulkhead: Bulkhead, tier: int = 0, **options: Any) -> "asyncio.Task[SlotKind]":
    task = asyncio.create_task(bulkhead.enter(tier, **options))
    await asyncio.sleep(0)
    assert not task.done()
    return task


class TestShares:
    @pytest.mark.parametrize(
        ("total", "slots"),
        [(1, (1,)), (2, (2,)), (3, (1, 1, 1)), (4, (2, 1, 1)), (10, (5, 3, 2)), (50, (25, 17, 8))],
    )
    def test_by_the_largest_remainder_and_at_least_one(self, total: int, slots: tuple[int, ...]):
        assert slots_of(Settings(max_concurrent=total)) == slots

    @given(st.integers(1, 98), st.integers(1, 98), st.integers(1, 10_000))
    def test_none_is_lost(self, one: int, two: int, total: int):
        if one + two < 100:
            slots = slots_of(Settings(max_concurrent=total, shares=(one, two, 100 - one - two)))
            assert sum(slots) == total
            assert min(slots) >= 1


class TestPools:
    def test_a_full_tier_delays_no_other(self):
        async def main() -> None:
            bulkhead, loop = Bulkhead(SMALL), asyncio.get_running_loop()
            seat(bulkhead, 2)
            queued = [await waiting(bulkhead, 2) for _ in range(2)]
            for _ in range(100):
                begun = loop.time()
                critical = await bulkhead.enter(0)
                assert loop.time() == begun
                await asyncio.sleep(0.001)
                bulkhead.leave(critical)
            assert not any(task.done() for task in queued)
            for task in queued:
                with pytest.raises(NoSlotError):
                    await task

        run_virtually(main())

    def test_with_two_slots_the_highest_tier_that_waits_is_next(self):
        async def main() -> None:
            bulkhead = Bulkhead(msgspec.structs.replace(SMALL, max_concurrent=2))
            held = [seat(bulkhead, 2), seat(bulkhead, 1)]
            optional = await waiting(bulkhead, 2)
            critical = await waiting(bulkhead, 0)
            bulkhead.leave(held[0])
            await critical
            assert not optional.done()
            bulkhead.leave(held[1])
            await optional
            assert [load.limit for load in bulkhead.loads()] == [2, 2, 2]

        run_virtually(main())

    def test_a_higher_tier_borrows_what_no_lower_call_waits_for(self):
        async def main() -> None:
            bulkhead = Bulkhead(msgspec.structs.replace(SMALL, borrow=True))
            held = [seat(bulkhead, 0) for _ in range(3)]
            assert bulkhead.tiers[0].borrowed == 2
            assert bulkhead.try_enter(1) is None
            critical = await waiting(bulkhead, 0)
            standard = await waiting(bulkhead, 1)
            bulkhead.leave(held[1])  # a slot of standard calls
            await standard
            assert not critical.done()
            bulkhead.leave(held[0])
            await critical
            assert bulkhead.try_enter(2) is None  # never the other way

        run_virtually(main())

    def test_one_that_comes_back_is_the_first(self):
        async def main() -> None:
            bulkhead = Bulkhead(SMALL)
            held = seat(bulkhead)
            later = await waiting(bulkhead)
            back = await waiting(bulkhead, first=True)
            bulkhead.leave(held)
            bulkhead.leave(await back)
            await later

        run_virtually(main())


class TestSharedSlots:
    """With ``share_idle``: ten slots are 5, 3 and 2."""

    SETTINGS = msgspec.structs.replace(SMALL, max_concurrent=10, queues=(9, 9, 9), share_idle=True)

    def made(self, **fields: Any) -> Bulkhead:
        settings = msgspec.structs.replace(self.SETTINGS, **fields)
        return Bulkhead(settings, clock=asyncio.get_running_loop().time)

    @pytest.mark.parametrize("tier", range(3))
    @pytest.mark.parametrize("borrow", [False, True])
    def test_the_only_tier_that_calls_has_all_slots(self, tier: int, borrow: bool):
        async def main() -> None:
            bulkhead = self.made(borrow=borrow)
            assert [load.limit for load in bulkhead.loads()] == [5, 3, 2]
            held = [seat(bulkhead, tier) for _ in range(10)]
            assert bulkhead.try_enter(tier) is None
            assert sum(load.limit for load in bulkhead.loads()) == 10
            assert bulkhead.tiers[tier].borrowed == 0
            for each in held:
                bulkhead.leave(each)
            assert bulkhead.in_flight == 0

        run_virtually(main())

    def test_from_the_first_call_of_another_tier_on_each_has_its_share(self):
        async def main() -> None:
            bulkhead = self.made()
            held = [seat(bulkhead, 1) for _ in range(10)]
            late = await waiting(bulkhead, 1)
            critical = [await waiting(bulkhead, 0) for _ in range(6)]
            assert [load.limit for load in bulkhead.loads()] == [5, 3, 2]
            for number in range(5):  # calls that run end by themselves; who has less gets the slot
                bulkhead.leave(held[number])
                await critical[number]
                assert bulkhead.in_flight == 10
            bulkhead.leave(held[5])
            assert bulkhead.in_flight == 9
            assert not critical[5].done()  # it has its share
            seat(bulkhead, 2)
            for number in range(6, 8):  # 3 standard calls run, which is their share
                bulkhead.leave(held[number])
                assert not late.done()
            bulkhead.leave(held[7 + 1])
            await late

        run_virtually(main())

    def test_a_tier_that_is_silent_for_60_s_lends_its_slots_again(self):
        async def main() -> None:
            bulkhead = self.made()
            critical = seat(bulkhead, 0)
            held = [seat(bulkhead, 1) for _ in range(3)]
            queued = await waiting(bulkhead, 1, max_wait_s=0.1)
            with pytest.raises(NoSlotError):
                await queued
            await asyncio.sleep(100)
            bulkhead.resize_for_pressure(None, None, 0.0)
            assert bulkhead.try_enter(1) is None  # a call that runs is not silent
            bulkhead.leave(critical)
            for _ in range(61):
                await asyncio.sleep(1)
                bulkhead.resize_for_pressure(None, None, 0.0)
            held += [seat(bulkhead, 1) for _ in range(7)]
            assert bulkhead.try_enter(1) is None
            again = await waiting(bulkhead, 0)
            bulkhead.leave(held[0])
            await again

        run_virtually(main())

    def test_without_a_timer_a_call_that_finds_no_slot_looks_for_silent_tiers(self):
        async def main() -> None:
            bulkhead = self.made()
            bulkhead.leave(seat(bulkhead, 0))
            await asyncio.sleep(1)
            for _ in range(3):
                seat(bulkhead, 1)
            await asyncio.sleep(60)
            assert bulkhead.try_enter(1) is None
            for _ in range(7):
                await bulkhead.enter(1)
            assert bulkhead.in_flight == 10

        run_virtually(main())

    def test_under_pressure_the_shares_hold(self):
        async def main() -> None:
            bulkhead = self.made(resize_under_pressure=True)
            held = [seat(bulkhead, 1) for _ in range(10)]
            for at in range(2):
                bulkhead.resize_for_pressure(0.9, 0.1, float(at))
            assert [tier.limit for tier in bulkhead.tiers] == [5, 2, 1]
            for each in held[:-2]:
                bulkhead.leave(each)
            assert bulkhead.try_enter(1) is None
            for at in range(2, 60):
                bulkhead.resize_for_pressure(0.1, 0.1, float(at))
            held = held[-2:] + [seat(bulkhead, 1) for _ in range(8)]
            assert bulkhead.try_enter(1) is None

        run_virtually(main())

    def test_observe_mode_counts_what_would_be_refused(self):
        async def main() -> None:
            bulkhead = self.made(queues=(0, 2, 0))
            for _ in range(12):
                bulkhead.enter_observed(1)
            assert bulkhead.observed == 0
            bulkhead.enter_observed(1)
            assert bulkhead.observed == 1
            bulkhead.enter_observed(0)
            assert bulkhead.observed == 2
            assert bulkhead.in_flight == 14

        run_virtually(main())

    @pytest.mark.parametrize("share_idle", [False, True])
    def test_a_change_of_the_setting_moves_no_call(self, share_idle: bool):
        async def main() -> None:
            bulkhead = self.made(share_idle=not share_idle)
            held = [seat(bulkhead, at) for at in (0, 1, 1, 1)]
            bulkhead.resize(msgspec.structs.replace(self.SETTINGS, share_idle=share_idle))
            assert [load.limit for load in bulkhead.loads()] == [5, 3, 2]
            assert bulkhead.try_enter(1) is None
            for each in held:
                bulkhead.leave(each)
            assert bulkhead.in_flight == 0

        run_virtually(main())

    def test_switched_off_it_lets_every_call_pass(self):
        async def main() -> None:
            bulkhead = self.made()
            held = [seat(bulkhead, 1) for _ in range(10)]
            queued = [await waiting(bulkhead, at) for at in range(3)]
            bulkhead.disable()
            for task in queued:
                await task
            held += [seat(bulkhead, at) for at in range(3)]
            assert bulkhead.in_flight == 16

        run_virtually(main())


class TestBugsOfOthers:
    """Each happened in a library that people use."""

    def test_a_cancelled_call_does_not_block_those_behind_it(self):
        """cpython#90155, #93222: a cancelled waiter wedged the semaphore, or reordered the others."""

        async def main() -> None:
            bulkhead = Bulkhead(SMALL)
            held = seat(bulkhead)
            first, second = await waiting(bulkhead), await waiting(bulkhead)
            first.cancel()
            bulkhead.leave(held)
            await second
            assert bulkhead.in_flight == 1

        run_virtually(main())

    def test_a_slot_of_a_call_that_is_cancelled_as_it_gets_it_goes_on(self):
        """anyio#947: the token was lost."""

        async def main() -> None:
            bulkhead = Bulkhead(SMALL)
            held = seat(bulkhead)
            first, second = await waiting(bulkhead), await waiting(bulkhead)
            bulkhead.leave(held)
            first.cancel()
            await second
            assert bulkhead.in_flight == 1

        run_virtually(main())

    def test_a_slot_that_was_handed_on_is_not_free(self):
        """anyio#1170: another call took it before the woken one ran."""

        async def main() -> None:
            bulkhead = Bulkhead(SMALL)
            held = seat(bulkhead)
            task = await waiting(bulkhead)
            bulkhead.leave(held)
            assert bulkhead.try_enter(0) is None
            await task

        run_virtually(main())

    def test_after_a_shrink_a_leave_grants_only_what_is_free(self):
        """anyio#1223: granted by difference."""

        async def main() -> None:
            large = msgspec.structs.replace(SMALL, max_concurrent=12)
            bulkhead = Bulkhead(large)
            held = [seat(bulkhead) for _ in range(6)]
            task = await waiting(bulkhead)
            bulkhead.resize(SMALL)
            bulkhead.resize(msgspec.structs.replace(SMALL, max_concurrent=4))  # two for this tier
            for each in held[:4]:
                bulkhead.leave(each)
                assert not task.done()
            bulkhead.leave(held[4])
            await task
            assert bulkhead.pools[0].in_flight == 2

        run_virtually(main())

    @pytest.mark.parametrize("leave_first", [True, False])
    def test_a_call_whose_time_is_over_gets_no_slot(self, leave_first: bool):
        """failsafe#393, Netflix/concurrency-limits#179: it got the permit, and nobody returned it."""

        async def main() -> None:
            bulkhead, loop = Bulkhead(SMALL), asyncio.get_running_loop()
            held = seat(bulkhead)
            end = loop.time() + 1.0
            if leave_first:
                loop.call_at(end, bulkhead.leave, held)
            task = await waiting(bulkhead)
            if not leave_first:
                loop.call_at(end, bulkhead.leave, held)
            try:
                bulkhead.leave(await task)
            except NoSlotError as error:
                assert error.reason is Reason.QUEUE_TIMEOUT  # noqa: PT017
            assert bulkhead.in_flight == bulkhead.waiting == 0

        run_virtually(main())

    def test_the_limit_itself_is_allowed_and_one_more_is_not(self):
        """Netflix/concurrency-limits#78: ``>`` for ``>=``."""
        bulkhead = Bulkhead(msgspec.structs.replace(SMALL, max_concurrent=10))
        assert [bulkhead.try_enter(0) is not None for _ in range(6)] == [True] * 5 + [False]

    def test_refused_only_while_every_slot_is_taken(self):
        """apollographql/router#9034: refusals with free permits."""

        async def main() -> None:
            bulkhead = Bulkhead(msgspec.structs.replace(SMALL, when_full=(WhenFull.ABORT,) * 3))
            for _ in range(50):
                bulkhead.leave(await bulkhead.enter(0))
            held = seat(bulkhead)
            with pytest.raises(NoSlotError) as caught:
                await bulkhead.enter(0)
            assert caught.value.reason is Reason.BULKHEAD_FULL
            bulkhead.leave(held)
            await bulkhead.enter(0)

        run_virtually(main())


class TestPressure:
    def steps(self) -> PressureSteps:
        return PressureSteps((25, 17, 8))

    def test_high_twice_leaves_the_lower_tiers_few_slots(self):
        steps = self.steps()
        assert steps.measure(0.9, 0.1, 0.0) == (25, 17, 8)
        assert steps.measure(0.2, 0.2, 1.0) == (25, 17, 8)
        assert steps.measure(0.9, 0.1, 2.0) == (25, 17, 8)
        assert steps.measure(None, 0.9, 3.0) == (25, 2, 1)

    def test_low_for_ten_seconds_gives_them_back_in_steps(self):
        steps = self.steps()
        for moment in range(2):
            steps.measure(0.9, 0.9, float(moment))
        seen = [steps.measure(0.4, 0.5, 2.0 + moment) for moment in range(40)]
        assert seen[9] == (25, 2, 1)
        assert seen[10] == (25, 6, 3)
        assert seen[14] == (25, 6, 3)
        assert seen[15] == (25, 10, 5)
        assert seen[-1] == (25, 17, 8)

    def test_between_the_two_nothing_changes(self):
        steps = self.steps()
        for moment in range(2):
            steps.measure(0.9, 0.9, float(moment))
        assert {steps.measure(0.6, 0.5, 2.0 + moment) for moment in range(60)} == {(25, 2, 1)}

    def test_slots_come_back_when_what_was_short_is_low_whatever_the_other_uses(self):
        """A process whose memory stays at 65 % never got its slots back."""
        for short, other in (("cpu", "memory"), ("memory", "cpu")):
            steps = self.steps()
            for moment in range(2):
                steps.measure(**{short: 0.9, other: 0.7}, at=float(moment))
            assert steps.now == (25, 2, 1)
            for moment in range(40):
                steps.measure(**{short: 0.4, other: 0.7}, at=2.0 + moment)
            assert steps.now == (25, 17, 8)

    def test_both_must_be_low_when_both_were_short(self):
        for second in (2.0, 8.0):
            steps = self.steps()
            for moment in range(2):
                steps.measure(0.9, 0.1, float(moment))
            for moment in range(2):
                steps.measure(0.4, 0.9, second + moment)
            assert {steps.measure(0.4, 0.7, 10.0 + moment) for moment in range(40)} == {(25, 2, 1)}
            assert {steps.measure(0.7, 0.5, 50.0 + moment) for moment in range(40)} == {(25, 2, 1)}
            assert [steps.measure(0.4, 0.5, 90.0 + moment) for moment in range(40)][-1] == (25, 17, 8)

    def test_one_after_the_other_is_a_shortage_of_both(self):
        steps = self.steps()
        steps.measure(0.9, 0.1, 0.0)
        assert steps.measure(0.1, 0.9, 1.0) == (25, 2, 1)
        assert {steps.measure(0.7, 0.1, 2.0 + moment) for moment in range(40)} == {(25, 2, 1)}

    def test_what_was_short_before_the_last_return_does_not_count(self):
        steps = self.steps()
        for moment in range(2):
            steps.measure(0.1, 0.9, float(moment))
        for moment in range(40):
            steps.measure(0.1, 0.5, 2.0 + moment)
        for moment in range(2):
            steps.measure(0.9, 0.7, 50.0 + moment)
        assert [steps.measure(0.4, 0.7, 60.0 + moment) for moment in range(40)][-1] == (25, 17, 8)

    def test_a_bulkhead_shrinks_logs_once_and_drops_no_call(self, caplog: pytest.LogCaptureFixture):
        async def main() -> None:
            settings = msgspec.structs.replace(SMALL, max_concurrent=10, resize_under_pressure=True)
            bulkhead = Bulkhead(settings, name="api")
            held = [seat(bulkhead, 1) for _ in range(3)]
            task = await waiting(bulkhead, 1)
            for moment in range(5):
                bulkhead.resize_for_pressure(0.95, 0.1, float(moment))
            assert [load.limit for load in bulkhead.loads()] == [5, 2, 1]
            bulkhead.leave(held[0])
            await asyncio.sleep(0)
            assert not task.done()
            bulkhead.leave(held[1])
            await task

        with caplog.at_level(logging.WARNING, logger="fuseboard.protection"):
            run_virtually(main())
        assert [record.getMessage() for record in caplog.records] == [
            "bulkhead.resized dependency=api slots=5/2/1 before=5/3/2 cpu=95% memory=10%"
        ]

    def test_one_that_does_not_resize_stays(self):
        bulkhead = Bulkhead(msgspec.structs.replace(SMALL, max_concurrent=10))
        for moment in range(5):
            bulkhead.resize_for_pressure(0.95, 0.95, float(moment))
        assert [load.limit for load in bulkhead.loads()] == [5, 3, 2]


STEP_MUTANTS = [
    Mutant("one high measurement is enough", "if self._high >= 2:", "if self._high >= 1:"),
    Mutant("back at once", "LOW_S = 10.0", "LOW_S = 0.0"),
    Mutant("all back in one step", "STEPS = 4", "STEPS = 1"),
    Mutant("a step each second", "STEP_S = 5.0", "STEP_S = 1.0"),
    Mutant("back while it is not low", 'LOW = {"cpu": 0.50', 'LOW = {"cpu": 0.70'),
    Mutant("memory does not count", '"memory": memory or 0.0', '"memory": 0.0'),
    Mutant("what was never short must be low", "for name in self._short)", "for name in used)"),
    Mutant("only the last shortage counts", "before | self._was_high | high", "self._was_high | high"),
    Mutant("only the second measurement counts", "before | self._was_high | high", "before | high"),
    Mutant("old shortages count", "self._short if self.now != self.full else set()", "self._short"),
    Mutant("more than before", "min(most, has + max(1, most // STEPS))", "has + max(1, most // STEPS)"),
]


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", STEP_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_of_the_steps_is_noticed(mutant: Mutant):
    module, holder = mutated(pressure_steps, mutant), TestPressure()
    holder.steps = lambda: module.PressureSteps((25, 17, 8))  # type: ignore[method-assign]

    def examples() -> None:
        holder.test_high_twice_leaves_the_lower_tiers_few_slots()
        holder.test_low_for_ten_seconds_gives_them_back_in_steps()
        holder.test_between_the_two_nothing_changes()
        holder.test_slots_come_back_when_what_was_short_is_low_whatever_the_other_uses()
        holder.test_both_must_be_low_when_both_were_short()
        holder.test_one_after_the_other_is_a_shortage_of_both()
        holder.test_what_was_short_before_the_last_return_does_not_count()

    with pytest.raises(AssertionError):
        examples()
