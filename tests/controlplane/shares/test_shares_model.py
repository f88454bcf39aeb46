"""Pieces of what is spent without Redis, whatever servers, gateways and networks do.

Gateways and pods are the real ones, with clocks of their own; the table is a list that changes
in whole transactions. Every pod always spends whatever it may. Nothing is ever spent twice.
"""

from collections import deque
from copy import deepcopy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from controlplane.shares.assignment_round import Promise
from controlplane.shares.cells import Cell, FreeCells, freed, level_for
from controlplane.shares.grantor import Grantor
from fuseboard.contract.shares import ShareLease, calls_of
from fuseboard.without_redis.reserved_share import ReservedShare

LEASE_S, REST_S, WINDOW_S = 100.0, 20.0, 20.0
#: f x N: few enough that pieces of no whole call occur.
POOLS = (1, 7, 100)


class World:
    """Real time, and clocks that run up to half a percent fast or slow."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def clock(self, rate: float, offset: float):
        return lambda: self.now * rate + offset


class Table:
    def __init__(self) -> None:
        self.rows, self.terms, self.ids = [], 0, 0

    def new_terms(self) -> int:
        self.terms += 1
        return self.terms

    def write(self, step) -> None:
        rows = deepcopy(step.rows)
        for row in rows:
            if row.id is None:
                self.ids += 1
                row.id = self.ids
        self.rows = rows


class Gateway:
    def __init__(self, clock) -> None:
        self.clock, self.grantor = clock, Grantor()

    def promise_to(self, pod, now: float) -> Promise | None:
        promise = self.grantor.promises.get((pod.name, pod.boot))
        return promise if promise is not None and promise.until > now else None

    def decide(self, table: Table, *, begun: float, between=lambda: None):
        """One look; beats come ``between`` its parts."""
        step = self.grantor.begin(deepcopy(table.rows), begun=begun)
        times = {"seen": self.clock(), "lease_s": LEASE_S, "rest_s": REST_S}
        for _ in self.grantor.decide(step, **times, new_terms=table.new_terms):
            between()
        return step

    def commit(self, step, between=lambda: None) -> None:
        for _ in self.grantor.commit(step, LEASE_S):
            between()


class Pod:
    def __init__(self, number: int, clock) -> None:
        self.name, self.boot = f"pod-{number % 3}", f"boot-{number}"
        self.share = ReservedShare(clock)
        self.clock = clock
        self.hears = self.is_heard = True
        #: Per pool, what it spent: its own time and calls.
        self.spent = {pool: deque() for pool in POOLS}


class Fleet(RuleBasedStateMachine):
    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.world, self.table = World(), Table()
        self.gateways: list[Gateway] = []
        self.born = 0
        self.everyone: list[Pod] = []
        self.on_their_way: list[tuple[Pod, float, Promise, int]] = []
        self.log = {pool: deque() for pool in POOLS}
        for which in range(2):
            self.restart_gateway(which, 1.0)

    @rule(which=st.integers(0, 1), rate=st.sampled_from((0.995, 1.0, 1.005)))
    def restart_gateway(self, which: int, rate: float) -> None:
        gateway = Gateway(self.world.clock(rate, 50_000.0 * which))
        if len(self.gateways) > which:
            self.gateways[which] = gateway
        else:
            self.gateways.append(gateway)

    @rule(target=pods, count=st.integers(1, 4), rate=st.sampled_from((0.995, 1.0, 1.005)))
    def servers_come(self, count: int, rate: float):
        pods = []
        for _ in range(count):
            self.born += 1
            pods.append(Pod(self.born, self.world.clock(rate, self.born * 1_000.0)))
        self.everyone += pods
        return multiple(*pods)

    @rule(pod=consumes(pods))
    def server_dies(self, pod: Pod) -> None:
        self.everyone.remove(pod)

    @rule(pod=consumes(pods), which=st.integers(0, 1))
    def server_leaves(self, pod: Pod, which: int) -> None:
        pod.share.give_up()
        gateway = self.gateways[which]
        gateway.grantor.record(pod.name, pod.boot, share=None, leaving=True, now=gateway.clock())

    def _beat(self, pod: Pod, which: int) -> tuple[Pod, float, Promise, int] | None:
        gateway = self.gateways[which]
        asked, now = pod.share.clock(), gateway.clock()
        gateway.grantor.record(pod.name, pod.boot, share=pod.share.held, leaving=False, now=now)
        promise = gateway.promise_to(pod, now)
        return promise and (pod, asked, promise, int((promise.until - now) * 1000))

    def _arrives(self, answer: tuple[Pod, float, Promise, int]) -> None:
        pod, asked, promise, remaining_ms = answer
        if remaining_ms >= 1:
            lease = ShareLease(
                level=promise.level, place=promise.place, terms=promise.terms, remaining_ms=remaining_ms
            )
            pod.share.take(lease, asked=asked)

    def _look(self, which: int, waited: float = 0.0, lost: int = 0) -> None:
        gateway = self.gateways[which]
        begun = gateway.clock()
        self.world.now += waited

        def everybody_beats() -> None:
            for answer in [self._beat(pod, which) for pod in self.everyone if pod.is_heard]:
                if answer is not None and answer[0].hears:
                    self._arrives(answer)

        step = gateway.decide(self.table, begun=begun, between=everybody_beats)
        if lost != 1:
            self.table.write(step)
        if lost:
            gateway.grantor.abandon(step)
        else:
            gateway.commit(step, everybody_beats)

    @rule(which=st.integers(0, 1), waited=st.sampled_from((0.0, 2.0)), lost=st.integers(0, 2))
    def a_gateway_has_trouble(self, which: int, waited: float, lost: int) -> None:
        """It may wait for the lock; and its commit may fail, or only seem to."""
        self._look(which, waited, lost)

    @rule(pod=pods, hears=st.booleans(), is_heard=st.booleans())
    def the_network_changes(self, pod: Pod, hears: bool, is_heard: bool) -> None:
        pod.hears, pod.is_heard = hears, is_heard

    @rule(beats=st.sampled_from((1, 2, 4)), which=st.integers(0, 1), late=st.booleans())
    def life_goes_on(self, beats: int, which: int, late: bool) -> None:
        """Beats every five seconds, each to a gateway or the other; answers may take as long."""
        for _ in range(beats):
            self.world.now += 5.0
            on_their_way, self.on_their_way = self.on_their_way, []
            for number, pod in enumerate(self.everyone):
                answer = self._beat(pod, (number + which) % 2) if pod.is_heard else None
                if pod.hears and answer:
                    self.on_their_way.append(answer)
            for answer in on_their_way + ([] if late else self.on_their_way):
                self._arrives(answer)
            self._look(which)
            self._look(1 - which)
            self.nothing_is_spent_twice()

    @rule(beats=st.sampled_from((8, 20, 40)))
    def a_long_time_passes(self, beats: int) -> None:
        self.life_goes_on(beats, 0, False)

    @invariant()
    def nothing_is_spent_twice(self) -> None:
        """Each pod spends half of what it may, again and again; no window ever has more than the pool."""
        for pool in POOLS:
            log = self.log[pool]
            for pod in self.everyone:
                mine = pod.spent[pool]
                while mine and mine[0][0] <= pod.clock() - WINDOW_S:
                    mine.popleft()
                calls = pod.share.calls(pool) - sum(amount for _, amount in mine)
                calls = (calls + 1) // 2
                if calls > 0:
                    mine.append((pod.clock(), calls))
                    log.append((self.world.now, calls))
            # Clocks that are half a percent fast see a window end so much early.
            while log and log[0][0] <= self.world.now - WINDOW_S * 0.99:
                log.popleft()
            assert sum(amount for _, amount in log) <= pool

    @invariant()
    def pieces_in_force_do_not_overlap(self) -> None:
        held = [pod.share.held for pod in self.everyone if pod.share.left_s > 0]
        assert sum(2.0**-share.level for share in held) <= 1.0

    @invariant()
    def rows_do_not_overlap(self) -> None:
        assert sum(2.0**-row.level for row in self.table.rows) <= 1.0


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def calm(world, table, gateways, pods, seconds, *, step_s=1.0):
    """Everybody beats, gateways look, and nothing goes wrong."""
    until = world.now + seconds
    while world.now < until:
        world.now += step_s
        for number, pod in enumerate(pods):
            gateway = gateways[number % len(gateways)]
            now = gateway.clock()
            gateway.grantor.record(pod.name, pod.boot, share=pod.share.held, leaving=False, now=now)
            if promise := gateway.promise_to(pod, now):
                lease = ShareLease(
                    level=promise.level,
                    place=promise.place,
                    terms=promise.terms,
                    remaining_ms=int((promise.until - now) * 1000),
                )
                pod.share.take(lease, asked=pod.share.clock())
        for gateway in gateways:
            begun = gateway.clock()
            step = gateway.decide(table, begun=begun)
            table.write(step)
            gateway.commit(step)


def fleet_of(pods: int, gateways: int = 1):
    world = World()
    clock = world.clock(1.0, 0.0)
    return world, Table(), [Gateway(clock) for _ in range(gateways)], [Pod(n, clock) for n in range(pods)]


def test_a_new_server_has_its_piece_within_two_beats_and_soon_a_fair_one():
    world, table, gateways, pods = fleet_of(3)
    calm(world, table, gateways, pods, 2)
    assert sum(pod.share.calls(800) for pod in pods) == 300
    calm(world, table, gateways, pods, REST_S * 2)
    assert [pod.share.calls(100) for pod in pods] == [25, 25, 25]


def test_servers_that_come_one_by_one_need_not_wait_for_each_other():
    world, table, gateways, pods = fleet_of(9)
    for came in range(1, 10):
        calm(world, table, gateways, pods[:came], 2)
        assert pods[came - 1].share.calls(10_000) > 0
    calm(world, table, gateways, pods, REST_S * 5)
    assert min(pod.share.calls(16_000) for pod in pods) == 1000


def test_a_doubled_fleet_shares_what_one_had_once_what_was_given_up_has_rested():
    world, table, gateways, pods = fleet_of(4)
    calm(world, table, gateways, pods, REST_S * 2)
    assert sum(pod.share.calls(100) for pod in pods) == 100
    clock = world.clock(1.0, 0.0)
    pods += [Pod(n, clock) for n in range(4, 8)]
    calm(world, table, gateways, pods, REST_S * 3)
    assert sorted(pod.share.calls(800) for pod in pods) == [100] * 8


def test_those_who_stay_grow_when_the_others_are_gone():
    world, table, gateways, pods = fleet_of(8, gateways=2)
    calm(world, table, gateways, pods, REST_S * 2)
    calm(world, table, gateways, pods[:2], (LEASE_S + REST_S) * 2)
    assert sum(pod.share.calls(100) for pod in pods[:2]) == 100
    assert sum(pod.share.calls(100) for pod in pods[2:]) == 0


def test_a_gateway_that_starts_again_renews_the_living_at_once_and_the_dead_never():
    world, table, gateways, pods = fleet_of(4)
    calm(world, table, gateways, pods, 5)
    before = [pod.share.held for pod in pods]
    gateways = [Gateway(world.clock(1.0, 0.0))]
    late = Pod(9, world.clock(1.0, 0.0))
    calm(world, table, gateways, [*pods[:3], late], LEASE_S / 2)
    assert [pod.share.held for pod in pods[:2]] != []
    assert all(pod.share.left_s > 0 for pod in pods[:3])
    assert before[3] == pods[3].share.held  # what the dead one may still spend is nobody else's
    assert sum(pod.share.calls(100) for pod in [*pods, late]) <= 100


def test_a_thousand_servers_are_served_in_one_look():
    world, table, gateways, pods = fleet_of(1000)
    calm(world, table, gateways, pods, 2)
    assert sum(pod.share.calls(10_000) for pod in pods) > 4_500 * 1000 / 1024
    assert all(pod.share.held for pod in pods)


def test_whole_calls_of_pieces_add_up_to_the_whole():
    for amount in (0, 1, 5, 7, 100, 10**9):
        assert sum(calls_of(6, place, amount) for place in range(64)) == amount


def free_beside(taken: list[Cell]) -> FreeCells:
    parts = FreeCells.beside(taken)
    while True:
        try:
            next(parts)
        except StopIteration as ended:
            return ended.value


def test_what_is_left_of_a_piece_and_its_first_part_are_the_piece():
    assert freed(Cell(1, 1), 3) == [Cell(2, 3), Cell(3, 5)]
    free = free_beside([Cell(3, 4)])
    assert free.room_at(3) == 7
    assert free.take(3) == Cell(3, 0)  # where there is most room to grow
    assert [level_for(servers) for servers in (0, 1, 2, 3, 4, 5, 1000)] == [0, 0, 1, 2, 2, 3, 10]
