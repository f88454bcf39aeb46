"""A state machine: what pods can report, time, a clock that steps back, and garbage in the key."""

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fuseboard.contract.scripts import Script
from tests.agents.models.learner import KEY, SLOTS, Learner
from tests.agents.models.learning_oracle import TICK_US, Fleet

PODS = ("web-1", "web-2", "web-3", "web-4", "web-5")
AMOUNTS = st.one_of(st.integers(0, 60), st.sampled_from([0, 1, 1_000, 10**9]))
NUMBERS = st.one_of(st.just(0), st.sampled_from([1, 300, 450, 600, 10**9]), st.integers(1, 1_200))


TIMES = st.one_of(
    st.just(0), st.sampled_from([1, 1_000_000, 2_000_000, 9_000_000, 10**12]), st.integers(1, 10**7)
)


def learning_machine(client: redis.Redis, learn: Script, rise: int = 0) -> type[RuleBasedStateMachine]:
    """Exact, in the bounds, and at most one step in a tick. ``rise``: in percent, 0 for not by time."""

    class LearningMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.learner = Learner(client, script=learn, rise=rise)
            self.oracle: Fleet | None = None
            self.used = 0

        def say(self, pod: str, asked: int, sent: int, refused: int, number: int = 0, took: int = 0) -> None:
            learner, now = self.learner, self.learner.now_us
            if self.oracle is None:
                self.oracle = Fleet(learner.ceiling, learner.lowest, now, 1 + rise / 100)
            expected = self.oracle.report(pod, asked, sent, refused, number, now, took, self.used)
            answer = learner.report(pod, asked, sent, refused, number, took)
            assert answer[:3] == (expected, self.oracle.generation, self.oracle.steps)
            times = self.oracle.times
            assert answer[5:] == ((times.lowest, times.present) if times else (0, 0))
            assert learner.lowest <= answer.limit <= learner.ceiling

        @precondition(lambda _: rise)
        @rule(
            calls=st.integers(1, 100),
            wanted=st.sampled_from([100, 150, 150]),
            took=st.one_of(TIMES, st.tuples(*[TIMES] * len(PODS))),
            ticks=st.integers(1, 30),
        )
        def calls_take(self, calls: int, wanted: int, took: int | tuple[int, ...], ticks: int) -> None:
            for _ in range(ticks):
                for place, pod in enumerate(PODS):
                    one = took if isinstance(took, int) else took[place]
                    self.say(pod, calls * wanted // 100, calls, 0, took=one)
                self.learner.now_us += TICK_US

        @precondition(lambda _: rise)
        @rule(calls=st.integers(1, 100), took=TIMES, times=st.integers(1, 9), pods=st.integers(1, 2))
        def few_pods_are_slow(self, calls: int, took: int, times: int, pods: int) -> None:
            for _ in range(times):
                for pod in PODS[:pods]:
                    self.say(pod, calls, calls, 0, took=took)
                self.learner.now_us += TICK_US

        @precondition(lambda _: rise)
        @rule(used=st.sampled_from([0, 30, 60, 200, 420, 600]))
        def calls_are_in_progress(self, used: int) -> None:
            self.used = used
            client.delete(SLOTS)
            if used:
                client.zadd(SLOTS, {f"call-{number}": 2**52 for number in range(used)})

        @rule(
            pod=st.sampled_from(PODS),
            sent=AMOUNTS,
            more=st.one_of(st.just(0), AMOUNTS),
            refused=st.one_of(st.just(0), AMOUNTS),
            number=NUMBERS,
        )
        def a_pod_reports(self, pod: str, sent: int, more: int, refused: int, number: int) -> None:
            self.say(pod, sent + more, sent, refused, number)

        @rule(
            calls=st.integers(1, 100),
            share=st.sampled_from([0, 0, 1, 4, 8, 20, 60]),
            wanted=st.sampled_from([100, 100, 150]),
            number=NUMBERS,
            ticks=st.integers(1, 8),
        )
        def every_pod_reports(self, calls: int, share: int, wanted: int, number: int, ticks: int) -> None:
            for _ in range(ticks):
                for pod in PODS:
                    self.say(pod, calls * wanted // 100, calls, calls * share // 100, number)
                self.learner.now_us += TICK_US

        @rule(numbers=st.tuples(*[st.sampled_from([0, 0, 0, 300, 400])] * len(PODS)))
        def pods_hear_different_numbers(self, numbers: tuple[int, ...]) -> None:
            for pod, number in zip(PODS, numbers, strict=True):
                self.say(pod, 0, 0, 0, number)
            self.learner.now_us += TICK_US
            self.say(PODS[0], 0, 0, 0, 0)

        @rule(us=st.one_of(st.integers(0, 2 * TICK_US), st.just(400_000_000)))
        def time_passes(self, us: int) -> None:
            self.learner.now_us += us

        @rule(us=st.integers(1, 3 * TICK_US))
        def the_clock_steps_back(self, us: int) -> None:
            self.learner.now_us -= us

        @rule(text=st.one_of(st.binary(max_size=40), st.sampled_from([b"\x80", b"\x81\xa4pods\x80"])))
        def the_key_is_garbage(self, text: bytes) -> None:
            client.set(KEY, text)
            self.oracle = None

        @rule()
        def the_data_is_lost(self) -> None:
            client.flushall()
            self.oracle, self.used = None, 0

    return LearningMachine
