"""An answer of Redis from before an edit of an operator does not outlive the edit in a pod.

A refusal by the breaker outlives a Redis that does not answer, or has lost the breaker.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from time import monotonic

import msgspec
import pytest
import redis

from fuseboard.batching.redis_question import COOLING_DOWN, OPEN
from fuseboard.breaker.fleet_breaker import ACCOUNT_STOP_S, BELIEVED_S
from fuseboard.contract.policy import BreakerPolicy, Override
from fuseboard.contract.words import BreakerState, Mode, Outcome, OverrideMode, Reason
from fuseboard.errors import Refused
from tests.agents.models.pods import NAME, Pod, VirtualTime
from tests.agents.servers import POLICY, configured, give, running

BREAKER = BreakerPolicy(consecutive_failures=3, open_ms=60_000, minimum_servers=1)
#: Less than the deadline of a question, so that the answer counts.
MOMENT_S = 0.001


@pytest.fixture
def pod() -> Iterator[Pod]:
    time = VirtualTime()
    with time.applied():
        pod = Pod(BREAKER, time)
        yield pod
        pod.close()


def edit(pod: Pod, *, revision: int, forced_open: bool = False, reset: int = 0) -> None:
    """The pod gets a configuration in which an operator has edited the breaker."""
    policy = pod.configuration.snapshot.policy
    expires = pod.configuration.clock.now_us() + 1_800_000_000
    override = Override(
        mode=OverrideMode.FORCED_OPEN, revision=revision, expires_at_us=expires, reason="drill", actor="olga"
    )
    payments = msgspec.structs.replace(
        policy.dependencies[0], override=override if forced_open else None, reset_revision=reset
    )
    changed = msgspec.structs.replace(policy, dependencies=(payments, *policy.dependencies[1:]))
    pod.run(lambda: give(pod.configuration, changed, revision=revision))


def is_asked(pod: Pod) -> bool:
    """Whether the next call asks Redis; the breaker is closed there."""
    call = pod.call()
    if not call.waits:
        return False
    pod.answer("closed", 9)
    assert call.permit is not None
    return True


@pytest.mark.parametrize("state", ["forced_open", "open", "cooling_down"])
@pytest.mark.parametrize("what", ["the override ends", "the breaker is reset"])
def test_an_answer_from_before_an_edit_stops_no_pod_after_it(pod: Pod, what: str, state: str):
    """A slow Redis: two of three pods refused for 5 minutes after the end of an override."""
    edit(pod, revision=8)
    first = pod.call()
    pod.pass_time(MOMENT_S)
    if what == "the override ends":
        edit(pod, revision=9, forced_open=True)
        edit(pod, revision=10)
    else:
        edit(pod, revision=9, reset=9)
    pod.pass_time(MOMENT_S)
    pod.answer("closed" if state == "cooling_down" else state, 5, cooling=state == "cooling_down")
    assert first.refused is not None, "Redis decided so, at that time"
    assert is_asked(pod)


@pytest.mark.parametrize("state", ["forced_open", "open"])
def test_a_pod_that_missed_the_edit_asks_again_soon(pod: Pod, state: str):
    pod.call()
    pod.answer(state, 5)
    pod.pass_time(BELIEVED_S - 0.1)
    assert not is_asked(pod), "what Redis said is still believed"
    pod.pass_time(0.2)
    assert is_asked(pod)


def test_a_report_that_redis_decided_before_a_reset_stops_no_pod(pod: Pod):
    call = pod.call()
    pod.answer("closed", 4)
    pod.report(call, Outcome.FAILURE)
    pod.pass_time(0.01)  # the report is sent
    pod.pass_time(MOMENT_S)
    edit(pod, revision=9, reset=9)
    pod.pass_time(MOMENT_S)
    pod.answer("open", 5, late_s=1.5 * MOMENT_S)
    assert pod.breaker.state is BreakerState.CLOSED
    assert is_asked(pod)


@pytest.mark.parametrize(
    ("state", "reason"), [("forced_open", Reason.FORCED_OPEN), ("open", Reason.BREAKER_OPEN)]
)
def test_a_refusal_still_applies_while_redis_does_not_answer(pod: Pod, state: str, reason: Reason):
    """Every 5 s, each pod called a vendor whose breaker was open: it decided locally, without its breaker."""
    pod.call()
    pod.answer(state, 5)
    pod.pass_time(BELIEVED_S + 0.1)
    for _ in range(3):
        call = pod.call()
        assert call.waits, "Redis is asked"
        pod.pass_time(2 * pod.deadline_s)
        assert call.refused is not None
        assert call.refused.decision.reason is reason
        pod.answer(state, 5)
    assert is_asked(pod)


def test_a_cool_down_of_the_fleet_outlives_redis(pod: Pod):
    pod.call()
    pod.answer("closed", 5)
    pod.breaker.learned(COOLING_DOWN, 5, 60_000_000, "", pod.time.now)
    pod.in_mode(Mode.LOCAL)
    pod.pass_time(BELIEVED_S + 0.1)
    refused = pod.call().refused
    assert refused is not None
    assert refused.decision.reason is Reason.COOLING_DOWN
    pod.pass_time(60)
    assert pod.call().permit is not None


@pytest.mark.parametrize("redis_is_first", [False, True])
def test_redis_does_not_shorten_a_stop_of_the_pod(pod: Pod, redis_is_first: bool):
    """The vendor does not serve the account of this pod: Redis knows nothing of it."""

    def redis_refuses() -> None:
        pod.breaker.learned(OPEN, 5, 90_000_000, "", pod.time.now)

    both = (redis_refuses, pod.breaker.stop_here)
    for happens in both if redis_is_first else reversed(both):
        happens()
    pod.pass_time(ACCOUNT_STOP_S - 1)
    assert not is_asked(pod)
    pod.pass_time(2)
    assert is_asked(pod)


@pytest.mark.parametrize("pods", [1, 2])
async def test_an_open_breaker_stays_open_on_the_pods_that_saw_it_when_redis_has_lost_it(
    limits: redis.Redis, redis_url: str, pods: int
):
    """Since pods ask again after 5 s, a FLUSHALL closed every open breaker within that time."""
    # A limit would refuse, too: it counts as spent after a loss.
    unlimited = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=())
    policy = msgspec.structs.replace(POLICY, dependencies=(unlimited, *POLICY.dependencies[1:]))
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running(redis_url, f"web-{number}", configured(policy)))
            for number in range(pods)
        ]
        for server in servers:
            breaker = server.admission.calls.breakers["payments"]
            server.admission.report(await server.admission.admit_call("payments"), Outcome.OK)
            breaker.learned(OPEN, breaker.generation + 1, 60_000_000, "", monotonic())
        limits.flushall()
        for _ in range(3):
            for server in servers:
                breaker = server.admission.calls.breakers["payments"]
                assert breaker.remembered is not None
                breaker.remembered.believed_until = 0.0
                with pytest.raises(Refused) as refused:
                    await server.admission.admit_call("payments")
                assert refused.value.decision.reason is Reason.BREAKER_OPEN
                assert breaker.remembered.believed_until > monotonic(), "Redis was asked"
        for server in servers:
            breaker = server.admission.calls.breakers["payments"]
            assert breaker.remembered is not None
            breaker.remembered.until = monotonic()
            server.admission.report(await server.admission.admit_call("payments"), Outcome.OK)


def test_the_end_of_an_override_in_redis_ends_what_redis_said_before(pod: Pod):
    edit(pod, revision=9, forced_open=True)
    pod.breaker.opened(7, 60_000_000)
    pod.run(lambda: pod.configuration.end_override(NAME, 9, 10))
    pod.run(lambda: pod.admission.calls.breakers.override_ended(NAME))
    assert is_asked(pod)
