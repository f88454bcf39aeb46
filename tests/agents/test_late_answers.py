"""An answer of Redis from before an edit of an operator does not outlive the edit in a pod."""

from collections.abc import Iterator

import msgspec
import pytest

from fuseboard.breaker.fleet_breaker import BELIEVED_S
from fuseboard.contract.policy import BreakerPolicy, Override
from fuseboard.contract.words import BreakerState, Outcome, OverrideMode
from tests.agents.models.pods import Pod, VirtualTime
from tests.agents.servers import give

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
