"""Requests are decided as if no caller had checked before: with Redis, without it, and during a ramp."""

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuseboard.admission import admission, joint_admission, request_admission
from fuseboard.batching import joint_demand, probe
from fuseboard.contract.policy import Tier
from fuseboard.contract.words import FailurePolicy, Mode
from fuseboard.decision import Decision
from tests.agents.models.joint_machine import ASKED, BY_IP, OF_TENANTS, RULES, JointPod, One
from tests.agents.models.pods import VirtualTime
from tests.agents.mutating import Mutant, mutated
from tests.agents.scripts import START_US

SHARES = msgspec.structs.replace(
    RULES,
    tiers=(
        Tier(
            name="free",
            quotas=tuple(
                msgspec.structs.replace(limit, failure_policy=FailurePolicy.LOCAL_SHARE)
                for limit in OF_TENANTS
            ),
        ),
    ),
    subject_limits=(msgspec.structs.replace(BY_IP, failure_policy=FailurePolicy.LOCAL_SHARE),),
)
#: A ramp of the model takes this time.
RAMP_S = 10.0


@dataclass(frozen=True)
class Ask:
    asked: tuple[One, ...]
    #: In a ramp, Redis decides the request if this is less than its part.
    dice: float
    #: The callers that check before, in the world where callers check.
    checks: int


@dataclass(frozen=True)
class Later:
    seconds: float


@dataclass(frozen=True)
class End:
    """Requests that were allowed end, or are given back."""

    which: int
    unserved: bool


Step = Ask | Later | End | Mode
#: Few of these are left of the shares of a ramp.
PLAIN = st.builds(One, tenant=st.just("acme"), ip=st.just(""), calls=st.integers(1, 2), tokens=st.just(0))
ASKS = st.builds(
    Ask, asked=ASKED | st.tuples(PLAIN), dice=st.sampled_from([0.0, 0.95]), checks=st.integers(0, 2)
)
STEPS = st.lists(
    st.one_of(
        ASKS,
        ASKS,
        ASKS,
        st.builds(Later, seconds=st.sampled_from([0.01, 0.7, 3.0, 16.0])),
        st.builds(End, which=st.integers(0, 5), unserved=st.booleans()),
        st.sampled_from([Mode.RAMPING, Mode.SHARED, Mode.LOCAL, Mode.RAMPING]),
    ),
    min_size=15,
    max_size=30,
)
THOROUGH = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
)
HUNT = settings(THOROUGH, max_examples=250, database=None, derandomize=True, phases=[Phase.generate])


def decisions_of(client: redis.Redis, steps: list[Step], *, checks: bool) -> list[Decision]:
    """What is decided. With ``checks``, what was checked at the same moment is compared."""
    client.flushall()
    time = VirtualTime()
    found: list[Decision] = []
    running: list[Decision] = []

    def now_us() -> int:
        return START_US + round((time.now - 1000) * 1_000_000)

    with time.applied(), closing(JointPod(client, time, now_us, SHARES)) as pod:
        # Both are random: its time slot, and when it reports what it spent alone. They must not differ.
        pod.admission.redis_fallback.share.dice = 0.5
        pod.admission.redis_fallback.drain.stop()
        for step in steps:
            if isinstance(step, Mode):
                pod.admission.health._ramp_length = RAMP_S
                pod.admission.health._ramp_ends = time.now + RAMP_S
                pod.in_mode(step)
            elif isinstance(step, Later):
                pod.pass_time(step.seconds)
                pod.settled()
            elif isinstance(step, Ask):
                expected = pod.check(step.asked, step.checks) if checks and step.checks else []
                dice = SimpleNamespace(random=partial(float, step.dice))
                with patch.object(request_admission, "random", dice):
                    decision = pod.admit(step.asked)
                found.append(decision)
                for checked in expected:
                    assert not checked.charges
                    assert decision.allowed or not checked.allowed
                    if pod.admission.health.mode is not Mode.RAMPING:
                        assert checked.allowed is decision.allowed
                        assert (checked.rule, checked.mode) == (decision.rule, decision.mode)
                if decision.allowed:
                    running.append(decision)
            elif running:
                ended = running.pop(step.which % len(running))
                end = pod.admission.give_back if step.unserved else pod.admission.finish
                pod.run(partial(end, ended))
                pod.settled()
        pod.answer_all()
    return found


def words_of(decision: Decision) -> tuple[object, ...]:
    own = (decision.allowed, decision.reason, decision.rule, decision.retry_after_ms, decision.mode)
    return (*own, decision.limits, *[words_of(part) for part in decision.parts])


def compare(client: redis.Redis, steps: list[Step]) -> None:
    with_checks = decisions_of(client, steps, checks=True)
    without = decisions_of(client, steps, checks=False)
    assert list(map(words_of, with_checks)) == list(map(words_of, without))


def test_requests_are_decided_as_if_no_caller_had_checked(limits: redis.Redis):
    given(STEPS)(THOROUGH(lambda steps: compare(limits, steps)))()


FLOW = [
    Mutant("a check is charged", "ask(domain, joint.probe)", "ask(domain, joint)"),
    Mutant("a check allows what lacks room", "            if lacking:\n", "            if False:\n"),
    Mutant("a check without Redis is charged", "requests.local.look(joint,", "requests.local.take(joint,"),
    Mutant("in a ramp only Redis checks", "            if shared_part >= 1:\n", "            if True:\n"),
    Mutant("in a ramp only the pod checks", "if shared_part > 0 else None", "if shared_part == 1 else None"),
]
PROBE = Mutant("Redis can grant a probe", "(*demand.costs, 2)", "(*demand.costs, 1)")


def in_place(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant is PROBE:
        monkeypatch.setattr(joint_demand, "Probe", mutated(probe, mutant).Probe)
    else:
        monkeypatch.setattr(admission, "JointAdmission", mutated(joint_admission, mutant).JointAdmission)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [*FLOW, PROBE], ids=lambda mutant: mutant.name)
def test_every_mutant_of_checks_is_noticed(
    mutant: Mutant, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    in_place(mutant, monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 - a bug may show as any error
        given(STEPS)(HUNT(lambda steps: compare(limits, steps)))()
