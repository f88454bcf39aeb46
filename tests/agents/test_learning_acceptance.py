"""Vendors with wrong headers, a pod that lies, and a store that loses what was learned: cases L13 to L15."""

from collections.abc import Iterator

import redis

from fuseboard.learning.headers import stated_limits
from fuseboard.learning.remaining import left_of
from tests.agents.limit_kinds import window
from tests.agents.models.learner import Answer, Learner

PODS = tuple(f"web-{number}" for number in range(20))
MINUTE = 12
LIMIT = window(600, 60, name="minute")


def number_in(stated: str) -> int:
    """The number that a pod takes from this header; 0 for none."""
    headers = {"RateLimit-Limit": f"{stated}, {stated};w=60", "RateLimit-Remaining": "0"} if stated else {}
    return left_of((LIMIT,), stated_limits(headers)).get("minute", (0, 0))[1]


def tick(learner: Learner, stated: Iterator[str] | None = None, **report: int) -> Answer:
    learner.tick()
    for pod in PODS:
        said = number_in(next(stated)) if stated is not None else 0
        answer = learner.report(pod, **{"asked": 10, "sent": 10, **report}, stated=said)
        assert learner.lowest <= answer.limit <= learner.ceiling
    return answer


def wrong_headers() -> Iterator[str]:
    """Every third is -1, every 50th is 0, and every 97th is 100 times as large."""
    number = 0
    while True:
        number += 1
        if number % 3 == 0:
            yield "-1"
        elif number % 50 == 0:
            yield "0"
        else:
            yield "50000" if number % 97 == 0 else "500"


def test_wrong_headers_leave_the_bounds_never_and_move_a_limit_by_less_than_10_percent_a_minute(
    limits: redis.Redis,
):
    learner, wrong = Learner(limits), wrong_headers()
    tick(learner, wrong)
    assert tick(learner, wrong).limit == 500
    numbers = [tick(learner, wrong).limit for _ in range(5 * MINUTE)]
    # Without a header for nearly 5 minutes: the last number applies.
    numbers += [tick(learner).limit for _ in range(5 * MINUTE - 2)]
    # Stale ones, for 30 s: whatever the vendor allows now, they have the old number.
    numbers += [tick(learner, wrong).limit for _ in range(6)]
    for first in range(len(numbers) - MINUTE):
        minute = numbers[first : first + MINUTE]
        assert max(minute) <= 1.1 * min(minute)
    assert set(numbers) == {500}


def test_a_pod_that_lies_moves_a_limit_by_less_than_10_percent(limits: redis.Redis):
    lies = (
        {"stated": 1},
        {"asked": 100, "sent": 100, "refused": 100},
        {"asked": 10**9, "sent": 10**9, "refused": 10**9},
        {"stated": 10**9},
    )
    for lie in lies:
        limits.flushall()
        learner = Learner(limits)
        for _ in range(5 * MINUTE):
            tick(learner)
            answer = learner.report("liar", **lie)
            assert answer.limit > 540, lie


def test_twenty_learners_make_one_step_per_tick_and_begin_as_configured_after_a_loss(limits: redis.Redis):
    learner = Learner(limits)
    tick(learner)
    for step in range(1, 2 * MINUTE):
        assert tick(learner, refused=5).steps == step
        # Every pod reports again within the tick.
        assert {learner.report(pod, 10, 10, 5).steps for pod in PODS} == {step}
    assert learner.report().limit < 300
    # A replica with a clock that is behind takes over: no step is made twice, and the next one comes.
    learner.now_us -= 30_000_000
    before = learner.report().steps
    assert before < [tick(learner, refused=5).steps for _ in range(3)][-1] <= before + 3
    # It has lost what was learned.
    limits.flushall()
    assert learner.report() == Answer(600, 0, 0, 0, 0)
