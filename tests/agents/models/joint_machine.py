"""A state machine: requests that are decided together, by the real scripts in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fuseboard import composition
from fuseboard.admission.admission import Admission
from fuseboard.admission.joint_admission import OwnLimit, Wanted
from fuseboard.batching.refusals import MEMORY_S
from fuseboard.contract.policy import Limit, Policy, TenantRecord, Tier, Tuning
from fuseboard.contract.scripts import Script, read_script
from fuseboard.contract.words import Algorithm, Dimension, FailurePolicy, Mode
from fuseboard.decision import Decision
from fuseboard.reporting.counters import Counters
from fuseboard.store.store import OnReply, Word
from fuseboard.subject import NO_SUBJECT, Subject, costs_of
from tests.agents.models.oracles import Bucket, Window, oracle_of
from tests.agents.models.pods import Asked, HeldStore, Pod, VirtualSelector, VirtualTime
from tests.agents.models.remaining_machine import charged
from tests.agents.scripts import START_US, VIRTUAL_CLOCK, run_script
from tests.agents.servers import POLICY, configured

WINDOW = Limit(name="per-minute", limit=9, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
TOKENS = Limit(name="tokens", limit=12, window_ms=60_000, burst=12, measure="tokens")
#: No sum of the times that pass is as long as this, so no slot expires at the time of a question.
SLOTS = Limit(
    name="at-once",
    limit=4,
    window_ms=61_003,
    algorithm=Algorithm.CONCURRENCY,
    failure_policy=FailurePolicy.LOCAL_SHARE,
)
BY_IP = Limit(name="by-ip", limit=60, window_ms=60_000, burst=5, per=(Dimension.IP,))
#: A caller brings it, and says what it counts.
OWN = Limit(name="own", limit=7, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
EVERYBODY = Limit(name="everybody", limit=40, window_ms=60_000, burst=25, service="*")
#: The limits of a tenant, and those that count no address.
OF_TENANTS = (WINDOW, TOKENS, SLOTS)
TENANTS = ("acme", "other")
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=OF_TENANTS),),
    service_limits=(EVERYBODY,),
    subject_limits=(BY_IP,),
    tuning=Tuning(store_deadline_us=4_000, store_timeouts=10_000, store_failures=1000),
)
#: The most of each that can ever be spent at once.
MOST = {WINDOW.name: 9, TOKENS.name: 12, SLOTS.name: 4, BY_IP.name: 5, OWN.name: 7, EVERYBODY.name: 25}
#: Corrections are sent after this time, and refusals are remembered for less than the second one.
SENT_S, FORGOTTEN_S = 0.006, 1.1


class Slots:
    """A concurrency limit: who holds how many slots, and until when."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.held: list[tuple[int, int]] = []

    def room(self, now: int) -> int:
        return self.limit.limit - sum(count for until, count in self.held if until > now)

    def spend(self, now: int, amount: int) -> None:
        self.held.append((now + self.limit.window_ms * 1000, amount))


Oracle = Window | Bucket | Slots
#: The name of a counter: whose it is, and that of the limit.
Counter = tuple[str, str]


class LuaStore(HeldStore):
    """Runs each script at once, on a real server, at the virtual time. The test gives the answers."""

    def __init__(self, client: redis.Redis, now_us: Callable[[], int]) -> None:
        super().__init__()
        self._client = client
        self._now_us = now_us

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        virtual = read_script(script.name, clock=VIRTUAL_CLOCK)
        reply = run_script(self._client, virtual, [*keys], [*arguments, self._now_us()])
        for key in keys:
            # It would expire in real time, while virtual time stands still.
            self._client.persist(key)
        self.asked.append(Asked(script, lambda _: on_reply(reply)))


class JointPod(Pod):
    """Decides requests, with the real scripts behind it."""

    store: LuaStore
    #: The scripts that the last decision asked.
    questions: list[str]

    def __init__(
        self, client: redis.Redis, time: VirtualTime, now_us: Callable[[], int], rules: Policy = RULES
    ) -> None:
        self.time = time
        self.loop = asyncio.SelectorEventLoop(VirtualSelector(self.missing))
        self.loop.time = time  # type: ignore[method-assign]
        self.store = LuaStore(client, now_us)
        self.counters = Counters()
        self.configuration = configured(rules, tenants=dict.fromkeys(TENANTS, TenantRecord(tier="free")))
        self.admission = composition.compose_admission(
            configuration=self.configuration,
            counters=self.counters,
            store=self.store,
            server="web-1",
            environment="production",
            on_change=lambda: None,
        )
        self.in_mode(Mode.SHARED)

    def answer_all(self, then: Callable[[], None] = lambda: None) -> None:
        """Give every answer, and do ``then`` before anybody could read it."""
        while self.store.asked:
            self.run(partial(self._answer, self.store.asked.popleft(), then))

    def _answer(self, asked: Asked, then: Callable[[], None]) -> None:
        asked.on_reply(None)
        then()

    def admit(self, asked: Sequence["One"]) -> Decision:
        """Decide them. Redis answers at once, if it is asked."""
        return self.decided(self.admission.joint.admit, asked)[0]

    def check(self, asked: Sequence["One"], copies: int = 1) -> list[Decision]:
        """Let ``copies`` callers ask what would be decided."""
        return self.decided(self.admission.joint.check, asked, copies)

    def decided(
        self,
        decide: Callable[[Sequence[Wanted]], Coroutine[Any, Any, Decision]],
        asked: Sequence["One"],
        copies: int = 1,
    ) -> list[Decision]:
        wanted = [one.wanted() for one in asked]
        tasks: list[asyncio.Task[Decision]] = []
        self.run(lambda: tasks.extend(self.loop.create_task(decide(wanted)) for _ in range(copies)))
        self.questions = [asked.script.name for asked in self.store.asked]
        self.answer_all()
        return [task.result() for task in tasks]

    def memory(self) -> object:
        """The refusals that the pod remembers."""
        refusals = self.admission.joint.requests.settlements.refusals
        return {key: len(demands) for key, demands in refusals.by_counter.items()}

    def settled(self) -> None:
        """Whatever was corrected has arrived."""
        self.pass_time(SENT_S)
        self.answer_all()


@dataclass(frozen=True)
class One:
    """One of the requests."""

    tenant: str
    ip: str
    calls: int
    tokens: int
    #: A limit of the caller counts this key. Without one, it is empty.
    own: str = ""

    def wanted(self) -> Wanted:
        subject = Subject(ip=self.ip) if self.ip else NO_SUBJECT
        costs = costs_of(self.calls, {"tokens": self.tokens} if self.tokens else None)
        return Wanted(self.tenant, costs, subject, OwnLimit(OWN, self.own) if self.own else None)

    def costs(self) -> dict[Counter, int]:
        """What it is charged, by counter."""
        if self.own:
            return {(self.own, OWN.name): self.calls}
        found = {("", EVERYBODY.name): self.calls}
        if self.tenant:
            found |= {(self.tenant, WINDOW.name): self.calls, (self.tenant, SLOTS.name): self.calls}
            if self.tokens:
                found[self.tenant, TOKENS.name] = self.tokens
        elif self.ip:
            found[self.ip, BY_IP.name] = self.calls
        return found


@dataclass
class Allowed:
    """Requests that were allowed together, and what each has cost by now."""

    decision: Decision
    pod: JointPod
    asked: tuple[One, ...]
    at_us: int
    tokens: list[int]
    settled: bool = False
    #: The entries of its slots in the oracles.
    slots: list[tuple[Slots, tuple[int, int]]] = field(default_factory=list)


ONE = st.one_of(
    st.builds(
        One,
        tenant=st.sampled_from(TENANTS),
        ip=st.just(""),
        calls=st.integers(1, 3),
        tokens=st.integers(0, 5),
    ),
    st.builds(
        One,
        tenant=st.just(""),
        ip=st.sampled_from(["192.0.2.1", "192.0.2.2"]),
        calls=st.integers(1, 3),
        tokens=st.just(0),
    ),
    st.builds(
        One,
        tenant=st.just(""),
        ip=st.just(""),
        calls=st.integers(1, 3),
        tokens=st.just(0),
        own=st.sampled_from(["slow path", "card 1"]),
    ),
)
ASKED = st.lists(ONE, min_size=1, max_size=4).map(tuple)


def joint_machine(client: redis.Redis) -> type[RuleBasedStateMachine]:
    """What must hold, whoever else asks, and whatever is corrected or cancelled:

    - All of them are allowed exactly if each counter has room for the sum of what they cost in it.
    - What is refused charges nothing, and what is allowed charges exactly its costs.
    - Each part says what its limits have left, and which of them has too little.
    - What is given back, settled or finished changes exactly the counters that were charged.
    - A check says exactly what would be decided now, and changes nothing.
    """

    class JointMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.time = VirtualTime()
            self.applied = self.time.applied()
            self.applied.__enter__()
            self.pods = [JointPod(client, self.time, lambda: self.now) for _ in range(2)]
            self.oracles: dict[Counter, Oracle] = {}
            self.allowed: list[Allowed] = []
            #: When a pod was refused the same last, and how.
            self.refused: dict[tuple[int, tuple[One, ...]], tuple[float, Decision | None]] = {}

        def teardown(self) -> None:
            with ExitStack() as stack:
                stack.callback(self.applied.__exit__, None, None, None)
                for pod in self.pods:
                    stack.callback(pod.close)
                    stack.callback(pod.answer_all)

        @property
        def now(self) -> int:
            return START_US + round((self.time.now - 1000) * 1_000_000)

        def oracle(self, counter: Counter) -> Oracle:
            limits = {limit.name: limit for limit in (*OF_TENANTS, BY_IP, OWN, EVERYBODY)}
            if counter not in self.oracles:
                limit = limits[counter[1]]
                self.oracles[counter] = Slots(limit) if limit is SLOTS else oracle_of(limit)
            return self.oracles[counter]

        def room(self, counter: Counter) -> int:
            return self.oracle(counter).room(self.now)

        def has_room(self, costs: dict[Counter, int]) -> bool:
            return all(self.room(counter) >= cost for counter, cost in costs.items())

        @rule(
            which=st.integers(0, 1),
            asked=ASKED,
            copies=st.integers(1, 3),
            leave=st.integers(0, 7),
            late=st.booleans(),
            again=st.booleans(),
            checks=st.integers(0, 3),
        )
        def ask(
            self,
            which: int,
            asked: tuple[One, ...],
            copies: int,
            leave: int,
            *,
            late: bool,
            again: bool,
            checks: int,
        ) -> None:
            """``copies`` ask in one tick; the bits of ``leave`` are those who do not wait for the answer, or
            not until they could read it. ``again``: a refusal is asked for again, at once. ``checks`` ask
            before whether it would be allowed.
            """
            pod, costs = self.pods[which], summed(asked)
            expected = self.check(which, asked, checks) if checks else None
            wanted = [one.wanted() for one in asked]
            domain = pod.admission.joint.requests.domains.of_everybody
            assert domain is not None
            domain.lonely = False  # otherwise the first one of a tick has a question of its own
            tasks: list[asyncio.Task[Decision]] = []
            pod.run(
                lambda: tasks.extend(
                    pod.loop.create_task(pod.admission.joint.admit(wanted)) for _ in range(copies)
                )
            )
            questions = [asked.script.name for asked in pod.store.asked]
            assert expected is None or (expected.allowed is bool(questions and self.has_room(costs)))
            if not questions:
                self.check_memory(which, asked, costs, [task.result() for task in tasks])
                return
            assert questions == ["admit"], "one question decides about all"
            left = [task for number, task in enumerate(tasks) if leave >> number & 1]
            cancel = partial(cancel_all, left)
            if not late:
                pod.run(cancel)
            new: list[Allowed] = []
            while len(new) < copies and self.has_room(costs):
                new.append(self.spend(which, asked, costs))
            pod.answer_all(cancel if late else lambda: None)
            unused: list[Allowed] = []
            for number, task in enumerate(tasks):
                if task in left:
                    assert task.cancelled()
                    unused += new[number : number + 1]
                    continue
                decision = task.result()
                assert decision.allowed is (number < len(new))
                self.check_parts(decision, asked, costs)
                if decision.allowed:
                    new[number].decision = decision
                    self.allowed.append(new[number])
            refused = [task.result() for task in tasks if task not in left and not task.result().allowed]
            if len(new) < copies:
                self.refused[which, asked] = self.time.now, refused[0] if refused else None
            pod.settled()
            for each in unused:
                self.give_back(each)
            if refused and again:
                self.ask(which, asked, 1, 0, late=False, again=False, checks=2)

        def check(self, which: int, asked: tuple[One, ...], copies: int) -> Decision:
            """Check in one tick, and compare with the counters. Nothing changes, here or in Redis."""
            pod, costs = self.pods[which], summed(asked)
            before = self.stored(), pod.memory()
            decisions = pod.check(asked, copies)
            assert (self.stored(), pod.memory()) == before
            for decision in decisions:
                assert not decision.charges
                if not pod.questions:
                    self.check_memory(which, asked, costs, [decision])
                    continue
                assert pod.questions == ["admit"], "all share one question"
                assert decision.allowed is self.has_room(costs)
                self.check_parts(decision, asked, costs)
            return decisions[0]

        def stored(self) -> dict[bytes, bytes | None]:
            keys = sorted(client.keys(b"fb1:*"))
            return {key: client.dump(key) for key in keys if not key.endswith(b":incarnation")}

        def check_memory(
            self, which: int, asked: tuple[One, ...], costs: dict[Counter, int], decisions: list[Decision]
        ) -> None:
            """Nobody was asked: they never fit, or the same was refused a moment ago."""
            never = any(cost > MOST[name] for (_, name), cost in costs.items())
            for decision in decisions:
                assert not decision.allowed
                assert not all(part.allowed for part in decision.parts)
                assert (decision.retry_after_ms == 0) is never
                if not never:
                    at, before = self.refused[which, asked]
                    assert self.time.now - at < MEMORY_S
                    if before is None:
                        continue  # nobody waited for that answer
                    assert decision.rule == before.rule
                    for now, then in zip(decision.parts, before.parts, strict=True):
                        assert now.allowed or (not then.allowed and now.rule == decision.rule)

        def spend(self, which: int, asked: tuple[One, ...], costs: dict[Counter, int]) -> Allowed:
            tokens = [one.tokens for one in asked]
            found = Allowed(Decision(allowed=True), self.pods[which], asked, self.now, tokens)
            for counter, cost in costs.items():
                oracle = self.oracle(counter)
                oracle.spend(self.now, cost)
                if isinstance(oracle, Slots):
                    found.slots.append((oracle, oracle.held[-1]))
            return found

        def check_parts(self, decision: Decision, asked: tuple[One, ...], costs: dict[Counter, int]) -> None:
            short = {counter for counter, cost in costs.items() if self.room(counter) < cost}
            assert len(decision.parts) == len(asked)
            for part, one in zip(decision.parts, asked, strict=True):
                mine = one.costs()
                assert part.tenant == one.tenant
                figures = {status.name.rpartition("/")[2]: status.remaining for status in part.limits}
                expected = {counter[1]: max(0, self.room(counter)) for counter in mine}
                assert figures == expected, (figures, expected)
                if decision.allowed:
                    assert part.allowed
                    continue
                lacking = {counter[1] for counter in short & set(mine)}
                assert part.allowed is not bool(lacking)
                if lacking:
                    assert part.rule.rpartition("/")[2] in lacking
                    assert part.retry_after_ms == decision.retry_after_ms > 0

        def give_back(self, allowed: Allowed) -> None:
            for one, tokens in zip(allowed.asked, allowed.tokens, strict=True):
                for counter, cost in one.costs().items():
                    self.refund(counter, tokens if counter[1] == TOKENS.name else cost, allowed.at_us)
            self.free(allowed)

        def refund(self, counter: Counter, amount: int, at_us: int) -> None:
            oracle = self.oracle(counter)
            if isinstance(oracle, Bucket):
                oracle.spend(self.now, -amount)
            elif isinstance(oracle, Window):
                number = at_us // oracle.width
                oracle.spent[number] = max(0, oracle.spent.get(number, 0) - amount)

        def free(self, allowed: Allowed) -> None:
            for oracle, entry in allowed.slots:
                oracle.held.remove(entry)
            allowed.slots = []

        @rule(seconds=st.sampled_from([0.002, 0.5, FORGOTTEN_S, 7.0, 31.0]))
        def time_passes(self, seconds: float) -> None:
            self.time.now += seconds
            for pod in self.pods:
                pod.settled()

        @precondition(lambda self: self.allowed)
        @rule(which=st.integers(0, 9))
        def they_are_given_back(self, which: int) -> None:
            allowed = self.allowed.pop(which % len(self.allowed))
            self.correct(allowed, lambda admission: admission.give_back(allowed.decision))
            self.give_back(allowed)

        @precondition(lambda self: self.allowed)
        @rule(which=st.integers(0, 9))
        def they_end(self, which: int) -> None:
            allowed = self.allowed[which % len(self.allowed)]
            self.correct(allowed, lambda admission: admission.finish(allowed.decision))
            self.free(allowed)

        @precondition(lambda self: any(not each.settled for each in self.allowed))
        @rule(which=st.integers(0, 9), actual=st.integers(0, 8))
        def their_real_cost_is_known(self, which: int, actual: int) -> None:
            unsettled = [each for each in self.allowed if not each.settled]
            allowed = unsettled[which % len(unsettled)]
            self.correct(allowed, lambda admission: admission.settle(allowed.decision, "tokens", actual))
            allowed.settled = True
            #: By tenant, and whether more: corrections of one kind are sent as one, in this order.
            sums: dict[tuple[str, bool], int] = {}
            for number, one in enumerate(allowed.asked):
                if one.tenant and one.tokens and (more := actual - one.tokens):
                    sums[one.tenant, more > 0] = sums.get((one.tenant, more > 0), 0) + more
                    allowed.tokens[number] = actual
            for (tenant, _), more in sums.items():
                oracle = self.oracle((tenant, TOKENS.name))
                assert isinstance(oracle, Bucket)
                if more > 0:
                    charged(oracle, self.now, more)
                else:
                    oracle.spend(self.now, more)

        def correct(self, allowed: Allowed, how: Callable[[Admission], None]) -> None:
            allowed.pod.run(lambda: how(allowed.pod.admission))
            allowed.pod.settled()

    return JointMachine


def cancel_all(tasks: list[asyncio.Task[Decision]]) -> None:
    for task in tasks:
        task.cancel()


def summed(asked: tuple[One, ...]) -> dict[Counter, int]:
    found: dict[Counter, int] = {}
    for one in asked:
        for counter, cost in one.costs().items():
            found[counter] = found.get(counter, 0) + cost
    return found
