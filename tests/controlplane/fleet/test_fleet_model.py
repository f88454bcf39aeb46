"""Divisors of limits without Redis, whatever processes share names, stop, or pretend to be others.

The fleet is the real one. Every honest process sends heartbeats in each round; an attacker sends heartbeats
without a counted request, and repeats those of others.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.fleet import Fleet
from fuseboard.contract.sync import Counters, SyncRequest
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat

PACE_S = 5.0
NAMES = st.sampled_from(["shop-0", "shop-1", "shop-2"])
#: Rounds after which every process is counted, and knows it: a name that its owner left is free after three
#: heartbeats of the next one, and three more count the others.
SETTLED = 8


@dataclass
class Process:
    name: str
    boot: str
    born: float
    sequence: int = 0
    has_asked: bool = False
    reported: bool = False
    leaves: bool = False
    divisor: int = 1


class Divisors(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = TurnedClock()
        self.fleet = Fleet("production", self.clock, beat_ms=int(PACE_S * 1000), beats_per_s=2_000)
        self.running: list[Process] = []
        self.sent: list[SyncRequest] = []
        self.started = self.ever_asked = self.invented = 0
        self.settled = 0

    def heartbeat(self, process: Process) -> None:
        process.sequence += 1
        sent = beat(
            process.name,
            boot=process.boot,
            sequence=process.sequence,
            up_ms=int((self.clock.now - process.born) * 1000),
            counters=Counters(requests=int(process.has_asked)),
            leaving=process.leaves,
        )
        self.sent.append(sent)
        self.fleet.absorb(sent)
        process.reported = process.has_asked
        process.divisor = self.fleet.divisor_of(process.name, process.boot)

    @precondition(lambda self: len(self.running) < 6)
    @rule(name=NAMES, age_s=st.integers(0, 500))
    def a_process_starts(self, name: str, age_s: int) -> None:
        self.started += 1
        self.settled = 0
        self.running.append(Process(name, f"boot-{self.started:04}", self.clock.now - age_s))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_process_counts_its_first_request(self, data: Any) -> None:
        process = data.draw(st.sampled_from(self.running))
        self.ever_asked += not process.has_asked
        process.has_asked = True
        self.settled = 0

    @precondition(lambda self: self.running)
    @rule(data=st.data(), signs_off=st.booleans())
    def a_process_ends(self, data: Any, signs_off: bool) -> None:
        process = data.draw(st.sampled_from(self.running))
        self.running.remove(process)
        self.settled = 0
        if signs_off:
            process.leaves = True
            self.heartbeat(process)

    @rule(name=NAMES, up_ms=st.sampled_from([0, 30_000, 10**9]), leaving=st.booleans(), old=st.booleans())
    def an_attacker_takes_a_name(self, name: str, up_ms: int, leaving: bool, old: bool) -> None:
        self.settled = 0
        self.invented += not old
        boot = f"invented-{self.invented:04}"
        for stays in (False, True) if leaving else (False,):
            self.fleet.absorb(beat(name, boot=boot, up_ms=up_ms, leaving=stays, counters=Counters()))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_heartbeat_is_repeated(self, data: Any) -> None:
        self.settled = 0
        self.fleet.absorb(data.draw(st.sampled_from(self.sent[-30:])))

    @rule(rounds=st.integers(1, SETTLED))
    def time_passes(self, rounds: int) -> None:
        for _ in range(rounds):
            for _ in range(int(PACE_S)):
                self.clock.turn(1.0)
                self.fleet.sweep()
            for process in self.running:
                self.heartbeat(process)
            self.settled += 1

    @invariant()
    def shares_add_up_to_one_limit_at_most(self) -> None:
        if self.settled >= SETTLED:
            total = sum(1 / process.divisor for process in self.running if process.has_asked)
            assert total <= 1 + 1e-9, (total, self.running)

    @invariant()
    def an_invented_heartbeat_shrinks_no_share_of_a_process_that_counted_a_request(self) -> None:
        asking = [process for process in self.running if process.reported]
        assert all(process.divisor <= self.ever_asked for process in asking), asking

    @invariant()
    def a_running_pod_is_online(self) -> None:
        if self.settled >= SETTLED:
            online = {name for name, one in self.fleet.servers.items() if one.state is ServerState.ONLINE}
            assert {process.name for process in self.running} <= online


TestDivisors = Divisors.TestCase
TestDivisors.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
