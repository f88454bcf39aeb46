"""Locks while Redis is frozen, killed, or fails over."""

import signal
import time

from tests.agents.redis_topologies import Watched
from tests.faults.failover import freeze_primary, sentinels
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.team import CALLER_S, SLACK_S, Team
from tests.faults.work import STEP_S

TTL_S, WAIT_S = 2.0, 0.5
#: Held for a moment again and again, and held for as long as possible.
BUSY, HELD = "report", "nightly"
GOES_ON_S = 10.0


class Locks:
    """Three pods that want two locks."""

    def __init__(self, field: Field, name: str, *, redis_url: str = "") -> None:
        self._field = field
        self.team = Team(field, name, redis_url=redis_url)
        self._begin()
        self.go_on(0, 2)
        for pod in self.team.pods:
            pod.do("end-work")
        self.team.remember()
        self.team.saw()
        self._begin()
        self.go_on(time.monotonic_ns(), 2)

    def _begin(self) -> None:
        self.team.begin()
        for pod in self.team.pods:
            pod.do("locks", name=BUSY, ttl_s=TTL_S, wait_s=WAIT_S, hold_s=4 * STEP_S)
            pod.do("locks", name=HELD, ttl_s=TTL_S, wait_s=WAIT_S, hold_s=3600.0)

    def go_on(self, since_ns: int, blocks: int) -> float:
        """Wait until so many processes had the lock since then, and one has the other lock."""

        def had() -> bool:
            fences = self.team.judged(since_ns).fences
            return len(fences.get(BUSY, ())) >= blocks and HELD in fences

        return self._field.until("locks are acquired", had, GOES_ON_S)

    def callers_waited(self) -> str:
        """Raise unless every caller got its answer in time, and knew why."""
        saw = self.team.saw()
        saw.within(acquire=WAIT_S + CALLER_S, release=CALLER_S)
        saw.must("acquire StoreUnavailable")
        return (
            f"acquire {saw.longest_s['acquire']:.1f} s and release {saw.longest_s['release']:.1f} s at most"
        )

    def together(self, *, at_most_s: float) -> str:
        found = self.team.judged()
        if found.together_s > at_most_s:
            raise Broken(
                f"two owners passed their checks for {found.together_s:.2f} s, at most {at_most_s:g} s"
            )
        blocks = sum(map(len, found.fences.values()))
        return (
            f"{blocks} blocks with rising fences; two owners at once for {found.together_s:.2f} s, "
            f"{found.refused} writes refused"
        )


@row("55", "lock-frozen")
def lock_frozen(field: Field) -> str:
    """The owner knows in time that it may have lost its lock; no other process had it before that."""
    locks = Locks(field, "frozen-locks")
    locks.team.saw()
    field.freeze()
    frozen_ns = time.monotonic_ns()
    time.sleep(3 * TTL_S)
    saw = locks.team.saw()
    still = locks.team.judged(frozen_ns + int((TTL_S + STEP_S) * 1e9)).fences
    field.thaw()
    thawed_ns = time.monotonic_ns()
    back_s = locks.go_on(thawed_ns, 3)
    said = locks.together(at_most_s=0.0)
    saw.must("acquire StoreUnavailable", "release LockLost")
    saw.within(acquire=WAIT_S + CALLER_S, release=CALLER_S)
    waited = saw.longest_s["acquire"]
    locks.team.end()
    noticed_s = [(at - frozen_ns) / 1e9 for owner, at in saw.lost_ns.items() if owner.startswith(HELD)]
    if len(noticed_s) != 1 or noticed_s[0] > TTL_S + STEP_S + SLACK_S:
        raise Broken(f"the owner noticed its loss after {noticed_s} s, the lock has {TTL_S:g} s")
    if still:
        raise Broken(f"{still} passed their checks after their time was over")
    return (
        f"{said}; lost after {noticed_s[0]:.1f} s of {TTL_S:g} s, StoreUnavailable after {waited:.1f} s at "
        f"most, acquired {back_s:.1f} s after Redis went on"
    )


@row("55b", "lock-killed")
def lock_killed(field: Field) -> str:
    """Redis forgets its locks: fences rise on, so a resource that compares them has one owner."""
    locks = Locks(field, "killed-locks")
    locks.team.saw()
    field.kill()
    # A lock that is valid when Redis is back, and one that is not.
    time.sleep(TTL_S / 4)
    field.valkey.start()
    started_ns = time.monotonic_ns()
    back_s = locks.go_on(started_ns, 3)
    waited = locks.callers_waited()
    field.kill()
    time.sleep(2 * TTL_S)
    field.valkey.start()
    again_s = locks.go_on(time.monotonic_ns(), 3)
    waited_again = locks.callers_waited()
    said = locks.together(at_most_s=TTL_S)
    locks.team.end()
    return (
        f"{said}; acquired {back_s:.1f} and {again_s:.1f} s after the starts; {waited}; then {waited_again}"
    )


@row("55c", "lock-failed-over")
def lock_failed_over(field: Field) -> str:
    """The old primary is frozen, and goes on as one: the new one's locks have the higher fences."""
    with sentinels(field) as formation:
        return _failed_over(field, formation)


def _failed_over(field: Field, formation: Watched) -> str:
    locks = Locks(field, "moved-locks", redis_url=formation.url)
    locks.team.saw()
    old = formation.primary()
    took_s = freeze_primary(field, formation)
    back_s = locks.go_on(time.monotonic_ns(), 3)
    waited = locks.callers_waited()
    old.send(signal.SIGCONT)
    field.until("the old primary is a replica", lambda: old.client.info("replication")["role"] == "slave", 30)
    again_s = locks.go_on(time.monotonic_ns(), 3)
    said = locks.together(at_most_s=TTL_S)
    locks.team.end()
    return (
        f"{said}; another primary after {took_s:.1f} s, acquired {back_s:.1f} s later, and {again_s:.1f} s "
        f"after the old one was a replica; {waited}"
    )
