"""Jobs of a backlog while Redis is frozen, killed, or fails over."""

import time

from tests.agents.redis_topologies import Watched
from tests.faults.failover import FAILOVER_S, kill_primary, sentinels
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.team import CALLER_S, SLACK_S, Saw, Team
from tests.faults.work import STEP_S

#: Jobs at once in each of two pods.
WORKERS = 4
LEASE_S = 4.0
#: Effects of a job that is done soon, and of one that takes longer than its lease.
QUICK, SLOW = 6, int(1.5 * LEASE_S / STEP_S)
#: Slow jobs do not use every worker.
SLOW_JOBS = 5
#: Workers look at a backlog at least every second, and a pod may begin with a tenth of the traffic.
GOES_ON_S = 10.0


class Jobs:
    """A team, and the jobs that it got."""

    def __init__(self, field: Field, name: str, *, redis_url: str = "", lease_s: float = LEASE_S) -> None:
        self._field = field
        self.team = Team(field, name, redis_url=redis_url, lease_s=lease_s, age_s=3600.0)
        self.lease_s = lease_s
        self._client = self.team.pods[0]
        #: Another row may have used the same Redis: a known id is not queued again.
        self._name = name
        self.ids: list[str] = []
        self.team.begin(WORKERS)
        #: By earlier rows, in the same Redis.
        self._done = self.depth()["done"]
        self.submit("first", 4 * WORKERS, QUICK)
        self.until_done()
        for pod in self.team.pods:
            pod.do("end-work")
        self.team.remember()
        self.team.begin(WORKERS)

    def submit(self, name: str, count: int, steps: int, *, priority: int = 5) -> list[str]:
        """Submit jobs until each is in the backlog."""
        ids = [f"{self._name}-{name}-{number}" for number in range(count)]
        self.ids += ids
        self.again(ids, steps, priority=priority)
        return ids

    def again(self, ids: list[str], steps: int, *, priority: int = 5) -> float:
        jobs = dict.fromkeys(ids, steps)
        return self._field.until(
            "every job is submitted",
            lambda: set(self._client.do("submit", jobs=jobs, priority=priority)) <= {"accepted", "known"},
            GOES_ON_S,
        )

    def try_to_submit(self, ids: list[str]) -> set[str]:
        """Once; returns the outcomes."""
        return set(self._client.do("submit", jobs=dict.fromkeys(ids, QUICK), priority=5))

    def results(self, ids: list[str]) -> dict[str, int]:
        found: dict[str, int] = self._client.do("results", ids=ids)
        return found

    def begin_again(self) -> None:
        """Redis has lost everything."""
        self._done = 0

    def until_done(self) -> float:
        return self._field.until(
            "every job is done", lambda: self.results(self.ids) == {"done": len(self.ids)}, 60
        )

    def begun(self, ids: list[str]) -> None:
        self._field.until("they run", lambda: set(ids) <= set(self.team.judged().fences), 20)

    def effects(self, since_ns: int) -> int:
        """How many jobs had an effect since then."""
        return len(self.team.judged(since_ns).fences)

    def depth(self) -> dict[str, int]:
        found: dict[str, int] = self._client.do("depth")
        return found

    def none_lost(self) -> None:
        """Each job ended once, in the Redis that there is now."""
        depth, jobs = self.depth(), len(self.ids)
        done, submitted = depth["done"] - self._done, depth["submitted"] - self._done
        if (submitted, done, depth["jobs"], depth["dead"]) != (jobs, jobs, 0, 0):
            raise Broken(f"of {jobs} jobs: {depth}")


def _none_together(jobs: Jobs, *, at_most_s: float = 0.0) -> str:
    found = jobs.team.judged()
    if found.together_s > at_most_s:
        raise Broken(
            f"two workers passed their checks of a job for {found.together_s:.2f} s, at most {at_most_s:g} s"
        )
    return f"{len(found.repeated())} jobs ran again, {found.refused} late effects were refused"


def _refused_soon(jobs: Jobs, ids: list[str]) -> Saw:
    """While Redis does not answer. Returns what callers saw since the last time."""
    refused = jobs.try_to_submit(ids) | jobs.try_to_submit(ids)
    asked = jobs.results(jobs.ids[:3])
    if refused != {"store_unavailable"} or asked != {"StoreUnavailable": 3}:
        raise Broken(f"without Redis, submit was answered with {refused}, result with {asked}")
    saw = jobs.team.saw()
    saw.within(submit=CALLER_S, result=CALLER_S)
    return saw


@row("54", "backlog-frozen")
def backlog_frozen(field: Field) -> str:
    """For less than a lease, no job runs twice; for longer, only those that ran, and never at one time."""
    jobs = Jobs(field, "frozen-jobs")
    short = jobs.submit("short", 60, QUICK)
    jobs.begun(short[:5])
    field.freeze()
    time.sleep(LEASE_S / 4)
    field.thaw()
    jobs.until_done()
    if again := jobs.team.judged().repeated():
        raise Broken(f"frozen for a quarter of a lease, and {again} ran twice")

    late = ["frozen-late-0", "frozen-late-1"]
    slow = jobs.submit("slow", SLOW_JOBS, SLOW, priority=10)
    jobs.submit("long", 60, QUICK)
    jobs.begun(slow)
    jobs.team.saw()
    field.freeze()
    frozen_ns = time.monotonic_ns()
    time.sleep(0.5)  # answers that were sent before
    quiet_ns = time.monotonic_ns()
    running = set(jobs.team.judged(frozen_ns).fences)
    saw = _refused_soon(jobs, late)
    time.sleep(max(0.0, 1.5 * LEASE_S - (time.monotonic_ns() - frozen_ns) / 1e9))
    new = set(jobs.team.judged(quiet_ns).fences) - running
    lost = saw.lost_ns | jobs.team.saw().lost_ns
    field.thaw()
    thawed_ns = time.monotonic_ns()
    back_s = field.until("workers go on", lambda: jobs.effects(thawed_ns), GOES_ON_S)
    # Redis may have got the questions that were not answered: submitting these again is safe.
    jobs.again(late, QUICK)
    jobs.ids += late
    jobs.until_done()
    jobs.none_lost()
    repeated = jobs.team.judged().repeated()
    said = _none_together(jobs)
    jobs.team.end()
    if new:
        raise Broken(f"{new} were handed out while Redis was frozen")
    if not repeated <= running:
        raise Broken(f"{repeated - running} ran twice, and did not run when Redis was frozen")
    noticed_s = _noticed(lost, slow, frozen_ns)
    return (
        f"{len(jobs.ids)} jobs, 0 lost; {said}; {SLOW_JOBS} workers knew that they had lost their jobs after "
        f"{noticed_s:.1f} s of a lease of {LEASE_S:g} s; at work {back_s:.1f} s after Redis went on"
    )


def _noticed(lost: dict[str, int], ids: list[str], since_ns: int) -> float:
    """The longest time until the worker of such a job noticed that it may have lost it."""
    took_s = [(at - since_ns) / 1e9 for owner, at in lost.items() if owner.rpartition("/")[0] in ids]
    if len(took_s) != len(ids) or max(took_s) > LEASE_S + STEP_S + SLACK_S:
        raise Broken(
            f"of {len(ids)} jobs, the loss was noticed after {took_s} s; the lease has {LEASE_S:g} s"
        )
    return max(took_s)


@row("54b", "backlog-killed")
def backlog_killed(field: Field) -> str:
    """The jobs are lost, and say so; submitted again, each is done, and workers need no help."""
    jobs = Jobs(field, "killed-jobs")
    slow = jobs.submit("slow", SLOW_JOBS, SLOW, priority=10)
    jobs.submit("quick", 60, QUICK)
    jobs.begun(slow)
    field.kill()
    late = ["killed-late-0"]
    _refused_soon(jobs, late)
    field.valkey.start()
    jobs.begin_again()
    known = field.until("submit works", lambda: jobs.try_to_submit(late) == {"accepted"}, GOES_ON_S)
    unknown = jobs.results(jobs.ids).get("unknown", 0)
    lost = len(jobs.ids)
    # The truth of these jobs is elsewhere, and their client submits them again.
    jobs.again(slow, SLOW, priority=10)
    jobs.again([one for one in jobs.ids if one not in slow], QUICK)
    jobs.ids += late
    jobs.until_done()
    jobs.none_lost()
    # A worker of before believes in its job until its lease ends, or Redis does not know it at a renewal.
    said = _none_together(jobs, at_most_s=LEASE_S)
    jobs.team.end()
    if unknown != lost:
        raise Broken(f"{unknown} of {lost} jobs that Redis lost are unknown")
    return f"{lost} jobs lost and unknown, accepted again {known:.1f} s after the start, all done; {said}"


@row("54c", "backlog-failed-over")
def backlog_failed_over(field: Field) -> str:
    """A replica in step takes over: no job is lost, and those that run keep their leases."""
    with sentinels(field) as formation:
        return _failed_over(field, formation)


def _failed_over(field: Field, formation: Watched) -> str:
    lease_s = 2 * FAILOVER_S
    jobs = Jobs(field, "moved-jobs", redis_url=formation.url, lease_s=lease_s)
    slow = jobs.submit("slow", SLOW_JOBS, int(FAILOVER_S / STEP_S), priority=10)
    jobs.submit("quick", 200, QUICK)
    jobs.begun(slow)
    took_s = kill_primary(field, formation)
    led_ns = time.monotonic_ns()
    back_s = field.until(
        "new jobs are handed out", lambda: not jobs.team.judged(led_ns).fences.keys() <= set(slow), GOES_ON_S
    )
    jobs.submit("late", 10, QUICK)
    jobs.until_done()
    jobs.none_lost()
    repeated = jobs.team.judged().repeated()
    said = _none_together(jobs, at_most_s=lease_s)
    saw = jobs.team.saw()
    saw.within(submit=CALLER_S, result=CALLER_S)
    jobs.team.end()
    if repeated & set(slow):
        raise Broken(f"{repeated & set(slow)} were replicated, leased, and handed out again")
    return (
        f"{len(jobs.ids)} jobs, 0 lost; {said}; another primary after {took_s:.1f} s, "
        f"jobs handed out {back_s:.1f} s later"
    )
