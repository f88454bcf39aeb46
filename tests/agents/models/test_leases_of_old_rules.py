"""A change of rules also ends the lease that is being fetched at that moment."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard.contract.policy import Policy, Tier, Tuning
from fuseboard.contract.scripts import ADMIT, Script
from fuseboard.store.store import OnReply, Word
from tests.agents.models.pods import VirtualTime
from tests.agents.models.test_early_leases import _SCRIPTS, QUOTA, Pod, RealScripts
from tests.agents.servers import give

#: The new rule allows 2 calls at once, and then one in 1,000 s.
TINY = replace(QUOTA, limit=1, window_ms=1_000_000, burst=2)


class SlowScripts(RealScripts):
    """Answers questions when the test wants it to."""

    slow = False

    def __init__(self, client: redis.Redis, time: VirtualTime) -> None:
        super().__init__(client, time)
        self.waiting: list[Callable[[], None]] = []

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        if script is ADMIT and self.slow:
            run = super().run
            self.waiting.append(lambda: run(script, keys, arguments, on_reply))
        else:
            super().run(script, keys, arguments, on_reply)

    def answer(self) -> None:
        self.slow = False
        while self.waiting:
            self.waiting.pop(0)()


@pytest.fixture
def pod(limits: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    monkeypatch.setattr("tests.agents.models.test_early_leases.RealScripts", SlowScripts)
    limits.flushall()
    for script in _SCRIPTS.values():
        limits.script_load(script.text)
    time = VirtualTime()
    with time.applied():
        pod = Pod(limits, time, QUOTA)
        for _ in range(30):
            pod.run(3)
            time.now += 0.02
        assert pod.leased, "it has a lease"
        yield pod
        pod.close()


def publish_tiny(pod: Pod) -> None:
    policy = Policy(
        environment="production",
        default_tier="all",
        tiers=(Tier(name="all", quotas=(TINY,)),),
        tuning=Tuning(),
    )
    give(pod.admission.configuration, policy, revision=8)


def plain_calls(pod: Pod, number: int) -> int:
    """Requests as an application makes them: from the lease at hand first. Returns how many are allowed."""
    allowed = 0
    for _ in range(number):
        decision = pod.admission.spend_by_name("acme")
        allowed += pod_allows(pod) if decision is None else decision.allowed
        pod.time.now += 0.02
        pod.run(0)
    return allowed


def pod_allows(pod: Pod) -> int:
    return len(pod.run(1))


def test_a_change_before_the_question_is_asked(pod: Pod) -> None:
    (supply,) = pod.supplies
    leases: Any = pod.admission.leases

    def renew_and_change() -> None:
        leases.renew(supply)
        publish_tiny(pod)

    pod.do(renew_and_change)
    assert plain_calls(pod, 100) <= TINY.burst


def test_a_change_after_the_old_lease_has_ended_and_before_the_answer(pod: Pod) -> None:
    (supply,) = pod.supplies
    leases: Any = pod.admission.leases
    store: Any = pod.store
    store.slow = True
    # Late in the life of the old lease, as when a burst spends it then.
    pod.time.now = supply.lease.until - 0.002
    pod.do(lambda: leases.renew(supply))
    pod.time.now += 0.003
    pod.run(0)
    assert supply.lease is None, "it has ended"
    assert store.waiting, "the question has no answer"
    publish_tiny(pod)
    pod.do(store.answer)
    assert plain_calls(pod, 100) <= TINY.burst
