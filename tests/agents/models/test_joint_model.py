"""Hypothesis drives pods whose requests are decided together, against one exact number per counter."""

import gc
import types
from contextlib import closing

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard import composition
from fuseboard.admission import admission, joint_admission
from fuseboard.batching import domains, joint_demand
from fuseboard.contract.words import Mode
from tests.agents.models.joint_machine import JointPod, One, joint_machine
from tests.agents.models.pods import VirtualTime
from tests.agents.mutating import Mutant, mutated

THOROUGH = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(THOROUGH, max_examples=100, database=None, derandomize=True, phases=[Phase.generate])

DEMANDS = [
    Mutant(
        "a shared counter is asked for the cost of the last", "costs[place] += cost", "costs[place] = cost"
    ),
    Mutant("a shared counter is asked for twice", "places.setdefault(ref.key, len(refs))", "len(refs)"),
    Mutant("only the limit that refused lacks something", "if units < cost and", "if units < 0 and"),
    Mutant("slots are freed with each request", "[_part_of(demand, slots=False) for", "[demand for"),
    Mutant("slots stay taken", "if self.holds_slots:", "if False:"),
    Mutant(
        "what is charged is the sum",
        "slots=False) for demand in every]",
        "slots=False) for demand in [self]]",
    ),
]
FLOW = [
    Mutant(
        "who no longer waits has spent",
        "                give_back(domain, joint, caller)\n",
        "                pass\n",
    ),
    Mutant("the wrong request is refused", "if number not in refused.requests:", "if number != 0:"),
    Mutant("a remembered refusal is another limit's", "remembered.place - 1)", "remembered.place)"),
    Mutant("each request has the limits of all", "statuses[place] for place in places]", "*statuses]"),
    Mutant(
        "demands are mixed up",
        "        joint = self.known.get(key)\n",
        "        joint = self.known.get(key[:1])\n        key = key[:1]\n",
    ),
]
OWN = [
    Mutant("all keys of an own limit share a counter", '("own", key)', '("own",)'),
    Mutant(
        "an own limit is asked for one call",
        "[LimitRef(limit, counter) for limit in bound], costs)",
        "[LimitRef(limit, counter) for limit in bound], ONE_CALL)",
    ),
    Mutant("an own limit counts nothing", "if binds(limit, costs, NO_SUBJECT) else []", "if False else []"),
]


def test_requests_are_decided_together_exactly(limits: redis.Redis):
    run_state_machine_as_test(joint_machine(limits), settings=THOROUGH)


def test_without_redis_their_slots_are_taken_and_freed_together(limits: redis.Redis):
    time = VirtualTime()
    with time.applied(), closing(JointPod(limits, time, lambda: 0)) as pod:
        pod.in_mode(Mode.LOCAL)
        one = One("acme", "", 1, 0)
        first, second = pod.admit([one]), pod.admit([one])
        both = pod.admit([one, one])
        full = pod.admit([one])
        assert (first.allowed, second.allowed, both.allowed, full.allowed) == (True, True, True, False)
        assert [part.rule for part in full.parts] == ["at-once"]
        for _ in range(2):  # the second time counts nothing
            pod.run(lambda: pod.admission.finish(both))
        again = pod.admit([one, one])
        assert (again.allowed, pod.admit([one]).allowed) == (True, False)
        pod.run(lambda: pod.admission.give_back(again))
        assert (pod.admit([one, one]).allowed, pod.admit([one]).allowed) == (True, False)


def notices(client: redis.Redis) -> bool:
    try:
        test_without_redis_their_slots_are_taken_and_freed_together(client)
        run_state_machine_as_test(joint_machine(client), settings=HUNT)
    except Exception:
        return True
    finally:
        # Garbage of a failed example would be collected anywhere later, such as while a module is compiled.
        gc.collect()
    return False


def in_place(twin: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(twin, "RequestDomains"):
        monkeypatch.setattr(composition, "RequestDomains", twin.RequestDomains)
    elif hasattr(twin, "JointAdmission"):
        monkeypatch.setattr(admission, "JointAdmission", twin.JointAdmission)
    else:
        monkeypatch.setattr(joint_admission, "JointDemand", twin.JointDemand)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [*DEMANDS, *FLOW, *OWN], ids=lambda mutant: mutant.name)
def test_every_mutant_is_noticed(mutant: Mutant, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    module = joint_demand if mutant in DEMANDS else domains if mutant in OWN else joint_admission
    in_place(mutated(module, mutant), monkeypatch)
    assert notices(limits), f"nobody noticed: {mutant.name}"
