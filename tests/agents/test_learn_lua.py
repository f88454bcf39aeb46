"""One writer without a leader: what ``learn.lua`` makes of the reports of a fleet."""

from itertools import pairwise

import msgspec
import pytest
import redis

from tests.agents.models.learner import KEY, Answer, Learner

PODS = tuple(f"web-{number}" for number in range(20))
HALF = len(PODS) // 2


def tick(learner: Learner, **report: int) -> Answer:
    """Every pod reports the same, and the tick passes."""
    learner.tick()
    for pod in PODS:
        answer = learner.report(pod, **report)
        assert learner.lowest <= answer.limit <= learner.ceiling
    return answer


def ticks(learner: Learner, number: int, **report: int) -> Answer:
    for _ in range(number):
        answer = tick(learner, **report)
    return answer


class TestFalling:
    def test_a_pool_that_is_refused_falls_by_at_most_30_percent_in_a_step(self, limits: redis.Redis):
        learner = Learner(limits)
        before = 600
        for _ in range(30):
            answer = tick(learner, asked=50, sent=50, refused=50)
            assert answer.limit >= before * 0.7 - 1
            before = answer.limit
        assert (answer.limit, answer.cause) == (60, 2)  # its floor

    def test_a_step_follows_the_share_of_refusals_and_then_rests(self, limits: redis.Redis):
        learner = Learner(limits)
        tick(learner, asked=50, sent=50, refused=5)
        fallen = [600, *(tick(learner, asked=50, sent=50, refused=5).limit for _ in range(5))]
        # About 10 % are refused: (10 % - 1 %) / 2 + 1 % lower.
        changes = [after / before for before, after in pairwise(fallen)]
        assert changes == pytest.approx([0.945, 1, 0.945, 1, 0.945], abs=0.005)

    def test_few_refusals_change_nothing(self, limits: redis.Redis):
        learner = Learner(limits)
        assert ticks(learner, 20, asked=100, sent=100, refused=1) == Answer(600, 0, 19, 0, 0)

    def test_a_jump_counts_at_once_though_many_calls_were_good_before(self, limits: redis.Redis):
        learner = Learner(limits)
        ticks(learner, 8, asked=50, sent=50)
        tick(learner, asked=50, sent=50, refused=10)
        # 3 % of half a minute, and 20 % of its tick: (20 % - 1 %) / 2 + 1 % lower.
        assert tick(learner, asked=50, sent=50).limit == pytest.approx(0.895 * 600, abs=3)

    def test_a_tick_that_is_better_than_half_a_minute_hides_nothing(self, limits: redis.Redis):
        learner = Learner(limits)
        learner.report()
        for sent, refused in ((10, 1), (100, 2)):
            learner.tick()
            answer = learner.report("web-1", sent, sent, refused)
        # 3 of 110 calls, and not 2 of 100.
        assert (answer.limit, answer.share) == (588, 272)

    def test_one_refused_call_is_no_jump(self, limits: redis.Redis):
        learner = Learner(limits)
        for number in range(30):
            learner.tick()
            # 2 % of each third tick, and less than 1 % of half a minute.
            answer = learner.report(asked=50, sent=50, refused=int(number % 3 == 0))
        assert (answer.limit, answer.generation) == (600, 0)

    def test_one_step_in_a_tick_however_many_report(self, limits: redis.Redis):
        learner = Learner(limits)
        learner.report()
        for step in range(1, 6):
            assert tick(learner, asked=10, sent=10, refused=9).steps == step


class TestRising:
    def fallen(self, limits: redis.Redis) -> Learner:
        learner = Learner(limits)
        tick(learner, asked=50, sent=50, refused=50)
        assert tick(learner, asked=50, sent=50).limit == 420
        return learner

    def test_it_comes_back_to_what_was_refused_in_90_seconds_and_then_further(self, limits: redis.Redis):
        learner = self.fallen(limits)
        numbers = [tick(learner, asked=80, sent=50).limit for _ in range(60)]
        assert numbers == sorted(numbers)
        assert numbers[0] == 420  # it rests
        assert 540 < numbers[12] < 600
        assert numbers[-1] == 600

    def test_a_large_limit_comes_back_no_further_than_configured(self, limits: redis.Redis):
        learner = Learner(limits, ceiling=100_000)
        tick(learner, asked=50, sent=50, refused=50)
        numbers = [tick(learner, asked=80, sent=50).limit for _ in range(30)]
        assert (numbers[0], max(numbers)) == (70_000, 100_000)

    def test_a_clock_that_is_an_hour_behind_keeps_it_from_nothing(self, limits: redis.Redis):
        learner = self.fallen(limits)
        learner.now_us -= 3_600_000_000
        assert ticks(learner, 60, asked=80, sent=50).limit == 600

    def test_an_idle_night_does_not_raise_it(self, limits: redis.Redis):
        learner = self.fallen(limits)
        assert ticks(learner, 60, asked=10, sent=10).limit == 420

    def test_it_does_not_rise_while_calls_are_refused(self, limits: redis.Redis):
        learner = self.fallen(limits)
        assert ticks(learner, 30, asked=300, sent=200, refused=2).limit <= 420


class TestStated:
    def test_what_half_of_the_pods_hear_applies_with_the_next_step(self, limits: redis.Redis):
        learner = Learner(limits)
        for pod in PODS[:HALF]:
            learner.report(pod, 10, 10, 0, 300)
        for pod in PODS[HALF:]:
            learner.report(pod, 10, 10, 0, 450)
        assert tick(learner, asked=10, sent=10)[:4:3] == (300, 1)

    def test_a_number_above_the_configured_one_changes_nothing(self, limits: redis.Redis):
        assert ticks(Learner(limits), 5, asked=20, sent=10, stated=60_000).limit == 600

    def test_a_number_below_the_floor_is_the_floor(self, limits: redis.Redis):
        assert ticks(Learner(limits), 2, asked=20, sent=10, stated=1).limit == 60

    def test_a_vendor_that_raises_its_number_gets_its_calls_at_once(self, limits: redis.Redis):
        learner = Learner(limits)
        ticks(learner, 3, asked=20, sent=10, stated=300)
        assert ticks(learner, 2, asked=20, sent=10, stated=450).limit == 450

    def test_a_raised_number_raises_what_it_climbs_to(self, limits: redis.Redis):
        learner = Learner(limits)
        ticks(learner, 3, asked=10, sent=10, stated=300)
        while tick(learner, asked=50, sent=50, refused=50, stated=300).limit > 110:
            pass
        numbers = [tick(learner, asked=80, sent=50, stated=600).limit for _ in range(60)]
        # It was refused at 147 of 300, which is 294 of 600.
        assert numbers[1:] == sorted(numbers[1:])
        assert 204 < numbers[1] < 240, "it begins at twice what it had"
        assert 280 < numbers[10] < 294
        assert 285 < numbers[22] < 295, "slowly near it"
        assert numbers[-1] == 600

    def test_a_number_that_changes_again_and_again_raises_nothing_above_it(self, limits: redis.Redis):
        learner = Learner(limits)
        ticks(learner, 3, asked=10, sent=10, stated=300)
        assert ticks(learner, 2, asked=50, sent=50, refused=50, stated=300).limit == 210
        for _ in range(100):
            ticks(learner, 2, asked=10, sent=10, stated=300)
            answer = ticks(learner, 2, asked=10, sent=10, stated=450)
        assert answer.steps > 400, "what is stored can still be read"
        assert msgspec.msgpack.decode(limits.get(KEY))["was"] <= 450

    def test_a_number_of_one_answer_is_forgotten_after_five_minutes(self, limits: redis.Redis):
        learner = Learner(limits)
        assert tick(learner, asked=20, sent=10, stated=300).limit == 600
        assert tick(learner, asked=20, sent=10).limit == 300
        assert ticks(learner, 60, asked=10, sent=10).limit == 600


class TestLiars:
    def test_two_pods_that_hear_different_numbers_change_nothing(self, limits: redis.Redis):
        learner = Learner(limits)
        for _ in range(4):
            learner.tick()
            learner.report("web-1", 10, 10, 0, 300)
            answer = learner.report("web-2", 10, 10, 0, 400)
        assert answer.limit == 600

    def test_a_few_pods_that_hear_one_number_change_nothing(self, limits: redis.Redis):
        learner = Learner(limits)
        for _ in range(4):
            learner.tick()
            for number, pod in enumerate(PODS):
                answer = learner.report(pod, 10, 10, 0, 300 if number < 5 else 400 + number)
        assert answer.limit == 600

    def test_a_pod_alone_that_hears_another_number_changes_nothing(self, limits: redis.Redis):
        learner = Learner(limits)
        for _ in range(40):
            tick(learner, asked=20, sent=10, stated=600)
            answer = learner.report("liar", 10, 10, 0, 1)
        assert answer.limit == 600

    def test_a_pod_alone_that_hears_a_number_changes_nothing_where_the_others_hear_none(
        self, limits: redis.Redis
    ):
        learner = Learner(limits)
        for _ in range(40):
            tick(learner, asked=20, sent=10)
            assert learner.report("liar", 10, 10, 0, 1).limit == 600
        # Five minutes after their last call, the others hear nothing because they do not listen.
        for _ in range(61):
            learner.tick()
            answer = learner.report("liar", 10, 10, 0, 300)
        assert answer.limit == 300

    def test_a_pod_alone_that_reports_refusals_changes_nothing(self, limits: redis.Redis):
        for sent in (10, 10**9):
            limits.flushall()
            learner = Learner(limits)
            for _ in range(40):
                learner.report("liar", sent, sent, sent)
                answer = tick(learner, asked=10, sent=10)
            assert answer.limit == 600, sent

    def test_a_pod_alone_that_reports_many_calls_hides_no_refusals(self, limits: redis.Redis):
        learner = Learner(limits)
        for _ in range(10):
            learner.report("liar", 0, 10**9)
            answer = tick(learner, asked=10, sent=10, refused=5)
        assert answer.limit < 300

    def test_a_pod_that_reports_in_ticks_of_its_own_is_not_the_only_one(self, limits: redis.Redis):
        learner = Learner(limits)
        for _ in range(20):
            learner.report("web-1", 10, 10)
            for _ in range(3):
                learner.tick()
                answer = learner.report("liar", 10, 10, 10)
        assert answer.limit == 600

    def test_a_pod_that_reports_alone_makes_no_jump_of_few_refusals(self, limits: redis.Redis):
        learner = Learner(limits)
        ticks(learner, 2, asked=50, sent=50)
        for pod in PODS[:3]:
            learner.report(pod, 2, 2, 2)
        ticks(learner, 2, asked=50, sent=50)
        for _ in range(3):
            learner.tick()
            assert learner.report("web-1", 10, 10, 10).limit == 600

    def test_two_pods_that_report_in_turns_are_believed(self, limits: redis.Redis):
        learner = Learner(limits)
        tick(learner, asked=10, sent=10)
        for number in range(12):
            learner.tick()
            answer = learner.report(f"web-{number % 2}", 100, 100, 50)
        assert answer.limit < 450

    def test_a_pod_is_the_only_one_when_the_others_have_made_no_call_for_half_a_minute(
        self, limits: redis.Redis
    ):
        learner = Learner(limits)
        tick(learner, asked=10, sent=10)
        for _ in range(10):
            learner.tick()
            answer = learner.report("web-1", 100, 100, 50)
        assert answer.limit < 450

    def test_the_only_pod_is_believed(self, limits: redis.Redis):
        learner = Learner(limits)
        for _ in range(3):
            learner.tick()
            answer = learner.report("web-1", 100, 100, 50)
        assert answer.limit < 450


class TestTheKey:
    def test_what_cannot_be_read_counts_as_configured(self, limits: redis.Redis):
        for text in (b"", b"garbage", b"\x01", b"\x80", b"\x81\xa4pods\x80"):
            limits.flushall()
            limits.set(KEY, text)
            assert Learner(limits).report("web-1", 1, 1, 1) == Answer(600, 0, 0, 0, 0), text

    def test_pods_without_a_name_are_forgotten(self, limits: redis.Redis):
        learner = Learner(limits)
        learner.report("web-1", 10, 10)
        known = msgspec.msgpack.decode(limits.get(KEY) or b"", strict=False)
        known["pods"] |= {number: [10, 10, 0, 0, 0, 0, 0] for number in (1, 2.5)}
        limits.set(KEY, msgspec.msgpack.encode(known))
        assert tick(learner, asked=10, sent=10).steps == 1

    def test_a_lower_configured_limit_applies_at_once(self, limits: redis.Redis):
        learner = Learner(limits)
        ticks(learner, 2, asked=10, sent=10)
        learner.ceiling, learner.lowest = 200, 20
        assert learner.report().limit == 200

    def test_a_fleet_of_many_pods_keeps_a_bounded_key(self, limits: redis.Redis):
        learner = Learner(limits)
        for number in range(1_000):
            learner.report(f"pod-with-a-long-name-{number}", 10, 10, 1, 600)
        assert limits.strlen(KEY) < 20_000
        assert limits.pttl(KEY) > 0

    def test_a_long_text_in_the_key_counts_as_configured(self, limits: redis.Redis):
        for many in ({"window": [[1, 1]] * 100_000}, {"pods": {str(n): [0] * 7 for n in range(1_000)}}):
            limits.flushall()
            numbers = dict.fromkeys(
                (
                    "next",
                    "limit",
                    "bound",
                    "was",
                    "fell",
                    "at",
                    "held",
                    "why",
                    "share",
                    "generation",
                    "steps",
                ),
                60,
            )
            limits.set(KEY, msgspec.msgpack.encode({**numbers, "window": [], "pods": {}, **many}))
            assert Learner(limits).report("web-1", 1, 1, 1) == Answer(600, 0, 0, 0, 0)
            assert limits.strlen(KEY) < 1_000

    def test_a_pod_that_left_is_forgotten(self, limits: redis.Redis):
        learner = Learner(limits)
        learner.report("gone", 10, 10, 0, 1)
        for _ in range(62):
            tick(learner, asked=10, sent=10, stated=600)
        assert b"gone" not in (limits.get(KEY) or b"")
