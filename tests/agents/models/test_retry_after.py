"""A trace of many tenants, and an oracle that reads the counters: each ``Retry-After`` is the true one.

A pod runs as in an application, on the real scripts of a real Redis, in virtual time. Its calls are leased or
not, cost one or more, are corrected and given back, enter a service or leave it.
"""

import asyncio
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import pytest
import redis
from msgspec.structs import replace

from fuseboard.admission.admission import Admission
from fuseboard.batching.demand import Demand, rule_of
from fuseboard.batching.refusals import RememberedRefusals
from fuseboard.batching.settlements import Settlements
from fuseboard.composition import compose_admission
from fuseboard.contract.policy import Dependency, Limit, Policy, TenantRecord, Tier, Tuning
from fuseboard.contract.scripts import ADMIT, SETTLE, Script, read_script
from fuseboard.contract.words import Algorithm, Mode
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.reporting.counters import Counters
from fuseboard.store.store import OnReply, Word
from fuseboard.subject import NO_SUBJECT, Costs, costs_of
from tests.agents.models.pods import HeldStore, VirtualTime
from tests.agents.scripts import START_US, VIRTUAL_CLOCK
from tests.agents.servers import configured
from tests.virtual_loop import VirtualLoop

WINDOW = Limit(name="window", limit=100, window_ms=1_000, algorithm=Algorithm.SLIDING_WINDOW, lease_above=30)
BUCKET = Limit(name="bucket", limit=100, window_ms=1_000, burst=200)
SLOW = Limit(name="slow", limit=400, window_ms=10_000, burst=60)
LONG = Limit(name="long", limit=600, window_ms=10_000, algorithm=Algorithm.SLIDING_WINDOW)
TOKENS = Limit(name="tokens", limit=20_000, window_ms=10_000, burst=8_000, measure="tokens")
VENDOR = Limit(name="vendor", limit=1_500, window_ms=1_000, burst=500)
TIERS = (
    Tier(name="bucket", quotas=(BUCKET,)),
    Tier(name="window", quotas=(WINDOW,)),
    Tier(name="two", quotas=(SLOW, BUCKET)),
    Tier(name="long", quotas=(LONG, WINDOW)),
    Tier(name="tokens", quotas=(SLOW, TOKENS)),
    Tier(name="calls", quotas=(replace(TOKENS, dependency="vendor"), replace(SLOW, dependency="vendor"))),
)
POLICY = Policy(
    environment="production",
    default_tier="bucket",
    tiers=TIERS,
    dependencies=(Dependency(name="vendor", vendor_limits=(VENDOR,)),),
    tuning=Tuning(store_deadline_us=50_000, store_timeouts=10_000),
)
#: Redis decides so long after it is asked, and its answer takes as long.
LATENCY_S = 0.0002
#: ``Retry-After`` is rounded up to milliseconds, and the pod's clock follows the fastest answers.
ROUNDING_US = 1_500
REQUESTS_PER_S = 6_000

#: A server lets keys expire by its own clock, which is not that of the trace.
_NO_EXPIRY = """
local server = redis
local redis = { pcall = server.pcall, call = function(name, ...)
    local key, value = ...
    if name == 'SET' then return server.call(name, key, value) end
    return server.call(name, ...)
end }
"""
_SCRIPTS = {
    script.name: read_script(script.name, clock=VIRTUAL_CLOCK + _NO_EXPIRY) for script in (ADMIT, SETTLE)
}


class LoopTime(VirtualTime):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.loop = loop

    def __call__(self) -> float:
        return self.now + self.loop.time()

    @property
    def us(self) -> int:
        return START_US + round(self.loop.time() * 1_000_000)


class Remote(HeldStore):
    """Runs each script after a delay, and remembers when it ran on which keys."""

    def __init__(self, client: redis.Redis, time: LoopTime) -> None:
        super().__init__()
        self.client, self.time, self.loop = client, time, time.loop
        self.changed_us: dict[bytes, int] = {}

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        if script.name not in _SCRIPTS:  # reports of the breaker
            return
        loaded = _SCRIPTS[script.name]

        def decide() -> None:
            raw = self.client.evalsha(loaded.sha, len(keys), *keys, *arguments, self.time.us)
            self.changed_us.update(dict.fromkeys(keys, self.time.us))
            self.loop.call_later(LATENCY_S, on_reply, raw)

        self.loop.call_later(LATENCY_S, decide)


@dataclass(frozen=True)
class Untrue:
    """A ``Retry-After`` that is not the true one, in us."""

    tenant: str
    costs: tuple[int, ...]
    rule: str
    said: int
    true: int


@dataclass
class Trace:
    client: redis.Redis
    time: LoopTime
    requests: int
    tenants: int
    seed: int
    allowed: int = 0
    leased: int = 0
    refused: int = 0
    remembered: int = 0
    early: list[Untrue] = field(default_factory=list)
    late: list[Untrue] = field(default_factory=list)

    async def play(self) -> None:
        self.loop, self.draw = asyncio.get_running_loop(), random.Random(self.seed)
        self.tiers = {f"tenant-{number}": TIERS[number % len(TIERS)] for number in range(self.tenants)}
        records = {name: TenantRecord(tier=tier.name) for name, tier in self.tiers.items()}
        self.store = Remote(self.client, self.time)
        self.admission: Admission = compose_admission(
            configuration=configured(POLICY, tenants=records),
            counters=Counters(),
            store=self.store,
            server="web-1",
            environment="production",
            on_change=lambda: None,
        )
        self.admission.health._change(Mode.SHARED, "the trace")
        self.admission.health.answered(self.time.us)
        names, weights = list(self.tiers), [1 / (number % 40 + 1) for number in range(self.tenants)]
        asking: set[asyncio.Task[None]] = set()
        for _ in range(self.requests):
            if self.draw.random() < 0.6:  # some come together
                await asyncio.sleep(self.draw.expovariate(REQUESTS_PER_S * 0.6))
            task = self.loop.create_task(self.ask(self.draw.choices(names, weights)[0]))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)
        await asyncio.sleep(1)  # corrections are sent
        self.admission.leases.stop()

    async def ask(self, tenant: str) -> None:
        cost, costs = self.draw.choice((1, 1, 1, 1, 2, 5)), None
        tier, asked_us = self.tiers[tenant].name, self.time.us
        if tier in ("tokens", "calls") and self.draw.random() < 0.8:
            costs = {"tokens": self.draw.choice((100, 500, 2_000))}
        if tier == "calls":
            try:
                options = {"tenant": tenant, "cost": cost, "costs": costs, "wait_s": 0}
                decision = (await self.admission.admit_call("vendor", **options)).decision
            except Refused as refused:
                decision = refused.decision
        else:
            decision = await self.admission.admit_request(tenant, cost, costs=costs, wait_s=0)
        if decision.allowed:
            self.allowed += 1
            self.leased += decision.leased
            self.end(decision, costs)
        else:
            self.judge(tenant, decision, costs_of(cost, costs), at_once=asked_us == self.time.us)

    def end(self, decision: Decision, costs: dict[str, int] | None) -> None:
        """The call ends. Some cost more or less than estimated, or were not made."""
        after_s, chance = self.draw.random() * 0.2, self.draw.random()
        if costs is not None and chance < 0.7:
            actual = self.draw.choice((50, 300, 2_500))
            self.loop.call_later(after_s, self.admission.settle, decision, "tokens", actual)
        elif chance < 0.1 and not decision.leased:
            self.loop.call_later(after_s, self.admission.give_back, decision)

    def judge(
        self, tenant: str, decision: Decision, costs: tuple[tuple[str, int], ...], *, at_once: bool
    ) -> None:
        demand = self.demand(tenant, costs)
        now, said = self.time.us, decision.retry_after_ms * 1_000
        decided_us = now - round(LATENCY_S * 1_000_000)
        if not at_once and any(self.store.changed_us.get(key, 0) > decided_us for key in demand.keys):
            return  # something changed while the answer was under way
        self.refused += 1
        self.remembered += at_once
        true = self.fits_at(demand) - now
        untrue = Untrue(tenant, demand.costs, decision.rule, said, true)
        if said < true:
            self.early.append(untrue)
        elif said > true + ROUNDING_US and at_once:
            self.late.append(untrue)

    def demand(self, tenant: str, costs: Costs) -> Demand:
        snapshot = self.admission.configuration.snapshot
        rules = snapshot.quotas_of(tenant)
        if self.tiers[tenant].name == "calls":
            return self.admission.calls.breakers["vendor"].demand(costs, tenant, rules)
        domains = self.admission._requests.domains
        return domains.of_tenant(snapshot.policy, tenant, rules, costs, NO_SUBJECT)[1]

    def fits_at(self, demand: Demand) -> int:
        """When the call fits in each of its counters, if no other call comes."""
        latest = self.time.us
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            text = self.client.get(ref.key)
            if text is None:
                continue
            _, most, window_us, size, *_ = rule_of(ref.limit, 1.0, latest)
            if ref.limit.algorithm is Algorithm.TOKEN_BUCKET:
                at, part, _, _ = map(int, struct.unpack(">dddd", text))
                free = Fraction((size - cost) * window_us, most)
                latest = max(latest, ceil(at + Fraction(part, most) - free))
                continue
            width, head, spent, *counts = map(int, struct.unpack(f">{size + 4}d", text))
            for index in range(head - size, head + 1):
                if spent + cost <= most:
                    break
                spent -= counts[index % (size + 1)]
                latest = max(latest, (index + size + 1) * width)
        return latest


def play(client: redis.Redis, *, requests: int, tenants: int, seed: int = 1) -> Trace:
    client.flushall()
    for script in _SCRIPTS.values():
        client.script_load(script.text)
    loop = VirtualLoop()
    time = LoopTime(loop)
    trace = Trace(client, time, requests, tenants, seed)
    with time.applied():
        loop.run_until_complete(trace.play())
        loop.close()
    return trace


def check(trace: Trace) -> None:
    """The trace has what it is about, and no ``Retry-After`` is too early or too late."""
    assert min(trace.leased, trace.remembered, trace.refused - trace.remembered) > 20, trace
    assert trace.early == []
    assert trace.late == []


def test_every_retry_after_is_true(limits: redis.Redis):
    check(play(limits, requests=4_000, tenants=60))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_retry_after_of_50_000_requests_is_true(limits: redis.Redis):
    check(play(limits, requests=50_000, tenants=400))


def _nothing(*_: object) -> None: ...


def _only_changed(settlements: Settlements, changes: set[bytes], reply: object) -> None:
    settlements.refusals.end_change(changes)


BUGS = {
    "no change ends a refusal": (RememberedRefusals, "forget_counters", _nothing),
    "what is under way is ignored": (RememberedRefusals, "begin_change", _nothing),
    "a correction ends no refusal": (Settlements, "_answered", _only_changed),
}


@pytest.mark.mutants
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_noticed(limits: redis.Redis, monkeypatch: pytest.MonkeyPatch, bug: str):
    owner, name, wrong = BUGS[bug]
    monkeypatch.setattr(owner, name, wrong)
    if name == "begin_change":
        monkeypatch.setattr(owner, "end_change", _nothing)
    trace = play(limits, requests=4_000, tenants=60)
    assert trace.early or trace.late


def test_the_longest_wait_of_several_limits_counts(limits: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    """A script that names the wait of the first one is noticed."""
    first = "if not scarcest or longest > group.wait"
    script = _SCRIPTS[ADMIT.name]
    assert first in script.text
    text = script.text.replace(first, "if not scarcest")
    loaded = limits.script_load(text)
    monkeypatch.setitem(_SCRIPTS, ADMIT.name, Script(script.name, text, loaded))
    assert play(limits, requests=4_000, tenants=60).early
