"""A pool of own machines refuses nothing, and grows slow: what ``learn.lua`` makes of the time of calls."""

from itertools import pairwise

import msgspec
import pytest
import redis

from tests.agents.models.learner import KEY, SLOTS, Answer, Learner
from tests.agents.models.learning_oracle import TICK_US

PODS = tuple(f"web-{number}" for number in range(5))
TWO = PODS[:2]
SECOND = 1_000_000
#: The longest measurement, in ticks; and after how many without a fast call the next one begins.
LONGEST, STALE = 24, 120


def use(learner: Learner, calls: int) -> None:
    """So many calls are in progress."""
    learner.client.delete(SLOTS)
    if calls:
        learner.client.zadd(SLOTS, {f"call-{number}": 2**52 for number in range(calls)})


def tick(learner: Learner, took: int = 0, pods: tuple[str, ...] = PODS, **report: int) -> Answer:
    learner.tick()
    for pod in pods:
        answer = learner.report(pod, **{"asked": 15, "sent": 10, **report}, took=took)
        assert learner.lowest <= answer.limit <= learner.ceiling
    return answer


def ticks(learner: Learner, number: int, took: int = 0, **report: int) -> Answer:
    for _ in range(number):
        answer = tick(learner, took, **report)
    return answer


def measured(limits: redis.Redis, *, used: int = 600, pods: tuple[str, ...] = PODS) -> Learner:
    """Calls take a second at best, and may take two."""
    learner = Learner(limits, rise=100)
    use(learner, used)
    for _ in range(8):
        answer = tick(learner, SECOND, pods, asked=10)
    assert answer[5:] == (SECOND, SECOND)
    assert answer.limit == 600
    return learner


def one_at_once(learner: Learner, number: int, takes_s: int, pods: tuple[str, ...]) -> int:
    """At the floor, a call of the next pod ends after the last one; else, one of each pod in each tick."""
    learner.tick()
    ticks_each = takes_s * SECOND // TICK_US
    if learner.report("idle").limit > 1:
        ending = pods
    else:
        ending = () if number % ticks_each else (pods[number // ticks_each % len(pods)],)
    for pod in ending:
        learner.report(pod, 1, 1, took=takes_s * SECOND)
    return learner.report("idle").limit


class TestTwoPods:
    """The first report of a tick decides: with the time of that pod, and the last one of the other."""

    def test_two_pods_agree_for_two_ticks_on_a_faster_time(self, limits: redis.Redis):
        learner = measured(limits, pods=TWO)
        for other in (SECOND // 2, SECOND, SECOND):
            learner.tick()
            learner.report("web-0", 10, 10, took=SECOND // 2)
            answer = learner.report("web-1", 10, 10, took=other)
            # Both are fast in one decision. In the next one, the second pod is slow again.
            assert answer.lowest_us == SECOND
        for _ in range(3):
            answer = tick(learner, SECOND // 2, TWO, asked=10)
        assert answer[5:] == (SECOND // 2, SECOND // 2)

    def test_times_that_were_reported_three_ticks_ago_do_not_count(self, limits: redis.Redis):
        for ago, present in ((2, SECOND), (3, 0)):
            limits.flushall()
            learner = measured(limits, pods=TWO)
            learner.now_us += ago * TICK_US
            assert learner.report("web-0")[5:] == (SECOND, present), ago

    def test_times_of_before_the_clock_was_set_back_do_not_count_for_longer(self, limits: redis.Redis):
        learner = measured(limits, pods=TWO)
        learner.now_us -= 3_600 * SECOND
        # They count from the next report, for two ticks.
        presents = [tick(learner, pods=TWO, asked=10).present_us for _ in range(5)]
        assert presents == [SECOND] * 3 + [0] * 2


class TestFalling:
    def test_it_falls_by_as_much_as_calls_are_too_slow_and_then_rests(self, limits: redis.Redis):
        learner = measured(limits)
        slow = int(2.5 * SECOND)
        fallen = [600, *(tick(learner, slow).limit for _ in range(6))]
        # The present time is that of the last two ticks.
        changes = {round(after / before, 2) for before, after in pairwise(fallen)}
        assert changes == {1.0, 0.8}
        assert fallen[-1] < 600 * 0.8 * 0.81

    def test_by_at_most_30_percent_in_a_step_down_to_its_floor(self, limits: redis.Redis):
        learner, before = measured(limits), 600
        for _ in range(40):
            answer = tick(learner, 20 * SECOND)
            assert answer.limit >= before * 0.7 - 1
            before = answer.limit
        assert (answer.limit, answer.cause) == (60, 4)

    def test_after_a_step_it_rests_until_calls_of_after_it_have_ended(self, limits: redis.Redis):
        learner = measured(limits)
        numbers = [tick(learner, 30 * SECOND).limit for _ in range(8)]
        # 30 s and a tick are 7 ticks.
        assert numbers[1:8] == [420] * 7 or numbers[:7] == [420] * 7

    def test_calls_that_take_no_longer_than_allowed_change_nothing(self, limits: redis.Redis):
        learner = measured(limits)
        assert {tick(learner, int(1.9 * SECOND), asked=10).limit for _ in range(STALE + 5)} == {600}

    def test_slow_calls_that_do_not_use_half_of_the_limit_change_nothing(self, limits: redis.Redis):
        learner = measured(limits)
        use(learner, 299)
        assert ticks(learner, 20, 20 * SECOND).limit == 600
        use(learner, 300)
        assert ticks(learner, 2, 20 * SECOND).limit == 420

    def test_refusals_lower_it_too(self, limits: redis.Redis):
        answer = ticks(measured(limits), 10, SECOND, refused=5)
        assert (answer.limit < 300, answer.cause) == (True, 2)


class TestRising:
    def fallen(self, limits: redis.Redis) -> Learner:
        learner = measured(limits)
        assert ticks(learner, 20, 9 * SECOND).limit == 60
        return learner

    def test_it_comes_back_by_a_tenth_in_a_tick_up_to_the_configured_limit(self, limits: redis.Redis):
        learner = self.fallen(limits)
        numbers = [tick(learner, SECOND).limit for _ in range(40)]
        assert numbers == sorted(numbers)
        assert max(after / before for before, after in pairwise(numbers)) < 1.12
        assert numbers[-1] == 600

    def test_it_does_not_rise_while_it_rests(self, limits: redis.Redis):
        learner = measured(limits)
        assert ticks(learner, 2, 30 * SECOND).limit == 420
        # 30 s and a tick.
        assert {tick(learner, SECOND).limit for _ in range(5)} == {420}
        assert ticks(learner, 5, SECOND).limit > 420

    def test_after_refusals_it_comes_back_no_faster_than_without_times(self, limits: redis.Redis):
        learner = measured(limits)
        fallen = [tick(learner, SECOND, refused=10).limit for _ in range(10)]
        refused_last = min(limit for limit in fallen if limit > fallen[-1])
        assert fallen[-1] < ticks(learner, 8, SECOND).limit <= refused_last

    def test_slow_calls_let_it_come_back_as_slowly(self, limits: redis.Redis):
        learner = Learner(limits, rise=100)
        use(learner, 600)
        ticks(learner, LONGEST + 2, 20 * SECOND, asked=10)
        ticks(learner, 60, 90 * SECOND)
        numbers = [tick(learner, 20 * SECOND).limit for _ in range(40)]
        assert numbers[-1] > numbers[0]
        assert max(after / before for before, after in pairwise(numbers)) < 1.04

    def test_an_idle_night_does_not_raise_it(self, limits: redis.Redis):
        learner = self.fallen(limits)
        use(learner, 5)
        assert ticks(learner, 60, SECOND, asked=10).limit == 60

    def test_calls_that_wait_for_a_slot_raise_it_though_none_is_refused(self, limits: redis.Redis):
        learner = self.fallen(limits)
        assert ticks(learner, 20, SECOND, asked=10).limit > 60

    def test_without_times_refusals_alone_decide(self, limits: redis.Redis):
        assert ticks(self.fallen(limits), 60).limit > 300


class TestMeasuring:
    def test_it_begins_at_the_floor(self, limits: redis.Redis):
        learner = Learner(limits, rise=100)
        use(learner, 600)
        numbers = [tick(learner, 10 * SECOND) for _ in range(4)]
        assert (numbers[-1].limit, numbers[-1].cause) == (60, 5)
        # The queue is empty now.
        answer = ticks(learner, 8, SECOND)
        assert answer[5:] == (SECOND, SECOND)
        assert answer.limit == 600

    def test_a_load_that_does_not_end_does_not_raise_the_lowest_time(self, limits: redis.Redis):
        learner = measured(limits, used=300)
        numbers = []
        assert ticks(learner, 2, 9 * SECOND).limit == 420
        for _ in range(6 * STALE):
            # The dip lasts as long as it may, unless fewer calls are made.
            quiet = bool(numbers) and numbers[-1].limit < 250
            answer = tick(learner, SECOND if quiet else int(1.95 * SECOND), asked=10)
            numbers.append(answer)
        assert numbers[-1].lowest_us == SECOND
        lower = [one.limit for one in numbers if one.limit < 250]
        # In at most 3 of 100 ticks.
        assert 0 < len(lower) < 0.03 * len(numbers) + 5
        # 80 % of the number at which no call waits.
        assert {round(one / 420, 2) for one in lower} <= {0.4, 0.39}

    def test_it_does_not_rise_while_it_measures(self, limits: redis.Redis):
        learner = measured(limits, used=300)
        assert ticks(learner, 2, 9 * SECOND).limit == 420
        while tick(learner, int(1.95 * SECOND), asked=10).limit > 250:
            pass
        while (answer := tick(learner, SECOND)).limit < 250:
            pass
        assert answer.limit == 420

    def test_requests_that_take_longer_have_a_higher_lowest_time_after_ten_minutes(self, limits: redis.Redis):
        learner = measured(limits)
        assert ticks(learner, 10, 3 * SECOND).limit < 300
        use(learner, 0)
        assert ticks(learner, STALE + 10, 3 * SECOND).lowest_us == 3 * SECOND

    def test_faster_calls_replace_it_when_two_ticks_agree(self, limits: redis.Redis):
        learner = measured(limits)
        assert tick(learner, SECOND // 2).lowest_us == SECOND
        ticks(learner, 3, SECOND)
        assert ticks(learner, 4, SECOND // 2).lowest_us == SECOND // 2

    def test_without_calls_it_ends_with_the_last_time_that_is_known(self, limits: redis.Redis):
        learner = Learner(limits, rise=100)
        assert ticks(learner, 2, 10 * SECOND).limit == 60
        answer = ticks(learner, LONGEST, asked=0, sent=0)
        assert (answer.limit, answer.lowest_us) == (600, 10 * SECOND)
        # The next call does not begin another one. A queue that has become empty is seen without it.
        assert ticks(learner, 4, SECOND).lowest_us == SECOND

    def test_one_that_sees_no_call_keeps_the_lowest_time(self, limits: redis.Redis):
        learner = measured(limits, used=300)
        assert ticks(learner, 2, 9 * SECOND).limit == 420
        while tick(learner, int(1.95 * SECOND), asked=10).limit > 250:
            pass
        answer = ticks(learner, 5, asked=0, sent=0)
        assert (answer.limit, answer.lowest_us) == (420, SECOND)

    def test_calls_that_are_fast_after_a_pause_begin_none(self, limits: redis.Redis):
        learner = measured(limits)
        assert ticks(learner, 20, 9 * SECOND).limit == 60
        use(learner, 0)
        ticks(learner, 6, SECOND, asked=10)
        # Pods that see nothing report once a minute.
        for _ in range(STALE // 12 + 1):
            learner.now_us += 11 * TICK_US
            tick(learner, asked=0, sent=0)
        assert tick(learner, SECOND, asked=10).cause == 4
        assert ticks(learner, 3, SECOND, asked=10).lowest_us == SECOND

    @pytest.mark.parametrize("pods", [PODS[:1], PODS])
    @pytest.mark.parametrize("takes_s", [20, 200])
    def test_calls_that_are_longer_than_two_ticks(
        self, limits: redis.Redis, pods: tuple[str, ...], takes_s: int
    ):
        """At the floor, with one call at once, pods report in turn, and seldom."""
        learner = Learner(limits, ceiling=10, lowest=1, rise=100)
        use(learner, 10)
        numbers = [one_at_once(learner, number, takes_s, pods) for number in range(2 * LONGEST)]
        assert numbers.count(1) <= LONGEST
        assert set(numbers[LONGEST + 2 :]) == {10}
        assert learner.report()[5] == takes_s * SECOND

    def test_it_takes_two_minutes_at_most(self, limits: redis.Redis):
        learner = Learner(limits, rise=100)
        numbers = [tick(learner, 900 * SECOND, PODS[:1], asked=10).limit for _ in range(2 * LONGEST)]
        assert numbers[-1] == 600
        assert numbers.count(60) == LONGEST


class TestLiars:
    def test_a_slow_pod_alone_changes_nothing(self, limits: redis.Redis):
        learner = measured(limits)
        for _ in range(40):
            learner.report("liar", 10, 10, took=10**12)
            assert tick(learner, SECOND, asked=10).limit == 600

    def test_a_fast_pod_alone_changes_nothing(self, limits: redis.Redis):
        learner = measured(limits)
        for _ in range(40):
            learner.report("liar", 10, 10, took=1)
            answer = tick(learner, SECOND, asked=10)
        assert (answer.limit, answer.lowest_us) == (600, SECOND)

    def test_one_of_two_pods_changes_nothing(self, limits: redis.Redis):
        for lie in (1, 10**12):
            limits.flushall()
            learner = measured(limits)
            assert [tick(learner, SECOND, TWO, asked=10) for _ in range(8)][-1].limit == 600
            for _ in range(20):
                learner.tick()
                learner.report("web-0", 10, 10, took=SECOND)
                answer = learner.report("web-1", 10, 10, took=lie)
            assert (answer.limit, answer.lowest_us) == (600, SECOND), lie

    def test_a_pod_that_reports_a_time_while_others_report_none_changes_nothing(self, limits: redis.Redis):
        learner = measured(limits)
        for _ in range(40):
            learner.report("web-0", 10, 10, took=10**12)
            learner.tick()
            for pod in PODS[1:]:
                answer = learner.report(pod, 10, 10)
        assert answer.limit == 600

    def test_the_only_pod_is_believed(self, limits: redis.Redis):
        learner = Learner(limits, rise=100)
        use(learner, 600)
        for _ in range(8):
            tick(learner, SECOND, PODS[:1], asked=10)
        for _ in range(4):
            answer = tick(learner, 9 * SECOND, PODS[:1])
        assert answer.limit < 600


class TestTheKey:
    def test_it_is_off_without_a_percent(self, limits: redis.Redis):
        learner = Learner(limits)
        use(learner, 600)
        ticks(learner, 3, SECOND, asked=10)
        assert ticks(learner, 20, 9 * SECOND, asked=10) == Answer(600, 0, 22, 0, 0, 0, 0)
        assert b"times" not in (limits.get(KEY) or b"")

    def test_switched_off_nothing_is_kept_of_it(self, limits: redis.Redis):
        learner = measured(limits)
        assert b"times" in (limits.get(KEY) or b"")
        learner.rise = 0
        # A pod may not have the configuration yet.
        assert ticks(learner, 3, asked=10)[5:] == (0, 0)
        assert b"times" in (limits.get(KEY) or b"")
        ticks(learner, 60, asked=10)
        assert b"times" not in (limits.get(KEY) or b"")

    def test_a_pod_with_an_older_configuration_ends_nothing(self, limits: redis.Redis):
        learner = measured(limits)
        for _ in range(40):
            learner.rise = 0
            assert learner.report("stuck", 10, 10).limit == 600
            learner.rise = 100
            answer = tick(learner, SECOND, asked=10)
            assert answer == Answer(600, 2, answer.steps, 3, 0, SECOND, SECOND)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"times": 7},
            {"times": {"pods": {}}},
            {"times": {"pods": {str(n): [1, 1] for n in range(1_000)}}},
            {
                "times": {
                    **dict.fromkeys(("base", "near", "present", "before", "ends", "held", "at"), -1),
                    "pods": {},
                }
            },
        ],
    )
    def test_what_cannot_be_read_is_measured_again(self, limits: redis.Redis, wrong: dict[str, object]):
        learner = measured(limits)
        known = msgspec.msgpack.decode(limits.get(KEY) or b"", strict=False)
        limits.set(KEY, msgspec.msgpack.encode({**known, **wrong}))
        assert learner.report()[5:] == (0, 0)
        assert ticks(learner, 10, SECOND, asked=10)[5:] == (SECOND, SECOND)

    def test_times_that_cannot_be_read_are_forgotten(self, limits: redis.Redis):
        learner = measured(limits)
        known = msgspec.msgpack.decode(limits.get(KEY) or b"", strict=False)
        now = learner.now_us
        known["times"]["pods"] |= {"a": [0, now], "b": 7, "c": ["x", now], "d": [-5, now], "e": [1]}
        limits.set(KEY, msgspec.msgpack.encode(known))
        assert ticks(learner, 2, SECOND, asked=10)[5:] == (SECOND, SECOND)

    def test_a_counter_of_another_type_has_no_calls_in_progress(self, limits: redis.Redis):
        learner = measured(limits)
        limits.set(SLOTS, "1 1")
        assert ticks(learner, 10, 9 * SECOND).limit == 600

    def test_a_fleet_of_many_pods_keeps_a_bounded_key(self, limits: redis.Redis):
        learner = Learner(limits, rise=50)
        for number in range(250):
            learner.report(f"pod-with-a-long-name-{number}", 10, 10, 1, 600, SECOND)
        assert limits.strlen(KEY) < 30_000

    def test_a_clock_that_is_an_hour_behind_keeps_it_from_nothing(self, limits: redis.Redis):
        learner = measured(limits)
        learner.now_us -= 3_600 * SECOND
        assert ticks(learner, 2 * LONGEST, 9 * SECOND).limit == 60
        assert TICK_US == 5 * SECOND
