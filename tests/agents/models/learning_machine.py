"""A state machine: what pods can report, time, a clock that steps back, and garbage in the key."""

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from fuseboard.contract.scripts import Script
from tests.agents.models.learner import KEY, Learner
from tests.agents.models.learning_oracle import TICK_US, Fleet

PODS = ("web-1", "web-2", "web-3", "web-4", "web-5")
AMOUNTS = st.one_of(st.integers(0, 60), st.sampled_from([0, 1, 1_000, 10**9]))
NUMBERS = st.one_of(st.just(0), st.sampled_from([1, 300, 450, 600, 10**9]), st.integers(1, 1_200))


def learning_machine(client: redis.Redis, learn: Script) -> type[RuleBasedStateMachine]:
    """Exact, in the bounds, and at most one step in a tick."""

    class LearningMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.learner = Learner(client, script=learn)
            self.oracle: Fleet | None = None

        def say(self, pod: str, asked: int, sent: int, refused: int, number: int) -> None:
            learner, now = self.learner, self.learner.now_us
            if self.oracle is None:
                self.oracle = Fleet(learner.ceiling, learner.lowest, now)
            expected = self.oracle.report(pod, asked, sent, refused, number, now)
            answer = learner.report(pod, asked, sent, refused, number)
            assert answer[:3] == (expected, self.oracle.generation, self.oracle.steps)
            assert learner.lowest <= answer.limit <= learner.ceiling

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
            self.oracle = None

    return LearningMachine
