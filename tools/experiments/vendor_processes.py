"""T32: vendors and pods as processes, with real clients, Redis and seconds, beside the simulation."""

import json
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import redis
from msgspec.structs import replace

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Dependency, Limit, Policy, Tier
from tests.agents.models.learner import Learner
from tests.agents.published import publish
from tests.agents.scripts import Store
from tests.agents.servers import PATIENT
from tests.llm.limited_vendor import (
    DOUBLED,
    FEWER_OTHERS,
    HALVED,
    MORE_OTHERS,
    allowed,
    others_per_s,
    rule,
)
from tests.llm.money import NEVER_OPENS
from tools.experiments.chart import Chart
from tools.experiments.child import Child
from tools.experiments.following import BUCKET, FLOOR_PERCENT, SLIDING
from tools.experiments.following_at_once import SLOTS
from tools.experiments.result import Result, ms, share
from tools.experiments.vendor_fleet import ANSWER_S, OFFERED_PER_S, PER_MINUTE, PODS, Fleet, play

#: A third of the time of case L10. The minutes of the vendors, the ticks and the waits are not shortened.
SECONDS = 900.0
#: Pods are spread over so many processes.
PROCESSES = 4
AFTER_HALVING_S = 120.0


@dataclass(frozen=True)
class Kind:
    """``refused``: the largest share of the calls. ``used``: the smallest one of what the others leave."""

    name: str
    limit: Limit
    refused: float
    used: float
    #: The most refused calls in the two minutes after the halving.
    soon: float = 60


#: Where answers do not say what a second has left, each change costs refusals. Changes come three times as
#: often as in cases L10 and L12, so their bars of 2 % and 3 % are higher here.
KINDS = {
    "minute": Kind("states its limit; its bucket holds a minute", SLIDING, 0.01, 0.95),
    "fixed": Kind("states its limit; counts fixed minutes", SLIDING, 0.01, 0.95),
    "second": Kind("states its limit; its bucket holds a second", BUCKET, 0.04, 0.9),
    "silent": Kind("says nothing", BUCKET, 0.04, 0.9, soon=90),
    "slots": Kind("says nothing; limits calls at once", SLOTS, 0.06, 0.65, soon=90),
}


@dataclass
class Played:
    """The calls of the fleet to one vendor."""

    seconds: float
    ok: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    held: int = 0
    followed: list[tuple[float, float]] = field(default_factory=list)
    #: The vendor's own counts: calls, and those that it refused.
    requests: int = 0
    refusals: int = 0

    @property
    def refused_share(self) -> float:
        return len(self.refused) / max(1, len(self.ok) + len(self.refused))

    @property
    def agrees(self) -> bool:
        """Whether the vendor counted what its clients saw."""
        seen = (len(self.ok) + len(self.refused), len(self.refused))
        return (self.requests, self.refusals) == seen

    @property
    def used(self) -> float:
        """Of what the others leave, and of what was offered."""
        left = sum(
            min(OFFERED_PER_S, allowed(at / self.seconds) / 60 - others_per_s(at / self.seconds))
            for at in range(int(self.seconds))
        )
        return len(self.ok) / left

    @property
    def after_halving(self) -> int:
        halved = HALVED * self.seconds
        return sum(halved <= at < halved + AFTER_HALVING_S for at in self.refused)


@dataclass
class Run:
    by_kind: dict[str, Played]
    errors: list[str]
    #: Decisions of the pods without Redis, and the longest delay of a call.
    alone: int
    late_s: float


def policy(kinds: list[str]) -> Policy:
    return Policy(
        environment="production",
        default_tier="free",
        tiers=(Tier(name="free"),),
        dependencies=tuple(
            Dependency(name=kind, vendor_limits=(KINDS[kind].limit,), breaker=NEVER_OPENS) for kind in kinds
        ),
        tuning=replace(PATIENT, vendor_floor_percent=FLOOR_PERCENT),
    )


def in_processes(kinds: list[str], *, seconds: float, pods: int = PODS, processes: int = PROCESSES) -> Run:
    """Each kind of vendor is a process. One fleet calls all of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = Valkey(folder)
        store.start()
        stack.callback(store.stop)
        client = stack.enter_context(redis.Redis.from_url(store.url))
        publish(client, policy(kinds), revision=1)
        vendors = {
            kind: Child(stack, "tests.llm.limited_vendor", kind, str(seed)) for seed, kind in enumerate(kinds)
        }
        urls = json.dumps({kind: vendor.line() for kind, vendor in vendors.items()})
        per_s = str(OFFERED_PER_S / processes)
        fleet = [
            Child(
                stack,
                "tools.experiments.vendor_pods",
                f"pod-{number}",
                store.url,
                str(pods // processes),
                str(pods),
                per_s,
                str(number),
                urls,
            )
            for number in range(processes)
        ]
        for child in fleet:
            child.line()
        began = time.monotonic() + 1
        for child in (*vendors.values(), *fleet):
            child.say(f"{began} {seconds}")
        found = [child.found(seconds) for child in fleet]
        for vendor in vendors.values():
            vendor.say("end")
        counted = {kind: vendor.found(0) for kind, vendor in vendors.items()}
    return Run(
        {
            kind: Played(
                seconds,
                sorted(at for one in found for at in one["ok"][kind]),
                sorted(at for one in found for at in one["refused"][kind]),
                sum(one["held"][kind] for one in found),
                found[0]["followed"][kind],
                counted[kind]["requests"],
                counted[kind]["refused"],
            )
            for kind in kinds
        },
        [error for one in found for error in one["errors"]],
        sum(one["alone"] for one in found),
        max(one["late_s"] for one in found),
    )


def simulated(client: redis.Redis, kind: str, *, seconds: float, seed: int = 1) -> Played:
    """The same vendor in virtual time."""
    client.flushall()
    limit = KINDS[kind].limit
    learner = Learner(client, ceiling=limit.limit, lowest=max(1, limit.limit * FLOOR_PERCENT // 100))
    fleet = Fleet(Store(client, [limit]), limit, learner=learner)
    others = lambda at: others_per_s(at / seconds)  # noqa: E731
    found = play(rule(kind, seconds), fleet, seconds=seconds, others_per_s=others, seed=seed)
    refused = set(found.refusals)
    return Played(
        seconds, [at for at in found.answers if at not in refused], found.refusals, 0, found.followed
    )


def vendors_as_processes() -> Result:
    """T32: a quarter of an hour."""
    run = in_processes(list(KINDS), seconds=SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        store = Valkey(Path(folder))
        store.start()
        try:
            with redis.Redis.from_url(store.url) as client:
                virtual = {kind: simulated(client, kind, seconds=SECONDS) for kind in KINDS}
        finally:
            store.stop()
    return result_of(run, virtual)


def result_of(run: Run, virtual: dict[str, Played]) -> Result:
    found, seconds = run.by_kind, SECONDS
    heading = ("the vendor", "429s", "429s in the 2 min after the halving", "used of what the others leave")
    rows = [(*heading, *(f"simulated: {one}" for one in ("429s", "after the halving", "used")))]
    rows += [(kind.name, *_figures(found[name]), *_figures(virtual[name])) for name, kind in KINDS.items()]
    result = Result(
        key="T32",
        title="Vendors and pods as processes",
        traffic=f"{len(KINDS)} vendors are processes, and so are {PODS} pods, {PODS // PROCESSES} in each."
        " Their clients of OpenAI and of Anthropic are guarded, and call each vendor over HTTP"
        f" {OFFERED_PER_S:.0f} times per s. Answers take {ANSWER_S:.0f} s on average. The limit is"
        f" {PER_MINUTE} a minute, or {SLOTS.limit} calls at once. The vendor halves it at"
        f" {HALVED * seconds:.0f} s, and doubles it at {DOUBLED * seconds:.0f} s. Others use 20 % of the"
        f" key, and 40 % from {MORE_OTHERS * seconds:.0f} to {FEWER_OTHERS * seconds:.0f} s. This is the"
        " schedule of case L10 in a third of its time; minutes, ticks and waits are not shortened."
        " Redis, seconds and headers are real, so the figures differ from run to run. The simulation"
        " plays the same schedule. A bucket is full at the beginning, so more than 100 % can be used.",
        expected="At most 1 % of the calls are refused where the answers state a limit, at least 95 % of what"
        " the others leave is used, and at most 60 are refused in the two minutes after the halving. Where a"
        " minute is enforced in each second, and where the answers say nothing, each change costs refusals,"
        " and changes come three times as often as in T28 and T30: at most 4 %, or 6 % for calls at once,"
        " and at least 90 % and 65 %.",
        charts=(
            Chart(
                "The limit that applies",
                "seconds",
                "calls per minute",
                {
                    "says nothing": found["silent"].followed,
                    "states its limit": found["minute"].followed,
                    "for us": [
                        (at, allowed(at / seconds) - 60 * others_per_s(at / seconds))
                        for at in range(0, int(seconds), 5)
                    ],
                },
                {"configured": PER_MINUTE},
            ),
        ),
        table=tuple(rows),
    )
    for name, kind in KINDS.items():
        one = found[name]
        calls = len(one.ok) + len(one.refused)
        result.check(
            f"{kind.name[0].upper()}{kind.name[1:]}: {share(one.refused_share, 1)} of {calls:,} calls"
            f" are refused, {one.after_halving} in the two minutes after the halving, and"
            f" {share(one.used, 1)} of what the others leave is used",
            one.refused_share <= kind.refused and one.after_halving <= kind.soon and one.used >= kind.used,
        )
    result.check(
        f"The vendors have counted the calls of the pods, {len(run.errors)} had another error, and"
        f" the pods made {run.alone} decisions without Redis; the machine delayed calls by at most"
        f" {ms(run.late_s)}",
        not run.errors and run.alone == 0 and all(one.agrees for one in found.values()),
    )
    return result


def _figures(one: Played) -> tuple[str, str, str]:
    return (share(one.refused_share, 1), str(one.after_halving), share(one.used, 1))
