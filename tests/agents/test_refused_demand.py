"""Calls that a bulkhead refuses are demand: the pod sheds, and their requests are no work that it does."""

import pytest

from fuseboard.contract.load import PriorityLoad
from fuseboard.contract.protection import PodProtection, Shedding
from fuseboard.protection.pod import Pod, ServedRequest
from fuseboard.protection.shedding import Load, Shedder

GOLD, FREE = 90, 10


class Refusing:
    """Implements ``CallLoads`` for bulkheads whose calls never wait."""

    total = 0

    def waiting(self) -> int:
        return 0

    def refused(self) -> int:
        return self.total

    def slots(self) -> float:
        return 0.0

    def resize_for_pressure(self, cpu: float | None, memory: float | None, now: float) -> None:
        return


def played(refused_per_s: int, *, seconds: int = 5) -> tuple[Pod, Refusing]:
    calls, now = Refusing(), [0.0]
    pod = Pod(PodProtection(shedding=Shedding(queue_max=20)), (FREE, GOLD), calls=calls, clock=lambda: now[0])
    for tick in range(1, seconds * 4 + 1):
        now[0] = tick / 4
        for priority in (GOLD, FREE) * 10:
            visit = pod.enter("GET /", priority, f"source-{priority}")
            if isinstance(visit, ServedRequest):
                visit.answered(200)
                visit.leave()
        calls.total += refused_per_s // 4
        pod.tick(now[0])
    return pod, calls


@pytest.mark.parametrize(("refused_per_s", "sheds"), [(0, False), (16, False), (40, True)])
def test_a_pod_sheds_when_its_bulkheads_refuse_more_than_may_wait(refused_per_s: int, sheds: bool):
    pod, _ = played(refused_per_s)
    assert pod.shedder is not None
    assert pod.shedder.active is sheds
    assert (pod.waiting > 20) is sheds
    assert (sum(pod.shedder.refused.values()) > 0) is sheds


def test_the_lowest_tier_is_shed_first_and_counted_by_priority():
    pod, _ = played(40)
    free, gold = pod.load().priorities
    assert (free.priority, gold.priority) == (FREE, GOLD)
    assert free.asked == gold.asked == 200
    assert free.shed > 150
    assert free.shed > gold.shed


def test_a_dependency_that_loses_its_bulkhead_takes_its_total_with_it():
    pod, calls = played(40)
    calls.total = 0
    for tick in range(21, 60):
        pod.tick(tick / 4)
    assert pod.waiting < 1


def test_requests_whose_calls_were_refused_are_no_finished_work():
    shedder = Shedder(Shedding(), (FREE, GOLD), seed=1)
    for tick in range(1, 40):
        for _ in range(20):
            shedder.enter(GOLD, "gold")
            shedder.leave()
        shedder.tick(tick / 4, Load(refused=15))
    assert 15 < shedder.rate < 25


def test_another_set_of_tiers_counts_from_the_beginning():
    pod, _ = played(40)
    assert pod.shedder is not None
    pod.shedder.configure(Shedding(), (1, 2, 3))
    assert pod.load().priorities == tuple(PriorityLoad(priority=one, asked=0, shed=0) for one in (1, 2, 3))
    pod.configure(PodProtection(), (1,))
    assert pod.load().priorities == ()
