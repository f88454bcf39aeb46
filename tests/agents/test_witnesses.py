"""Outcomes that others than the pod have seen: the breaker counts who saw failures, not who reports them."""

import types
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from controlplane.embedded.valkey import Valkey
from fuseboard import composition
from fuseboard.admission import call_outcomes, pod_breakers
from fuseboard.breaker import fleet_breaker, reports
from fuseboard.contract import keys
from fuseboard.contract.policy import BreakerPolicy, Policy
from fuseboard.contract.scripts import REPORT
from fuseboard.contract.words import BreakerState, Mode, Outcome
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from tests.agents.models.pods import HeldStore, Pod, VirtualTime
from tests.agents.mutating import Mutant, mutated
from tests.agents.servers import PATIENT, POLICY, Server, configured, running
from tests.waiting import eventually

OK, FAILURE, SLOW, NEUTRAL = Outcome.OK, Outcome.FAILURE, Outcome.SLOW, Outcome.NEUTRAL

BREAKER = BreakerPolicy(consecutive_failures=3, minimum_servers=2, window_s=10, open_ms=60_000)
#: Batches are sent much later than a test takes.
BATCHED = msgspec.structs.replace(PATIENT, report_interval_ms=5_000)


def policy(breaker: BreakerPolicy = BREAKER) -> Policy:
    payments = msgspec.structs.replace(POLICY.dependencies[0], breaker=breaker)
    return msgspec.structs.replace(POLICY, dependencies=(payments,), tuning=BATCHED)


@pytest.fixture
async def server(limits: redis.Redis, redis_url: str) -> AsyncIterator[Server]:
    async with running(redis_url, "rls-1", configured(policy())) as server:
        yield server


async def call(server: Server, outcome: Outcome, witness: str) -> bool:
    try:
        permit = await server.admission.admit_call("payments")
    except Refused:
        return False
    permit.witness = witness
    server.admission.report(permit, outcome)
    return True


def fleet(limits: redis.Redis) -> str:
    text = limits.get(keys.breaker("production", "payments"))
    assert text is not None
    return text.decode().split(" ")[0]


def last_transition(limits: redis.Redis) -> dict[bytes, bytes]:
    [(_, entry)] = limits.xrevrange(keys.transitions("production", "payments"), count=1)
    return entry


async def all_sent(server: Server) -> None:
    await eventually(lambda: not server.admission.calls.breakers["payments"].scheduled)


async def test_one_bad_witness_stops_neither_the_fleet_nor_the_pod(limits: redis.Redis, server: Server):
    assert await call(server, OK, "envoy-a")
    assert await call(server, OK, "envoy-b")
    for _ in range(9):
        assert await call(server, FAILURE, "envoy-a")
    await all_sent(server)
    assert fleet(limits) == "closed"
    assert server.admission.calls.breakers["payments"].local.state is BreakerState.CLOSED
    assert await call(server, OK, "envoy-b")


async def test_two_bad_witnesses_of_one_pod_open_the_breaker(limits: redis.Redis, server: Server):
    for witness in ("envoy-a", "envoy-a", "envoy-b"):
        assert await call(server, FAILURE, witness)
    await eventually(lambda: fleet(limits) == "open")
    # The history names the one whose report was the last straw.
    assert last_transition(limits)[b"server"] in (b"envoy-a", b"envoy-b")
    assert not await call(server, OK, "envoy-a")


async def test_a_witness_that_is_alone_is_believed(limits: redis.Redis, server: Server):
    for _ in range(3):
        assert await call(server, FAILURE, "envoy-a")
    await eventually(lambda: fleet(limits) == "open")


async def test_one_witness_before_two_pods_is_one(limits: redis.Redis, redis_url: str):
    """Replicas of one service share the calls of each Envoy."""
    async with (
        running(redis_url, "rls-1", configured(policy())) as one,
        running(redis_url, "rls-2", configured(policy())) as two,
    ):
        for server in (one, two):
            assert await call(server, OK, "envoy-b")
            for _ in range(4):
                assert await call(server, FAILURE, "envoy-a")
            await all_sent(server)
        assert fleet(limits) == "closed"


async def test_probes_of_witnesses_close_and_reopen_the_breaker(limits: redis.Redis, redis_url: str):
    quick = msgspec.structs.replace(BREAKER, open_ms=50, open_max_ms=50, successes_to_close=2)
    async with running(redis_url, "rls-1", configured(policy(quick))) as server:

        async def opens() -> None:
            for _ in range(3):
                await call(server, FAILURE, "envoy-a")
            await eventually(lambda: fleet(limits) == "open")

        await opens()
        assert await eventually(lambda: call(server, FAILURE, "envoy-a"))
        await eventually(lambda: last_transition(limits)[b"cause"] == b"probe_failed")
        for witness in ("envoy-a", "envoy-b"):
            assert await eventually(lambda name=witness: call(server, OK, name))
        await eventually(lambda: fleet(limits) == "closed")


async def test_without_redis_all_witnesses_count_in_the_breaker_of_the_pod(valkey: Valkey):
    async with running(valkey.url, "rls-1", configured(policy())) as server:
        valkey.stop()
        await eventually(lambda: server.admission.mode is Mode.LOCAL)
        for witness in ("envoy-a", "envoy-b", "envoy-c"):
            assert await call(server, FAILURE, witness)
        assert server.admission.calls.breakers["payments"].local.state is BreakerState.OPEN
        assert not await call(server, OK, "envoy-a")


# The batches, against what each witness saw

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from([OK, FAILURE, SLOW, NEUTRAL])),
        st.sampled_from([0.001, 0.006, 2.0]),
    ),
    max_size=30,
)
#: Never opens, so that all calls are admitted.
PATIENT_BREAKER = BreakerPolicy(consecutive_failures=0, minimum_calls=10_000)


class Process:
    """A pod whose reports to Redis are kept with the time that they were sent at."""

    def __init__(self) -> None:
        self.time, self.sent = VirtualTime(), list[tuple[float, tuple[Any, ...]]]()
        self.pod: Pod
        run = HeldStore.run

        def noted(store: HeldStore, script: Any, keys: Any, arguments: Any, on_reply: Any) -> None:
            if script is REPORT:
                self.sent.append((self.time.now, arguments))
            run(store, script, keys, arguments, on_reply)

        self._noted = patch.object(HeldStore, "run", noted)

    def __enter__(self) -> "Process":
        self._applied = self.time.applied()
        self._applied.__enter__()
        self._noted.__enter__()
        self.pod = Pod(PATIENT_BREAKER, self.time)
        return self

    def __exit__(self, *error: object) -> None:
        self.pod.close()
        self._noted.__exit__(None, None, None)
        self._applied.__exit__(None, None, None)

    def answer_all(self) -> None:
        while self.pod.store.asked:
            self.pod.answer("closed", 1)

    def permit(self) -> Permit:
        call = self.pod.call()
        self.answer_all()
        assert call.permit is not None
        return call.permit


def check(steps: list[Any]) -> None:
    """Each witness's outcomes arrive under its name, once, in their order; those without failures first."""
    seen: dict[str, list[Outcome]] = {}
    own_failures = 0
    with Process() as process:
        for step in steps:
            if isinstance(step, float):
                process.pod.pass_time(step)
                process.answer_all()
                continue
            witness, outcome = step
            process.pod.pass_time(1e-6)  # no two batches are sent at one time
            permit = process.permit()
            permit.witness = witness
            process.pod.run(lambda one=permit, how=outcome: process.pod.admission.report(one, how))
            if outcome is not NEUTRAL:
                seen.setdefault(witness or "web-1", []).append(outcome)
            if not witness and outcome is FAILURE:
                own_failures += 1
            elif not witness and outcome is OK:
                own_failures = 0
            process.pod.breaker.tally.count()
            assert process.pod.breaker.local.consecutive == own_failures
        process.pod.pass_time(1e-6)
        process.pod.run(process.pod.admission.reports.flush)
        sent = process.sent
    failing_at: float | None = None
    for at, (witness, _, ok, failure, slow, tail, *_) in sent:
        outcomes = seen.get(witness, [])
        batch, seen[witness] = outcomes[: ok + failure + slow], outcomes[ok + failure + slow :]
        assert (batch.count(OK), batch.count(FAILURE), batch.count(SLOW)) == (ok, failure, slow)
        since = batch[len(batch) - batch[::-1].index(OK) :] if ok else batch
        assert since.count(FAILURE) == tail
        # Successes of a witness may come in a batch of their own, after its failures were sent.
        assert failure + slow or not ok or failing_at != at, "judged before Redis knew who had successes"
        failing_at = at if failure + slow else failing_at
    assert not any(seen.values()), "an outcome was lost"


@given(STEPS)
def test_what_each_witness_saw_is_reported_as_its_own(steps: list[Any]):
    check(steps)


#: Examples that notice each of the bugs below.
EXAMPLES: tuple[list[Any], ...] = (
    [("a", FAILURE), ("b", OK), 0.006],
    [("", OK), ("a", FAILURE), ("", FAILURE), ("a", OK), 2.0],
    [("a", FAILURE), ("a", FAILURE), ("a", OK), ("a", FAILURE), 2.0],
)

POD = "        breaker.server,\n        gen"
MUTANTS = [
    ("Reports", Mutant("failures are judged first", "reports.sort(key=_has_failures)", "pass")),
    ("Reports", Mutant("the pod is the witness", "        witness,\n        gen", POD)),
    ("CallOutcomes", Mutant("the pod counts what others saw", "others = bool(", "others = False and bool(")),
    ("CallOutcomes", Mutant("a success belongs to the pod", "            or permit.witness\n", "")),
    ("FleetBreaker", Mutant("the witness is forgotten", "if witness and not probe:", "if False:")),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "mutant"), MUTANTS, ids=lambda one: getattr(one, "name", one))
def test_every_mutant_of_witnesses_is_noticed(name: str, mutant: Mutant, monkeypatch: pytest.MonkeyPatch):
    module = {"Reports": reports, "CallOutcomes": call_outcomes, "FleetBreaker": fleet_breaker}[name]
    user: types.ModuleType = pod_breakers if name == "FleetBreaker" else composition
    monkeypatch.setattr(user, name, getattr(mutated(module, mutant), name))
    noticed = 0
    for steps in EXAMPLES:
        try:
            check(steps)
        except AssertionError:
            noticed += 1
    assert noticed


def test_without_a_bug_the_examples_pass():
    for steps in EXAMPLES:
        check(steps)
