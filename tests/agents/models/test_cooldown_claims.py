"""For how long pauses that pods report stop the fleet: ``report.lua`` against an exact count of witnesses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
import redis

from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.scripts import read_script
from tests.agents.old_scripts import EARLIER_COMMITS, OLD_COMMITS, old_script
from tests.agents.scripts import VIRTUAL_CLOCK, Store

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000
PODS = ("web-1", "web-2", "web-3")
ASKED_US = (1_000_000, 59_999_999, 60_000_000, 60_000_001, 600_000_000, HOUR_US, 2 * HOUR_US)


@dataclass
class Oracle:
    """All claims, from the first one on."""

    #: Witness -> until when, at most.
    claims: dict[str, int] = field(default_factory=dict)
    #: What one pod alone may ask for.
    alone_until: int = 0

    def report(self, witness: str, now: int, asked: int, *, trusted: bool = False) -> None:
        until = now + min(asked, HOUR_US)
        self.alone_until = max(self.alone_until, until if trusted else min(until, now + MINUTE_US))
        if not trusted:
            self.claims[witness] = max(self.claims.get(witness, 0), until)

    def until(self) -> int:
        """When calls may be made again: the second longest claim is confirmed by the longest."""
        confirmed = sorted(self.claims.values())[-2:-1]
        return max(self.alone_until, *confirmed, 0)


def play(store: Store, random: Random, versions: Sequence[str]) -> None:
    """Random reports of pods of these versions, and the decision after each one."""
    oracle = Oracle()
    for _ in range(random.randrange(2, 12)):
        store.now_us += random.choice((0, 1, 1_000_000, 30_000_000, 60_000_000, 900_000_000))
        admitted = store.admit()
        version, pod, asked = random.choice(versions), random.choice(PODS), random.choice(ASKED_US)
        old = version in OLD_COMMITS
        store.report_script = (
            read_script("report", clock=VIRTUAL_CLOCK)
            if version == "present"
            else old_script(version, "report")
        )
        probes: tuple[tuple[str, int], ...] = ()
        witness = pod
        if admitted.verdict == "probes" and random.random() < 0.5:
            probes, witness = ((f"b{store.batches}.1", 0),), f"{pod} probe"
        if old and asked > HOUR_US:
            continue  # what an old pod writes then is garbage to every pod
        store.report(admitted.generation, server=pod, cooldown_us=asked, probes=probes)
        oracle.report(witness, store.now_us, asked, trusted=old)
        found = store.admit()
        left = oracle.until() - store.now_us
        if left > 0:
            assert (found.verdict, found.wait_us) == ("cooling_down", left)
        else:
            assert found.verdict != "cooling_down"


@pytest.mark.parametrize("state", ["closed", "open"])
@pytest.mark.parametrize(
    "versions", [("present",), *[("present", earlier) for earlier in EARLIER_COMMITS]], ids=str
)
def test_the_fleet_stops_exactly_as_long_as_its_witnesses_confirm(
    limits: redis.Redis, state: str, versions: tuple[str, ...]
):
    """A pod of a version before 0.2.0 is believed at once, and confirms nothing."""
    for seed in range(150):
        limits.flushall()
        store = Store(limits, policy=BreakerPolicy(probes=50, probe_lease_ms=3_600_000), guarded=True)
        if state == "open":
            limits.set("{d}:breaker", f"open 5 {store.now_us} {store.now_us} 0 0 ratio")
        play(store, Random(seed), versions)
